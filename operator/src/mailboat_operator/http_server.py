"""The operator's HTTP port: /livez, /readyz and /metrics."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aiohttp import web

from mailboat.http_connections import READ_BUFFER_BYTES, HttpConnections, request_logger
from mailboat_operator.health import Health
from mailboat_operator.metrics import OperatorMetrics

_MOST_CONNECTIONS: Final = 64
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Of requests and unread answers; the metrics of a thousand brokers are 3 MiB."""

_MOST_REQUEST_BYTES: Final = 65_536

logger = logging.getLogger(__name__)


class HttpServer:
    """Serves the probes and the metrics."""

    def __init__(
        self, health: Health, metrics: OperatorMetrics, refresh: Callable[[], None]
    ) -> None:
        """`refresh` brings gauges up to date before they are shown."""
        self._health = health
        self._metrics = metrics
        self._refresh = refresh
        self._connections = HttpConnections(_MOST_CONNECTIONS, _MOST_BYTES)
        app = web.Application(
            middlewares=[self._connections.middleware], client_max_size=_MOST_REQUEST_BYTES
        )
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._exposition)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=request_logger("mailboat_operator.requests"),
            read_bufsize=READ_BUFFER_BYTES,
            shutdown_timeout=1.0,
        )
        self._listening: asyncio.Server | None = None
        self.port = 0
        """The port that is served, once it is."""

    async def start(self, host: str, port: int) -> None:
        """Listen; an empty host means every address."""
        self._listening = await self._connections.listen(self._runner, host=host or None, port=port)
        self.port = int(self._listening.sockets[0].getsockname()[1])
        logger.info("serving probes and metrics on port %d", self.port)

    async def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    async def _livez(self, _: web.Request) -> web.Response:
        complaints = self._health.complaints()
        if complaints:
            logger.warning("not well: %s", "; ".join(complaints))
            return web.Response(status=503, text="\n".join(complaints) + "\n")
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        is_ready, what = self._health.readiness()
        return web.Response(status=200 if is_ready else 503, text=what + "\n")

    async def _exposition(self, _: web.Request) -> web.Response:
        self._refresh()
        return web.Response(
            body=self._metrics.exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )
