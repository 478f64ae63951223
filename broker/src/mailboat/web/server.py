"""The HTTP server of one process: which application it serves, and its start and end."""

import logging
import socket
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from mailboat.web import administration, api, metrics, openapi, probes, produce, retention
from mailboat.web.context import WebContext
from mailboat.web.replies import answer_errors

_SHUTDOWN_TIMEOUT_S: Final = 2.0
_KEEPALIVE_S: Final = 75.0

logger = logging.getLogger(__name__)


def build_app(context: WebContext) -> web.Application:
    """Make the application of a process: what it shows depends on what runs in it."""
    has_broker = context.settings.role != "namesrv"
    app = web.Application(
        middlewares=[answer_errors],
        client_max_size=context.settings.broker.http_max_request_bytes if has_broker else 65_536,
    )
    probes.add_routes(app, context)
    metrics.add_routes(app, context)
    api.add_routes(app, context)
    if has_broker:
        produce.add_routes(app, context)
        administration.add_routes(app, context)
        retention.add_routes(app, context)
    openapi.add_routes(app)
    return app


class WebServer:
    """Serves one application on one listening socket."""

    def __init__(self, context: WebContext) -> None:
        """Prepare the application of `context`."""
        # An access log line per scrape and probe would be most of the log.
        self._runner = web.AppRunner(
            build_app(context),
            access_log=None,
            logger=_request_logger(),
            keepalive_timeout=_KEEPALIVE_S,
            shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        )

    async def start(self, listening: socket.socket) -> None:
        """Answer what comes in on a socket that listens already."""
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()
        logger.info("serving http port=%d", listening.getsockname()[1])

    async def close(self) -> None:
        """Stop listening and let requests that are being answered finish."""
        await self._runner.cleanup()


def _request_logger() -> logging.Logger:
    """Return the logger for what happens below the handlers."""
    request_logger = logging.getLogger("mailboat.web.requests")
    if _hide_malformed not in request_logger.filters:
        request_logger.addFilter(_hide_malformed)
    return request_logger


def _hide_malformed(record: logging.LogRecord) -> bool:
    """Drop the traceback that aiohttp logs when a peer does not speak HTTP; it gets a 400."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
