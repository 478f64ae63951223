"""Small JSON state files, replaced whole and never half.

A table (topics, groups, consumer offsets, key-value configuration) lies in one file, the version
before it in `<file>.bak`, both in RocketMQ's format, so that a Java server opens them and we open
its. A new version is written beside the old one, synced, renamed over it, and the folder is synced:
a crash leaves one of the two, whole. An unchanged table is not written.

Source: apache/rocketmq common/ConfigManager.java @ rocketmq-all-5.3.3, which has a moment in which
only the `.bak` exists.
"""

import errno
import hashlib
import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec

from mailboat.disk import Disk, UnreadableError, read_file, replace_file
from mailboat.errors import DamagedStoreError, ProtocolError

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class JsonFile:
    """One state file and its previous version; `save` may run on any thread, one at a time."""

    __slots__ = ("_current_is_good", "_digest", "_disk", "_path")

    def __init__(self, disk: Disk, path: str) -> None:
        """Name the file; nothing is read or written yet."""
        self._disk = disk
        self._path = path
        self._digest = b""
        self._current_is_good = False

    @property
    def path(self) -> str:
        """Where the file lies."""
        return self._path

    def load(self, decode: Callable[[bytes], _T]) -> _T | None:
        """Return what `decode` makes of the file, or of its previous version; None without both.

        `decode` refuses wrong content by ValueError or ProtocolError.

        Raises:
            DamagedStoreError: neither version can be read.
            OSError: the file may be good, but cannot be read now (permissions, descriptors).
        """
        backup = self._path + ".bak"
        problems = []
        for path in (self._path, backup):
            if not self._disk.exists(path):
                continue
            try:
                content = read_file(self._disk, path)
                value = decode(content)
            except (OSError, ValueError, ProtocolError) as error:
                is_lost = isinstance(error, UnreadableError)
                if isinstance(error, OSError) and not is_lost and error.errno != errno.EIO:
                    # Only a bad disk block is damage; to go on with an old version would be.
                    raise
                problems.append(f"{path} cannot be read ({_one_line(error)})")
                continue
            if path == self._path:
                self._current_is_good = True
                self._digest = _digest(content)
            elif problems:
                _log.warning("state file damaged, previous version taken: %s", problems[0])
            return value
        if problems:
            raise DamagedStoreError(
                f"{' and '.join(problems)}; put back a good copy of {self._path}, "
                "or move the damaged files away to start with an empty table"
            )
        return None

    def save(self, content: bytes) -> None:
        """Make `content` the file's durable content and keep what was there as `.bak`.

        A file that `load` found damaged never takes the place of the good `.bak`.

        Raises:
            OSError: the disk refused; the old content, or the new one, is there whole.
        """
        digest = _digest(content)
        if digest == self._digest:
            return
        self._disk.make_dirs(self._path.rpartition("/")[0])
        # Which of the two is there after an error nobody knows: then nothing counts as unchanged.
        self._digest = b""
        previous = self._path + ".bak" if self._current_is_good else None
        replace_file(self._disk, self._path, content, previous=previous)
        self._digest = digest
        self._current_is_good = True


def to_pretty_json(compact: bytes) -> bytes:
    """Indent JSON for people; RocketMQ writes its files indented too."""
    return msgspec.json.format(compact, indent=1) + b"\n"


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def refuse_newer(format_version: int, known: int) -> None:
    """Refuse what a `decode` was given of a format that is newer than the one it knows.

    Raises:
        ValueError: it is.
    """
    if format_version > known:
        raise ValueError(f"format {format_version} of a newer mailboat, this one knows {known}")
