"""The CommitLog: every message of every topic, one after the other, in segments of fixed size.

A segment ends with a filler record; a message never crosses segments and the messages of a client
batch never do either. A write that fails is wiped, so that no later recovery finds the bytes of a
refused message; where even that fails, the log takes nothing more until it is reopened.

Source: apache/rocketmq store/CommitLog.java @ rocketmq-all-5.3.3.
"""

import contextlib
import errno
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from mailboat.config import MessageStoreConfig
from mailboat.disk import Disk, write_fully
from mailboat.disk.descriptors import reason_of
from mailboat.model.record import BLANK_MAGIC, FILLER, FILLER_BYTES
from mailboat.store.consume_queue import ConsumeQueue
from mailboat.store.file_pool import FilePool
from mailboat.store.message_inner import BlockingRunner, MessageInner, PutStatus
from mailboat.store.record_encoder import RecordEncoder
from mailboat.store.segment import Segment, create_segment, open_segments
from mailboat.store.segment_reader import find_record_at
from mailboat.store.write_times import WriteTimes

log = logging.getLogger(__name__)

# A new try for a segment costs file-system calls: once in this time is enough while a disk is full.
RETRY_CREATE_S: Final = 0.2
# How long a sender may wait, and with it everybody else, for a segment that was begun too late.
_MAKING_S: Final = 0.5


class CommitLog:
    """The segments and the write position; `append` is the hot path.

    `end` is the physical offset after the last record. `failure` is a sentence once a write or a
    flush has failed in a way that only a reopen can mend. `no_room` is a sentence while there is no
    room for the next segment.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        disk: Disk,
        pool: FilePool,
        directory: str,
        store_host: bytes,
        run_reserving: BlockingRunner,
    ) -> None:
        """Build an empty log; recovery fills `segments` and `end`."""
        self._disk = disk
        self._pool = pool
        self._directory = directory
        self._segment_bytes = config.mapped_file_size_commit_log
        self._run_reserving = run_reserving
        # Held while a segment is made: by the blocking runner ahead of need, or by a roll that the
        # runner did not come in time for; and while segments at the end are taken off.
        self._create_lock = threading.Lock()
        self._is_late = False
        self._prepared: Segment | None = None
        self._is_preparing = False
        self._next_create_try_s = 0.0
        self._create_failure = ""
        self._failed_errno = errno.EIO
        self.has_room_ahead = True
        """False while the volume is known to have no room for the next segment."""

        self._max_body_bytes = config.max_message_size
        self._append_crc = config.enabled_append_prop_crc
        self.move_to(store_host)
        self.segments: list[Segment] = []
        self.end = 0
        self.last_store_timestamp_ms = 0
        self.write_times = WriteTimes()
        self.failure: str | None = None
        self.no_room: str | None = None
        self.last_write_failure: str | None = None
        """Why the last write that failed did; those after it may have succeeded."""

        self.is_followed = False
        """Another broker says where segments end."""

        self.on_write: Callable[[], None] | None = None
        """Called after each write of records."""

        self.on_end_lost: Callable[[int], None] | None = None
        """Called before a damaged end that was durable is cut off, with where the log ends then;
        None where it is not to be cut. On any thread; raises OSError."""

    def configure(self, config: MessageStoreConfig) -> None:
        """Follow other settings."""
        self._max_body_bytes = config.max_message_size
        self.move_to(self.store_host)

    def move_to(self, store_host: bytes) -> None:
        """Let records say from now on that they were stored at this address."""
        self.store_host = store_host
        self._encoder = RecordEncoder(
            store_host, self._max_body_bytes, self._segment_bytes, append_crc=self._append_crc
        )

    @property
    def start(self) -> int:
        """The physical offset of the oldest segment still there."""
        return self.segments[0].start if self.segments else self.end

    def load_segments(self) -> None:
        """Find the segments in the log's directory; where it ends is the business of recovery.

        Raises:
            DamagedStoreError: a name or size that no CommitLog has; the text says which.
            OSError: a file cannot be opened.
        """
        self.segments = open_segments(self._disk, self._pool, self._directory, self._segment_bytes)

    def find(self, physical_offset: int) -> Segment | None:
        """Return the segment that holds a physical offset."""
        if self.segments and (last := self.segments[-1]).start <= physical_offset:
            return last if physical_offset < last.start + last.size_bytes else None
        index = bisect_right(self.segments, physical_offset, key=lambda segment: segment.start) - 1
        if index < 0 or physical_offset >= self.segments[index].end:
            return None
        return self.segments[index]

    def reading_job(self, physical_offset: int) -> Callable[[], bytes | None]:
        """Return a call that reads the record at a physical offset; it may run on any thread.

        It returns None where no good record begins there. It opens the file anew, as the store's
        thread may close and remove it meanwhile: then it raises OSError.
        """
        segment = self.find(physical_offset)

        def read() -> bytes | None:
            if segment is None:
                return None
            pool = FilePool(self._disk, 1)
            try:
                found = find_record_at(segment.opened_in(pool), physical_offset)
            finally:
                pool.close()
            return None if found is None else bytes(found[0][: found[1].properties_end])

        return read

    # -- writing ----------------------------------------------------------------------------------

    def append(self, batch: list[MessageInner], queues: list[ConsumeQueue]) -> int:
        """Write messages, each to the queue at its place, and fill in what became of them.

        On return the records are in the page cache. Messages that could not be written have
        another status than PUT_OK, nothing of them is in the log, and their queues are unchanged.

        Returns:
            The number of messages written; refused ones are not always the last.
        """
        size_of = self._encoder.size
        written = 0
        run: list[MessageInner] = []
        run_queues: list[ConsumeQueue] = []
        # As the last segment is full when there is none, the first message makes room.
        end = room_end = self.end
        for message, queue in zip(batch, queues, strict=True):
            size = message.size_bytes = size_of(message)
            if not size:
                _refuse([message], PutStatus.MESSAGE_ILLEGAL)
                continue
            if end + size > room_end:
                written += self._write(run, run_queues)
                run, run_queues = [], []
                room_end = self._make_room(size)
                end = self.end
                if not room_end:
                    _refuse([message], self._refusal_status())
                    continue
            end += size
            run.append(message)
            run_queues.append(queue)
        return written + self._write(run, run_queues)

    def append_together(self, batch: list[MessageInner], queue: ConsumeQueue) -> int:
        """Write the messages of one client batch, all of them or none, into one segment."""
        size_of = self._encoder.size
        total = 0
        is_legal = True
        for message in batch:
            size = message.size_bytes = size_of(message)
            total += size
            is_legal = is_legal and size > 0
        if not is_legal or total + FILLER_BYTES > self._segment_bytes:
            _refuse(batch, PutStatus.MESSAGE_ILLEGAL)
            return 0
        if not self._make_room(total):
            _refuse(batch, self._refusal_status())
            return 0
        return self._write(batch, [queue] * len(batch))

    def _make_room(self, size_bytes: int) -> int:
        """Have a segment at whose end so many bytes fit; return where its records must end.

        Returns 0 when there is no such segment.
        """
        segment = self._writable_segment()
        if segment is not None and self.end + size_bytes + FILLER_BYTES > segment.end:
            segment = self.segments[-1] if self._roll(segment) else None
        return segment.end - FILLER_BYTES if segment is not None else 0

    def _write(self, batch: list[MessageInner], queues: list[ConsumeQueue]) -> int:
        """Write messages that were measured and fit, with one call; return how many."""
        if not batch:
            return 0
        now_ms = self.next_store_timestamp_ms
        encode = self._encoder.encode
        physical_offset = self.end
        records: list[bytes] = []
        begin = self.end
        try:
            for message, queue in zip(batch, queues, strict=True):
                queue_offset = queue.next_offset
                size = message.size_bytes
                records.append(encode(message, size, queue_offset, physical_offset, now_ms))
                queue.next_offset = queue_offset + 1
                message.queue_offset = queue_offset
                message.physical_offset = physical_offset
                message.status = PutStatus.PUT_OK
                physical_offset += size
            self.write_records(b"".join(records), now_ms)
        finally:
            if self.end == begin:
                # Also where a message could not be encoded: others must get its place.
                for queue in queues[: len(records)]:
                    queue.next_offset -= 1
        if self.end == begin:
            _refuse(batch, self._unwritten_status())
            return 0
        return len(batch)

    @property
    def room_bytes(self) -> int:
        """Bytes from here to the end of the last segment; 0 where nothing can be written."""
        if self.failure is not None or not self.segments:
            return 0
        return max(self.segments[-1].end - self.end, 0)

    @property
    def next_store_timestamp_ms(self) -> int:
        """The time of what is stored now; it never goes back."""
        return max(self._disk.wall_ms(), self.last_store_timestamp_ms)

    def write_records(self, records: bytes, store_timestamp_ms: int) -> bool:
        """Write whole records at the end of the log; where that fails, nothing of them is in it.

        They fit the last segment. If not even the failure can be undone, `failure` says so, and
        nobody knows what became of them.
        """
        segment = self.segments[-1]
        began_s = self._disk.monotonic()
        try:
            write_fully(self._disk, segment.keep_open(), records, self.end - segment.start)
        except OSError as exc:
            self._undo_write(segment, exc)
            return False
        self.write_times.note(self._disk.monotonic() - began_s)
        self.end += len(records)
        self.last_store_timestamp_ms = segment.last_store_timestamp_ms = store_timestamp_ms
        if self.on_write is not None:
            self.on_write()
        return True

    # -- following another broker ---------------------------------------------------------------

    @property
    def segment_end(self) -> int:
        """Where the segment ends, or will, that the next byte belongs to."""
        return self.end - self.end % self._segment_bytes + self._segment_bytes

    def begin_at(self, physical_offset: int) -> None:
        """Let an empty log begin where a segment of another broker's does.

        Raises:
            OSError: a segment without a record is still there; the call may be repeated.
        """
        assert self.end == self.start
        # A process that died before its first write, or a cut, has left one.
        with self._create_lock:
            self._drop_prepared()
            self.remove_above(-1)
        self.end = physical_offset

    def write_followed(self, data: bytes, end: int, store_timestamp_ms: int) -> None:
        """Write what another broker wrote at this place of its log, which ends at `end` then.

        It is whole records of one segment, or the head of the filler that ends it.

        Raises:
            OSError: nothing of it is in the log.
        """
        segment = self._writable_segment()
        if segment is None:
            if self._is_late and self.failure is None:
                raise OSError(errno.EAGAIN, self.no_room)
            raise OSError(self._failed_errno, self.failure or self._create_failure)
        assert end <= segment.end
        if not self.write_records(data, max(self.last_store_timestamp_ms, store_timestamp_ms)):
            raise OSError(self._failed_errno, self.last_write_failure)
        self.end = end  # The head of a filler stands for all behind it.

    def cut(self, end: int) -> None:
        """Take off what lies at and above a physical offset, durably.

        Raises:
            OSError: the log must take no messages before it is opened again.
        """
        try:
            # What is being made meanwhile would be the next one of a segment that is gone.
            with self._create_lock:
                self._drop_prepared()
                self.remove_above(end)
            if self.segments and self.segments[-1].end > end:
                self.segments[-1].cut(end - self.segments[-1].start)
        except OSError as exc:
            self.poison(f"the log could not be cut at {end}: {exc}; restart the broker")
            raise
        self.end = end

    def remove_above(self, physical_offset: int) -> None:
        """Remove the segments that begin above a physical offset, the newest first, durably.

        Raises:
            OSError: some are still there; the call may be repeated.
        """
        has_removed = False
        while self.segments and self.segments[-1].start > physical_offset:
            segment = self.segments.pop()
            segment.close()
            self._disk.unlink(segment.path)
            has_removed = True
        if has_removed:
            self._disk.fsync_dir(self._directory)

    def _unwritten_status(self) -> int:
        # Where the bytes could not be wiped either, they may come back after a restart: the
        # outcome is unknown, and an unknown outcome is what FLUSH_DISK_TIMEOUT says.
        if self.failure is not None:
            return PutStatus.FLUSH_DISK_TIMEOUT
        return PutStatus.SERVICE_NOT_AVAILABLE

    # -- segments -------------------------------------------------------------------------------

    def _writable_segment(self) -> Segment | None:
        if self.failure is not None:
            return None
        if not self.segments or self.end >= self.segments[-1].end:
            start = self.segments[-1].end if self.segments else self.end
            if not self._create(start - start % self._segment_bytes):
                return None
        return self.segments[-1]

    def _refusal_status(self) -> int:
        if self.failure is not None:
            return PutStatus.SERVICE_NOT_AVAILABLE
        return PutStatus.CREATE_MAPPED_FILE_FAILED

    def _roll(self, segment: Segment) -> bool:
        """Close a segment with a filler and begin the next one; the next is made first."""
        start = self.end
        if not self._create(segment.end):
            return False
        remaining = segment.end - start
        try:
            segment.write(FILLER.pack(remaining, BLANK_MAGIC), start - segment.start)
        except OSError as exc:
            # The next segment exists and is empty: keep it for the next try.
            self._prepared = self.segments.pop()
            self._undo_write(segment, exc)
            return False
        self.end = segment.end
        return True

    def _create(self, start: int) -> bool:
        now_s = self._disk.monotonic()
        with self._making() as is_free:
            if not is_free:
                self.no_room = f"the CommitLog segment at {start} is still being made"
                return False
            prepared, self._prepared = self._prepared, None
            if prepared is None:
                if now_s < self._next_create_try_s:
                    self.no_room = self._create_failure
                    return False
                try:
                    prepared = self._create_here(start)
                except OSError as exc:
                    self._create_failed(start, exc)
                    self.no_room = self._create_failure
                    log.warning("refused physical_offset=%d reason=%s", start, self.no_room)
                    return False
        assert prepared.start == start
        self.segments.append(prepared)
        self.no_room = None
        return True

    @contextlib.contextmanager
    def _making(self) -> Iterator[bool]:
        """Keep others from making a segment; yield False where one is being made that takes long.

        A disk that hangs is waited for once: after that whoever sends is refused at once, and
        whoever reads is served.
        """
        is_free = self._create_lock.acquire(timeout=0 if self._is_late else _MAKING_S)
        if not is_free and not self._is_late:
            log.warning(
                "refused physical_offset=%d: the next segment is still being made", self.end
            )
        self._is_late = not is_free
        try:
            yield is_free
        finally:
            if is_free:
                self._create_lock.release()

    def _create_here(self, start: int, *, reserve: bool = True) -> Segment:
        """Make a segment on the store's thread, at the cost of files that are open for reading."""
        what = (self._disk, self._pool, self._directory, start, self._segment_bytes, reserve)
        try:
            return create_segment(*what)
        except OSError as exc:
            if not self._pool.make_room(exc):
                raise
            return create_segment(*what)

    def _create_failed(self, start: int, error: OSError) -> None:
        self._next_create_try_s = self._disk.monotonic() + RETRY_CREATE_S
        self._failed_errno = error.errno or errno.EIO
        self._create_failure = (
            f"no room for the CommitLog segment at {start} in {self._directory}: {reason_of(error)}"
        )

    @property
    def is_prepared(self) -> bool:
        """The next segment is there already."""
        return self._prepared is not None

    @property
    def preallocated_bytes(self) -> int:
        """Bytes of the volume that are reserved and hold no record yet."""
        last = self.segments[-1] if self.segments else None
        ahead = self._segment_bytes if self._prepared is not None else 0
        return ahead + (last.end - self.end if last is not None and last.is_reserved else 0)

    @property
    def wanted_bytes(self) -> int:
        """Bytes that the log needs and does not have: for the next segment once the last one is
        half full, or for a last one whose room could not be reserved."""
        if not self.segments or self._prepared is not None or self._is_preparing:
            return 0
        is_needed = self._is_half_full or not self.segments[-1].is_reserved
        return self._segment_bytes if is_needed else 0

    @property
    def _is_half_full(self) -> bool:
        return self.end - self.segments[-1].start >= self._segment_bytes // 2

    def move_on(self, *, reserve: bool) -> bool:
        """Begin the next segment although this one is not full; tell whether that was possible.

        Without `reserve` the new file takes no room of the volume yet.
        """
        last = self.segments[-1]
        if self.is_followed:
            return False
        with self._making() as is_free:
            if not is_free:
                return False
            if self._prepared is None:
                try:
                    self._prepared = self._create_here(last.end, reserve=reserve)
                except OSError as exc:
                    log.warning("could not begin the next segment: %s", exc)
                    return False
        return self._create(last.end) if self.end == last.end else self._roll(last)

    def prepare_next(self) -> None:
        """Make the next segment ahead of need once this one is half full."""
        if not self.segments or self._prepared is not None or self._is_preparing or self.failure:
            return
        if not self._is_half_full:
            return
        if not self.has_room_ahead or self._disk.monotonic() < self._next_create_try_s:
            return
        self._is_preparing = True
        start = self.segments[-1].end

        def create() -> None:
            with self._create_lock:
                last = self.segments[-1] if self.segments else None
                if last is not None and last.end == start and self._prepared is None:
                    self._prepared = create_segment(
                        self._disk, self._pool, self._directory, start, self._segment_bytes
                    )

        self._run_reserving(create, partial(self._prepare_done, start))

    def _prepare_done(self, start: int, _: Any, error: BaseException | None) -> None:
        self._is_preparing = False
        if error is None:
            self.no_room = None
            return
        if not isinstance(error, OSError):
            raise error
        self._pool.make_room(error)
        self._create_failed(start, error)
        log.warning("could not prepare the next segment: %s", self._create_failure)

    def drop_prepared(self) -> None:
        """Remove the segment made ahead, so that a closed store has only segments with records."""
        with self._create_lock:
            self._drop_prepared()

    def _drop_prepared(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.close()
            self._disk.unlink(prepared.path)
            self._disk.fsync_dir(self._directory)

    def give_room_back(self) -> None:
        """Let others have the room that is set aside for records to come.

        Raises:
            OSError: the file system refuses.
        """
        if not self._is_preparing:
            self.drop_prepared()
        self._next_create_try_s = self._disk.monotonic() + RETRY_CREATE_S
        last = self.segments[-1]
        if last.is_reserved:
            last.give_room_back(self.end - last.start)

    def remove_oldest(self) -> str:
        """Take the oldest segment out of the log; return the path of its file, which stays."""
        segment = self.segments.pop(0)
        segment.close()
        return segment.path

    # -- failures -------------------------------------------------------------------------------

    def poison(self, reason: str) -> None:
        """Take no more messages until the store is reopened."""
        if self.failure is None:
            self.failure = reason
            log.error("the store is read-only from now on: %s", reason)

    def _undo_write(self, segment: Segment, exc: OSError) -> None:
        """Wipe what a failed write may have left at the end of the log."""
        self._failed_errno = exc.errno or errno.EIO
        self.last_write_failure = f"a write to {segment.path} failed: {reason_of(exc)}"
        log.error("write failed path=%s physical_offset=%d: %s", segment.path, self.end, exc)
        try:
            segment.cut(self.end - segment.start)
        except OSError as second:
            self.poison(
                f"a write to {segment.path} failed ({exc}) and could not be undone ({second}); "
                "restart the broker once the disk is well"
            )

    def close(self) -> None:
        """Close all files."""
        for segment in self.segments:
            segment.close()
        self.segments = []


def _refuse(messages: list[MessageInner], status: int) -> None:
    for message in messages:
        message.status = status
        message.queue_offset = message.physical_offset = -1
