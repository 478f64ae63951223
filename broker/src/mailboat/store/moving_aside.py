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
