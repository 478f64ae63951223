"""Where the CommitLog ended when topics were deleted: what lies before belongs to nobody any more.

The records of a deleted topic stay in the log until they expire. When queues are built anew from
the log they would come back, and hide the messages of a topic of the same name that was made again:
its queue offsets begin at 0 once more. So each deletion is noted durably when its queues are gone,
and forgotten once the log begins behind it.

    deletedTopics.json, in the store's own folder
    line 1    JSON object: topic -> physical offset at which the log ended
    line 2    CRC-32 of line 1, decimal
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from mailboat.disk import Disk
from mailboat.store.checkpoint import read_checked, write_checked

log = logging.getLogger(__name__)

_decoder: Final = msgspec.json.Decoder(dict[str, int])


class DeletedTopics:
    """The deletions whose records may still be in the log, in a small file of their own."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Name the file; nothing is read or written yet."""
        self._disk = disk
        self._path = path
        self._ends: dict[str, int] = {}
        # The version that is known here, and that of the file, which any thread may write.
        self._version = self._saved_version = 0
        self._saving = threading.Lock()

    def load(self) -> None:
        """Read the file where there is one; a damaged one says nothing.

        Raises:
            OSError: it cannot be read.
        """
        if not self._disk.exists(self._path):
            return
        text = read_checked(self._disk, self._path)
        if text is None:
            log.warning("deletions of topics are forgotten, %s is damaged", self._path)
        else:
            self._ends = _decoder.decode(text)

    def is_gone(self, topic: str, physical_offset: int) -> bool:
        """Tell whether a record was stored before its topic was deleted."""
        return physical_offset < self._ends.get(topic, 0)

    def ends(self) -> dict[str, int]:
        """Return the physical offset at which the log ended, by topic."""
        return dict(self._ends)

    def expect(self, topic: str, log_end: int) -> bool:
        """Take note, not durably, of what another replica has deleted; tell whether it is news."""
        is_news = self._ends.get(topic, 0) < log_end
        if is_news:
            self._ends[topic] = log_end
        return is_news

    def note(self, topic: str, log_start: int, log_end: int) -> None:
        """Take note that a topic's records in the log are gone; `save_job` makes it durable."""
        ends = {name: end for name, end in self._ends.items() if end > log_start}
        if log_end > log_start:
            ends[topic] = log_end
        self._ends = ends
        self._version += 1

    def save_job(self) -> Callable[[], None]:
        """Return a call that makes all that is noted durable, where it is not; on any thread.

        It raises OSError where that is not known to be so; then a further job does it.
        """
        version, text = self._version, msgspec.json.encode(self._ends)

        def save() -> None:
            with self._saving:
                if self._saved_version < version:
                    write_checked(self._disk, self._path, text)
                    self._saved_version = version

        return save

    def deletion_job(self, folder: str) -> Callable[[], None]:
        """Return a call that makes the deletions in a folder of queues durable, and then what is
        noted of them; on any thread.

        It raises OSError where that is not known; then a further one does it.
        """
        if self._saved_version == self._version:
            return lambda: None
        save = self.save_job()

        def sync_and_save() -> None:
            # The note comes last: whoever finds it finds no file of the queues. A process that dies
            # before leaves topics that are not deleted: their queues are built anew from the log.
            if self._disk.exists(folder):
                self._disk.fsync_dir(folder)
            save()

        return sync_and_save

    def cut(self, log_end: int) -> None:
        """Follow a log that lost its end: what is stored there from now on is not gone.

        Raises:
            OSError: the log must take no messages.
        """
        if any(end > log_end for end in self._ends.values()):
            self._ends = {topic: min(end, log_end) for topic, end in self._ends.items()}
            self._version += 1
            self.save_job()()
