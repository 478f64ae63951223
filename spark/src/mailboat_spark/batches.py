"""From pulled bodies to Arrow batches of a useful size.

Spark pays per batch, so rows are collected over many pulls, also over the end of a queue's range,
until there are enough of them.
"""

from collections.abc import Iterator

import pyarrow as pa

from mailboat.model.message_queue import MessageQueue
from mailboat_spark.records import OffsetRun, RawRows, decode_body
from mailboat_spark.schema import build_columns


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
    )

    def __init__(
        self, schema: pa.Schema, *, max_rows: int, max_bytes: int, tags: frozenset[bytes]
    ) -> None:
        """Build batches of `schema`.

        Args:
            schema: the columns, of `mailboat_spark.schema.COLUMNS`.
            max_rows: a batch is handed out once it has so many rows (one pull may exceed it).
            max_bytes: or once so many bytes of records were taken in.
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

    def add(self, queue: MessageQueue, body: bytes, *, end: int) -> OffsetRun:
        """Take in a pull answer of `queue` up to `end`; return which offsets it held.

        Raises:
            CorruptRecordError, IllegalMessageError: the body is damaged.
        """
        if queue != self._queue:
            self._close_part()
            self._queue = queue
        self._bytes += len(body)
        return decode_body(body, self._rows, end=end, tags=self._tags)

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
