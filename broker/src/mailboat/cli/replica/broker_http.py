"""Questions to the HTTP port of one broker."""

import base64
import http.client
import json
import ssl
from dataclasses import dataclass, field
from typing import Any, Final

from mailboat.errors import MailboatError, RequestTimeoutError
from mailboat.security.client_security import OPEN, ClientSecurity
from mailboat.security.tls import ClientContexts, peer_problem

DEFAULT_ADDRESS: Final = "127.0.0.1:8080"
_TIMEOUT_S: Final = 20.0
"""Longer than a broker waits for the outcome of a promotion."""

# With what is left of a larger answer the connection ends, and what is there is no JSON.
_MOST_BYTES: Final = 16 << 20
_WHO_ASKS: Final = (
    "MAILBOAT_TOKEN or --token-file is for whoever may do everything, --access-key for a user"
)


class _NamedConnection(http.client.HTTPConnection):
    """A connection by TLS to a server whose certificate has to have a name, whatever the host."""

    def __init__(
        self, host: str, port: int, timeout_s: float, context: ssl.SSLContext, server_name: str
    ) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._context, self._server_name = context, server_name

    def connect(self) -> None:
        """Connect and shake hands."""
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self._server_name)


@dataclass(frozen=True, slots=True)
class BrokerHttp:
    """The HTTP port of one broker, how it is connected to, and who asks there."""

    address: str
    """`host:port`."""

    is_tls: bool = False
    """By the TLS of `security`, or as that is by default."""

    token: str = field(default="", repr=False)
    """Bearer token; without one, credentials of `security` are shown."""

    security: ClientSecurity = OPEN

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a connection that is made with its first request.

        Raises:
            ConfigError: a file of TLS cannot be used.
        """
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        if not self.is_tls:
            return http.client.HTTPConnection(host, int(port), timeout=timeout_s)
        assert self.security.tls is not None
        contexts = ClientContexts(self.security.tls)
        name = contexts.server_name or host
        return _NamedConnection(host, int(port), timeout_s, contexts.context, name)

    def headers(self) -> dict[str, str]:
        """Return what a request says of its sender and its body."""
        headers = {"Content-Type": "application/json"}
        credentials = self.security.credentials
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        elif credentials is not None:
            pair = f"{credentials.access_key}:{credentials.secret_key}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return headers


def ask(
    broker: BrokerHttp, method: str, path: str, body: object = None, timeout_s: float = _TIMEOUT_S
) -> Any:
    """Return the JSON that a broker answers.

    Args:
        broker: who is asked, and by whom.
        method: GET or POST.
        path: begins with `/`.
        body: sent as JSON, nothing if None.
        timeout_s: how long to wait for the answer.

    Raises:
        ConfigError: a file of TLS cannot be used.
        MailboatError: there is no broker, or it refuses; the text says why.
        RequestTimeoutError: there was no answer in time.
    """
    address = broker.address
    connection = broker.connection(timeout_s)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, broker.headers())
        answer = connection.getresponse()
        text = answer.read(_MOST_BYTES)
    except TimeoutError as error:
        raise RequestTimeoutError(
            f"{address} gave no answer within {timeout_s:g} s; the outcome is unknown"
        ) from error
    # UnicodeError: what cannot be the name of a host.
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        kind = "HTTPS" if broker.is_tls else "HTTP"
        raise MailboatError(
            f"no answer from {address}: {_reason(error)}; check that a broker serves {kind} there "
            "(--http or MAILBOAT_HTTP)"
        ) from error
    finally:
        connection.close()
    if answer.status == http.client.UNAUTHORIZED:
        raise MailboatError(f"{address} does not know who asks: {_sentence(text)}; {_WHO_ASKS}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MailboatError(
            f"{address} answers {answer.status}, but is no broker's HTTP port"
        ) from error
    if answer.status != http.client.OK:
        raise MailboatError(f"{address}: {_sentence(text) or answer.reason}")
    return found


def _sentence(text: bytes) -> str:
    """Return what a broker says of an error, empty where it is none of its sentences."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return str(found.get("error") or "") if isinstance(found, dict) else ""


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return peer_problem(error) or repr(error)
    return str(error) or repr(error)
