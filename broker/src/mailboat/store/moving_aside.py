"""Taking a whole log out of a store's folder, so that the store begins empty at its next start.

A replica whose log has nothing in common with its master's does so before it gets a copy. Nothing
is deleted: a person may look at what was there, and removes it.
"""

import errno
import logging

from mailboat.disk import Disk
from mailboat.store.layout import StorePaths

_log = logging.getLogger(__name__)


def move_aside(disk: Disk, paths: StorePaths) -> None:
    """Move log, queues and index away, and forget what was known of them; may be repeated.

    Raises:
        BlockingIOError: a broker has the store open.
        OSError: some of it is still where it was.
    """
    release = disk.lock(paths.lock, "mailboat")
    try:
        for path in (paths.progress, paths.flushed, paths.deleted_topics, paths.checkpoint):
            if disk.exists(path):
                disk.unlink(path)
        disk.fsync_dir(paths.own)
        target = f"{paths.diverged}/{disk.wall_ms():013d}"
        for folder in (paths.commit_log, paths.consume_queue, paths.index):
            if disk.is_dir(folder) and disk.listdir(folder):
                _move(disk, folder, target)
    finally:
        release()


def aside_bytes(disk: Disk, paths: StorePaths) -> int:
    """Return the size of all files that were moved or copied aside and are still there.

    Raises:
        OSError: they cannot be looked at.
    """
    return _size_of_all(disk, paths.diverged) if disk.is_dir(paths.diverged) else 0


def _size_of_all(disk: Disk, folder: str) -> int:
    paths = [f"{folder}/{name}" for name in disk.listdir(folder)]
    return sum(_size_of_all(disk, p) if disk.is_dir(p) else disk.size(p) for p in paths)


def _move(disk: Disk, folder: str, target: str) -> None:
    parent, _, name = folder.rpartition("/")
    disk.make_dirs(target)
    moved = f"{target}/{name}"
    try:
        disk.rename(folder, moved)
    except OSError as exc:
        if exc.errno != errno.EXDEV:
            raise
        # On another volume it stays there.
        moved = f"{folder}.{target.rpartition('/')[2]}"
        disk.rename(folder, moved)
    disk.fsync_dir(parent)
    if not moved.startswith(f"{folder}."):
        disk.fsync_dir(target)
    _log.warning("moved aside path=%s to=%s: remove it when nobody needs it", folder, moved)
