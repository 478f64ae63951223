"""The half messages of a store: which are open, how old they are, and how their end is recorded.

Nothing is kept but the log and the offsets of CID_RMQ_SYS_TRANS. A half message is open unless an
op record names it; at the start those above the committed offsets are read once (`rebuild`). An
end that a crash cut off between the committed message and its op record shows in the index: the
message carries the physical offset of its half message.

Source: apache/rocketmq broker/transaction/queue/TransactionalMessageServiceImpl.java and
TransactionalMessageBridge.java @ rocketmq-all-5.3.3.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from mailboat.broker.transactions.half_window import ArrivalTimes, HalfWindow, OpProgress
from mailboat.broker.transactions.parts import TransactionsBroker
from mailboat.broker.transactions.records import ended_offsets, op_messages, real_topic
from mailboat.broker.warm_reads import warm_steps
from mailboat.disk import Disk
from mailboat.errors import CorruptRecordError
from mailboat.model import compiled
from mailboat.model.message import MessageExt
from mailboat.model.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTIONS_GROUP,
)
from mailboat.model.record import decode_record, iterate_records
from mailboat.model.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK
from mailboat.remoting.turns import Wait
from mailboat.store.commit_search import Commits, commits_job
from mailboat.store.consume_queue import BLANK_SIZE, UNIT, ConsumeQueue
from mailboat.store.key_search import KeyQuery, QueryResult
from mailboat.store.lookup import GetStatus
from mailboat.store.message_inner import PutStatus
from mailboat.store.places import runs_of
from mailboat.store.record_source import LogSource

_log = logging.getLogger(__name__)

_HALVES: Final = (HALF_TOPIC, CHECK_MAX_TIME_TOPIC)
_OPS_A_READ: Final = 16
_READ_BYTES: Final = 256 * 1024
# Queue offsets between the half messages that are read together.
_READ_TOGETHER: Final = 1_024
# Messages with one unique key: more than a producer's retries can make.
_SAME_KEY_MAX: Final = 64
_SAME_KEY_BYTES: Final = 16 * 1024 * 1024
_FOREVER_MS: Final = (1 << 63) - 1
_REMEMBERED: Final = 4_096


class _Progress(NamedTuple):
    """Offsets to commit once the log is flushed up to an end."""

    log_end: int
    half_offset: int
    op_offset: int


def _is_commit_of(record: bytes, physical_offset: int) -> bool:
    """Tell whether a stored record is the message of the half message at a physical offset."""
    message = decode_record(record, verify=False)[0]
    is_commit = message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    return is_commit and message.prepared_transaction_offset == physical_offset


class HalfRecord(NamedTuple):
    """A half message with what it was made of: its bytes, and its ConsumeQueue unit with the queue
    offset for the tagsCode."""

    message: MessageExt
    record: bytes
    place: bytes


class HalfLedger:
    """The open half messages of one broker."""

    def __init__(self, broker: TransactionsBroker, disk: Disk) -> None:
        """Know nothing yet; `rebuild` reads the store."""
        self._broker = broker
        self._disk = disk
        self._begin_s = disk.monotonic()
        self._unwritten: list[int] = []
        # By queue offset of the half message: what searches found, those that run, who waits.
        self._delivered: dict[int, bool | OSError] = {}
        self._searches: set[int] = set()
        self._looked_for: dict[int, list[Callable[[], None]]] = {}
        # Where there is no index: who waits, and for which half messages the log has a commit.
        self._await_commits: list[MessageExt] = []
        self._commits: Commits | None = None
        self._committed = _Progress(0, 0, 0)
        self._progress: _Progress | None = None
        self.window = HalfWindow(0, 0)
        self.arrivals = ArrivalTimes(0)
        self.ops = OpProgress(0)
        self.rebuilt_end = 0
        """Half messages below were there at the start."""

        self.is_ready = False
        """Whether it is known which half messages are open."""

        self.is_stopping = False
        """Whoever still looks through the log gives up."""

    @property
    def now(self) -> float:
        """Seconds since this object was made, whatever the wall clock does."""
        return self._disk.monotonic() - self._begin_s

    # -- at the start ---------------------------------------------------------------------------

    def rebuild(self) -> Iterator[Wait | None]:
        """Find out which half messages are open; yields after each slice of work."""
        self.rebuilt_end = self._broker.store.max_offset(HALF_TOPIC, 0)
        self._commits = None
        self.window = HalfWindow(self._first(HALF_TOPIC), self.rebuilt_end)
        self.arrivals = ArrivalTimes(self.rebuilt_end)
        self.ops = OpProgress(self._first(OP_HALF_TOPIC))
        self._committed = _Progress(0, self.window.start, self.ops.start)
        op_offset = self.ops.start
        store = self._broker.store
        while op_offset < store.max_offset(OP_HALF_TOPIC, 0):
            ops = store.queues.get(OP_HALF_TOPIC, 0)
            yield from warm_steps(store, ops, op_offset, _OPS_A_READ, _OPS_A_READ)
            op_offset = self._read_ops(op_offset)
            yield None
        self.is_ready = True
        if self.window.open_count:
            _log.info(
                "open half messages: %d from queue_offset=%d on",
                self.window.open_count,
                self.window.start,
            )

    def _first(self, topic: str) -> int:
        store = self._broker.store
        committed = self._broker.offsets.query(TRANSACTIONS_GROUP, topic, 0)
        # A power cut may have taken back what the committed offset had counted.
        low, high = store.min_offset(topic, 0), store.max_offset(topic, 0)
        return min(max(committed, low), high)

    def _read_ops(self, op_offset: int) -> int:
        """Read some op records from an offset on; return where to go on."""
        result = self._broker.store.get_message(
            OP_HALF_TOPIC, 0, op_offset, _OPS_A_READ, _READ_BYTES
        )
        if result.status == GetStatus.OFFSET_TOO_SMALL:
            return max(result.next_offset, op_offset + 1)
        if result.status != GetStatus.FOUND:
            _log.warning("op record not readable queue_offset=%d: its ends are unknown", op_offset)
            return max(result.next_offset, op_offset + 1)
        for record in iterate_records(b"".join(result.slices), verify=False):
            ended = ended_offsets(record)
            self.ops.note(record.queue_offset, max(ended, default=-1))
            for half_offset in ended:
                self.window.close(half_offset)
        return result.next_offset

    # -- half messages --------------------------------------------------------------------------

    def at(self, physical_offset: int) -> MessageExt | None:
        """Return the message stored at a physical offset, None when none can be read there.

        A body may hold what looks like a record of its own: the queue has to name this place.

        Raises:
            OSError: the queue cannot be read.
        """
        store = self._broker.store
        # A producer that does not wait for the flush may end its transaction before.
        record = store.look_message_by_offset(physical_offset, with_unflushed=True)
        if record is None:
            return None
        try:
            message = decode_record(record, verify=False)[0]
        except CorruptRecordError:
            return None
        queue_offset = message.queue_offset
        queue = store.queues.get(message.topic, message.queue_id)
        if message.topic not in _HALVES:
            return message  # None that anybody ends, so it need not be looked for.
        if queue is None:
            return None
        place = physical_offset, message.store_size_bytes
        if store.dispatch.is_queued(queue, queue_offset, place):
            return message
        # Its unit may have lost a bit.
        return message if self._mended(queue, queue_offset) == physical_offset else None

    def _mended(self, queue: ConsumeQueue, queue_offset: int) -> int | None:
        """Return where a message lies whose unit leads elsewhere, None where it is not found."""
        unit = queue.unit(queue_offset)
        read = (0, 0) if unit is None else unit[:2]
        mended = self._broker.store.unit_repair.mend(queue, queue_offset, read)
        return None if mended is None else mended[0]

    def read(self, places: Sequence[tuple[int, int]]) -> dict[int, HalfRecord]:
        """Return half messages by physical offset, those of some that one read finds in good order.

        Args:
            places: queue offset and physical offset of each, as somebody says they are.
        """
        store = self._broker.store
        queue = store.queues.get(HALF_TOPIC, 0)
        if compiled.decode_records is None or queue is None:
            return {}
        wanted = {
            queue_offset: physical_offset
            for queue_offset, physical_offset in places
            if queue.min_offset <= queue_offset < queue.max_offset
        }
        first, last = min(wanted, default=0), max(wanted, default=0)
        if not wanted or last - first > _READ_TOGETHER:
            return {}
        chosen: list[tuple[int, int, int]] = []
        total = 0
        try:
            units = UNIT.iter_unpack(queue.read_units(first, last + 1 - first))
            for queue_offset, (physical_offset, size, _) in enumerate(units, first):
                if wanted.get(queue_offset) == physical_offset and total + size <= _READ_BYTES:
                    chosen.append((physical_offset, size, queue_offset))
                    total += size
            if not chosen:
                return {}
            offsets, sizes, _ = zip(*chosen, strict=True)
            runs = runs_of(offsets, sizes)
            packed = b"".join([UNIT.pack(*place) for place in chosen])
            body = None if runs is None else LogSource(store.commit_log).copy(packed, runs)
        except OSError:
            return {}  # Whoever reads each of them tells about it.
        rows = [] if body is None else compiled.decode_records(body)[0]
        found: dict[int, HalfRecord] = {}
        at = 0
        for place, row in zip(chosen, rows, strict=False):
            message = MessageExt(*row)
            size = place[1]
            if (message.physical_offset, message.store_size_bytes, message.queue_offset) != place:
                break
            assert body is not None
            found[place[0]] = HalfRecord(message, body[at : at + size], UNIT.pack(*place))
            at += size
        return found

    def half(self, queue_offset: int) -> MessageExt | None:
        """Return a half message by its queue offset, None when it cannot be read.

        Raises:
            OSError: not now.
        """
        queue = self._broker.store.queues.get(HALF_TOPIC, 0)
        if queue is None:
            return None
        unit = queue.unit(queue_offset)
        half = None if unit is None else self.at(unit[0])
        if half is None or (half.topic, half.queue_offset) != (HALF_TOPIC, queue_offset):
            position = self._mended(queue, queue_offset)
            half = None if position is None else self.at(position)
        return half

    def is_damaged(self, queue_offset: int) -> bool:
        """Tell whether a half message is there, not whole: nobody can ever read it."""
        queue = self._broker.store.queues.get(HALF_TOPIC, 0)
        unit = None if queue is None else queue.unit(queue_offset)
        if unit is None:
            return False
        # The unit of a record that a start found damaged is a blank.
        return unit[1] == BLANK_SIZE or self._broker.store.unit_repair.is_damaged_record(unit)

    def age_s(self, half: MessageExt) -> float:
        """Return how long a half message has been stored.

        What came since the start is timed by the monotonic clock; of the others only the wall clock
        can tell, and one that was set back makes none younger than this process.
        """
        now = self.now
        if half.queue_offset >= self.rebuilt_end:
            return now - self.arrivals.seconds(half.queue_offset, now)
        return max(now, (self._disk.wall_ms() - half.store_timestamp_ms) / 1000)

    @property
    def _has_index(self) -> bool:
        return self._broker.settings.store.message_index_enable

    def can_tell_end(self, half: MessageExt) -> bool:
        """Tell whether it can be found out how a half message ended that is remembered no more.

        Without an index the log is read once after a start: it says nothing of what came since.
        """
        return self._has_index or half.queue_offset < self.rebuilt_end

    def was_delivered(
        self, half: MessageExt, when_known: Callable[[], None] | None = None
    ) -> bool | None:
        """Tell whether the message that consumers get of a half message is stored and visible.

        Returns:
            None while another thread looks for it; `when_known` is called after that, and the next
            question has an answer.

        Raises:
            OSError: it could not be looked for.
        """
        offset = half.queue_offset
        known = self._delivered.get(offset)
        if known is None and half.unique_key:
            if offset not in self._searches:
                self._look_for(half)
            # Where calls are made at once, it is known by now.
            known = self._delivered.get(offset)
            if known is None and when_known is not None:
                self._looked_for.setdefault(offset, []).append(when_known)
        if isinstance(known, OSError):
            del self._delivered[offset]
            raise known
        return known if half.unique_key else False

    def _look_for(self, half: MessageExt) -> None:
        if not self._has_index:
            self._look_through_log(half)
            return
        self._searches.add(half.queue_offset)
        query = KeyQuery(
            real_topic(half),
            half.unique_key or "",
            _SAME_KEY_MAX,
            _SAME_KEY_BYTES,
            half.store_timestamp_ms,
            _FOREVER_MS,
        )

        def done(result: QueryResult | None, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, OSError):
                raise error
            records = [] if result is None else result.records
            is_there = any(_is_commit_of(record, half.physical_offset) for record in records)
            self._found(half, is_there if error is None else error)

        self._broker.store.search(query, done, is_own=True)

    def _look_through_log(self, half: MessageExt) -> None:
        """Find out without an index what was delivered: once for all half messages, as a rule.

        Raises:
            OSError: it cannot be found out now.
        """
        commits = self._commits
        if commits is not None and half.physical_offset >= commits.begin:
            self._found(half, commits.has(half.physical_offset))
            return
        job = None
        if not self._await_commits:
            store = self._broker.store
            begin = half.physical_offset
            oldest = store.physical_position(HALF_TOPIC, 0, self.window.start)
            if oldest is not None:
                begin = min(begin, oldest)
            job = commits_job(self._disk, store.commit_log, begin, lambda: self.is_stopping)
        self._searches.add(half.queue_offset)
        self._await_commits.append(half)
        if job is not None:
            self._broker.store.runners.searches(job, self._looked_through)

    def _looked_through(self, commits: Commits | None, error: BaseException | None) -> None:
        halves, self._await_commits = self._await_commits, []
        self._commits = commits
        for half in halves:
            if error is not None:
                # Another kind of error is a bug; whoever waits must hear of it all the same.
                self._found(half, error if isinstance(error, OSError) else OSError(str(error)))
            elif commits is not None and half.physical_offset >= commits.begin:
                self._found(half, commits.has(half.physical_offset))
            else:
                self._found(half, OSError("the log was not read that far, ask again"))
        if error is not None and not isinstance(error, OSError):
            raise error

    def _found(self, half: MessageExt, is_there: "bool | OSError") -> None:
        offset = half.queue_offset
        self._delivered[offset] = is_there
        while len(self._delivered) > _REMEMBERED:
            del self._delivered[next(iter(self._delivered))]
        self._searches.discard(offset)
        for callback in self._looked_for.pop(offset, ()):
            callback()

    def is_looked_for(self, queue_offset: int) -> bool:
        """Tell whether another thread still looks for the message of a half message."""
        return queue_offset in self._searches

    def was_cut_off(
        self, half: MessageExt, when_known: Callable[[], None] | None = None
    ) -> bool | None:
        """Tell whether the process ended between the message of an open half and its op record.

        As `was_delivered`, None while that is looked for.
        """
        if half.queue_offset >= self.rebuilt_end:
            return False
        return self.was_delivered(half, when_known)

    # -- ends -----------------------------------------------------------------------------------

    def write_ops(self, half_offsets: Iterable[int]) -> set[int]:
        """Store that half messages have ended; return those for which that succeeded."""
        store = self._broker.store
        size_max = self._broker.settings.broker.transaction_op_msg_max_size
        host = store.commit_log.store_host
        pairs = list(op_messages(half_offsets, size_max, self._disk.wall_ms(), host))
        if not pairs:
            return set()
        store.put_messages([record for _, record in pairs])
        stored: set[int] = set()
        for named, record in pairs:
            if record.status == PutStatus.PUT_OK:
                self.ops.note(record.queue_offset, max(named))
                stored.update(named)
        return stored

    def close(self, half_offsets: list[int]) -> None:
        """Take half messages for ended, and store that, now or as soon as it can be stored."""
        self.close_written(half_offsets, self.write_ops(half_offsets))

    def close_written(self, half_offsets: list[int], written: set[int]) -> None:
        """Take half messages for ended; those without an op record yet get one later."""
        self._unwritten += [offset for offset in half_offsets if offset not in written]
        for offset in half_offsets:
            self.window.close(offset)
            self._delivered.pop(offset, None)

    def tick(self) -> int:
        """Do what is due now and then; return how many half messages went with the log."""
        store = self._broker.store
        end = store.max_offset(HALF_TOPIC, 0)
        self.window.extend(end)
        self.arrivals.note(end, self.now)
        lost = self.window.close_before(store.min_offset(HALF_TOPIC, 0))
        if self._unwritten:
            offsets, self._unwritten = self._unwritten, []
            self.close(offsets)
        if end:
            self._commit_progress()
        return lost

    def _commit_progress(self) -> None:
        """Commit how far a restart need not look again, once the ends that say so are flushed.

        The offsets are saved durably, the log may trail: an end that a power cut took back must be
        asked for again. The first commit makes CID_RMQ_SYS_TRANS a group whose unread messages
        retention keeps.
        """
        start = self.window.start
        self.arrivals.forget_before(start)
        op_start = self.ops.advance(start)
        store = self._broker.store
        if self._progress is None:
            self._progress = _Progress(store.commit_log.end, start, op_start)
        if self._progress.log_end <= store.flushed_offset:
            self._committed, self._progress = self._progress, None
        offsets = self._broker.offsets
        offsets.commit(TRANSACTIONS_GROUP, HALF_TOPIC, 0, self._committed.half_offset)
        offsets.commit(TRANSACTIONS_GROUP, OP_HALF_TOPIC, 0, self._committed.op_offset)
