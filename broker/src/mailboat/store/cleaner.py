"""Takes segments out of the CommitLog as retention says, and the derived files that go with them.

Only whole files, oldest first, never above what is durable and covered by a checkpoint. The file
being written stays; but where the disk wants room and every record in it is read or expired, the
log moves on to a new file early, and the old one goes like any other. Files are unlinked one after
the other by the blocking runner.

Source: apache/rocketmq store/DefaultMessageStore.java (CleanCommitLogService,
CleanConsumeQueueService).
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from mailboat.config import MessageStoreConfig
from mailboat.disk import Disk
from mailboat.store.commit_log import CommitLog
from mailboat.store.dispatch import Dispatch
from mailboat.store.index_service import IndexService
from mailboat.store.message_inner import Runners
from mailboat.store.queue_table import QueueTable, RaisedQueue
from mailboat.store.retention import REASONS, Pressure, Reason, Reserved, Retention
from mailboat.store.segment import Segment
from mailboat.store.segment_times import SegmentTimes

log = logging.getLogger(__name__)

PRESSING_INTERVAL_S: Final = 1.0
"""Time between two rounds while the disk is above a level."""

LOOKS_A_SEGMENT: Final = 16
"""Rounds while one segment is filled: a small volume fills within a second."""

READS_MAX: Final = 64
"""First records that one look at all segments reads: after a start they may lie on a cold disk."""

TRIM_SLICE_S: Final = 0.003
"""Time that queues are adjusted for before others have their turn."""

FIRST_ROUND_S: Final = 60.0
"""RocketMQ waits a minute before it first cleans, so that a start is not slowed down."""

MANUAL_ROUNDS: Final = 20
"""Rounds that remove expired files at any hour once an administrator asked, as in RocketMQ."""

RemovalListener = Callable[[list[RaisedQueue]], None]
"""Called with the queues that lost messages, and which of their queue offsets those had."""


class _Removed(NamedTuple):
    """A file that is out of the log and still on the disk."""

    path: str
    size_bytes: int


class Cleaner:
    """Cleans one store.

    `read_position` gives the physical offset below which every consumer group has read everything;
    without a broker above, nobody has read anything.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        disk: Disk,
        directory: str,
        retention: Retention,
        commit_log: CommitLog,
        queues: QueueTable,
        index: IndexService,
        dispatch: Dispatch,
        runners: Runners,
    ) -> None:
        """Clean the log in `directory` and what is derived from it."""
        self._config = config
        self._disk = disk
        self._directory = directory
        self._retention = retention
        self._commit_log = commit_log
        self._queues = queues
        self._index = index
        self._dispatch = dispatch
        self._runners = runners
        self._removed: deque[_Removed] = deque()
        self._is_unlinking = False
        self._is_derived_behind = False
        self._reserving: Segment | None = None
        self._next_round_s = 0.0
        self._last_round_s = 0.0
        self._last_look_s = 0.0
        self._looked_end = 0
        self._layout: tuple[int, bool] = (0, False)
        self.times = SegmentTimes(commit_log, retention.now_ms)
        self.read_position: Callable[[], int] = lambda: 0
        self.on_removed: RemovalListener | None = None
        self.on_unread: Callable[[], None] | None = None
        """Called in a round after which the oldest segment stays only because it is unread: the
        read position may be out of date."""

        self.files: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self.size_bytes: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self.last_round_ms = 0
        """Wall time of the last round, 0 before the first."""

    def configure(self, config: MessageStoreConfig) -> None:
        """Follow other settings, beginning with a round soon."""
        self._config = config
        self._next_round_s = 0.0

    @property
    def batch_max(self) -> int:
        """Most files that one round removes."""
        return self._config.delete_file_batch_max

    def hurry(self) -> None:
        """Have the next round at once: the read position is new."""
        self._next_round_s = 0.0

    def delete_expired(self) -> None:
        """Remove expired files in the next rounds, whatever the hour is; the first begins soon."""
        self._retention.manual_rounds = MANUAL_ROUNDS
        self.hurry()

    def start(self) -> None:
        """Look at the disk for the first time; the rounds begin later."""
        self.times.note_full()
        now_s = self._disk.monotonic()
        self._last_round_s = now_s
        self._next_round_s = now_s + min(FIRST_ROUND_S, self._interval_s)
        self._layout = self._present_layout()
        self.look()

    def look(self) -> None:
        """Look at the disk."""
        self._last_look_s = self._disk.monotonic()
        self._looked_end = self._commit_log.end
        log_ = self._commit_log
        self._retention.look(Reserved(log_.preallocated_bytes, log_.wanted_bytes))
        usage, segment_bytes = self._retention.usage, self._config.mapped_file_size_commit_log
        log_.has_room_ahead = usage is None or usage.available_bytes >= segment_bytes

    def refresh(self) -> None:
        """Look at the disk, for somebody who asks, unless the last look is recent or failed."""
        now_s = self._disk.monotonic()
        if self._retention.usage is not None and now_s - self._last_look_s >= PRESSING_INTERVAL_S:
            self.look()

    def is_due(self) -> bool:
        """Tell whether a round is due: by time, or because the log has another file or grew."""
        now_s = self._disk.monotonic()
        if now_s >= self._next_round_s or self._present_layout() != self._layout:
            return True
        grown = self._commit_log.end - self._looked_end
        if grown * LOOKS_A_SEGMENT >= self._config.mapped_file_size_commit_log:
            return True
        pause_s = min(PRESSING_INTERVAL_S, self._interval_s)
        return now_s - self._last_round_s >= pause_s and (
            self._retention.is_pressing or self._commit_log.wanted_bytes > 0
        )

    def round(self, safe_offset: int, derived_refusal: str | None = None) -> tuple[int, bool]:
        """Look at the disk and remove the segments that may go.

        Args:
            safe_offset: everything below is durable and covered by a checkpoint.
            derived_refusal: why no checkpoint can be made for now.

        Returns:
            How many went, and whether a checkpoint would let go more.
        """
        now_s = self._disk.monotonic()
        self._last_round_s = now_s
        self._next_round_s = now_s + self._interval_s
        self.look()
        self.times.note_full()
        self._unlink()
        deleted, is_blocked = 0, False
        while deleted < self.batch_max:
            pressure = self._retention.pressure(sum(item.size_bytes for item in self._removed))
            reason = self._reason(pressure)
            if reason is None:
                if self.on_unread is not None and self._is_held_unread(pressure):
                    self.on_unread()
                break
            if self._commit_log.segments[0].end > safe_offset:
                is_blocked = True
                break
            self._remove_oldest(reason)
            deleted += 1
        if deleted or self._is_derived_behind:
            self._drop_derived()
        if deleted:
            self._unlink()
            self.look()
        elif not is_blocked:
            is_blocked = self._move_on_early(safe_offset)
        if is_blocked and derived_refusal is not None:
            self._give_room_back()
        self._layout = self._present_layout()
        self._retention.manual_rounds = max(0, self._retention.manual_rounds - 1)
        self.last_round_ms = self._disk.wall_ms()
        return deleted, is_blocked

    def _give_room_back(self) -> None:
        """Let go of what is set aside for later records: a checkpoint needs it first."""
        if self._reserving is not None:
            return
        try:
            self._commit_log.give_room_back()
        except OSError as exc:
            log.warning("the room set aside for records could not be given back: %s", exc)
        self.look()

    def reclaimable_bytes(self) -> dict[Reason, int]:
        """Return bytes of whole segments by the reason for which they could go if need be."""
        found: dict[Reason, int] = {"expired": 0, "consumed": 0}
        read_position = self.read_position()
        self.times.some_first_ms(READS_MAX)
        for segment, newest in self.times.known_newest_ms():
            if self._retention.is_expired(newest):
                found["expired"] += segment.size_bytes
            elif segment.end <= read_position:
                found["consumed"] += segment.size_bytes
        return found

    @property
    def _interval_s(self) -> float:
        return self._config.clean_resource_interval / 1000

    def _present_layout(self) -> tuple[int, bool]:
        segments = self._commit_log.segments
        return (segments[-1].end if segments else 0, self._commit_log.is_prepared)

    def _reason(self, pressure: Pressure) -> Reason | None:
        segments = self._commit_log.segments
        if len(segments) < 2 or segments[0] is self._reserving:
            return None
        return self._reason_of(segments[0], segments[0].end, pressure)

    def _reason_of(self, segment: Segment, end: int, pressure: Pressure) -> Reason | None:
        return self._retention.removal_reason(
            pressure,
            newest_ms=lambda: self.times.newest_ms(segment),
            is_read=end <= self.read_position(),
        )

    def _is_held_unread(self, pressure: Pressure) -> bool:
        segments = self._commit_log.segments
        if not segments:
            return False
        if min(segments[0].end, self._commit_log.end) <= self.read_position():
            return False
        reason = self._retention.removal_reason(
            pressure, newest_ms=lambda: self.times.newest_ms(segments[0]), is_read=True
        )
        return reason is not None

    def _remove_oldest(self, reason: Reason) -> None:
        segment = self._commit_log.segments[0]
        log.info(
            "segment removed reason=%s path=%s bytes=%d", reason, segment.path, segment.size_bytes
        )
        self.files[reason] += 1
        self.size_bytes[reason] += segment.size_bytes
        self._removed.append(_Removed(self._commit_log.remove_oldest(), segment.size_bytes))

    def _drop_derived(self) -> None:
        start = self._commit_log.start
        self.times.forget_before(start)
        self._is_derived_behind = False
        self._index.drop_below(start)
        self._queues.begin_raise(start)
        self.trim(TRIM_SLICE_S)

    def trim(self, slice_s: float) -> bool:
        """Adjust queues to the log's start for so many seconds; tell whether all are.

        A hundred thousand queues take longer than anybody should wait for an answer.
        """
        try:
            raised = self._queues.raise_some(slice_s)
        except OSError as exc:
            log.warning("queues of removed segments could not be trimmed: %s", exc)
            self._is_derived_behind = True
            return True
        if raised and self.on_removed is not None:
            self.on_removed(raised)
        return not self._queues.is_raising

    def _move_on_early(self, safe_offset: int) -> bool:
        """Begin a new segment although the only one is not full, when the old one may go then.

        Returns:
            Whether a checkpoint is wanted, without which the old one may not go.
        """
        log_ = self._commit_log
        if len(log_.segments) != 1 or log_.failure is not None:
            return False
        active = log_.segments[0]
        pressure = self._retention.pressure(sum(item.size_bytes for item in self._removed))
        written = log_.end - active.start
        is_worth_it = self._retention.lacks_room or 2 * written >= active.size_bytes
        if not pressure.wants_room or not written or not is_worth_it:
            return False
        if self._reason_of(active, log_.end, pressure) in (None, "forced"):
            return False
        if self._dispatch.dispatched_offset != log_.end or self._index.gap is not None:
            return False
        if safe_offset < log_.end:
            return True
        if not log_.move_on(reserve=not self._retention.lacks_room):
            return False
        log.info("segment ended early path=%s: the disk wants room", active.path)
        self._dispatch.dispatched_offset = log_.end
        return True

    def _unlink(self) -> None:
        """Remove the files of removed segments, oldest first and one after the other.

        A file that cannot be removed is tried again with the next round: removing a later one
        before it would leave a hole in the log.
        """
        if self._is_unlinking:
            return
        if not self._removed:
            self._reserve_active()
            return
        self._is_unlinking = True
        path = self._removed[0].path

        def unlink() -> None:
            self._disk.unlink(path)
            self._disk.fsync_dir(self._directory)

        self._runners.files(unlink, self._unlinked)

    def _unlinked(self, _: Any, error: BaseException | None) -> None:
        self._is_unlinking = False
        if error is None or isinstance(error, FileNotFoundError):
            self._removed.popleft()
            self._unlink()
        elif isinstance(error, OSError):
            log.error("a removed segment's file could not be unlinked: %s", error)
        else:
            raise error

    def _reserve_active(self) -> None:
        """Reserve the room of a segment that was begun without, now that there is some."""
        segments = self._commit_log.segments
        if not segments or segments[-1].is_reserved or self._reserving is not None:
            return
        self.look()
        usage = self._retention.usage
        if usage is None or usage.available_bytes < segments[-1].size_bytes:
            # Reserving in vain keeps what it got, and a checkpoint would find no room.
            return
        segment = self._reserving = segments[-1]

        def reserved(_: Any, error: BaseException | None) -> None:
            self._reserving = None
            if error is None:
                segment.is_reserved = True
            elif not isinstance(error, OSError):
                raise error

        self._runners.reservations(segment.reserve, reserved)
