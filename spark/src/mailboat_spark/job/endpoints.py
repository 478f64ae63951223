"""The job's HTTP: /metrics, and /livez and /readyz for probes.

Served by a thread of its own: the job's threads wait for Spark.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from mailboat.errors import MailboatError
from mailboat.http_connections import READ_BUFFER_BYTES, HttpConnections, request_logger
from mailboat_spark.job.progress import JobState

logger = logging.getLogger(__name__)

_TEXT: Final = "text/plain; charset=utf-8"
_MOST_CONNECTIONS: Final = 64
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Of requests and unread answers; the metrics of a job are a few kilobytes."""

_MOST_REQUEST_BYTES: Final = 65_536


class PortInUseError(MailboatError):
    """The metrics port cannot be used."""


class _Endpoints:
    """The handlers, and the loop that runs them until it is told to stop."""

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._stop: Callable[[], object] = lambda: None
        self.started: Future[int] = Future()

    def run(self, port: int) -> None:
        """Serve until `stop`; the port, or why there is none, is in `started` soon."""
        try:
            asyncio.run(self._serve(port))
        except Exception as exc:
            if self.started.done():
                raise
            self.started.set_exception(exc)  # For whoever waits for the port.

    def stop(self) -> None:
        """Have `run` return; from another thread, once it has started."""
        self._stop()

    async def _serve(self, port: int) -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stopping.set)
        connections = HttpConnections(_MOST_CONNECTIONS, _MOST_BYTES)
        app = web.Application(
            middlewares=[connections.middleware], client_max_size=_MOST_REQUEST_BYTES
        )
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/{path:.*}", self._nothing)
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=request_logger("mailboat_spark.requests"),
            read_bufsize=READ_BUFFER_BYTES,
            shutdown_timeout=1.0,
        )
        try:
            listening = await connections.listen(runner, host="0.0.0.0", port=port)
            self.started.set_result(int(listening.sockets[0].getsockname()[1]))
            await stopping.wait()
            listening.close()
        finally:
            await runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        return _answer(200, CONTENT_TYPE_LATEST, self._state.metrics.text())

    async def _livez(self, _: web.Request) -> web.Response:
        return _probe(self._state.dead_reason())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _probe(self._state.ready_reason())

    async def _nothing(self, _: web.Request) -> web.Response:
        return _answer(404, _TEXT, b"there are /metrics, /livez and /readyz\n")


def _probe(reason: str | None) -> web.Response:
    return _answer(200 if reason is None else 503, _TEXT, f"{reason or 'ok'}\n".encode())


def _answer(status: int, kind: str, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, headers={"Content-Type": kind})


@contextmanager
def serve(port: int, state: JobState) -> Iterator[int]:
    """Serve while the block runs, on all addresses; yields the port, -1 (given) serves nothing.

    Raises:
        PortInUseError: the port is taken or not allowed.
    """
    if port < 0:
        yield port
        return
    endpoints = _Endpoints(state)
    thread = threading.Thread(target=endpoints.run, args=(port,), name="metrics", daemon=True)
    thread.start()
    try:
        served = endpoints.started.result()
    except OSError as exc:
        # asyncio's own words name the address once more.
        reason = os.strerror(exc.errno or 0)
        raise PortInUseError(
            f"port {port} cannot be served ({reason}); give another --metrics-port, or -1"
        ) from exc
    logger.info("metrics and probes on port %d", served)
    try:
        yield served
    finally:
        endpoints.stop()
        thread.join()
