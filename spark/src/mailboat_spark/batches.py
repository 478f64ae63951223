"""From pulled bodies to Arrow batches of a useful size.

Spark pays per batch, so rows are collected over many pulls, also over the end of a queue's range,
until there are enough of them. A batch is counted in bytes as well, with payloads unpacked, because
what is small on the wire may be large in memory.
"""

import logging
from collections.abc import Iterator

import pyarrow as pa

from mailboat.errors import CorruptRecordError
from mailboat.model.message_queue import MessageQueue
from mailboat_spark.records import HEAD_QUEUE_OFFSET, DecodedPart, RawRows, decode_body
from mailboat_spark.schema import build_columns

logger = logging.getLogger(__name__)


class BatchBuilder:
    """Collects rows of one queue after the other and hands them out as Arrow batches."""

    __slots__ = (
        "_bytes",
        "_max_bytes",
        "_max_rows",
        "_parts",
        "_queue",
        "_rows",
        "_schema",
        "_tags",
        "_warned",
    )

    def __init__(
        self, schema: pa.Schema, *, max_rows: int, max_bytes: int, tags: frozenset[bytes]
    ) -> None:
        """Build batches of `schema`.

        Args:
            schema: the columns, of `mailboat_spark.schema.COLUMNS`.
            max_rows: a batch is handed out once it has so many rows (one pull may exceed it).
            max_bytes: or once so many bytes of records, unpacked, were taken in (one message may
                exceed it).
            tags: tags to take; empty takes every message.
        """
        self._schema = schema
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._tags = tags
        self._rows = RawRows()
        self._queue: MessageQueue | None = None
        self._bytes = 0
        self._parts: list[pa.RecordBatch] = []
        self._warned: set[MessageQueue] = set()

    def add(
        self, queue: MessageQueue, body: bytes, *, body_at: int = 0, start: int, end: int
    ) -> DecodedPart:
        """Take in a pull answer of `queue` from `start` to `end`; return which offsets it held.

        It begins at `body_at` and may stop before the answer's end, when there is enough for a
        batch: take that first, then add the rest.

        Raises:
            CorruptRecordError: the body is damaged; the text names queue and queue offset.
        """
        if queue != self._queue:
            self._close_part()
            self._queue = queue
        rows_before = len(self._rows)
        try:
            part = decode_body(
                body,
                self._rows,
                end=end,
                body_at=body_at,
                max_bytes=self._max_bytes - self._bytes,
                tags=self._tags,
            )
        except CorruptRecordError as exc:
            if len(self._rows) > rows_before:
                start = self._rows.heads[-1][HEAD_QUEUE_OFFSET] + 1
            place = f"{queue} from queue offset {start} on, {exc.path}"
            raise CorruptRecordError(place, exc.physical_offset, exc.reason) from exc
        self._bytes += part.size_bytes
        if self._rows.packed and queue not in self._warned:
            self._warned.add(queue)
            queue_offset, reason = self._rows.packed[0]
            logger.warning(
                "%s at queue offset %d: %s; this value, and others like it, are as stored",
                queue,
                queue_offset,
                reason,
            )
        return part

    def take_full(self) -> Iterator[pa.RecordBatch]:
        """Yield a batch if there are enough rows for one."""
        rows = len(self._rows) + sum(part.num_rows for part in self._parts)
        if rows >= self._max_rows or self._bytes >= self._max_bytes:
            yield from self.take_rest()

    def take_rest(self) -> Iterator[pa.RecordBatch]:
        """Yield what is there, if anything is."""
        self._close_part()
        self._bytes = 0
        parts, self._parts = self._parts, []
        if len(parts) > 1:
            # One batch in one piece, as Spark wants it.
            yield from pa.Table.from_batches(parts).combine_chunks().to_batches()
        else:
            yield from parts

    def _close_part(self) -> None:
        if self._queue is None or not len(self._rows):
            return
        names = self._schema.names
        columns = build_columns(names, self._rows, self._queue, self._schema)
        self._parts.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._rows = RawRows()
