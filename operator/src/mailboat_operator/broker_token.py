"""The bearer token that the operator shows to brokers whose HTTP is locked."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from mailboat.config import check_token
from mailboat.errors import MailboatError

_READ_EVERY_S = 5.0
_MOST_BYTES = 65_536


class BrokerTokenError(MailboatError):
    """There is no token although there should be one."""

    retriable = True


class BrokerToken:
    """The first token of a file, which is read again every few seconds: a mounted Secret changes.

    A broker takes the same file as its httpTokenFile, whose other lines are tokens of before.
    """

    def __init__(self, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read nothing before it is asked for; an empty path is no token at all."""
        self._path = path
        self._clock = clock
        self._read_s = -_READ_EVERY_S
        self._headers: dict[str, str] = {}

    async def headers(self) -> dict[str, str]:
        """Return the headers of a request that shows the token, none without one.

        Raises:
            BrokerTokenError: the file cannot be read, or does not begin with a token.
        """
        now_s = self._clock()
        if self._path and now_s - self._read_s >= _READ_EVERY_S:
            token = await asyncio.to_thread(_read, self._path)
            self._headers = {"Authorization": f"Bearer {token}"}
            self._read_s = now_s
        return self._headers


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MOST_BYTES).decode("latin-1")
    except OSError as error:
        raise BrokerTokenError(f"the broker token file {path}: {error.strerror}") from error
    token = next((line.strip() for line in text.splitlines() if line.strip()), "")
    problem = check_token(token) if token else "is missing"
    if problem:
        raise BrokerTokenError(f"the broker token file {path}: the first token {problem}")
    return token
