"""Which parked messages are still to be delivered, and the file that remembers it.

For RocketMQ that is one offset a level, kept in `config/delayOffset.json`. Here a level can have
several ranges. Its times rise with its offsets as long as every message waits equally long. After a
change of the table new messages would queue up behind old ones that wait longer, so they begin a
range of their own. A message that the store does not take is set aside in the same way. The file
says so in fields that a Java broker passes over; to it everything from the first range on counts as
parked.

Progress is saved only once what was delivered is durable: a power cut may deliver again what was
delivered since, and never takes a message both from its queue and from where it was parked. The
same holds for retention: a parked message is needed until its copy is durable.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from mailboat.broker.state_saver import StateSaver
from mailboat.config.store import check_delay_levels
from mailboat.disk import Disk
from mailboat.disk.json_file import JsonFile, to_pretty_json
from mailboat.model.data_version import DataVersion
from mailboat.model.delay_level import DelayLevels, level_of
from mailboat.protocol.delay_offsets import (
    DelayOffsets,
    decode_delay_offsets,
    encode_delay_offsets,
)

_log = logging.getLogger(__name__)

_VERSION_STEP: Final = 200  # delayOffsetUpdateVersionStep

FlushWait = Callable[[int, Callable[[bool], None]], None]
"""Calls back with True once everything below a physical offset is durable, else with False."""


@dataclass(slots=True, eq=False)
class DelayRange:
    """Parked messages of one level from `next_offset` on.

    `end` is None while the range grows; `wake_ms` is when to look at it next, None for nothing to
    expect; one `is_aside` holds what the store did not take. What lies below `read_end` was read
    from the disk at `read_ms`, or will have been once `is_being_read` is over. One that `is_hot` is
    in memory, with all that follows.
    """

    level: int
    next_offset: int
    end: int | None = None
    wake_ms: int | None = None
    is_aside: bool = False
    read_end: int = 0
    read_ms: int = 0
    is_being_read: bool = False
    is_hot: bool = True


class ParkedRange(NamedTuple):
    """Messages of one level that are needed where they were parked; `end` is None for all that
    come."""

    level: int
    begin: int
    end: int | None


class _Capture(NamedTuple):
    """The ranges at one moment, which count once the log is durable up to an end."""

    log_end: int
    state: DelayOffsets
    moves: int


class QueueBounds(NamedTuple):
    """The messages of one queue of the schedule topic."""

    queue_id: int
    min_offset: int
    max_offset: int


class DelayProgress:
    """The ranges of every level; the last of a level is the one that grows."""

    def __init__(self, disk: Disk, config_dir: str, levels: DelayLevels) -> None:
        """Start with nothing parked; `load` reads the file, `open` looks at the queues."""
        self._disk = disk
        self._levels = levels
        self._file = JsonFile(disk, f"{config_dir}/delayOffset.json")
        self._saver = StateSaver(self._file, self._encode_file)
        self._loaded = DelayOffsets()
        self._ranges: dict[int, list[DelayRange]] = {}
        self._moves = 0
        self._captured_moves = 0
        self._durable = DelayOffsets()
        self._unsettled: _Capture | None = None
        self._followed: DelayOffsets | None = None
        self.data_version = DataVersion(timestamp=disk.wall_ms())

    def load(self) -> None:
        """Read the file of an earlier run, if there is one.

        Raises:
            DamagedStoreError: neither the file nor its previous version can be read.
        """
        loaded = self._file.load(_decode)
        if loaded is not None:
            self._loaded = loaded
            self.data_version = loaded.data_version

    def open(self, queues: Iterable[QueueBounds]) -> None:
        """Find what is parked in the queues of the store, and save under which table it is read."""
        self.take_up(queues)
        try:
            self._saver.save_blocking()
        except OSError as error:
            _log.warning("the progress of delayed messages is not saved yet: %s", error)

    def follow(self, state: DelayOffsets) -> None:
        """Keep what another replica that delivers has delivered; `take_up` goes on from there."""
        self._loaded = self._durable = self._followed = state
        self.data_version = state.data_version
        self._saver.mark_changed()

    def follow_further(self, theirs: DelayOffsets) -> int:
        """Keep what another broker has delivered where that is further; `take_up` goes on there.

        Returns the number of levels in which it was.
        """
        mine = self._loaded
        further = [
            level
            for level, queue_offset in theirs.offset_table.items()
            if queue_offset > mine.offset_table.get(level, -1)
        ]
        if further:
            offsets, ranges = dict(mine.offset_table), dict(mine.mailboat_ranges)
            for level in further:
                offsets[level] = theirs.offset_table[level]
                ranges.pop(level, None)
                if level in theirs.mailboat_ranges:
                    ranges[level] = theirs.mailboat_ranges[level]
            text = theirs.mailboat_delay_level or mine.mailboat_delay_level
            self.follow(DelayOffsets(offsets, theirs.data_version, text, ranges))
        return len(further)

    def snapshot(self) -> DelayOffsets:
        """Return how far everything is delivered."""
        return self._snapshot()

    def take_up(self, queues: Iterable[QueueBounds]) -> None:
        """Go on behind what was loaded or followed."""
        self._followed = None
        self._ranges.clear()
        for bounds in queues:
            level = level_of(bounds.queue_id)
            ranges = self._ranges[level] = self._saved_ranges(level, bounds)
            if self._waits_otherwise(level) and ranges[-1].next_offset < bounds.max_offset:
                ranges[-1].end = bounds.max_offset
                ranges.append(DelayRange(level, bounds.max_offset))
        self._moves += 1
        self._capture()

    def _saved_ranges(self, level: int, bounds: QueueBounds) -> list[DelayRange]:
        """Return the ranges of the file, within what the queue still has."""
        low, high = bounds.min_offset, bounds.max_offset
        begin = self._loaded.offset_table.get(level, low)
        if not low <= begin <= high:
            _log.warning(
                "delay progress of level %d is %d, and its queue has %d to %d",
                level,
                begin,
                low,
                high,
            )
        saved = self._loaded.mailboat_ranges.get(level) or [(begin, None)]
        ranges: list[DelayRange] = []
        for start, end in saved:
            start = min(max(start, low), high)
            end = None if end is None else min(end, high)
            if end is None or start < end:
                ranges.append(DelayRange(level, start, end))
        if not ranges or ranges[-1].end is not None:
            ranges.append(DelayRange(level, high))
        return ranges

    def _waits_otherwise(self, level: int) -> bool:
        text = self._loaded.mailboat_delay_level
        if text is None or text == self._levels.text:
            return False
        return DelayLevels(text).delay_ms(level) != self._levels.delay_ms(level)

    def __iter__(self) -> Iterator[DelayRange]:
        """Return every range, by level and in order of offsets."""
        return iter([found for ranges in self._ranges.values() for found in ranges])

    def growing(self, level: int) -> DelayRange:
        """Return the range that takes a level's next message."""
        ranges = self._ranges.get(level)
        if ranges is None:
            ranges = self._ranges[level] = [DelayRange(level, 0)]
        return ranges[-1]

    def advance(self, moved: DelayRange, next_offset: int) -> None:
        """Take note that everything of a range before an offset is delivered."""
        self._moved(next_offset - moved.next_offset)
        moved.next_offset = next_offset
        if moved.end is not None and next_offset >= moved.end:
            self._ranges[moved.level].remove(moved)

    def set_aside(self, moved: DelayRange, queue_offset: int) -> None:
        """Go on behind a message, which keeps a range of its own."""
        ranges = self._ranges[moved.level]
        for found in ranges:
            if found.is_aside and found.end == queue_offset:
                found.end = queue_offset + 1
                break
        else:
            aside = DelayRange(moved.level, queue_offset, queue_offset + 1, is_aside=True)
            ranges.insert(ranges.index(moved), aside)
        self.advance(moved, queue_offset + 1)

    def aside(self) -> list[DelayRange]:
        """Return what was set aside."""
        return [found for found in self if found.is_aside]

    def settle(self, log_end: int, flushed_offset: int) -> None:
        """Take note how far the log is durable, and with it what was delivered into it.

        Args:
            log_end: the log's present end.
            flushed_offset: everything below is durable.
        """
        self._settle_captured(flushed_offset)
        if self._moves != self._captured_moves and self._unsettled is None:
            self._unsettled = _Capture(log_end, self._snapshot(), self._moves)
            self._settle_captured(flushed_offset)

    def _settle_captured(self, flushed_offset: int) -> None:
        waiting = self._unsettled
        if waiting is not None and waiting.log_end <= flushed_offset:
            self._unsettled = None
            self._take(waiting.state, waiting.moves)

    def needed(self, levels: Iterable[int]) -> Iterator[ParkedRange]:
        """Return what is parked in levels, or delivered by a copy that a power cut could still
        take; a slave has ranges of none."""
        durable = self._durable
        for level in levels:
            # What came since the ranges were captured begins at the start of its queue.
            growing = (durable.offset_table.get(level, 0), None)
            for begin, end in durable.mailboat_ranges.get(level) or [growing]:
                yield ParkedRange(level, begin, end)

    def _moved(self, count: int) -> None:
        steps = self._moves // _VERSION_STEP
        self._moves += count
        if self._moves // _VERSION_STEP != steps:
            self.data_version.advance(self._disk.wall_ms())

    # -- the file -------------------------------------------------------------------------------

    def offsets(self) -> dict[int, int]:
        """Return the first parked offset by level."""
        return {
            level: min(found.next_offset for found in ranges)
            for level, ranges in sorted(self._ranges.items())
        }

    def encode(self) -> bytes:
        """Return the whole table as the body of GET_ALL_DELAY_OFFSET."""
        return encode_delay_offsets(self._followed or self._snapshot())

    async def persist(self, log_end: int, wait_flushed: FlushWait) -> None:
        """Save once everything below `log_end`, the log's present end, is durable.

        Raises:
            OSError: the disk refused; the next call tries again.
        """
        if self._moves != self._captured_moves:
            state, moves = self._snapshot(), self._moves
            done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            wait_flushed(log_end, lambda ok: None if done.done() else done.set_result(ok))
            if not await done:
                raise OSError("the delayed messages that were delivered are not flushed in time")
            self._take(state, moves)
        await self._saver.save()

    def persist_blocking(self, *, is_durable: bool) -> None:
        """Save on this thread; without `is_durable` only what was known to be durable before.

        Raises:
            OSError: the disk refused.
        """
        if is_durable:
            self._capture()
        self._saver.save_blocking()

    def _capture(self) -> None:
        if self._moves != self._captured_moves:
            self._take(self._snapshot(), self._moves)

    def _take(self, state: DelayOffsets, moves: int) -> None:
        # Whoever waited for a flush may have been overtaken.
        if moves > self._captured_moves:
            self._durable, self._captured_moves = state, moves
            self._saver.mark_changed()

    def _snapshot(self) -> DelayOffsets:
        several = {
            level: [(found.next_offset, found.end) for found in ranges]
            for level, ranges in self._ranges.items()
            if len(ranges) > 1
        }
        return DelayOffsets(
            self.offsets(),
            DataVersion(self.data_version.counter, self.data_version.timestamp),
            self._levels.text,
            several,
        )

    def _encode_file(self) -> Iterator[bytes]:
        yield to_pretty_json(encode_delay_offsets(self._durable))


def _decode(content: bytes) -> DelayOffsets:
    table = decode_delay_offsets(content)
    text = table.mailboat_delay_level
    if text is not None and check_delay_levels(text) is not None:
        raise ValueError(f"mailboatDelayLevel {text!r} is not a table of delays")
    return table
