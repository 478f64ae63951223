"""RocketMQ's small JSON state files, replaced whole and never half.

A table (topics, groups, consumer offsets) lies in one file under `config/`, the version before it
in `<file>.bak`, both in RocketMQ's format, so that a Java broker opens them and we open its. A new
version is written beside the old one, synced, renamed over it, and the folder is synced: a crash
leaves one of the two, whole. An unchanged table is not written.

Source: apache/rocketmq common/ConfigManager.java @ rocketmq-all-5.3.3, which has a moment in which
only the `.bak` exists.
"""

import asyncio
import errno
import hashlib
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

from mailboat.disk import Disk, read_file, replace_file
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
                if isinstance(error, OSError) and error.errno != errno.EIO:
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
        previous = self._path + ".bak" if self._current_is_good else None
        replace_file(self._disk, self._path, content, previous=previous)
        self._digest = digest
        self._current_is_good = True


class StateSaver:
    """Writes a changing table to its file: one write at a time, and the newest state wins.

    The owner calls `mark_changed` on each change and one of the saves when it should be durable.
    Callers of `save` that come while a write is under way share the next one.
    """

    __slots__ = ("_changes", "_encode", "_file", "_pending", "_saved", "_turn", "_write_lock")

    def __init__(self, file: JsonFile, encode: Callable[[], bytes]) -> None:
        """Save what `encode` returns; it runs on the event loop and sees the table at rest."""
        self._file = file
        self._encode = encode
        self._changes = 0
        self._saved = 0
        self._pending: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._write_lock = threading.Lock()

    @property
    def is_changed(self) -> bool:
        """Whether something is not in the file yet."""
        return self._changes != self._saved

    def mark_changed(self) -> None:
        """Note that the table differs from the file."""
        self._changes += 1

    def save_blocking(self) -> None:
        """Save now, on this thread: for what must be durable before the caller goes on.

        Raises:
            OSError: the disk refused; the table still counts as changed.
        """
        if self.is_changed:
            self._write(self._changes, self._encode())

    async def save(self) -> None:
        """Save without blocking the event loop; returns once all changes so far are durable.

        Raises:
            OSError: the disk refused; the table still counts as changed.
        """
        if not self.is_changed:
            return
        if self._pending is None:
            self._pending = asyncio.get_running_loop().create_task(self._save_in_turn())
        # One caller's cancellation must not cancel the write that others wait for.
        await asyncio.shield(self._pending)

    async def _save_in_turn(self) -> None:
        async with self._turn:
            # From here on a new change needs another write, so later callers start another task.
            self._pending = None
            if self.is_changed:
                await asyncio.to_thread(self._write, self._changes, self._encode())

    def _write(self, changes: int, content: bytes) -> None:
        with self._write_lock:
            # A blocking save may have overtaken the thread that carries an older state.
            if changes > self._saved:
                self._file.save(content)
                self._saved = changes


def to_pretty_json(compact: bytes) -> bytes:
    """Indent JSON for people; RocketMQ writes its files indented too."""
    return msgspec.json.format(compact, indent=1) + b"\n"


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
