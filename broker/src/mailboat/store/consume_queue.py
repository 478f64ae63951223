"""ConsumeQueues: for each queue of each topic, where its messages lie in the CommitLog.

A unit has 20 bytes, big-endian; its index in the queue is the queue offset:

    offset  size  field
    0       8     physical offset
    8       4     record size
    12      8     tagsCode

Files have a fixed size (300,000 units by default), are sparse, and are named by their first byte in
the queue. A unit of size 0x7FFFFFFF is a blank: it stands for a message that is not there.

New units gather in memory and go to the file in larger pieces; a reader sees both. They are
derived: what a crash takes is rebuilt from the CommitLog.

Source: apache/rocketmq store/ConsumeQueue.java @ rocketmq-all-5.3.3.
"""

import contextlib
import logging
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from mailboat.disk import (
    Disk,
    read_fully,
    read_up_to_damage,
    remove_if_empty,
    sync,
    write_fully,
)
from mailboat.store.file_pool import FilePool
from mailboat.store.layout import numbered_files, segment_name

log = logging.getLogger(__name__)

UNIT: Final = struct.Struct(">qiq")
UNIT_BYTES: Final = 20
assert UNIT.size == UNIT_BYTES
BLANK_SIZE: Final = 0x7FFFFFFF
_MAX_QUEUE_ID: Final = (1 << 31) - 1
_QUEUE_ID_DIGITS: Final = len(str(_MAX_QUEUE_ID))
_NOTHING: Final = (0, BLANK_SIZE, 0)
BLANK_UNIT: Final = UNIT.pack(*_NOTHING)
LOST_UNIT: Final = bytes(UNIT_BYTES)
"""Stands for a unit that cannot be read: it says nothing of its message."""

# At a time, where units say nothing.
_UNITS_A_LOOK: Final = 512


class UnitPlace(NamedTuple):
    """Units in one file."""

    path: str
    position: int
    size_bytes: int


def read_whole_units(disk: Disk, fd: int, place: UnitPlace) -> bytes:
    """Return units of an open file, those before the first that is lost.

    Raises:
        OSError: they cannot be read now.
    """
    data = read_up_to_damage(disk, fd, place.size_bytes, place.position)
    if len(data) == place.size_bytes:
        return data
    log.warning("%s cannot be read at %d", place.path, place.position + len(data))
    return data[: len(data) - len(data) % UNIT_BYTES]


def blanks_before_message(units: bytes) -> int:
    """Return how many of some units, from the first one on, are blanks."""
    count = len(units) // UNIT_BYTES
    first = units[:UNIT_BYTES]
    # Those of one gap are all alike.
    if first and UNIT.unpack(first)[1] == BLANK_SIZE and units == first * count:
        return count
    for number, (_, size, _) in enumerate(UNIT.iter_unpack(units)):
        if size != BLANK_SIZE:
            return number
    return count


class StoredQueue(NamedTuple):
    """A folder with files of a queue."""

    topic: str
    queue_id: int
    path: str


def stored_queues(disk: Disk, root: str) -> Iterator[StoredQueue]:
    """Yield the queues that have a folder; what else lies there is nobody's business.

    Raises:
        OSError: a folder cannot be read.
    """
    for topic in disk.listdir(root) if disk.is_dir(root) else ():
        yield from stored_queues_of(disk, root, topic)


def stored_queues_of(disk: Disk, root: str, topic: str) -> Iterator[StoredQueue]:
    """Yield the queues of one topic that have a folder.

    Raises:
        OSError: a folder cannot be read.
    """
    for name in disk.listdir(f"{root}/{topic}") if disk.is_dir(f"{root}/{topic}") else ():
        path = f"{root}/{topic}/{name}"
        if _is_queue_id(name) and disk.is_dir(path):
            yield StoredQueue(topic, int(name), path)


def _is_queue_id(name: str) -> bool:
    return (
        len(name) <= _QUEUE_ID_DIGITS
        and name.isascii()
        and name.isdigit()
        and str(int(name)) == name
        and int(name) <= _MAX_QUEUE_ID
    )


def end_of_files(disk: Disk, directory: str, physical_offset: int) -> int:
    """Return the queue offset after the last unit of a record below a physical offset.

    Reads the files as they lie there, of whatever size; 0 where there are none.

    Raises:
        OSError: a file cannot be read.
    """
    return last_of_files(disk, directory, physical_offset)[0]


def last_of_files(disk: Disk, directory: str, physical_offset: int) -> tuple[int, int]:
    """Return what `end_of_files` does, and where the record of that last unit lies, -1 for none.

    Raises:
        OSError: a file cannot be read.
    """
    names = numbered_files(disk, directory)
    for name in reversed(names):
        path = f"{directory}/{name}"
        fd = disk.open(path)
        last = -1
        try:
            low, high = 0, disk.size(path) // UNIT_BYTES
            while low < high:
                middle = (low + high) // 2
                unit = read_fully(disk, fd, UNIT_BYTES, middle * UNIT_BYTES)
                if _lies_below(unit, physical_offset):
                    low, last = middle + 1, UNIT.unpack(unit)[0]
                else:
                    high = middle
        finally:
            disk.close(fd)
        # A file without a unit says where it begins, once there is none before it.
        if low or name == names[0]:
            return int(name) // UNIT_BYTES + low, last
    return 0, -1


def _lies_below(unit: bytes, physical_offset: int) -> bool:
    """Tell whether a unit is one, and its record lies whole below a physical offset."""
    start, size, _ = UNIT.unpack(unit)
    if size == BLANK_SIZE:
        return bool(start <= physical_offset)
    return bool(size > 0 and start + size <= physical_offset)


class ConsumeQueue:
    """One queue.

    `next_offset` is the queue offset of the next message; `max_offset` (exclusive) and `min_offset`
    bound what readers may see. `max_offset` trails `next_offset` while messages wait for a flush.
    One that `is_removed` went with its topic: what waited for it goes nowhere.
    """

    __slots__ = (
        "_disk",
        "_dropped",
        "_file_bytes",
        "_files",
        "_first_physical_offset",
        "_named",
        "_pending",
        "_pool",
        "_written",
        "directory",
        "hot_from",
        "is_dirty",
        "is_removed",
        "known_time",
        "last_physical_end",
        "max_offset",
        "min_offset",
        "next_offset",
        "queue_id",
        "topic",
        "topic_bytes",
    )

    def __init__(
        self, disk: Disk, pool: FilePool, directory: str, topic: str, queue_id: int, file_bytes: int
    ) -> None:
        """Build an empty queue whose files lie in `directory`."""
        self._disk = disk
        self._pool = pool
        self._file_bytes = file_bytes
        self._files: list[int] = []
        # Files that hold nothing from `min_offset` on, out of the queue and still on the disk.
        self._dropped: list[int] = []
        self._pending = bytearray()
        self._written = 0
        # Where the message at `min_offset` lies, -1 while unknown.
        self._first_physical_offset = -1
        # The path asked for last: most reads of a queue go on where the one before ended.
        self._named = (-1, "")
        self.directory = directory
        self.topic = topic
        self.topic_bytes = os.fsencode(topic)
        self.queue_id = queue_id
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        self.last_physical_end = 0
        # Where a message lies from which on all are in memory, see `mailboat.store.warming`.
        self.hot_from = 0, -1
        # Queue offset and store time of the message that was looked at last.
        self.known_time = -1, -1
        self.is_dirty = False
        self.is_removed = False

    # -- writing --------------------------------------------------------------------------------

    def append_units(self, units: bytes, physical_end: int) -> None:
        """Make packed units visible, all at once; reaches memory only."""
        self._pending += units
        self.max_offset += len(units) // UNIT_BYTES
        self.last_physical_end = physical_end

    def append_blanks(self, end: int) -> None:
        """Fill up to the queue offset `end` with blanks: their messages are damaged or missing.

        They carry the physical offset where the message before them ended, so that units stay in
        order.
        """
        count = max(end - self.max_offset, 0)
        self._pending += UNIT.pack(self.last_physical_end, BLANK_SIZE, 0) * count
        self.max_offset += count
        self.next_offset = max(self.next_offset, self.max_offset)

    def fill_blank(self, queue_offset: int, unit: bytes) -> bool:
        """Put a packed unit in the place of a blank; tell whether there was one.

        A queue whose first messages were damaged begins with this one from now on, if its first
        file has room for it.

        Raises:
            OSError: it may still be blank; the call may be repeated.
        """
        first = self.min_offset
        if not self.first_byte <= queue_offset * UNIT_BYTES < self.max_offset * UNIT_BYTES:
            return False
        self.min_offset = min(first, queue_offset)
        found = self.unit(queue_offset)
        if found is not None and found[1] != BLANK_SIZE:
            self.min_offset = first
            return False
        if queue_offset < first:
            self._first_physical_offset = -1
        self.replace_unit(queue_offset, unit)
        return True

    def replace_unit(self, queue_offset: int, unit: bytes) -> None:
        """Put another packed unit in the place of one that the queue has.

        Raises:
            OSError: it may still be the old one; the call may be repeated.
        """
        if queue_offset == self.min_offset:
            self._first_physical_offset = -1
        position = queue_offset * UNIT_BYTES
        if position >= self._written:
            begin = position - self._written
            self._pending[begin : begin + UNIT_BYTES] = unit
            return
        file_start = position // self._file_bytes * self._file_bytes
        fd = self._pool.get(self._path(file_start))
        write_fully(self._disk, fd, unit, position - file_start)

    def begin_at(self, queue_offset: int) -> None:
        """Start an empty queue at a queue offset other than 0: what comes before is gone."""
        assert self.max_offset == self.min_offset == 0
        first_unit = queue_offset * UNIT_BYTES // self._file_bytes * self._file_bytes // UNIT_BYTES
        self._written = first_unit * UNIT_BYTES
        self._first_physical_offset = -1
        self._pending += BLANK_UNIT * (queue_offset - first_unit)
        self.min_offset = self.max_offset = queue_offset
        self.next_offset = max(self.next_offset, queue_offset)

    def begin_anew(self) -> None:
        """Go back to an empty queue: all its messages belong to a topic that was deleted.

        Raises:
            OSError: some files are still there; the call may be repeated.
        """
        self._forget_files()
        self._remove_files()
        self._first_physical_offset = -1
        self.hot_from = 0, -1
        self.known_time = -1, -1
        self.min_offset = self.max_offset = self.next_offset = 0
        self.last_physical_end = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of units that are only in memory."""
        return len(self._pending)

    def write_pending(self) -> bool:
        """Write the units in memory to the page cache; tell whether a file was created.

        Raises:
            OSError: some or all units are still only in memory; the call may be repeated.
        """
        created = False
        if not self._files and self._written:
            # An empty queue that begins where a file does: its name alone says where.
            self._create(self._written)
            created = True
        while self._pending:
            file_start = self._written // self._file_bytes * self._file_bytes
            if file_start not in self._files:
                self._create(file_start)
                created = True
            count = min(len(self._pending), file_start + self._file_bytes - self._written)
            fd = self._pool.get(self._path(file_start))
            write_fully(self._disk, fd, self._pending[:count], self._written - file_start)
            del self._pending[:count]
            self._written += count
        return created

    def _create(self, file_start: int) -> None:
        # Nothing here is synced: whoever waits for a message must not wait for a journal. The next
        # checkpoint makes files and names durable.
        for directory in (self.directory.rpartition("/")[0], self.directory):
            if not self._disk.exists(directory):
                self._disk.mkdir(directory)
        path = self._path(file_start)
        is_left_over = self._disk.exists(path)
        fd = self._disk.open(path, create=not is_left_over)
        try:
            if is_left_over:
                self._disk.ftruncate(fd, 0)
            self._disk.ftruncate(fd, self._file_bytes)
        except OSError:
            self._disk.close(fd)
            raise
        self._pool.add(path, fd)
        self._files.append(file_start)

    def sync(self, since_bytes: int) -> None:
        """Make the files that hold bytes from `since_bytes` on and their names durable.

        The directory's own name is the business of `mailboat.store.queue_table.sync_queues`.

        Raises:
            OSError: nothing is known to be durable.
        """
        for file_start in tuple(self._files):
            if file_start + self._file_bytes > since_bytes:
                # Opened anew: the pool belongs to the store's thread, and this may run elsewhere.
                fd = self._disk.open(self._path(file_start))
                try:
                    sync(self._disk, fd)
                finally:
                    self._disk.close(fd)
        if self._files:
            self._disk.fsync_dir(self.directory)

    @property
    def written_bytes(self) -> int:
        """Bytes of units handed to the operating system, counted from the queue's start."""
        return self._written

    # -- reading --------------------------------------------------------------------------------

    def read_units(self, queue_offset: int, count: int) -> bytes:
        """Return up to `count` packed units from `queue_offset` on, bounded by `max_offset`.

        Where some are lost, those before them.

        Raises:
            OSError: a file cannot be read now.
        """
        count = min(count, self.max_offset - queue_offset)
        if count <= 0 or queue_offset < self.min_offset:
            return b""
        position = queue_offset * UNIT_BYTES
        end = position + count * UNIT_BYTES
        if position >= self._written:
            begin = position - self._written
            return bytes(self._pending[begin : begin + count * UNIT_BYTES])
        file_start = position // self._file_bytes * self._file_bytes
        path = self._path(file_start)
        in_file = min(end, self._written, file_start + self._file_bytes) - position
        try:
            data = self._disk.pread(self._pool.get(path), in_file, position - file_start)
        except OSError:
            data = b""
        if len(data) != in_file:
            place = UnitPlace(path, position - file_start, in_file)
            data = read_whole_units(self._disk, self._pool.get(path), place)
            if len(data) != in_file:
                return data
        if in_file == count * UNIT_BYTES:
            return data
        read = in_file // UNIT_BYTES
        return data + self.read_units(queue_offset + read, count - read)

    def places(self, queue_offset: int, count: int) -> "list[UnitPlace]":
        """Return where up to `count` units lie that were handed to the operating system."""
        position = max(queue_offset, self.min_offset) * UNIT_BYTES
        end = min((queue_offset + count) * UNIT_BYTES, self.max_offset * UNIT_BYTES, self._written)
        found = []
        while position < end:
            found.append(self._place(position, end))
            position += found[-1].size_bytes
        return found

    def _place(self, position: int, end: int) -> "UnitPlace":
        """Return what one file has of a range of the queue's bytes."""
        file_start = position // self._file_bytes * self._file_bytes
        size_bytes = min(end, self._written, file_start + self._file_bytes) - position
        return UnitPlace(self._path(file_start), position - file_start, size_bytes)

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        """Return (physical offset, size, tagsCode), None outside the queue and where it is lost."""
        data = self.read_units(queue_offset, 1)
        return UNIT.unpack(data) if data else None

    # -- opening, cutting, expiry -----------------------------------------------------------------

    def load(self) -> bool:
        """Find the queue's files; `cut_from` then finds its end.

        Returns:
            Whether the files fit together; if not, the queue must be rebuilt from the CommitLog.
        """
        intact = True
        for name in numbered_files(self._disk, self.directory):
            path = f"{self.directory}/{name}"
            size_bytes = self._disk.size(path)
            if size_bytes > self._file_bytes:
                self._disk.unlink(path)
                intact = False
                continue
            self._files.append(int(name))
            if size_bytes < self._file_bytes:
                # A power cut took the size, and with it only units that nobody relies on: where
                # somebody does, the sum of units does not add up.
                self._disk.ftruncate(self._pool.get(path), self._file_bytes)
        if not self._files:
            return intact
        first, last = self._files[0], self._files[-1]
        if first % self._file_bytes or last - first != (len(self._files) - 1) * self._file_bytes:
            return False  # Of another mappedFileSizeConsumeQueue, or one is missing.
        return intact and self._files == list(range(first, last + 1, self._file_bytes))

    def cut_from(self, physical_offset: int, given_out: int) -> int:
        """Keep the leading units whose records lie whole below a physical offset; zero the rest.

        Everything behind the first unit that is empty or out of order goes too, as does everything
        beyond, so that no later recovery takes it for new. Units of records below `given_out` are
        out of the queue as well, but stay in its files until what follows is written over them, or
        `zero_rest` is called: a start that dies before finds them again.

        Returns:
            How far the units of records below `given_out` went: those queue offsets have been
            given out.

        Raises:
            OSError: the cut may be incomplete; the call may be repeated.
        """
        if not self._files:
            return 0
        self._first_physical_offset = -1
        self.hot_from = 0, -1
        self.known_time = -1, -1
        first = self._files[0] // UNIT_BYTES
        self._written = self._files[-1] + self._file_bytes
        self.max_offset = self._written // UNIT_BYTES
        self.min_offset = first
        low, high = first, self.max_offset
        while low < high:
            middle = (low + high) // 2
            if self._holds_below(middle, physical_offset):
                low = middle + 1
            else:
                high = middle
        self.max_offset = self.next_offset = low
        self._written = low * UNIT_BYTES
        unit = self.unit(low - 1) if low > first else None
        if unit is not None:
            self.last_physical_end = unit[0] + (unit[1] if unit[1] != BLANK_SIZE else 0)
        end = self._count_beyond(low, given_out)
        self._zero_after(end * UNIT_BYTES)
        return end

    def zero_rest(self) -> None:
        """Zero what lies behind the queue's end in its files.

        Raises:
            OSError: it may be incomplete; the call may be repeated.
        """
        if self._files:
            self._zero_after(self.max_offset * UNIT_BYTES)

    def is_ordered(self) -> bool:
        """Tell whether the ends of all files lie in order in the CommitLog.

        A file that was emptied or overwritten shows; a damaged unit inside one is found when its
        message is read.
        """
        previous = -1
        for file_start in self._files:
            last = min(file_start + self._file_bytes, self._written) - UNIT_BYTES
            for position in (file_start, last):
                # A file may hold nothing yet: whether it should, the sums over all queues tell.
                if not file_start <= position < self._written:
                    continue
                unit = self.unit(position // UNIT_BYTES)
                if unit is None or unit[1] <= 0:
                    return False
                if unit[1] != BLANK_SIZE and not previous < unit[0] + unit[1]:
                    return False
                if unit[1] != BLANK_SIZE:
                    previous = unit[0]
        return True

    @property
    def first_byte(self) -> int:
        """Where the first file begins that holds units from `min_offset` on.

        Where there is none yet, that is where it will be made.
        """
        files = self._files
        if not files:
            return self._written // self._file_bytes * self._file_bytes
        # A checkpoint asks a hundred thousand queues, most of which have one file.
        if len(files) == 1 or self.min_offset * UNIT_BYTES < files[1]:
            return files[0]
        return files[bisect_right(files, self.min_offset * UNIT_BYTES) - 1]

    def _count_beyond(self, queue_offset: int, given_out: int) -> int:
        """Return where the units end that are stored beyond a cut, of records below an offset."""
        limit = (self._files[-1] + self._file_bytes) // UNIT_BYTES
        while queue_offset < limit and self._holds_below(queue_offset, given_out):
            queue_offset += 1
        return queue_offset

    def _holds_below(self, queue_offset: int, physical_offset: int) -> bool:
        position = queue_offset * UNIT_BYTES
        file_start = position // self._file_bytes * self._file_bytes
        fd = self._pool.get(self._path(file_start))
        unit = read_fully(self._disk, fd, UNIT_BYTES, position - file_start)
        return _lies_below(unit, physical_offset)

    def _zero_after(self, position: int) -> None:
        for file_start in [f for f in self._files if f >= position and f != self._files[0]]:
            self._remove_file(file_start)
            self._files.remove(file_start)
        last = self._files[-1]
        fd = self._pool.get(self._path(last))
        self._disk.ftruncate(fd, max(position - last, 0))
        self._disk.ftruncate(fd, self._file_bytes)

    def _remove_file(self, file_start: int) -> None:
        path = self._path(file_start)
        self._pool.drop(path)
        # A call that failed behind this one is repeated.
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)

    def raise_min(self, physical_offset: int) -> None:
        """Move `min_offset` to the first unit at or above the CommitLog's start; drop old files.

        Their names stay until `forget_dropped`.

        Raises:
            OSError: a file could not be read; the call may be repeated.
        """
        if self._first_physical_offset >= physical_offset:
            return
        low, high = self.min_offset, self.max_offset
        first = self.unit(low)
        if first is not None and first[0] >= physical_offset and first != _NOTHING:
            self._first_physical_offset = first[0]
            return
        while low < high:
            middle = (low + high) // 2
            if self._lies_below(middle, low, high, physical_offset):
                low = middle + 1
            else:
                high = middle
        self.min_offset = low
        first = self.unit(low)
        self._first_physical_offset = -1 if first is None or first == _NOTHING else first[0]
        while len(self._files) > 1 and self._files[1] <= low * UNIT_BYTES:
            file_start = self._files.pop(0)
            self._pool.drop(self._path(file_start))
            self._dropped.append(file_start)

    def _lies_below(self, queue_offset: int, low: int, high: int, physical_offset: int) -> bool:
        """Tell whether a message of a queue lies below a place of the log, as its units say.

        What units do not say for certain is not below: a message that nobody has read must not go
        with one that went. A unit that is all zeros says nothing, those behind it do; one that
        lies before the one before it has lost a bit.
        """
        before = self.unit(queue_offset - 1) if queue_offset > low else None
        if before is None or before[1] <= 0:
            before = _NOTHING
        if before[0] >= physical_offset:
            return False
        at, count = queue_offset, 1
        while at < high and (units := self.read_units(at, min(count, high - at))):
            for unit in UNIT.iter_unpack(units):
                if unit[1] > 0:
                    return unit == _NOTHING or bool(before[0] <= unit[0] < physical_offset)
            at += len(units) // UNIT_BYTES
            count = _UNITS_A_LOOK
        return False

    @property
    def dropped_count(self) -> int:
        """Files that are out of the queue and still on the disk."""
        return len(self._dropped)

    @property
    def dropped_end(self) -> int:
        """All dropped files begin below it."""
        return self._dropped[-1] + 1 if self._dropped else 0

    def unlink_dropped(self, end: int) -> int | None:
        """Unlink the oldest dropped file if it begins below `end`; return where it begins.

        It counts as dropped until `forget_dropped`.

        Raises:
            OSError: it is still there; the call may be repeated.
        """
        if self.is_removed or not self._dropped or self._dropped[0] >= end:
            return None
        self._remove_file(self._dropped[0])
        return self._dropped[0]

    def forget_dropped(self, file_start: int) -> None:
        """Note that a file is gone for good."""
        if file_start in self._dropped:
            self._dropped.remove(file_start)

    def remove(self) -> None:
        """Delete the queue's files and directory; whatever is left there, none of it is its own.

        Raises:
            OSError: some of them are still there.
        """
        self.is_removed = True
        self._forget_files()
        self._remove_files()
        # What somebody else put there stays, and so does the folder.
        if self._has_directory:
            remove_if_empty(self._disk, self.directory)

    def _forget_files(self) -> None:
        self._files, self._dropped = [], []
        self._pending.clear()
        self._written = 0

    def _remove_files(self) -> None:
        for name in numbered_files(self._disk, self.directory) if self._has_directory else ():
            self._remove_file(int(name))

    @property
    def _has_directory(self) -> bool:
        return self._disk.exists(self.directory)

    def _path(self, file_start: int) -> str:
        named = self._named
        if named[0] != file_start:
            # One assignment: syncs ask for paths on another thread.
            named = self._named = (file_start, f"{self.directory}/{segment_name(file_start)}")
        return named[1]
