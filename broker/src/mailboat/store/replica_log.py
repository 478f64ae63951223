"""Taking over the log of another replica: the same bytes at the same places.

What arrives is checked record by record before any of it is written, so that damage on the way or
on the other disk does not come here. Derived files follow once the records are released.
"""

from mailboat.model.record import BLANK_MAGIC, FILLER, FILLER_BYTES
from mailboat.store.commit_log import CommitLog
from mailboat.store.deleted_topics import DeletedTopics
from mailboat.store.dispatch import Dispatch
from mailboat.store.flush import Flusher


class ReplicaLog:
    """What replication does to a store."""

    def __init__(self, commit_log: CommitLog, dispatch: Dispatch, deleted: DeletedTopics) -> None:
        """Work on one store, which gives its `flusher` once it is open."""
        self._commit_log = commit_log
        self._dispatch = dispatch
        self._deleted = deleted
        self.flusher: Flusher | None = None
        self.confirmed_offset = 0
        """The physical offset below which every replica that counts has the log."""

    def show_below(self, confirmed_offset: int) -> None:
        """Hold back what the log has at or above a physical offset; before the store is opened."""
        self.confirmed_offset = self._dispatch.shown_end = confirmed_offset

    def begin_at(self, physical_offset: int) -> None:
        """Let an empty log begin where another replica's does.

        Raises:
            OSError: the store must be opened again.
        """
        assert self.flusher is not None
        self._commit_log.begin_at(physical_offset)
        self.flusher.cut(physical_offset)
        self._dispatch.dispatched_offset = physical_offset

    def follow(self, data: bytes, physical_offset: int) -> None:
        """Append what another replica has at a physical offset, the end of this log.

        It is whole records of one segment, or the head of the filler that ends it.

        Raises:
            ValueError: it is something else, or damaged; nothing of it is in the log.
            OSError: it cannot be written; nothing of it is in the log.
        """
        log = self._commit_log
        if physical_offset != log.end:
            raise ValueError(f"bytes at {physical_offset} for a log that ends at {log.end}")
        segment_end = log.segment_end
        end = _filler_end(data, physical_offset, segment_end)
        if end is not None:
            log.write_followed(data, end, 0)
            return
        end = physical_offset + len(data)
        if not data or end + FILLER_BYTES > segment_end:
            raise ValueError(
                f"records from {physical_offset} to {end} in a segment that ends at {segment_end}"
            )
        entries = self._dispatch.check_followed(data, physical_offset)
        log.write_followed(data, end, max(entry.newest_ms for entry in entries))
        self._dispatch.hold_followed(entries)

    def cut(self, physical_offset: int) -> None:
        """Take off the end of the log what nobody has been shown.

        Raises:
            OSError: the store must take no messages before it is opened again.
        """
        assert self.flusher is not None
        self._dispatch.forget_above(physical_offset)
        self.flusher.cut(physical_offset)
        self._commit_log.cut(physical_offset)
        self._deleted.cut(physical_offset)


def _filler_end(data: bytes, physical_offset: int, segment_end: int) -> int | None:
    """Return where the filler ends whose head this is, None if it is none."""
    if len(data) != FILLER_BYTES:
        return None
    remaining, magic = FILLER.unpack(data)
    is_filler = magic == BLANK_MAGIC and physical_offset + remaining == segment_end
    return segment_end if is_filler else None
