"""The HTTP server of one process: which application it serves, and its start and end."""

import asyncio
import logging
import socket
import ssl
from typing import Final

from aiohttp import web

from mailboat.http_connections import (
    HEADERS_S,
    READ_BUFFER_BYTES,
    Handler,
    HttpConnections,
    MakeProtocol,
    request_logger,
)
from mailboat.remoting.limits import http_connection_capacity
from mailboat.remoting.tls_entrance import TlsEntrance
from mailboat.remoting.turns import Asker, asker
from mailboat.security.audit import AuditLog
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
    users,
)
from mailboat.web.authentication import Authentication
from mailboat.web.context import WebContext
from mailboat.web.hardening import RequestChecks, say_how_to_treat
from mailboat.web.permissions import HttpGuard
from mailboat.web.replies import answer_errors
from mailboat.web.token_review import TokenReviewer
from mailboat.web.tokens import BearerTokens

_SHUTDOWN_TIMEOUT_S: Final = 2.0
_KEEPALIVE_S: Final = 75.0
# So many requests of the largest size may come in at a time.
_BODIES: Final = 16
# TLS handshakes that are not finished.
_HALF_OPEN: Final = 64

logger = logging.getLogger(__name__)


def build_app(context: WebContext) -> web.Application:
    """Make the application of a process: what it shows depends on what runs in it."""
    has_broker = context.settings.role != "namesrv"
    app = web.Application(
        middlewares=[
            _note_asker,
            say_how_to_treat,
            answer_errors,
            RequestChecks(context.settings).middleware,
        ],
        client_max_size=_most_request_bytes(context),
    )
    probes.add_routes(app, context)
    metrics.add_routes(app, context)
    api.add_routes(app, context)
    users.add_routes(app, context)
    if has_broker:
        produce.add_routes(app, context)
        administration.add_routes(app, context)
        declarations.add_routes(app, context)
        retention.add_routes(app, context)
        replication.add_routes(app, context)
    openapi.add_routes(app)
    if context.settings.security.is_http_locked:
        _lock(app, context)
    return app


def _lock(app: web.Application, context: WebContext) -> None:
    """Let only through who may do what is asked; behind what words errors, before all handlers."""
    security = context.settings.security
    tokens = BearerTokens(security.http_token_file, security.http_token)
    reviewer = None
    if security.http_token_review:
        reviewer = TokenReviewer(security.kube_api_folder, security.http_token_review_audience)
    authentication = Authentication(
        tokens, lambda: context.users, reviewer, certified_name=context.certified_name
    )
    audit = AuditLog(security.audit_log_path)
    app.middlewares.append(HttpGuard(context.settings, authentication, audit).middleware)

    async def start(_: web.Application) -> None:
        await tokens.start()
        if reviewer is not None:
            await reviewer.start()

    async def close(_: web.Application) -> None:
        await tokens.close()
        if reviewer is not None:
            await reviewer.close()
        await asyncio.to_thread(audit.close)

    app.on_startup.append(start)
    app.on_cleanup.append(close)


class WebServer:
    """Serves one application on one listening socket."""

    def __init__(self, context: WebContext) -> None:
        """Prepare the application of `context`."""
        app = build_app(context)
        self._connections = HttpConnections(
            http_connection_capacity(), _BODIES * _most_request_bytes(context)
        )
        app.middlewares.insert(0, self._connections.middleware)
        self._context = context
        self._entrance: TlsEntrance | None = None
        self._listening: asyncio.Server | None = None
        # An access log line per scrape and probe would be most of the log.
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=request_logger("mailboat.web.requests"),
            # What is packed is refused (`hardening`), so it must not be unpacked on arrival.
            auto_decompress=False,
            read_bufsize=READ_BUFFER_BYTES,
            keepalive_timeout=_KEEPALIVE_S,
            shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        )

    async def start(self, listening: socket.socket) -> None:
        """Answer what comes in on a socket that listens already."""
        mode = self._context.settings.tls.http_mode
        through = None if mode == "disabled" else self._by_tls
        self._listening = await self._connections.listen(self._runner, through, sock=listening)
        logger.info("serving http port=%d tls=%s", listening.getsockname()[1], mode)

    def _by_tls(self, make: MakeProtocol) -> MakeProtocol:
        """Have connections come in by TLS."""
        entrance = TlsEntrance(
            self._tls_context,
            make,
            lambda peer, reason: self._connections.complain(f"{peer}: {reason}"),
            takes_plain=False,
            timeout_s=HEADERS_S,
        )
        # However many are open: the slowest of those makes room for one that has shaken hands.
        entrance.room = lambda: _HALF_OPEN
        self._entrance = entrance
        return entrance.make

    def _tls_context(self) -> ssl.SSLContext:
        tls = self._context.tls
        assert tls is not None
        return tls.http_context

    async def close(self) -> None:
        """Stop listening and let requests that are being answered finish."""
        if self._listening is not None:
            self._listening.close()
        if self._entrance is not None:
            self._entrance.close()
        await self._runner.cleanup()


@web.middleware
async def _note_asker(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let the long work that a request asks for take turns with that of other peers."""
    asker.set(Asker(request.remote or "", request.protocol))
    return await handler(request)


def _most_request_bytes(context: WebContext) -> int:
    settings = context.settings
    return settings.broker.http_max_request_bytes if settings.role != "namesrv" else 65_536
