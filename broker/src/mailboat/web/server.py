"""The HTTP server of one process: which application it serves, and its start and end."""

import asyncio
import logging
import socket
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from mailboat.http_connections import Handler, HttpConnections
from mailboat.remoting.limits import http_connection_capacity
from mailboat.remoting.turns import Asker, asker
from mailboat.web import (
    administration,
    api,
    declarations,
    metrics,
    openapi,
    probes,
    produce,
    replication,
    retention,
)
from mailboat.web.context import WebContext
from mailboat.web.replies import answer_errors

_SHUTDOWN_TIMEOUT_S: Final = 2.0
_KEEPALIVE_S: Final = 75.0
# So many requests of the largest size may come in at a time.
_BODIES: Final = 16

logger = logging.getLogger(__name__)


def build_app(context: WebContext) -> web.Application:
    """Make the application of a process: what it shows depends on what runs in it."""
    has_broker = context.settings.role != "namesrv"
    app = web.Application(
        middlewares=[_note_asker, answer_errors],
        client_max_size=_most_request_bytes(context),
    )
    probes.add_routes(app, context)
    metrics.add_routes(app, context)
    api.add_routes(app, context)
    if has_broker:
        produce.add_routes(app, context)
        administration.add_routes(app, context)
        declarations.add_routes(app, context)
        retention.add_routes(app, context)
        replication.add_routes(app, context)
    openapi.add_routes(app)
    return app


class WebServer:
    """Serves one application on one listening socket."""

    def __init__(self, context: WebContext) -> None:
        """Prepare the application of `context`."""
        app = build_app(context)
        self._connections = HttpConnections(
            http_connection_capacity(), _BODIES * _most_request_bytes(context)
        )
        app.middlewares.insert(0, self._connections.middleware)
        self._listening: asyncio.Server | None = None
        # An access log line per scrape and probe would be most of the log.
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_request_logger(),
            keepalive_timeout=_KEEPALIVE_S,
            shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        )

    async def start(self, listening: socket.socket) -> None:
        """Answer what comes in on a socket that listens already."""
        self._listening = await self._connections.listen(self._runner, sock=listening)
        logger.info("serving http port=%d", listening.getsockname()[1])

    async def close(self) -> None:
        """Stop listening and let requests that are being answered finish."""
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()


@web.middleware
async def _note_asker(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let the long work that a request asks for take turns with that of other peers."""
    asker.set(Asker(request.remote or "", request.protocol))
    return await handler(request)


def _most_request_bytes(context: WebContext) -> int:
    settings = context.settings
    return settings.broker.http_max_request_bytes if settings.role != "namesrv" else 65_536


def _request_logger() -> logging.Logger:
    """Return the logger for what happens below the handlers."""
    request_logger = logging.getLogger("mailboat.web.requests")
    if _hide_malformed not in request_logger.filters:
        request_logger.addFilter(_hide_malformed)
    return request_logger


def _hide_malformed(record: logging.LogRecord) -> bool:
    """Drop the traceback that aiohttp logs when a peer does not speak HTTP; it gets a 400."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
