"""The store as the broker sees it.

Opens a directory (recovering what a crash left), takes messages, finds them, makes them durable,
expires them. All calls come from one thread; what may block for long goes through the runner that
the owner gives. The owner calls `background` every few tens of milliseconds, and drives flushes
with `begin_flush` and `finish_flush`.

Source: apache/rocketmq store/DefaultMessageStore.java @ rocketmq-all-5.3.3.
"""

import logging
import math
import os
from collections.abc import Callable, Generator
from itertools import compress
from typing import Final

from mailboat.config import MessageStoreConfig
from mailboat.disk import Disk
from mailboat.errors import StoreBusyError, StoreClosedError
from mailboat.filtering.property_filter import PropertyFilter
from mailboat.model.delay_level import DelayLevels
from mailboat.store import opening
from mailboat.store.checkpoint import FlushedMark
from mailboat.store.checkpointing import Checkpointing
from mailboat.store.cleaner import TRIM_SLICE_S, Cleaner
from mailboat.store.commit_log import CommitLog
from mailboat.store.consume_queue import ConsumeQueue
from mailboat.store.deleted_topics import DeletedTopics
from mailboat.store.derived_removal import DerivedRemoval
from mailboat.store.dispatch import Dispatch
from mailboat.store.file_pool import FilePool, open_files_limit
from mailboat.store.flush import Flusher, FlushJob
from mailboat.store.index_service import IndexService
from mailboat.store.key_search import KeyQuery, QueryResult, SearchDone, Searches, search_job
from mailboat.store.layout import StorePaths, store_paths
from mailboat.store.lookup import GetResult, GetStatus, Lookup
from mailboat.store.message_inner import (
    BlockingRunner,
    MessageInner,
    PutStatus,
    Runners,
    refuse,
    refuse_topics,
    run_inline,
)
from mailboat.store.queue_table import QueueTable
from mailboat.store.record_source import RecordSource
from mailboat.store.recovery import RecoveryReport
from mailboat.store.replica_log import ReplicaLog
from mailboat.store.retention import Retention
from mailboat.store.store_state import SegmentState, StoreState
from mailboat.store.unit_repair import UnitRepair
from mailboat.store.warming import Warming

log = logging.getLogger(__name__)

_ANY_BYTES: Final = 1 << 62
_WRITE_QUEUES_A_SLICE: Final = 256
_WRITE_SLICE_S: Final = 0.01
_INDEX_SLICE_S: Final = 0.003
_BEHIND: Final = "the index is behind the CommitLog, its keys are being read from there"
REJECT_REASONS: Final = (
    "disk_full", "no_room", "derived_files", "unsettled", "store_failed", "closed"
)  # fmt: skip
"""What refuses messages: retention, a segment that cannot be made, ConsumeQueues that cannot be
written, too much that waits for a flush or for other replicas, a failure that only a restart mends,
the end of the process."""

HELD_BYTES_MOST: Final = 48 << 20
"""What messages may take in memory that wait to be shown, those of a disk that hangs: more are
refused."""

_NO_QUEUE: Final = GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [], 0, 0)


class MessageStore:
    """One store directory, open."""

    def __init__(
        self,
        config: MessageStoreConfig,
        disk: Disk,
        *,
        store_host: bytes,
        run_blocking: BlockingRunner = run_inline,
        runners: Runners | None = None,
    ) -> None:
        """Describe a store; `open` touches the disk.

        `store_host` is this broker's address as records carry it (`mailboat.model.hosts`). What may
        block for long goes to `runners` by its kind, without them to `run_blocking`.
        """
        self._config = config
        self._disk = disk
        self.runners: Runners = runners or Runners(*[run_blocking] * len(Runners._fields))
        self.paths: StorePaths = store_paths(
            os.path.expanduser(config.store_path_root_dir), config.store_path_commit_log or None
        )
        self._pool = pool = FilePool(disk, open_files_limit())
        self.commit_log = CommitLog(
            config, disk, pool, self.paths.commit_log, store_host, self.runners.reservations
        )
        self.commit_log.on_write = self._note_write
        self.queues = QueueTable(
            disk, pool, self.paths.consume_queue, config.mapped_file_size_consume_queue
        )
        self.index = IndexService(
            disk, pool, self.paths.index, config.max_hash_slot_num, config.max_index_num
        )
        self._searches = Searches(disk, self.commit_log, self.index)
        self._deleted = DeletedTopics(disk, self.paths.deleted_topics)
        self.is_sync_flush = config.flush_disk_type == "SYNC_FLUSH"
        self.is_replicated = config.broker_role != "ASYNC_MASTER"
        self.holds_back = self.is_sync_flush or self.is_replicated  # what is written, for a while
        self.dispatch = self._make_dispatch()
        self.replica = ReplicaLog(disk, self.commit_log, self.dispatch, self._deleted)
        self.unit_repair = UnitRepair(
            self.commit_log, self.queues, self.dispatch.unit_of, disk.monotonic
        )
        self.lookup = Lookup(
            self.commit_log,
            self.unit_repair,
            skip_corrupt=config.skip_corrupt,
            check_crc=config.check_crc_on_recover,
        )
        self.warming = Warming(
            disk, self.commit_log, self.runners.reads, config.access_message_in_memory_max_ratio
        )
        self.retention = Retention(config, disk, [self.paths.commit_log, self.paths.root])
        self.cleaner = self._make_cleaner()
        self._removal = DerivedRemoval(disk, self.queues, self.index, self.runners.files)
        self.checkpoints = self._make_checkpoints()
        self.on_write: Callable[[], None] | None = None
        """Called after each write of one or more messages: soon `background` has work to do."""

        self.refuses: Callable[[], str] = str  # Why else messages are refused, empty for none.
        self.writes_rejected = dict.fromkeys(REJECT_REASONS, 0)
        """Messages that were refused, by what refused them."""
        self.recovery = RecoveryReport(end=0)
        self._flusher: Flusher | None = None
        self._mark: FlushedMark | None = None
        self._release_lock: opening.Release | None = None
        self._derived_refusal: str | None = None
        self._is_open = False
        self._half_deleted: set[str] = set()

    def _make_dispatch(self) -> Dispatch:
        return Dispatch(
            self.queues,
            self.index,
            DelayLevels(self._config.message_delay_level),
            self._deleted,
            index_enabled=self._config.message_index_enable,
            holds_back=self.holds_back,
        )

    def _make_cleaner(self) -> Cleaner:
        return Cleaner(
            self._config,
            self._disk,
            self.paths.commit_log,
            self.retention,
            self.commit_log,
            self.queues,
            self.index,
            self.dispatch,
            self.runners,
        )

    def _make_checkpoints(self) -> Checkpointing:
        return Checkpointing(
            self._config,
            self._disk,
            self.paths,
            self.commit_log,
            self.queues,
            self.index,
            self.dispatch,
            self.retention,
            self._removal,
            self.runners,
            lambda: self.flushed_offset,
            self.deletion_job,
        )

    @property
    def is_open(self) -> bool:
        """Messages can be read, and written unless something refuses them."""
        return self._is_open

    # -- life cycle -----------------------------------------------------------------------------

    def open(self, *, rebuild: bool = False) -> None:
        """Lock the directory, recover it, and get ready to take messages.

        With `rebuild` ConsumeQueues and IndexFiles are built anew from the CommitLog.

        Raises:
            StoreBusyError: another process holds the directory.
            DamagedStoreError: the directory is not a store, or not with these settings.
            OSError: the file system refuses.
        """
        disk, paths = self._disk, self.paths
        for directory in paths.folders:
            disk.make_dirs(directory)
        is_foreign = opening.was_used_by_another_broker(disk, paths)
        try:
            self._release_lock = disk.lock(paths.lock, f"mailboat {os.getpid()}")
        except BlockingIOError as exc:
            raise StoreBusyError(
                f"{paths.root} is in use by another broker; stop it or choose another directory"
            ) from exc
        opened = opening.recover(
            disk=disk,
            paths=paths,
            config=self._config,
            commit_log=self.commit_log,
            queues=self.queues,
            index=self.index,
            dispatch=self.dispatch,
            deleted=self._deleted,
            is_foreign=is_foreign,
            rebuild=rebuild,
        )
        opening.reserve_last(disk, self.commit_log)
        self._mark = opened.mark
        self.recovery = opened.report
        self._flusher = self.replica.flusher = Flusher(disk, self.commit_log, opened.mark)
        opening.write_abort(disk, paths)
        self.checkpoints.begin_from(opened.saved_offset, is_due=opened.report.records > 0)
        self._is_open = True
        self.cleaner.start()

    def close(self) -> None:
        """Flush everything and leave the clean marker; where the store has failed, leave none.

        Raises:
            OSError: the store is not cleanly closed; the next open recovers it.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self.commit_log.failure is None:
                self._close_cleanly()
        finally:
            self.queues.close()
            self.index.close()
            self.commit_log.close()
            self._pool.close()
            if self._mark is not None:
                self._mark.close()
            if self._release_lock is not None:
                self._release_lock()

    def _close_cleanly(self) -> None:
        # Where all descriptors are in use, these are enough for what is still to be written.
        self._pool.close()
        self.commit_log.drop_prepared()
        job = self.begin_flush()
        if job is not None:
            try:
                job.run()
            except OSError as exc:
                self.finish_flush(job, exc)
                raise
            self.finish_flush(job, None)
        if self.flushed_offset < self.commit_log.end:
            raise OSError("a flush of the log is still running; the next start recovers the log")
        self.settle()
        opening.complete_index(self._disk, self.commit_log, self.dispatch, self.index)
        while not self.cleaner.trim(TRIM_SLICE_S):
            continue
        self.checkpoints.save_at_the_end()
        self._removal.finish()
        opening.remove_abort(self._disk, self.paths)

    # -- writing --------------------------------------------------------------------------------

    def refusal(self) -> str | None:
        """Say why messages are refused, None while they are taken."""
        return self.own_refusal() or self._unsettled_refusal() or self.refuses() or None

    def own_refusal(self) -> str | None:
        """Say why this store has no room for any, whoever leads; None where it has."""
        failure = self.commit_log.failure if self._is_open else "the store is closed"
        return failure or self.retention.refusal or self._derived_refusal

    def _unsettled_refusal(self) -> str | None:
        """Say that too many messages wait to be shown: the disk hangs, or other replicas do."""
        if self.dispatch.held_bytes <= HELD_BYTES_MOST:
            return None
        waits_for = "a flush of the disk" if self.is_sync_flush else "other replicas"
        return f"too many messages wait for {waits_for}"

    def why_refused(self) -> str:
        """Say why a message that was refused just now was, as far as that is known."""
        log_ = self.commit_log
        return self.refusal() or log_.no_room or log_.last_write_failure or "it is closing"

    def _count_rejected(self, count: int) -> None:
        if not self._is_open:
            reason = "closed"
        elif self.commit_log.failure is not None:
            reason = "store_failed"
        elif self.retention.refusal is not None:
            reason = "disk_full"
        elif self._derived_refusal is not None:
            reason = "derived_files"
        else:
            reason = "no_room" if self._unsettled_refusal() is None else "unsettled"
        self.writes_rejected[reason] += count

    def put_messages(self, batch: list[MessageInner]) -> None:
        """Store messages, each on its own, and fill in what became of each.

        PUT_OK means that the record is in the page cache; it is durable once `flushed_offset`
        reaches its end. Messages with another status left nothing behind, but FLUSH_DISK_TIMEOUT,
        whose outcome is unknown.
        """
        if self.refusal() is not None:
            refuse(batch)
            self._count_rejected(len(batch))
            return
        if self.queues.going:
            batch = refuse_topics(batch, self.queues.going)
        get_or_add = self.queues.get_or_add
        queues = [get_or_add(message.topic, message.queue_id) for message in batch]
        written = self.commit_log.append(batch, queues)
        if written != len(batch):
            self._count_rejected(sum(message.status in _REJECTED for message in batch))
            is_put = [message.status == PutStatus.PUT_OK for message in batch]
            batch, queues = list(compress(batch, is_put)), list(compress(queues, is_put))
        if written:
            self._note_put(batch, queues)

    def put_batch(self, batch: list[MessageInner]) -> None:
        """Store the messages of one client batch, all or none; they share topic and queue."""
        if self.refusal() is not None:
            refuse(batch)
            self._count_rejected(len(batch))
            return
        queue = self.queues.get_or_add(batch[0].topic, batch[0].queue_id)
        if self.commit_log.append_together(batch, queue):
            self._note_put(batch, [queue] * len(batch))
        else:
            self._count_rejected(sum(message.status in _REJECTED for message in batch))

    def _note_put(self, batch: list[MessageInner], queues: list[ConsumeQueue]) -> None:
        log_ = self.commit_log
        self.dispatch.dispatch_put(batch, queues, log_.end, log_.last_store_timestamp_ms)

    def _note_write(self) -> None:
        self.flusher.note_write()
        if self.on_write is not None:
            self.on_write()

    # -- flushing -------------------------------------------------------------------------------

    @property
    def flusher(self) -> Flusher:
        """The flush state of an open store.

        Raises:
            StoreClosedError: the store was never opened.
        """
        if self._flusher is None:
            raise StoreClosedError(f"the store at {self.paths.root} is not open")
        return self._flusher

    @property
    def flushed_offset(self) -> int:
        """The physical offset below which everything is durable."""
        return self.flusher.flushed_offset

    def begin_flush(self) -> FlushJob | None:
        """Make a job that flushes all that is written, None when there is nothing to do now."""
        return self.flusher.begin()

    def finish_flush(self, job: FlushJob, error: BaseException | None) -> None:
        """Take a flush job back: what it made durable becomes visible with SYNC_FLUSH.

        Who has no time for all of that calls `flusher.finish` and `settle`.
        """
        self.flusher.finish(job, error)
        if error is None:
            self.settle()

    @property
    def settled_offset(self) -> int:
        """The physical offset below which messages may be shown and answered."""
        if not self.holds_back:
            return self.commit_log.end
        flushed = self.flushed_offset if self.is_sync_flush else self.commit_log.end
        return min(flushed, self.replica.confirmed_offset) if self.is_replicated else flushed

    @property
    def certain_offset(self) -> int:
        """The physical offset below which messages will be shown and answered, now or soon."""
        if not self.is_replicated:
            return self.settled_offset
        confirmed = max(self.replica.confirmed_end, self.replica.confirmed_offset)
        return min(self.flushed_offset, confirmed) if self.is_sync_flush else confirmed

    def settle(self, slice_s: float = math.inf) -> bool:
        """Show what has been flushed, or has been confirmed by other replicas.

        Returns:
            Whether that was all of it; after so many seconds some may be left.
        """
        ends_at_s = self._disk.monotonic() + slice_s
        return self.dispatch.release(
            self.settled_offset, lambda: self._disk.monotonic() >= ends_at_s
        )

    # -- background -----------------------------------------------------------------------------

    def background(self) -> None:
        """Do a slice of what goes on beside requests: a few milliseconds."""
        if not self._is_open or self.commit_log.failure is not None:
            self._searches.go_on()
            return
        self.commit_log.prepare_next()
        is_derived_written = self._write_some_derived()
        self._searches.go_on()
        # Also where nothing could be written: what goes now may be the only way to get room.
        if self.cleaner.is_due():
            self.clean()
        self._removal.go_on()
        # A checkpoint counts on queues that begin where the log does.
        if self.cleaner.trim(TRIM_SLICE_S) and is_derived_written:
            try:
                self.checkpoints.go_on()
            except OSError as exc:
                self._derived_refusal = f"no room for the ConsumeQueues: {exc}"

    @property
    def has_unwritten(self) -> bool:
        """One slice of `background` was not enough for what there was to write."""
        refusal = self.refusal()
        return refusal is _BEHIND or (
            refusal is None and (self.queues.has_unwritten or self.index.has_backlog)
        )

    def _write_some_derived(self) -> bool:
        try:
            opening.complete_index(
                self._disk, self.commit_log, self.dispatch, self.index, _INDEX_SLICE_S
            )
            self.queues.write_some(_WRITE_QUEUES_A_SLICE, _WRITE_SLICE_S)
            self.index.write_some()
        except OSError as exc:
            if self._derived_refusal is None:
                log.warning("derived files cannot be written: %s", exc)
            self._derived_refusal = f"no room for the ConsumeQueues: {exc}"
            return False
        # What is sent meanwhile would have to be read as well.
        self._derived_refusal = _BEHIND if self.index.gap is not None else None
        return self._derived_refusal is None

    def clean(self) -> int:
        """Look at the disk and delete the segments that may go; return how many went."""
        needed_from = self.replica.needed_from()
        safe_offset = min(self.flushed_offset, self.checkpoints.saved_offset, needed_from)
        end = self.commit_log.end
        deleted, is_blocked = self.cleaner.round(safe_offset, self._derived_refusal)
        if deleted or is_blocked:
            self.checkpoints.make_due()
        if self.commit_log.end != end:
            self.flusher.note_write()
            self.checkpoints.make_due()
        return deleted

    def configure(self, config: MessageStoreConfig) -> None:
        """Follow other settings; those that are not live must be the same."""
        self._config = config
        self.retention.configure(config)
        self.cleaner.configure(config)
        self.commit_log.configure(config)
        self.warming.configure(config.access_message_in_memory_max_ratio)

    def queue_keys(self) -> list[tuple[str, int]]:
        """Return topic and id of every queue."""
        return list(self.queues.by_key)

    def physical_position(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return where a message lies in the log, None when the queue does not say.

        Raises:
            OSError: the queue's file cannot be read.
        """
        queue = self.queues.get(topic, queue_id)
        unit = queue.unit(queue_offset) if queue is not None else None
        return unit[0] if unit is not None else None

    # -- reading --------------------------------------------------------------------------------

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Tell whether a queue has ever held a message."""
        queue = self.queues.get(topic, queue_id)
        return queue is not None and queue.max_offset > 0

    def is_made_anew(self, topic: str) -> bool:
        """Tell whether a topic of this name was deleted while the log had what it has now."""
        return self._deleted.is_gone(topic, self.commit_log.start)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues that the store knows."""
        return [queue.queue_id for queue in self.queues.of_topic(topic)]

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that is still there, 0 for an unknown queue."""
        queue = self.queues.get(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last visible message, 0 for an unknown queue."""
        queue = self.queues.get(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None = None,
        source: RecordSource | None = None,
    ) -> GetResult:
        """Return messages of a queue; see `Lookup.get_message`."""
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return _NO_QUEUE
        return self.lookup.get_message(
            queue, queue_offset, max_messages, max_bytes, tags_codes, source
        )

    def get_matching_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        wanted: PropertyFilter,
        scan_bytes: int,
        source: RecordSource | None = None,
    ) -> GetResult:
        """Return messages that a filter takes; see `Lookup.get_matching_message`."""
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return _NO_QUEUE
        return self.lookup.get_matching_message(
            queue, queue_offset, max_messages, max_bytes, wanted, scan_bytes, source
        )

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of a message, -1 when it is not there."""
        queue = self.queues.get(topic, queue_id)
        return self.lookup.store_timestamp_ms(queue, queue_offset) if queue else -1

    def look_message_by_offset(
        self, physical_offset: int, *, with_unflushed: bool = False
    ) -> bytes | None:
        """Return the record that begins at a physical offset, None when none does.

        With SYNC_FLUSH one that waits for its flush is shown to nobody outside; the broker itself
        sees it `with_unflushed`.
        """
        if not with_unflushed and physical_offset >= self.dispatch.dispatched_offset:
            return None
        return self.lookup.record_at(physical_offset)

    def query_message(
        self, topic: str, key: str, max_messages: int, begin_ms: int, end_ms: int
    ) -> QueryResult:
        """Return messages by key, however long it takes; see `mailboat.store.key_search`."""
        query = KeyQuery(topic, key, max_messages, _ANY_BYTES, begin_ms, end_ms)
        self.index.build_for_search()
        return search_job(self._disk, self.commit_log, self.index, query)()

    def search(self, query: KeyQuery, done: SearchDone, *, is_own: bool = False) -> None:
        """Find messages by key with the runner for searches, then call `done`.

        It gets the result, or an OSError: files cannot be read now. What the broker itself looks
        for (`is_own`) waits for no search that a client wants.
        """
        run = self.runners.reads if is_own else self.runners.searches
        self._searches.search(run, query, self.dispatch.dispatched_offset, done)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic's queues; its records expire with the CommitLog.

        Raises:
            OSError: it could not be noted, or some files are still there; the call may be repeated.
        """
        for _ in self.delete_topic_steps(topic):
            pass
        self.deletion_job()()

    def delete_topic_steps(self, topic: str, log_end: int = 0) -> Generator[None, None, None]:
        """Delete a topic's queues, below `log_end` (0: all), a queue a step; nobody may send to it
        until a `deletion_job` has been run.

        Raises:
            OSError: some files are still there; the call may be repeated.
        """
        if log_end or self.queues.of_topic(topic):
            self._half_deleted.add(topic)
            self.checkpoints.forget_noted()  # It counts the queues that go now.
        yield from self.queues.delete_topic_steps(topic)
        self.checkpoints.make_due()
        if topic in self._half_deleted:
            self._half_deleted.discard(topic)
            self._deleted.note(topic, self.commit_log.start, log_end or self.commit_log.end)

    def deletion_job(self) -> Callable[[], None]:
        """Return a call that makes deletions durable whose steps are done; on any thread.

        It raises OSError where that is not known; then a further one does it.
        """
        return self._deleted.deletion_job(self.paths.consume_queue)

    def state(self) -> StoreState:
        """Return the store's condition."""
        log_ = self.commit_log
        return StoreState(
            min_physical_offset=log_.start,
            max_physical_offset=log_.end,
            flushed_physical_offset=self.flushed_offset,
            unflushed_bytes=self.flusher.unflushed_bytes,
            unflushed_age_seconds=self.flusher.unflushed_age_s,
            dispatch_behind_bytes=log_.end - self.dispatch.dispatched_offset,
            commit_log_bytes=log_.end - log_.start,
            disk_used_percent=self.retention.used_percent,
            refusal=self.refusal() or log_.no_room,
            failed=log_.failure,
            corrupt_records=self.lookup.corrupt_records,
            unreadable_records=self.lookup.unreadable_records,
            recovered_records=self.recovery.records,
            recovered_tail_bytes=self.recovery.torn_bytes,
            damaged_bytes=sum(item.size_bytes for item in self.recovery.damaged),
            queue_count=len(self.queues.by_key),
            segments=[
                SegmentState(segment.start, segment.size_bytes, segment.last_store_timestamp_ms)
                for segment in log_.segments
            ],
        )


_REJECTED: Final = frozenset({PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.CREATE_MAPPED_FILE_FAILED})
