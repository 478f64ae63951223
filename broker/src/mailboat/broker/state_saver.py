"""Writing a changing table to its file without stopping the event loop."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import Context
from typing import Final

from mailboat.disk.json_file import JsonFile
from mailboat.remoting.turns import listed_in_turns

_log: Final = logging.getLogger(__name__)


class StateSaver:
    """Writes a changing table to its file: one write at a time, and the newest state wins.

    The owner calls `mark_changed` on each change and one of the saves when it should be durable.
    Callers of `save` that come while a write is under way share the next one.
    """

    __slots__ = (
        "_changes",
        "_encode",
        "_file",
        "_pending",
        "_saved",
        "_turn",
        "_write_lock",
        "before_write",
    )

    def __init__(self, file: JsonFile, encode: Callable[[], Iterator[bytes]]) -> None:
        """Save what `encode` yields: the file's content in pieces of a millisecond's work.

        It runs on the event loop, where the table may change between two pieces: every entry must
        be right by itself.
        """
        self._file = file
        self._encode = encode
        self._changes = 0
        self._saved = 0
        self._pending: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._write_lock = threading.Lock()
        self.before_write: Callable[[], Awaitable[None]] | None = None
        """Awaited by `save` when everything is encoded and nothing is written; raises OSError where
        it must not be written now."""

    @property
    def is_changed(self) -> bool:
        """Whether something is not in the file yet."""
        return self._changes != self._saved

    def mark_changed(self) -> None:
        """Note that the table differs from the file."""
        self._changes += 1

    def save_blocking(self) -> None:
        """Save now, on this thread: for the start and the end, when nobody else is served.

        Raises:
            OSError: the disk refused; the table still counts as changed.
        """
        if self.is_changed:
            self._write(self._changes, list(self._encode()))

    async def save(self) -> None:
        """Save without blocking the event loop; returns once all changes so far are durable.

        Raises:
            OSError: the disk refused; the table still counts as changed.
        """
        if not self.is_changed:
            return
        if self._pending is None:
            # What many wait for is nobody's own: see `mailboat.remoting.turns`.
            self._pending = asyncio.get_running_loop().create_task(
                self._save_in_turn(), context=Context()
            )
        # One caller's cancellation must not cancel the write that others wait for.
        await asyncio.shield(self._pending)

    async def _save_in_turn(self) -> None:
        async with self._turn:
            # From here on a new change needs another write, so later callers start another task.
            self._pending = None
            if not self.is_changed:
                return
            changes = self._changes
            pieces = await listed_in_turns(self._encode())
            if self.before_write is not None:
                await self.before_write()
            await asyncio.to_thread(self._write, changes, pieces)

    def _write(self, changes: int, pieces: list[bytes]) -> None:
        with self._write_lock:
            # A blocking save may have overtaken the thread that carries an older state.
            if changes > self._saved:
                self._file.save(b"".join(pieces))
                self._saved = changes


class SavedTable:
    """A table that its saver makes durable; the owner of the table gives it one, `_saver`."""

    _saver: StateSaver

    def take_fitted(self, kind: str, name: str, changed: Sequence[str] | None, source: str) -> bool:
        """Log how an entry of a file or of another broker was made to fit; tell whether it was.

        Args:
            kind: what it is, for people: "topic".
            name: its name.
            changed: what was changed, None where it can never fit.
            source: where it comes from, for people.
        """
        if changed is None:
            text = "%s %.64r of %s is ignored: nothing can have that name"
            _log.warning(text, kind, name, source)
        for change in changed or ():
            _log.warning("%s %s of %s gets %s", kind, name, source, change)
        if changed is None or changed:
            self._saver.mark_changed()
        return changed is not None

    async def persist(self) -> None:
        """Make the table durable; does nothing while it is unchanged.

        Raises:
            OSError: the disk refused; the next call tries again.
        """
        await self._saver.save()

    def persist_blocking(self) -> None:
        """Make the table durable on this thread.

        Raises:
            OSError: the disk refused.
        """
        self._saver.save_blocking()
