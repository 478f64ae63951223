"""Where a read of a queue gets its bytes: from the log itself, or from what was fetched before.

What lies near the end of the log is in memory, and is read when it is asked for (`LogSource`). What
may have to come from the disk is fetched by another thread first, and the answer is made of these
very bytes (`Fetched`), so that the store's thread never waits for a disk.

A unit that says a size beyond all measure is believed only where the record says so too.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from mailboat.disk import Disk, UnreadableError
from mailboat.store.commit_log import CommitLog
from mailboat.store.consume_queue import (
    BLANK_SIZE,
    LOST_UNIT,
    UNIT,
    UNIT_BYTES,
    ConsumeQueue,
    read_whole_units,
)
from mailboat.store.file_pool import FilePool
from mailboat.store.places import Run
from mailboat.store.segment import Segment

_SURELY_SANE_BYTES: Final = 256 * 1024
_FILES_A_FETCH: Final = 8
# Records of other queues that are read along cost less than a call for each record of this one, as
# long as there are no more of them than this for each.
_READ_ALONG_BYTES: Final = 12 * 1024


class RecordSource(Protocol):
    """What a read of a queue asks for; what the bytes are worth is the business of `Lookup`."""

    def units(self, queue: ConsumeQueue, queue_offset: int, count: int) -> bytes:
        """Return up to so many packed units, those before the first that is lost.

        Raises:
            OSError: the queue's file cannot be read now.
        """
        ...

    def copy(self, places: bytes, runs: Sequence[Run]) -> bytes | None:
        """Return chosen records back to back, None where that takes more than one go.

        Raises:
            OSError: they cannot be read now.
        """
        ...

    def record(self, physical_offset: int, size: int) -> bytes | None:
        """Return the bytes at a place of the log, None where there are not so many.

        Raises:
            UnreadableError: they are lost.
            OSError: they cannot be read now.
        """
        ...


class LogSource:
    """Reads the log when it is asked, on the store's thread."""

    __slots__ = ("_commit_log",)

    def __init__(self, commit_log: CommitLog) -> None:
        """Read `commit_log`."""
        self._commit_log = commit_log

    def units(self, queue: ConsumeQueue, queue_offset: int, count: int) -> bytes:
        """Return up to so many packed units, `LOST_UNIT` where the first is lost."""
        units = queue.read_units(queue_offset, count)
        if not units and queue.min_offset <= queue_offset < queue.max_offset:
            return LOST_UNIT
        return units

    def copy(self, places: bytes, runs: Sequence[Run]) -> bytes | None:
        """Return records back to back, None when they do not lie in one segment or are lost."""
        first, size = runs[0]
        segment = self._commit_log.find(first)
        if segment is None or (len(places) == UNIT_BYTES and size > _SURELY_SANE_BYTES):
            return None
        start = segment.start
        try:
            if len(runs) == 1:
                return segment.read(first - start, size) if first + size <= segment.end else None
            last, last_size = runs[-1]
            end = last + last_size
            if end > segment.end:
                return None
            if end - first > _READ_ALONG_BYTES * len(runs):
                return segment.read_pieces([(at - start, size) for at, size in runs])
            data = memoryview(segment.read(first - start, end - first))
            return b"".join([data[at - first : at - first + size] for at, size in runs])
        except UnreadableError:
            return None

    def record(self, physical_offset: int, size: int) -> bytes | None:
        """Return the bytes at a place of the log, None where there are not so many."""
        segment = self._commit_log.find(physical_offset)
        if segment is None or physical_offset + size > segment.end:
            return None
        position = physical_offset - segment.start
        if size > _SURELY_SANE_BYTES and not _is_size(segment.read(position, 4), size):
            return None
        return segment.read(position, size)


class Fetched:
    """Units of one queue, and those of their records that were wanted."""

    __slots__ = ("_first", "_queue", "_records", "_units")

    def __init__(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        units: bytes,
        records: "dict[int, bytes | UnreadableError]",
    ) -> None:
        """Hold packed units from a queue offset on, and records by physical offset."""
        self._queue = queue
        self._first = queue_offset
        self._units = units
        self._records = records

    @property
    def count(self) -> int:
        """How many units, from the first on, it has the wanted records of."""
        return len(self._units) // UNIT_BYTES

    def units(self, queue: ConsumeQueue, queue_offset: int, count: int) -> bytes:
        """Return up to so many packed units; behind what was fetched there are none."""
        begin = (queue_offset - self._first) * UNIT_BYTES
        if begin < 0 or queue is not self._queue:
            # The topic was deleted and made anew.
            return b""
        return self._units[begin : begin + count * UNIT_BYTES]

    def copy(self, places: bytes, runs: Sequence[Run]) -> bytes | None:
        """Return records back to back, None when one of them is lost."""
        pieces = [self._records.get(place[0]) for place in UNIT.iter_unpack(places)]
        whole = [piece for piece in pieces if isinstance(piece, bytes)]
        return b"".join(whole) if len(whole) == len(pieces) else None

    def record(self, physical_offset: int, size: int) -> bytes | None:
        """Return the bytes at a place of the log, None where there are not so many."""
        found = self._records.get(physical_offset)
        if isinstance(found, UnreadableError):
            raise found
        return found if found is not None and len(found) == size else None


class Limits(NamedTuple):
    """What to fetch at most: messages and bytes, the first message whatever its size.

    Without messages only the units. `tags_codes` are those of the messages that are wanted, None
    for all; `units` is how many units to look at.
    """

    units: int
    messages: int
    size_bytes: int
    tags_codes: frozenset[int] | None


def fetch_job(
    disk: Disk, commit_log: CommitLog, queue: ConsumeQueue, queue_offset: int, limits: Limits
) -> Callable[[], Fetched]:
    """Make a call that fetches messages from the disk; it may run on any thread.

    It opens the files anew: the store's thread may close and remove them meanwhile. Then, and where
    there are no descriptors, it raises OSError.
    """
    places = queue.places(queue_offset, limits.units)
    segments = list(commit_log.segments)

    def fetch() -> Fetched:
        pool = FilePool(disk, _FILES_A_FETCH)
        try:
            units = b""
            for place in places:
                piece = read_whole_units(disk, pool.get(place.path), place)
                units += piece
                if len(piece) < place.size_bytes:
                    break
            if places and not units:
                units = LOST_UNIT
            runs: list[_Run] = []
            covered = len(units) // UNIT_BYTES
            if limits.messages:
                covered, runs = _choose(segments, units, limits)
            records: dict[int, bytes | UnreadableError] = {}
            for run in runs:
                run.read(pool, records)
        finally:
            pool.close()
        return Fetched(queue, queue_offset, units[: covered * UNIT_BYTES], records)

    return fetch


class _Run:
    """Records that lie back to back in one segment."""

    def __init__(self, segment: Segment, physical_offset: int) -> None:
        self.segment = segment
        self.end = physical_offset
        self._places: list[tuple[int, int]] = []

    def takes(self, segment: Segment, physical_offset: int, size: int) -> bool:
        """Tell whether a record follows, and none is so large that its size is in doubt."""
        is_next = segment is self.segment and physical_offset == self.end
        return is_next and max(size, self._places[0][1]) <= _SURELY_SANE_BYTES

    def add(self, size: int) -> None:
        self._places.append((self.end, size))
        self.end += size

    def read(self, pool: FilePool, records: "dict[int, bytes | UnreadableError]") -> None:
        segment = self.segment.opened_in(pool)
        first, first_size = self._places[0]
        position = first - segment.start
        try:
            is_large = first_size > _SURELY_SANE_BYTES
            if is_large and not _is_size(segment.read(position, 4), first_size):
                return
            data = segment.read(position, self.end - first)
        except UnreadableError as exc:
            if len(self._places) == 1:
                records[first] = exc
                return
            for physical_offset, size in self._places:
                one = _Run(self.segment, physical_offset)
                one.add(size)
                one.read(pool, records)
            return
        for physical_offset, size in self._places:
            at = physical_offset - first
            records[physical_offset] = data[at : at + size]


def _choose(segments: list[Segment], units: bytes, limits: Limits) -> tuple[int, list[_Run]]:
    """Return how many units the limits allow, and what to read for them."""
    runs: list[_Run] = []
    covered = count = total = 0
    for physical_offset, size, code in UNIT.iter_unpack(units):
        if limits.tags_codes is None or code in limits.tags_codes:
            is_full = count >= limits.messages or total + size > limits.size_bytes
            if count and is_full:
                break
            segment = find_segment(segments, physical_offset)
            if segment is not None and 0 < size != BLANK_SIZE:
                if physical_offset + size <= segment.end:
                    if not (runs and runs[-1].takes(segment, physical_offset, size)):
                        runs.append(_Run(segment, physical_offset))
                    runs[-1].add(size)
            count += 1
            total += size
        covered += 1
    return covered, runs


def find_segment(segments: list[Segment], physical_offset: int) -> Segment | None:
    """Return the one of some segments that holds a physical offset."""
    index = bisect_right(segments, physical_offset, key=lambda segment: segment.start) - 1
    if index < 0 or physical_offset >= segments[index].end:
        return None
    return segments[index]


def _is_size(data: bytes, size: int) -> bool:
    """Tell whether a record begins with this size."""
    return int.from_bytes(data, "big") == size
