"""The reader of `spark.readStream`.

One object lives on the driver for the life of a query and plans; copies of it, made before the
query began, read on the workers. What holds everything together is that reading is a pure function
of queue, start and end: Spark logs these before a batch and repeats the batch after a crash.

Order of calls per batch: latestOffset(start), reportLatestOffset, commit(end of the batch before),
partitions(start, end), read. Spark never calls `commit` for the last batch of an AvailableNow run
and calls `stop` only sometimes; the `start` of `latestOffset` is always the end of a finished
batch, so the group's offsets are stored there as well. Where the group has no offset yet it gets
the place that the query begins at: a broker counts a group as a reader by its offsets, and a first
batch may take longer than messages are kept that nobody seems to need.

Stopping a query interrupts its batch. A driver that wants to end between batches makes the file
that `stopFile` names: from then on no batch begins.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from mailboat.model.message_queue import MessageQueue
from mailboat_spark.broker_client import DataLossError
from mailboat_spark.client_thread import ClientThread, shared_client
from mailboat_spark.offsets import OffsetJson, QueueOffsets, decode_offsets, encode_offsets
from mailboat_spark.options import SourceOptions
from mailboat_spark.planning import QueueBounds, QueueRange, admit, plan_tasks
from mailboat_spark.start_offsets import resolve_offsets
from mailboat_spark.tasks import QueueRangesPartition, read_partition

logger = logging.getLogger(__name__)


class MailboatStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches and reads them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Keep what is needed; nothing is connected, because this object is pickled."""
        self._options = options
        self._schema = schema
        self._bounds: dict[MessageQueue, QueueBounds] = {}
        self._bounds_at_s: float | None = None
        self._available_now: QueueOffsets | None = None
        self._stored: QueueOffsets = {}

    # Planning, on the driver.

    def initialOffset(self) -> OffsetJson:
        """Return where a new query starts."""
        bounds = self._fresh_bounds()
        asked = self._options.starting_offsets
        committed: QueueOffsets = {}
        if asked.kind == "group" or self._options.commit_group_offsets:
            committed = self._run_committed(bounds)
        starts = resolve_offsets(asked, bounds, committed, option="startingOffsets")
        self._store_beginnings(starts, committed)
        return encode_offsets(starts)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `maxOffsetsPerTrigger`, or no limit."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the queues end now; the query stops there."""
        bounds = self._fresh_bounds()
        self._available_now = {queue: bound.maximum for queue, bound in bounds.items()}

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> OffsetJson:
        """Return the end of the next batch."""
        starts = decode_offsets(start)
        self._store_group_offsets(starts)
        if self._options.stop_file and os.path.exists(self._options.stop_file):
            return encode_offsets(starts)
        bounds = self._recent_bounds()
        ends = {queue: bound.maximum for queue, bound in bounds.items()}
        if self._available_now is not None:
            known = self._available_now
            ends = {queue: min(end, known[queue]) for queue, end in ends.items() if queue in known}
        self._check_start(starts, bounds)
        # What is gone (and may be, else the check has raised) counts for no limit.
        all_starts = {queue: max(starts.get(queue, 0), bounds[queue].minimum) for queue in ends}
        new = {queue: all_starts[queue] for queue in ends.keys() - starts.keys()}
        if self._options.commit_group_offsets and not new.keys() <= self._stored.keys():
            self._store_beginnings(new, self._run_committed(new))
        limit_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # Queues whose broker is away for the moment keep their place.
        return encode_offsets({**starts, **admit(all_starts, ends, limit_rows)})

    def reportLatestOffset(self) -> OffsetJson:
        """Return where the queues end, for Spark's progress report."""
        bounds = self._recent_bounds()
        return encode_offsets({queue: bound.maximum for queue, bound in bounds.items()})

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> list[QueueRangesPartition]:
        """Share the batch out among tasks; queues that are new in `end` begin at their minimum."""
        starts, ends = decode_offsets(start), decode_offsets(end)
        new = ends.keys() - starts.keys()
        # Pulls at offsets that are gone would be answered one by one, so they are left out here.
        moved = new if self._options.fail_on_data_loss else ends.keys()
        if moved:
            bounds = self._recent_bounds()
            for queue in moved & bounds.keys():
                starts[queue] = max(starts.get(queue, 0), bounds[queue].minimum)
        ranges = [QueueRange(queue, starts.get(queue, 0), ends[queue]) for queue in ends]
        tasks = plan_tasks(ranges, self._options.min_partitions)
        return [QueueRangesPartition(task) for task in tasks]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Store the group's offsets after a finished batch."""
        self._store_group_offsets(decode_offsets(end))

    def stop(self) -> None:
        """Do nothing: the client belongs to the process, which ends with the query."""

    # Reading, on a worker.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return read_partition(self._options, self._schema, partition)

    # Behind the scenes.

    def _fresh_bounds(self) -> dict[MessageQueue, QueueBounds]:
        client = self._client()
        self._bounds = client.run(client.client.bounds(self._options.topics, self._deadline_s()))
        self._bounds_at_s = time.monotonic()
        return self._bounds

    def _recent_bounds(self) -> dict[MessageQueue, QueueBounds]:
        """Return bounds of at most `offsetFetchIntervalMs` ago.

        An idle query with the default trigger asks a hundred times a second.
        """
        interval_s = self._options.offset_fetch_interval_ms / 1000
        if self._bounds_at_s is None or time.monotonic() - self._bounds_at_s > interval_s:
            return self._fresh_bounds()
        return self._bounds

    def _check_start(
        self, starts: QueueOffsets, bounds: Mapping[MessageQueue, QueueBounds]
    ) -> None:
        """Find messages that expired, or a topic that was made anew, before they were read."""
        for queue, start in starts.items():
            bound = bounds.get(queue)
            if bound is None or bound.minimum <= start <= bound.maximum:
                continue
            text = (
                f"{queue} holds offsets {bound.minimum} to {bound.maximum}, "
                f"and the query goes on at {start}: messages are gone"
            )
            if self._options.fail_on_data_loss:
                raise DataLossError(f"{text}; set failOnDataLoss to false to go on without them")
            logger.warning("%s", text)

    def _store_beginnings(self, starts: QueueOffsets, committed: QueueOffsets) -> None:
        """Store where the query begins in queues that the group has no offset in.

        What a group has stays as it is until the first batch ends: a start is not the end of one.
        """
        self._stored |= {queue: starts[queue] for queue in committed}
        self._store_group_offsets({q: at for q, at in starts.items() if q not in committed})

    def _store_group_offsets(self, offsets: QueueOffsets) -> None:
        if not self._options.commit_group_offsets:
            return
        changed = {
            queue: queue_offset
            for queue, queue_offset in offsets.items()
            if self._stored.get(queue) != queue_offset
        }
        if changed:
            client = self._client()
            if client.run(client.client.commit(self._options.group, changed)):
                self._stored |= changed

    def _run_committed(self, queues: Iterable[MessageQueue]) -> QueueOffsets:
        client = self._client()
        return client.run(client.client.committed(self._options.group, queues, self._deadline_s()))

    def _client(self) -> ClientThread:
        return shared_client(self._options.namesrv)

    def _deadline_s(self) -> float:
        return time.monotonic() + self._options.retry_timeout_ms / 1000
