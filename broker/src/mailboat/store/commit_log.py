"""The CommitLog: every message of every topic, one after the other, in segments of fixed size.

A segment ends with a filler record; a message never crosses segments and the messages of a client
batch never do either. A write that fails is wiped, so that no later recovery finds the bytes of a
refused message; where even that fails, the log takes nothing more until it is reopened.

Source: apache/rocketmq store/CommitLog.java @ rocketmq-all-5.3.3.
"""

import logging
import struct
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate, repeat
from operator import add, attrgetter
from typing import Any, Final, NamedTuple

from isal.isal_zlib import crc32

from mailboat.config import MessageStoreConfig
from mailboat.disk import Disk
from mailboat.disk.descriptors import reason_of
from mailboat.model.names import MAX_RETRY_TOPIC_LENGTH, MAX_TOPIC_LENGTH, is_retry_or_dlq
from mailboat.model.properties import MAX_PROPERTIES_BYTES
from mailboat.model.record import (
    BLANK_MAGIC,
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_HEAD,
    FILLER,
    FILLER_BYTES,
    FIXED_BYTES,
    HEAD,
    HEAD_V4,
    IPV6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    TAIL,
)
from mailboat.model.sys_flag import (
    ANY_HOST_V6,
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_PREPARED,
)
from mailboat.store.client_batch import ClientBatch
from mailboat.store.consume_queue import ConsumeQueue
from mailboat.store.file_pool import FilePool
from mailboat.store.message_inner import BlockingRunner, MessageInner, PutStatus
from mailboat.store.segment import Segment, create_segment, open_segments

log = logging.getLogger(__name__)

_CRC_MASK: Final = 0x7FFFFFFF
_CRC_PROPERTY: Final = CRC_PROPERTY_HEAD + b"%b\x02"
_LENGTH: Final = struct.Struct(">H")
# A new try for a segment costs file-system calls: once in this time is enough while a disk is full.
RETRY_CREATE_S: Final = 0.2
_EXTRA_RECORD_BYTES: Final = 64 * 1024
_SURELY_LEGAL_BYTES: Final = 8192


_SYS_FLAG: Final = attrgetter("sys_flag")
_ORDINARY_FLAGS: Final = frozenset(
    [flags for flags in range(0x800) if not flags & (ANY_HOST_V6 | TRANSACTION_PREPARED)]
)
_COLUMNS: Final = attrgetter(
    "body",
    "properties",
    "topic",
    "queue_id",
    "flag",
    "sys_flag",
    "born_timestamp_ms",
    "born_host",
    "reconsume_times",
    "prepared_transaction_offset",
)


class _Encoded(NamedTuple):
    """Records ready to be written; `positions` has the end of the last one as well."""

    parts: list[bytes]
    sizes: list[int]
    positions: list[int]
    queue_offsets: list[int]


class _Run(NamedTuple):
    """Client batches that one write takes."""

    batches: list[ClientBatch]
    queues: list[ConsumeQueue]
    parts: list[bytes]


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
        self._append_crc = config.enabled_append_prop_crc
        self._run_reserving = run_reserving
        self._topics: dict[str, tuple[int, bytes]] = {}
        # Held while a segment is made: by the blocking runner ahead of need, or by a roll that the
        # runner did not come in time for.
        self._create_lock = threading.Lock()
        self._prepared: Segment | None = None
        self._is_preparing = False
        self._next_create_try_s = 0.0
        self._create_failure = ""
        self.has_room_ahead = True
        """False while the volume is known to have no room for the next segment."""

        self.max_body_bytes = config.max_message_size
        self.store_host = store_host
        self.segments: list[Segment] = []
        self.end = 0
        self.last_store_timestamp_ms = 0
        self.failure: str | None = None
        self.no_room: str | None = None
        self.last_write_failure: str | None = None
        """Why the last write that failed did; those after it may have succeeded."""

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

    # -- the hot path ---------------------------------------------------------------------------

    def append(self, batch: list[MessageInner], queues: list[ConsumeQueue]) -> int:
        """Write messages, each to the queue at its place, and fill in what became of them.

        On return the records are in the page cache. Messages that could not be written have
        another status than PUT_OK, nothing of them is in the log, and their queues are unchanged.

        Returns:
            The number of messages written; refused ones are not always the last.
        """
        if self._has_illegal(batch):
            return self._append_legal(batch, queues)
        written = 0
        position = 0
        while position < len(batch):
            segment = self._writable_segment()
            if segment is None:
                _refuse(batch[position:], self._refusal_status())
                break
            encoded = self._encode(batch, queues, position, segment)
            stop = position + len(encoded.sizes)
            if stop == position:
                if not self._roll(segment):
                    _refuse(batch[position:], self._refusal_status())
                    break
                continue
            if not self._write(segment, encoded, batch[position:stop], queues[position:stop]):
                _refuse(batch[stop:], PutStatus.SERVICE_NOT_AVAILABLE)
                break
            written += stop - position
            position = stop
        return written

    def append_together(self, batch: list[MessageInner], queue: ConsumeQueue) -> int:
        """Write the messages of one client batch, all of them or none, into one segment."""
        # An upper bound: a batch may roll a few bytes early, it never crosses a segment's end.
        total = sum([len(message.body) + len(message.properties) for message in batch])
        total += len(batch) * self._fixed_bytes(batch[0])
        if total + FILLER_BYTES > self._segment_bytes or self._has_illegal(batch):
            _refuse(batch, PutStatus.MESSAGE_ILLEGAL)
            return 0
        segment = self._writable_segment()
        if segment is not None and self.end + total + FILLER_BYTES > segment.end:
            segment = self.segments[-1] if self._roll(segment) else None
        if segment is None:
            _refuse(batch, self._refusal_status())
            return 0
        queues = [queue] * len(batch)
        encoded = self._encode(batch, queues, 0, segment)
        return len(batch) if self._write(segment, encoded, batch, queues) else 0

    def append_batches(self, batches: list[ClientBatch], queues: list[ConsumeQueue]) -> None:
        """Write client batches, each whole or not at all, as many as fit a segment in one write.

        Does for each what `append_together` does, and fills in what became of it.
        """
        now_ms = max(self._disk.wall_ms(), self.last_store_timestamp_ms)
        run = _Run([], [], [])
        end = self.end
        for batch, queue in zip(batches, queues, strict=True):
            magic, topic = self._topic_field(batch.topic)
            batch.measure(len(topic), self.store_host, append_crc=self._append_crc)
            needed = self._room_needed(batch)
            if not needed:
                batch.refuse(PutStatus.MESSAGE_ILLEGAL)
                continue
            if run.batches and end + needed > self.segments[-1].end:
                self._write_run(run)
                run, end = _Run([], [], []), self.end
            if not run.batches and not self._make_room(needed):
                batch.refuse(self._refusal_status())
                continue
            if not run.batches:
                end = self.end
            end = batch.place(end, queue.next_offset)
            queue.next_offset += len(batch)
            self.last_store_timestamp_ms = now_ms
            run.batches.append(batch)
            run.queues.append(queue)
            run.parts.extend(
                batch.encode(magic, topic, self.store_host, now_ms, append_crc=self._append_crc)
            )
        if run.batches:
            self._write_run(run)

    def _room_needed(self, batch: ClientBatch) -> int:
        """Return what a batch takes of a segment at most, 0 when it breaks a limit."""
        # Like `_fixed_bytes`, more than what a record really takes beside body and properties.
        slack = 2 if self._append_crc else 1
        needed = sum(batch.sizes) + slack * len(batch) + FILLER_BYTES
        largest = max(batch.sizes) + slack
        if needed > self._segment_bytes or batch.sys_flag & TRANSACTION_PREPARED:
            return 0
        if largest > _SURELY_LEGAL_BYTES:
            crc_bytes = CRC_PROPERTY_BYTES + 1 if self._append_crc else 0
            properties_bytes = max(batch.text_sizes) + len(batch.suffix) + crc_bytes
            if (
                max(map(len, batch.bodies)) > self.max_body_bytes
                or properties_bytes > MAX_PROPERTIES_BYTES
                or largest > self.max_body_bytes + _EXTRA_RECORD_BYTES
            ):
                return 0
        return needed

    def _make_room(self, needed: int) -> bool:
        """Have a segment at whose end so many bytes fit."""
        segment = self._writable_segment()
        if segment is not None and self.end + needed > segment.end:
            return self._roll(segment)
        return segment is not None

    def _write_run(self, run: "_Run") -> None:
        """Write encoded batches at the end of the log, all or none."""
        segment = self.segments[-1]
        data = b"".join(run.parts)
        try:
            segment.write(data, self.end - segment.start)
        except OSError as exc:
            for batch, queue in zip(run.batches, run.queues, strict=True):
                queue.next_offset -= len(batch)
            self._undo_write(segment, exc)
            for batch in run.batches:
                batch.refuse(self._unwritten_status())
            return
        self.end += len(data)
        segment.last_store_timestamp_ms = self.last_store_timestamp_ms
        for batch in run.batches:
            batch.status = PutStatus.PUT_OK

    def _unwritten_status(self) -> int:
        # Where the bytes could not be wiped either, they may come back after a restart: the
        # outcome is unknown, and an unknown outcome is what FLUSH_DISK_TIMEOUT says.
        if self.failure is not None:
            return PutStatus.FLUSH_DISK_TIMEOUT
        return PutStatus.SERVICE_NOT_AVAILABLE

    def _encode(
        self, batch: list[MessageInner], queues: list[ConsumeQueue], start: int, segment: Segment
    ) -> "_Encoded":
        """Encode from `start` on what fits into the segment; give out queue offsets.

        Works on columns (all bodies, all sizes, ...) rather than on messages, so that the loops run
        inside `map`, `zip` and `accumulate`: it costs half of what a loop over messages does.
        """
        (bodies, properties, topics, *rest) = zip(*map(_COLUMNS, batch[start:]), strict=True)
        queue_ids, flags, sys_flags, born_timestamps, born_hosts, reconsumes, prepared = rest
        if self._append_crc and not all(map(bytes.endswith, properties, repeat(b"\x02"))):
            closed = [p if p[-1:] in (b"", b"\x02") else p + b"\x02" for p in properties]
            properties = tuple(closed)
        magics, fields = zip(*map(self._topic_field, topics), strict=True)
        fixed = FIXED_BYTES - 1 + (CRC_PROPERTY_BYTES if self._append_crc else 0)
        sizes = [
            len(body) + len(text) + len(topic) + fixed
            for body, text, topic in zip(bodies, properties, fields, strict=True)
        ]
        is_plain = len(self.store_host) == 8 and set(map(len, born_hosts)) == {8}
        if not is_plain:
            hosts = map(self._extra_host_bytes, born_hosts)
            sizes = list(map(add, sizes, hosts))
        positions = list(accumulate(sizes, initial=self.end))
        count = bisect_right(positions, segment.end - FILLER_BYTES) - 1
        if count < len(sizes):
            sizes = sizes[: max(count, 0)]
        positions = positions[: len(sizes) + 1]
        queue_offsets: list[int] = []
        for queue in queues[start : start + len(sizes)]:
            queue_offsets.append(queue.next_offset)
            queue.next_offset += 1
        now_ms = self.last_store_timestamp_ms = max(
            self._disk.wall_ms(), self.last_store_timestamp_ms
        )
        crcs = [crc & _CRC_MASK for crc in map(crc32, bodies)]
        columns = (sizes, magics, crcs, queue_ids, flags, queue_offsets, positions)
        if is_plain:
            born = (sys_flags, born_timestamps, born_hosts, repeat(now_ms), repeat(self.store_host))
            heads = map(HEAD_V4.pack, *columns, *born, reconsumes, prepared, map(len, bodies))
        else:
            other = (sys_flags, born_timestamps, born_hosts, reconsumes, prepared)
            heads = map(self._generic_head, *columns, *other, map(len, bodies), repeat(now_ms))
        parts = self._join(heads, bodies, fields, properties)
        return _Encoded(parts, sizes, positions, queue_offsets)

    def _join(
        self,
        heads: Iterable[bytes],
        bodies: Iterable[bytes],
        fields: Iterable[bytes],
        properties: Sequence[bytes],
    ) -> list[bytes]:
        """Put records together from their parts; each is followed by its checksum property."""
        crc_bytes = CRC_PROPERTY_BYTES if self._append_crc else 0
        lengths = map(_LENGTH.pack, [len(text) + crc_bytes for text in properties])
        # `heads` ends with the last record that fits; the other columns may go on.
        records = list(map(b"".join, zip(heads, bodies, fields, lengths, properties, strict=False)))
        if not crc_bytes:
            return records
        return [
            part
            for record, crc in zip(records, map(crc32, records), strict=True)
            for part in (record, _CRC_PROPERTY % (b"%010d" % (crc & _CRC_MASK))[::-1])
        ]

    def _write(
        self,
        segment: Segment,
        encoded: "_Encoded",
        messages: list[MessageInner],
        queues: list[ConsumeQueue],
    ) -> bool:
        try:
            segment.write(b"".join(encoded.parts), self.end - segment.start)
        except OSError as exc:
            for queue in queues:
                queue.next_offset -= 1
            self._undo_write(segment, exc)
            _refuse(messages, self._unwritten_status())
            return False
        _, sizes, positions, queue_offsets = encoded
        self.end = positions[-1]
        segment.last_store_timestamp_ms = self.last_store_timestamp_ms
        for message, size, physical_offset, queue_offset in zip(
            messages, sizes, positions, queue_offsets, strict=False
        ):
            message.status = PutStatus.PUT_OK
            message.size_bytes = size
            message.physical_offset = physical_offset
            message.queue_offset = queue_offset
        return True

    # -- shapes ---------------------------------------------------------------------------------

    def _has_illegal(self, batch: list[MessageInner]) -> bool:
        """Tell whether a message breaks a limit; what they say of the length of hosts is dropped.

        A record says that of its own hosts, which `_generic_head` sees to.
        """
        # Only what is near a limit is looked at closely, and what has a mark that none may have.
        largest = max([len(message.body) + len(message.properties) for message in batch])
        is_ordinary = _ORDINARY_FLAGS.issuperset(map(_SYS_FLAG, batch))
        if is_ordinary and largest <= _SURELY_LEGAL_BYTES:
            return False
        for message in batch:
            message.sys_flag &= ~ANY_HOST_V6
        return not all(map(self._is_legal, batch))

    def _append_legal(self, batch: list[MessageInner], queues: list[ConsumeQueue]) -> int:
        pairs = list(zip(batch, queues, strict=True))
        legal = [pair for pair in pairs if self._is_legal(pair[0])]
        _refuse([m for m in batch if not self._is_legal(m)], PutStatus.MESSAGE_ILLEGAL)
        if not legal:
            return 0
        return self.append([pair[0] for pair in legal], [pair[1] for pair in legal])

    def _topic_field(self, topic: str) -> tuple[int, bytes]:
        """Return the magic of records of a topic and the topic with its length before it."""
        try:
            return self._topics[topic]
        except KeyError:
            data = topic.encode()
            if len(data) <= MAX_TOPIC_LENGTH:
                entry = (MAGIC_V1, bytes((len(data),)) + data)
            else:
                # Version 2 has one length byte more; the size counts the field as a whole.
                entry = (MAGIC_V2, len(data).to_bytes(2, "big") + data)
            self._topics[topic] = entry
            return entry

    def _extra_host_bytes(self, born_host: bytes) -> int:
        extra = IPV6_EXTRA_BYTES if len(born_host) != 8 else 0
        return extra + (IPV6_EXTRA_BYTES if len(self.store_host) != 8 else 0)

    def _generic_head(
        self,
        size: int,
        magic: int,
        crc: int,
        queue_id: int,
        flag: int,
        queue_offset: int,
        physical_offset: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int,
        prepared: int,
        body_bytes: int,
        now_ms: int,
    ) -> bytes:
        """Pack what comes before the body when a host is IPv6."""
        flags = sys_flag & ~ANY_HOST_V6
        flags |= BORN_HOST_V6 if len(born_host) != 8 else 0
        flags |= STORE_HOST_V6 if len(self.store_host) != 8 else 0
        place = (queue_id, flag, queue_offset, physical_offset)
        return b"".join(
            (
                HEAD.pack(size, magic, crc, *place, flags, born_timestamp_ms),
                born_host,
                now_ms.to_bytes(8, "big"),
                self.store_host,
                TAIL.pack(reconsume_times, prepared, body_bytes),
            )
        )

    def _fixed_bytes(self, message: MessageInner) -> int:
        """Return at least what a record takes beside body and properties."""
        crc_bytes = CRC_PROPERTY_BYTES + 1 if self._append_crc else 0
        topic = self._topic_field(message.topic)
        hosts = self._extra_host_bytes(message.born_host)
        return FIXED_BYTES + len(topic[1]) + crc_bytes + hosts

    def _size(self, message: MessageInner) -> int:
        return len(message.body) + len(message.properties) + self._fixed_bytes(message)

    def _is_legal(self, message: MessageInner) -> bool:
        topic = self._topic_field(message.topic)
        limit = MAX_RETRY_TOPIC_LENGTH if is_retry_or_dlq(message.topic) else MAX_TOPIC_LENGTH
        crc_bytes = CRC_PROPERTY_BYTES + 1 if self._append_crc else 0
        size = self._size(message)
        return (
            not message.sys_flag & TRANSACTION_PREPARED
            and len(message.body) <= self.max_body_bytes
            and len(message.properties) + crc_bytes <= MAX_PROPERTIES_BYTES
            and len(topic[1]) - 1 <= limit
            and size <= self.max_body_bytes + _EXTRA_RECORD_BYTES
            and size + FILLER_BYTES <= self._segment_bytes
        )

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
        with self._create_lock:
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
        with self._create_lock:
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
        last = self.segments[-1]
        if not self.has_room_ahead or self._disk.monotonic() < self._next_create_try_s:
            return
        self._is_preparing = True
        start = last.end

        def create() -> None:
            with self._create_lock:
                if self.segments[-1].end == start and self._prepared is None:
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
