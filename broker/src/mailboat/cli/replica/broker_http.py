"""Questions to the HTTP port of one broker."""

import http.client
import json
from typing import Any, Final

from mailboat.errors import MailboatError, RequestTimeoutError

DEFAULT_ADDRESS: Final = "127.0.0.1:8080"
_TIMEOUT_S: Final = 20.0
"""Longer than a broker waits for the outcome of a promotion."""


def ask(address: str, method: str, path: str, body: object = None) -> Any:
    """Return the JSON that a broker answers.

    Args:
        address: `host:port`.
        method: GET or POST.
        path: begins with `/`.
        body: sent as JSON, nothing if None.

    Raises:
        MailboatError: there is no broker, or it refuses; the text says why.
        RequestTimeoutError: there was no answer in time.
    """
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT_S)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    except TimeoutError as error:
        raise RequestTimeoutError(
            f"{address} gave no answer within {_TIMEOUT_S:g} s; the outcome is unknown"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise MailboatError(
            f"no answer from {address}: {_reason(error)}; check that a broker serves HTTP there "
            "(--http or MAILBOAT_HTTP)"
        ) from error
    finally:
        connection.close()
    try:
        found = json.loads(text)
    except ValueError as error:
        raise MailboatError(
            f"{address} answers {answer.status}, but is no broker's HTTP port"
        ) from (error)
    if answer.status != http.client.OK:
        sentence = found.get("error") if isinstance(found, dict) else None
        raise MailboatError(f"{address}: {sentence or answer.reason}")
    return found


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or repr(error)
