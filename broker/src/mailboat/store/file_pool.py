"""Keeps the most recently used files open, so that many files need few descriptors.

Segments that are read, ConsumeQueues and IndexFiles share one pool. What is being written and not
yet flushed is kept open by its owner: a descriptor that was open during a failed write is told of
it.
"""

import errno
from collections import OrderedDict
from typing import Final

from mailboat.disk import Disk
from mailboat.disk.descriptors import descriptor_limit

_MOST_OPEN: Final = 384
_LEAST_OPEN: Final = 8
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


class FilePool:
    """Open files by path, for the store's own thread."""

    __slots__ = ("_disk", "_limit", "_open")

    def __init__(self, disk: Disk, limit: int) -> None:
        """Keep at most `limit` files open."""
        self._disk = disk
        self._limit = limit
        self._open: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        """Return how many files are open."""
        return len(self._open)

    def get(self, path: str) -> int:
        """Return the descriptor of an existing file; the next call may close it.

        Raises:
            OSError: it cannot be opened.
        """
        fd = self._open.get(path)
        if fd is None:
            return self.add(path, self._open_file(path))
        self._open.move_to_end(path)
        return fd

    def add(self, path: str, fd: int) -> int:
        """Take over an open file."""
        self._open[path] = fd
        if len(self._open) > self._limit:
            self._disk.close(self._open.popitem(last=False)[1])
        return fd

    def take(self, path: str) -> int:
        """Hand over an existing file, which the caller closes or gives back with `add`.

        Raises:
            OSError: it cannot be opened.
        """
        fd = self._open.pop(path, None)
        return self._open_file(path) if fd is None else fd

    def drop(self, path: str) -> None:
        """Close one file if it is open."""
        fd = self._open.pop(path, None)
        if fd is not None:
            self._disk.close(fd)

    def close(self) -> None:
        """Close all files; the next call opens what it needs again."""
        for fd in self._open.values():
            self._disk.close(fd)
        self._open.clear()

    def make_room(self, error: OSError) -> bool:
        """Close all files where an error says that descriptors are used up.

        Returns:
            Whether the call that failed is worth another try.
        """
        if error.errno not in _NO_DESCRIPTORS or not self._open:
            return False
        self.close()
        return True

    def _open_file(self, path: str) -> int:
        try:
            return self._disk.open(path)
        except OSError as exc:
            if not self.make_room(exc):
                raise
            return self._disk.open(path)


def open_files_limit() -> int:
    """Return how many files a store may keep open: most descriptors are for connections."""
    limit = descriptor_limit()
    return _MOST_OPEN if limit is None else max(min(limit // 4, _MOST_OPEN), _LEAST_OPEN)
