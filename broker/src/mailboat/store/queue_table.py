"""All ConsumeQueues of a store.

Source: apache/rocketmq store/queue/ConsumeQueueStore.java @ rocketmq-all-5.3.3.
"""

import errno
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from mailboat.disk import NO_ROOM, Disk, UnreadableError, remove_if_empty
from mailboat.errors import IllegalMessageError
from mailboat.model.names import is_file_name
from mailboat.store.consume_queue import (
    UNIT_BYTES,
    ConsumeQueue,
    end_of_files,
    last_of_files,
    stored_queues,
    stored_queues_of,
)
from mailboat.store.file_pool import FilePool
from mailboat.store.layout import numbered_files

log = logging.getLogger(__name__)

# Queues that are adjusted before the clock is looked at.
_RAISES_A_LOOK: Final = 32
_AT_ONCE_S: Final = 3600.0
# What no queue can be written for; anything else is about the files of one.
_OF_ALL: Final = NO_ROOM | {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EROFS}
_AGAIN_S: Final = 5.0
_FAILED_BYTES_MOST: Final = 16 << 20


class QueueSync(NamedTuple):
    """A queue whose files from `since_bytes` on must be synced."""

    queue: ConsumeQueue
    since_bytes: int


class QueueDrop(NamedTuple):
    """A queue whose dropped files that begin below `end` may be unlinked."""

    queue: ConsumeQueue
    end: int


class UnlinkedFile(NamedTuple):
    """A file of a queue that has no name any more, though perhaps after a crash."""

    drop: QueueDrop
    file_start: int

    @property
    def queue(self) -> ConsumeQueue:
        """The queue."""
        return self.drop.queue


class RaisedQueue(NamedTuple):
    """A queue whose oldest messages went: those from `old_min` up to `new_min`."""

    topic: str
    queue_id: int
    old_min: int
    new_min: int


def sync_queues(disk: Disk, root: str, syncs: list[QueueSync]) -> None:
    """Make queues durable: their files, and the names of their files and directories.

    Raises:
        OSError: nothing is known to be durable.
    """
    for queue, since_bytes in syncs:
        queue.sync(since_bytes)
    topics = dict.fromkeys(queue.topic for queue, _ in syncs)
    for topic in topics:
        if disk.exists(f"{root}/{topic}"):
            disk.fsync_dir(f"{root}/{topic}")
    if topics:
        disk.fsync_dir(root)


class QueueTable:
    """The queues by topic and queue id, and which of them have something to write or sync."""

    def __init__(self, disk: Disk, pool: FilePool, directory: str, file_bytes: int) -> None:
        """Build an empty table over `directory`, with files that are open in `pool`."""
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes
        self._pool = pool
        # In the order in which they are written.
        self._dirty: dict[ConsumeQueue, None] = {}
        # Those of `note_unwritten` that are not written yet.
        self._noted: set[ConsumeQueue] = set()
        # Those whose own files cannot be written, and when to try again.
        self._failed: dict[ConsumeQueue, float] = {}
        self._failed_error = OSError()
        self._unsynced: dict[ConsumeQueue, int] = {}
        self._trimmed: dict[ConsumeQueue, None] = {}
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        # The same by topic: walking all queues for one topic is too slow for a page of topics.
        self._by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        # Queues that may still show messages of a segment that went, and where the log begins now.
        self._unraised: dict[ConsumeQueue, None] = {}
        self._raise_failed: dict[ConsumeQueue, None] = {}
        self._raised: list[RaisedQueue] = []
        self._log_start = 0
        # Ends of queues, kept over a rebuild of all queues, and ends of the queue offsets that were
        # given out, whatever became of the messages.
        self._known_ends: dict[tuple[str, int], int] = {}
        self._given_out: dict[tuple[str, int], int] = {}
        self.going: set[str] = set()
        """Topics whose files are being removed: a new queue would lose its own among them."""

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue that exists."""
        queue = self.by_key.get((topic, queue_id))
        if self._unraised and queue in self._unraised:
            self._raise_one(queue)
        return queue

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message gets, shown or not."""
        queue = self.by_key.get((topic, queue_id))
        return 0 if queue is None else queue.next_offset

    def get_or_add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, a new and empty one where there was none; touches no file."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            queue = self._make(topic, queue_id)
            self.by_key[(topic, queue_id)] = queue
            self._by_topic.setdefault(topic, {})[queue_id] = queue
        return queue

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = f"{self._directory}/{topic}/{queue_id}"
        return ConsumeQueue(self._disk, self._pool, directory, topic, queue_id, self._file_bytes)

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of a topic, by queue id."""
        queues = self._by_topic.get(topic, {})
        return [queues[queue_id] for queue_id in sorted(queues)]

    def count_of(self, topic: str) -> int:
        """Return how many queues a topic has here."""
        return len(self._by_topic.get(topic, ()))

    def mark_dirty(self, queue: ConsumeQueue) -> None:
        """Note that a queue has units that are only in memory."""
        if not queue.is_dirty:
            queue.is_dirty = True
            self._dirty[queue] = None

    def mark_unsynced(self, queue: ConsumeQueue, since_bytes: int) -> None:
        """Note that a queue's bytes from `since_bytes` on are not durable."""
        self._unsynced[queue] = min(since_bytes, self._unsynced.get(queue, since_bytes))

    def write_some(self, limit: int, slice_s: float = _AT_ONCE_S) -> int:
        """Write the pending units of up to `limit` queues; return how many queues were written.

        It ends after so many seconds: the first unit of a queue makes a folder and a file. A queue
        whose own file cannot be written keeps its units in memory, and is tried again later.

        Raises:
            OSError: no queue can be written, or too much waits in memory; nothing is lost.
        """
        count = 0
        now_s = self._disk.monotonic()
        while self._failed and next(iter(self._failed.values())) <= now_s:
            queue = next(iter(self._failed))
            del self._failed[queue]
            self._dirty[queue] = None
        ends_at_s = now_s + slice_s
        while self._dirty and count < limit and self._disk.monotonic() <= ends_at_s:
            queue = next(iter(self._dirty))
            # Noted first: a call that fails may have written a part.
            self.mark_unsynced(queue, queue.written_bytes)
            try:
                queue.write_pending()
            except OSError as error:
                if error.errno in _OF_ALL:
                    raise
                self._set_aside(queue, error)
                continue
            queue.is_dirty = False
            del self._dirty[queue]
            self._noted.discard(queue)
            count += 1
        if self._failed and sum(queue.pending_bytes for queue in self._failed) > _FAILED_BYTES_MOST:
            raise self._failed_error
        return count

    def _set_aside(self, queue: ConsumeQueue, error: OSError) -> None:
        if not self._failed:
            log.warning(
                "the units of topic=%s queue_id=%d stay in memory, and no old message goes before "
                "they can be written: %s",
                queue.topic, queue.queue_id, error,
            )  # fmt: skip
        self._failed_error = error
        del self._dirty[queue]
        self._failed[queue] = self._disk.monotonic() + _AGAIN_S

    @property
    def has_unwritten(self) -> bool:
        """Some units are only in memory, and can be written now."""
        return bool(self._dirty)

    def note_unwritten(self) -> Callable[[], bool]:
        """Return a call that tells whether all that is only in memory now has been written.

        It does not hold over the deletion of a topic.
        """
        noted = self._noted = {*self._dirty, *self._failed}
        return lambda: not noted

    def write(self) -> list[QueueSync]:
        """Write the pending units of all queues; return what must be synced.

        Raises:
            OSError: the call may be repeated.
        """
        for queue in self._failed:
            self._failed[queue] = 0.0
        self.write_some(len(self._dirty) + len(self._failed))
        if self._failed:
            raise self._failed_error
        return self.take_syncs()

    def take_syncs(self) -> list[QueueSync]:
        """Return what must be synced of all that was written."""
        syncs = [QueueSync(queue, since) for queue, since in self._unsynced.items()]
        self._unsynced = {}
        return syncs

    def total_units(self) -> int:
        """Return the sum of all queues' ends: a check that no queue is missing."""
        return sum([queue.max_offset for queue in self.by_key.values()])

    def first_bytes(self) -> int:
        """Return the sum of all queues' first file names: a check that no first file is missing."""
        return sum([queue.first_byte for queue in self.by_key.values()])

    def load(self, physical_offset: int, given_out: int) -> bool:
        """Open the queues as far as their records lie below a physical offset.

        Args:
            physical_offset: how far the queues are known to be durable and complete.
            given_out: below this physical offset whoever sent a message may have its answer.

        Returns:
            Whether the files fit together; if not, they must be rebuilt from the CommitLog.

        Raises:
            OSError: a file cannot be read.
        """
        intact = True
        for topic, queue_id, _ in stored_queues(self._disk, self._directory):
            queue = self.get_or_add(topic, queue_id)
            try:
                is_sound = queue.load()
                if not is_sound:
                    intact = False
                    continue
                given = queue.cut_from(physical_offset, given_out)
                is_sound = queue.is_ordered()
            except UnreadableError as exc:
                log.warning("%s cannot be read: %s", queue.directory, exc)
                intact = False
                continue
            self._given_out[topic, queue_id] = given
            if is_sound:
                self.note_end(topic, queue_id, queue.max_offset)
            else:
                intact = False
            self.mark_unsynced(queue, queue.max_offset * UNIT_BYTES)
        return intact

    def note_end(self, topic: str, queue_id: int, end: int) -> None:
        """Note that a queue has ended at a queue offset; the highest one counts."""
        if end > 0:
            self._known_ends[topic, queue_id] = max(end, self._known_ends.get((topic, queue_id), 0))

    def note_given_out(self, topic: str, queue_id: int, end: int) -> None:
        """Note that queue offsets up to an end were given out; the highest one counts."""
        self._given_out[topic, queue_id] = max(end, self._given_out.get((topic, queue_id), 0))

    def note_stored_ends(self, physical_offset: int, given_out: int) -> None:
        """Note the ends of all queues as their files tell them.

        An end that is too high leaves a gap in the queue offsets, one that is too low gives some of
        them out again.

        Args:
            physical_offset: records below were in the log for certain.
            given_out: as `load` has it.

        Raises:
            OSError: a file cannot be read.
        """
        for topic, queue_id, directory in stored_queues(self._disk, self._directory):
            key = topic, queue_id
            try:
                self.note_end(*key, end_of_files(self._disk, directory, physical_offset))
                self.note_given_out(*key, end_of_files(self._disk, directory, given_out))
            except UnreadableError as exc:
                log.warning("the end of %s cannot be read: %s", directory, exc)

    @property
    def known_ends(self) -> list[tuple[str, int, int]]:
        """Topic, queue id and end of the queues whose ends were noted."""
        known, given_out = self._known_ends, self._given_out
        return [(*key, max(end, given_out.get(key, 0))) for key, end in known.items()]

    def delete_topic_steps(self, topic: str) -> Iterator[None]:
        """Delete the queues of a topic, one with each step.

        They are out of the table from the first step on. Where files are left, new queues begin at
        0 all the same. That they are gone is not durable yet.

        Raises:
            IllegalMessageError: no folder of this table can have that name; nothing was touched.
            OSError: some files are still there; the call may be repeated.
        """
        if not is_file_name(topic):
            raise IllegalMessageError(f"topic name {topic[:64]!r} is not the name of a folder")
        queues = list(self.of_topic(topic))
        for queue in queues:
            self._take_out(queue)
        self._by_topic.pop(topic, None)
        left = [stored.queue_id for stored in stored_queues_of(self._disk, self._directory, topic)]
        known = {queue.queue_id for queue in queues}
        queues += [self._make(topic, queue_id) for queue_id in left if queue_id not in known]
        first_error: OSError | None = None
        self.going.add(topic)
        try:
            for queue in queues:
                try:
                    queue.remove()
                except OSError as exc:
                    first_error = first_error or exc
                yield
        finally:
            self.going.discard(topic)
        if first_error is not None:
            raise first_error
        directory = f"{self._directory}/{topic}"
        if self._disk.exists(directory):
            remove_if_empty(self._disk, directory)

    def _take_out(self, queue: ConsumeQueue) -> None:
        queue.is_removed = True
        self._dirty.pop(queue, None)
        self._failed.pop(queue, None)
        self._noted.discard(queue)
        self._unsynced.pop(queue, None)
        self._trimmed.pop(queue, None)
        self._unraised.pop(queue, None)
        self._raise_failed.pop(queue, None)
        del self.by_key[(queue.topic, queue.queue_id)]

    def clear(self) -> None:
        """Delete all queues.

        Raises:
            OSError: some files are still there; the call may be repeated.
        """
        self._pool.close()
        self.by_key = {}
        self._by_topic = {}
        self._dirty, self._failed = {}, {}
        self._unsynced = {}
        self._trimmed = {}
        self._unraised = {}
        self._raise_failed = {}
        for _, _, directory in list(stored_queues(self._disk, self._directory)):
            for name in numbered_files(self._disk, directory):
                self._disk.unlink(f"{directory}/{name}")
            # A folder goes where nothing of somebody else's lies in it.
            for folder in (directory, directory.rpartition("/")[0]):
                remove_if_empty(self._disk, folder)

    def remove_if(self, given_out: int, is_message: Callable[[str, int, int, int], bool]) -> None:
        """Delete the files of queues whose newest message the log has: it tells their ends as well.

        Args:
            given_out: as `load` has it.
            is_message: gets topic, queue id, queue offset and physical offset.

        Raises:
            OSError: a file cannot be read or removed.
        """
        # A file that is open keeps its room.
        self._pool.close()
        for topic, queue_id, directory in list(stored_queues(self._disk, self._directory)):
            try:
                end, physical_offset = last_of_files(self._disk, directory, given_out)
            except UnreadableError:
                continue
            if is_message(topic, queue_id, end - 1, physical_offset):
                for name in numbered_files(self._disk, directory):
                    self._disk.unlink(f"{directory}/{name}")

    def begin_raise(self, physical_offset: int) -> None:
        """Note that the CommitLog begins later now; `raise_some` adjusts the queues to it.

        Until then whoever gets a queue gets it adjusted.
        """
        self._log_start = physical_offset
        self._unraised = dict.fromkeys(self.by_key.values())
        self._raise_failed = {}

    def raise_some(self, slice_s: float) -> list[RaisedQueue]:
        """Adjust queues for so many seconds; return those that lost messages since the last call.

        Raises:
            OSError: some queues could not be adjusted, all others were; begin again.
        """
        ends_at_s = self._disk.monotonic() + slice_s
        count = 0
        while self._unraised:
            self._raise_one(next(iter(self._unraised)))
            count += 1
            if count % _RAISES_A_LOOK == 0 and self._disk.monotonic() >= ends_at_s:
                break
        raised, self._raised = self._raised, []
        if self._raise_failed and not self._unraised:
            queue = next(iter(self._raise_failed))
            self._raise_failed = {}
            self._raised = raised
            raise OSError(f"queue files in {queue.directory} cannot be read now")
        return raised

    @property
    def is_raising(self) -> bool:
        """Some queues are not adjusted to the CommitLog's start."""
        return bool(self._unraised)

    def _raise_one(self, queue: ConsumeQueue) -> None:
        self._unraised.pop(queue, None)
        old_min = queue.min_offset
        try:
            queue.raise_min(self._log_start)
        except OSError as exc:
            log.warning("queue not adjusted to the log's start path=%s: %s", queue.directory, exc)
            self._raise_failed[queue] = None
        if queue.dropped_count:
            self._trimmed[queue] = None
        if queue.min_offset > old_min:
            self._raised.append(RaisedQueue(queue.topic, queue.queue_id, old_min, queue.min_offset))

    def raise_min(self, physical_offset: int) -> None:
        """Adjust all queues to the CommitLog's start at once, before anybody reads.

        Raises:
            OSError: some queues could not be adjusted, all others were; the call may be repeated.
        """
        self.begin_raise(physical_offset)
        while self.is_raising:
            self.raise_some(_AT_ONCE_S)
        self._raised = []

    @property
    def has_dropped(self) -> bool:
        """Files that `raise_min` dropped are still on the disk."""
        return bool(self._trimmed)

    def dropped(self) -> list[QueueDrop]:
        """Return the queues with files that `raise_min` dropped and that are still on the disk."""
        return [QueueDrop(queue, queue.dropped_end) for queue in self._trimmed]

    def unlink_some(self, drops: deque[QueueDrop], most: int, slice_s: float) -> list[UnlinkedFile]:
        """Unlink the oldest dropped file of a few queues, and take those out of `drops`.

        The folders of what is returned have to be synced, and `forget_unlinked` to be told then.
        What could not be unlinked still counts as dropped.
        """
        ends_at_s = self._disk.monotonic() + slice_s
        unlinked: list[UnlinkedFile] = []
        first_error: OSError | None = None
        while drops and len(unlinked) < most:
            drop = drops.popleft()
            try:
                file_start = drop.queue.unlink_dropped(drop.end)
            except OSError as exc:
                file_start, first_error = None, first_error or exc
            if file_start is not None:
                unlinked.append(UnlinkedFile(drop, file_start))
            if self._disk.monotonic() >= ends_at_s:
                break
        if first_error is not None:
            log.warning("queue files of removed segments are still there: %s", first_error)
        return unlinked

    def forget_unlinked(self, files: list[UnlinkedFile]) -> list[QueueDrop]:
        """Note that files are gone for good; return the queues that have more of them."""
        left: list[QueueDrop] = []
        for drop, file_start in files:
            queue = drop.queue
            queue.forget_dropped(file_start)
            if queue.dropped_count:
                left.append(drop)
            else:
                self._trimmed.pop(queue, None)
        return left

    def empty_queues(self) -> list[tuple[str, int, int]]:
        """Return topic, queue id and end of the queues whose every message has expired."""
        return [
            (queue.topic, queue.queue_id, queue.max_offset)
            for queue in self.by_key.values()
            if queue.max_offset == queue.min_offset > 0
        ]

    def restore_ends(self) -> None:
        """After a rebuild, let queues without messages go on where they ended."""
        for (topic, queue_id), end in self._known_ends.items():
            queue = self.get_or_add(topic, queue_id)
            # Behind what is shown there may be messages that are held back.
            if queue.max_offset == queue.next_offset == 0:
                queue.begin_at(end)
                self.mark_dirty(queue)

    def settle_given_out(self, *, is_damaged: bool) -> None:
        """Have queues end where their files once did, or have the files end where the queues do.

        The former after damage, which took the records themselves.

        Raises:
            OSError: some files have units of no record yet; the call may be repeated.
        """
        for (topic, queue_id), end in self._given_out.items():
            if is_damaged:
                queue = self.get_or_add(topic, queue_id) if end else None
                # What is held back comes first, and gives them its own places.
                if queue is not None and queue.next_offset <= queue.max_offset < end:
                    queue.append_blanks(end)
                    self.mark_dirty(queue)
            elif (left := self.by_key.get((topic, queue_id))) and left.max_offset < end:
                left.zero_rest()

    def begin_appending(self) -> None:
        """Let the next message of each queue follow the last one that is there."""
        for queue in self.by_key.values():
            queue.next_offset = queue.max_offset

    def close(self) -> None:
        """Close the files; what is only in memory is dropped."""
        self._pool.close()
