"""The job's HTTP: /metrics, and /livez and /readyz for probes."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST

from mailboat.errors import MailboatError
from mailboat_spark.job.progress import JobState

logger = logging.getLogger(__name__)

_TEXT: Final = "text/plain; charset=utf-8"
_TIMEOUT_S: Final = 10.0


class PortInUseError(MailboatError):
    """The metrics port cannot be used."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, state: JobState) -> None:
        self.state = state
        super().__init__(("", port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        """Answer a request."""
        state = self.server.state
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send(200, CONTENT_TYPE_LATEST, state.metrics.text())
        elif path == "/livez":
            self._probe(state.dead_reason)
        elif path == "/readyz":
            self._probe(state.ready_reason)
        else:
            self._send(404, _TEXT, b"there are /metrics, /livez and /readyz\n")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log at DEBUG: probes come every few seconds."""
        logger.debug(format, *arguments)

    def _probe(self, reason_of: Callable[[], str | None]) -> None:
        reason = reason_of()
        self._send(200 if reason is None else 503, _TEXT, f"{reason or 'ok'}\n".encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serve(port: int, state: JobState) -> Iterator[int]:
    """Serve while the block runs, on all addresses; yields the port, -1 (given) serves nothing.

    Raises:
        PortInUseError: the port is taken or not allowed.
    """
    if port < 0:
        yield port
        return
    try:
        server = _Server(port, state)
    except OSError as exc:
        raise PortInUseError(
            f"port {port} cannot be served ({exc.strerror}); give another --metrics-port, or -1"
        ) from exc
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    logger.info("metrics and probes on port %d", server.server_port)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
