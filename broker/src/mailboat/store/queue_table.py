"""All ConsumeQueues of a store.

Source: apache/rocketmq store/queue/ConsumeQueueStore.java @ rocketmq-all-5.3.3.
"""

from typing import Final, NamedTuple

from mailboat.disk import Disk
from mailboat.store.consume_queue import UNIT_BYTES, ConsumeQueue, FilePool

_OPEN_FILES: Final = 256


class QueueSync(NamedTuple):
    """A queue whose files from `since_bytes` on must be synced."""

    queue: ConsumeQueue
    since_bytes: int


class QueueDrop(NamedTuple):
    """A queue whose oldest dropped files may be unlinked, so many of them."""

    queue: ConsumeQueue
    files: int


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

    def __init__(self, disk: Disk, directory: str, file_bytes: int) -> None:
        """Build an empty table over `directory`."""
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes
        self._pool = FilePool(disk, _OPEN_FILES)
        self._dirty: dict[ConsumeQueue, None] = {}
        self._unsynced: dict[ConsumeQueue, int] = {}
        self._trimmed: dict[ConsumeQueue, None] = {}
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        # The same by topic: walking all queues for one topic is too slow for a page of topics.
        self._by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        # Ends of queues whose files are in order, kept over a rebuild of all queues.
        self._known_ends: dict[tuple[str, int], int] = {}

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue that exists."""
        return self.by_key.get((topic, queue_id))

    def get_or_add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, a new and empty one where there was none; touches no file."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            directory = f"{self._directory}/{topic}/{queue_id}"
            queue = ConsumeQueue(
                self._disk, self._pool, directory, topic, queue_id, self._file_bytes
            )
            self.by_key[(topic, queue_id)] = queue
            self._by_topic.setdefault(topic, {})[queue_id] = queue
        return queue

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of a topic, by queue id."""
        queues = self._by_topic.get(topic, {})
        return [queues[queue_id] for queue_id in sorted(queues)]

    def mark_dirty(self, queue: ConsumeQueue) -> None:
        """Note that a queue has units that are only in memory."""
        if not queue.is_dirty:
            queue.is_dirty = True
            self._dirty[queue] = None

    def mark_unsynced(self, queue: ConsumeQueue, since_bytes: int) -> None:
        """Note that a queue's bytes from `since_bytes` on are not durable."""
        self._unsynced[queue] = min(since_bytes, self._unsynced.get(queue, since_bytes))

    def write_some(self, limit: int) -> int:
        """Write the pending units of up to `limit` queues; return how many queues were written.

        Raises:
            OSError: the queue that failed and the rest keep their units in memory.
        """
        count = 0
        while self._dirty and count < limit:
            queue = next(iter(self._dirty))
            # Noted first: a call that fails may have written a part.
            self.mark_unsynced(queue, queue.written_bytes)
            queue.write_pending()
            queue.is_dirty = False
            del self._dirty[queue]
            count += 1
        return count

    def write(self) -> list[QueueSync]:
        """Write the pending units of all queues; return what must be synced.

        Raises:
            OSError: the call may be repeated.
        """
        self.write_some(len(self._dirty))
        syncs = [QueueSync(queue, since) for queue, since in self._unsynced.items()]
        self._unsynced = {}
        return syncs

    def total_units(self) -> int:
        """Return the sum of all queues' ends: a check that no queue is missing."""
        return sum(queue.max_offset for queue in self.by_key.values())

    def first_bytes(self) -> int:
        """Return the sum of all queues' first file names: a check that no first file is missing."""
        return sum(queue.first_byte for queue in self.by_key.values())

    def load(self, physical_offset: int, flushed_offset: int) -> bool:
        """Open the queues as far as their records lie below a physical offset.

        Args:
            physical_offset: how far the queues are known to be durable and complete.
            flushed_offset: how far the CommitLog was durable.

        Returns:
            Whether the files fit together; if not, they must be rebuilt from the CommitLog.

        Raises:
            OSError: a file cannot be read.
        """
        if not self._disk.exists(self._directory):
            return True
        intact = True
        for topic in self._disk.listdir(self._directory):
            topic_directory = f"{self._directory}/{topic}"
            for name in self._disk.listdir(topic_directory):
                if not name.isdigit():
                    continue
                queue = self.get_or_add(topic, int(name))
                if not queue.load():
                    intact = False
                    continue
                queue.cut_from(physical_offset, flushed_offset)
                if queue.is_ordered():
                    self._known_ends[topic, queue.queue_id] = queue.max_offset
                else:
                    intact = False
                self.mark_unsynced(queue, queue.max_offset * UNIT_BYTES)
        return intact

    def delete_topic(self, topic: str) -> None:
        """Delete the queues of a topic.

        Raises:
            OSError: some files are still there; the call may be repeated.
        """
        for queue in self.of_topic(topic):
            queue.remove()
            self._dirty.pop(queue, None)
            self._unsynced.pop(queue, None)
            self._trimmed.pop(queue, None)
            del self.by_key[(topic, queue.queue_id)]
            del self._by_topic[topic][queue.queue_id]
        self._by_topic.pop(topic, None)
        directory = f"{self._directory}/{topic}"
        if self._disk.exists(directory) and not self._disk.listdir(directory):
            self._disk.rmdir(directory)
            self._disk.fsync_dir(self._directory)

    def clear(self) -> None:
        """Delete all queues.

        Raises:
            OSError: some files are still there; the call may be repeated.
        """
        self._pool.close()
        self.by_key = {}
        self._by_topic = {}
        self._dirty = {}
        self._unsynced = {}
        self._trimmed = {}
        if not self._disk.exists(self._directory):
            return
        for topic in self._disk.listdir(self._directory):
            topic_directory = f"{self._directory}/{topic}"
            for name in self._disk.listdir(topic_directory):
                directory = f"{topic_directory}/{name}"
                for file in self._disk.listdir(directory):
                    self._disk.unlink(f"{directory}/{file}")
                self._disk.rmdir(directory)
            self._disk.rmdir(topic_directory)

    def raise_min(self, physical_offset: int, raised: list[RaisedQueue] | None = None) -> None:
        """Adjust all queues to the CommitLog's start; `raised` gets those that lost messages.

        Raises:
            OSError: of the first queue that could not be adjusted, after all others were; the call
                may be repeated.
        """
        first_error: OSError | None = None
        for queue in self.by_key.values():
            old_min = queue.min_offset
            try:
                queue.raise_min(physical_offset)
            except OSError as exc:
                first_error = first_error or exc
            if queue.dropped_count:
                self._trimmed[queue] = None
            new_min = queue.min_offset
            if raised is not None and new_min > old_min:
                raised.append(RaisedQueue(queue.topic, queue.queue_id, old_min, new_min))
        if first_error is not None:
            raise first_error

    @property
    def has_dropped(self) -> bool:
        """Files that `raise_min` dropped are still on the disk."""
        return bool(self._trimmed)

    def dropped(self) -> list[QueueDrop]:
        """Return the queues with files that `raise_min` dropped and that are still on the disk."""
        return [QueueDrop(queue, queue.dropped_count) for queue in self._trimmed]

    def unlink_dropped(self, drops: list[QueueDrop]) -> None:
        """Remove dropped files from the disk; queues that were deleted since have none.

        Raises:
            OSError: of the first queue that failed, after all others were done; the call may be
                repeated.
        """
        first_error: OSError | None = None
        for queue, files in drops:
            try:
                queue.unlink_dropped(files)
            except OSError as exc:
                first_error = first_error or exc
            if not queue.dropped_count:
                self._trimmed.pop(queue, None)
        if first_error is not None:
            raise first_error

    def empty_queues(self) -> list[tuple[str, int, int]]:
        """Return topic, queue id and end of the queues whose every message has expired."""
        return [
            (queue.topic, queue.queue_id, queue.max_offset)
            for queue in self.by_key.values()
            if queue.max_offset == queue.min_offset > 0
        ]

    def restore_ends(self, empty_queues: list[tuple[str, int, int]]) -> None:
        """After a rebuild, let queues without messages go on where they ended."""
        ends = {(topic, queue_id): end for topic, queue_id, end in empty_queues}
        for (topic, queue_id), end in {**ends, **self._known_ends}.items():
            queue = self.get_or_add(topic, queue_id)
            if queue.max_offset == 0 and end > 0:
                queue.begin_at(end)
                self.mark_dirty(queue)

    def fill_stored(self) -> None:
        """Fill queues up to where they once went, after damage took the records themselves."""
        for queue in self.by_key.values():
            if queue.max_offset < queue.stored_end:
                queue.append_blanks(queue.stored_end)
                self.mark_dirty(queue)

    def close(self) -> None:
        """Close the files; what is only in memory is dropped."""
        self._pool.close()
