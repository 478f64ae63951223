"""The bearer tokens that may do everything over HTTP: those of a file, and one of the settings.

The file has one token in a line, so that an old and a new one are both valid while callers change
over. It is read again every few seconds, in a thread: a mounted Secret changes by a swapped link,
whose file may well have the same size and time. What two looks find alike is taken. A file that
cannot be taken leaves the tokens of before in force; one that is emptied takes them away.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
from pathlib import Path
from typing import Final

from mailboat.config import check_token
from mailboat.errors import ConfigError

CHECK_S: Final = 5.0
"""How often the file is read."""

TOKENS_MAX: Final = 16
"""Tokens in one file."""

_FILE_MAX_BYTES: Final = 65_536

_log = logging.getLogger(__name__)


class BearerTokens:
    """The tokens that are valid now; only their digests are kept."""

    def __init__(self, path: str, token: str) -> None:
        """Take the tokens of a file, none if `path` is empty, and one more if there is one."""
        self._path = path
        self._own = [_digest(token.encode())] if token else []
        self._of_file: list[bytes] = []
        self._content: bytes | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the file, and go on looking at it.

        Raises:
            ConfigError: it cannot be read, or holds what is no token, or none.
        """
        if not self._path:
            return
        self._take(await asyncio.to_thread(check_token_file, self._path))
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Look at the file no more."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching

    async def read(self) -> None:
        """Take what the file holds now.

        Raises:
            ConfigError: it cannot be read, or holds what is no token; nothing changes.
        """
        self._take(await asyncio.to_thread(_read, self._path))

    def _take(self, content: bytes) -> None:
        if content == self._content:
            return
        self._of_file = _parse(self._path, content)
        self._content = content
        _log.info("http tokens read count=%d file=%s", len(self._of_file), self._path)

    def accept(self, token: bytes) -> bool:
        """Tell whether a token is valid, in a time that does not depend on which one it is."""
        digest, is_valid = _digest(token), False
        for valid in (*self._own, *self._of_file):
            is_valid |= hmac.compare_digest(digest, valid)
        return is_valid

    async def _watch(self) -> None:
        complaint, seen = "", self._content
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                content = await asyncio.to_thread(_read, self._path)
                # What is just being written is not all there; it counts once it stays as it is.
                if content == seen:
                    self._take(content)
                    complaint = ""
                seen = content
            except ConfigError as error:
                if complaint != str(error):
                    complaint = str(error)
                    _log.warning("%s; the tokens of before stay valid", complaint)


def check_token_file(path: str) -> bytes:
    """Return the content of a file of tokens; there is one at least.

    Raises:
        ConfigError: it cannot be read, or holds what is no token, or none.
    """
    content = _read(path)
    if not _parse(path, content):
        raise ConfigError("httpTokenFile", path, "holds no token")
    return content


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _read(path: str) -> bytes:
    try:
        if not Path(path).is_file():
            raise ConfigError("httpTokenFile", path, "is no file")
        with Path(path).open("rb") as file:
            return file.read(_FILE_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError("httpTokenFile", path, f"cannot be read: {error.strerror}") from error


def _parse(path: str, content: bytes) -> list[bytes]:
    """Return the digests of the tokens; a complaint tells the line, never what is in it."""
    if len(content) > _FILE_MAX_BYTES:
        raise ConfigError("httpTokenFile", path, f"has more than {_FILE_MAX_BYTES} bytes")
    digests: list[bytes] = []
    for number, line in enumerate(content.decode("latin-1").splitlines(), 1):
        token = line.strip()
        if not token:
            continue
        if problem := check_token(token):
            raise ConfigError("httpTokenFile", path, f"line {number}: a token {problem}")
        digests.append(_digest(token.encode()))
    if len(digests) > TOKENS_MAX:
        raise ConfigError("httpTokenFile", path, f"has more than {TOKENS_MAX} tokens")
    return digests
