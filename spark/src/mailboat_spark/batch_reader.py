"""The reader of `spark.read`: everything between two sets of offsets, planned once."""

import time
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mailboat.model.message_queue import MessageQueue
from mailboat_spark.broker_client import DataLossError
from mailboat_spark.client_thread import shared_client
from mailboat_spark.offsets import QueueOffsets
from mailboat_spark.options import SourceOptions
from mailboat_spark.planning import QueueBounds, QueueRange, plan_tasks
from mailboat_spark.start_offsets import resolve_offsets
from mailboat_spark.tasks import QueueRangesPartition, read_partition


class MailboatBatchReader(DataSourceReader):
    """Plans a batch query on the driver and reads it on the workers."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Keep what is needed; nothing is connected, because this object is pickled."""
        self._options = options
        self._schema = schema

    def partitions(self) -> list[QueueRangesPartition]:
        """Share the offsets asked for out among tasks."""
        options = self._options
        deadline_s = time.monotonic() + options.retry_timeout_ms / 1000
        thread = shared_client(options.namesrv, options.access)
        bounds = thread.run(thread.client.bounds(options.topics, deadline_s))
        committed: QueueOffsets = {}
        if options.starting_offsets.kind == "group":
            committed = thread.run(thread.client.committed(options.group, bounds, deadline_s))
        starts = resolve_offsets(
            options.starting_offsets, bounds, committed, option="startingOffsets"
        )
        ends = resolve_offsets(options.ending_offsets, bounds, committed, option="endingOffsets")
        if options.fail_on_data_loss:
            _check_inside(starts, ends, bounds)
        ranges = [
            QueueRange(queue, max(starts[queue], bound.minimum), min(ends[queue], bound.maximum))
            for queue, bound in bounds.items()
        ]
        tasks = plan_tasks(ranges, options.min_partitions)
        return [QueueRangesPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return read_partition(self._options, self._schema, partition)


def _check_inside(
    starts: QueueOffsets, ends: QueueOffsets, bounds: Mapping[MessageQueue, QueueBounds]
) -> None:
    for queue, bound in bounds.items():
        if starts[queue] < bound.minimum or ends[queue] > bound.maximum:
            raise DataLossError(
                f"offsets {starts[queue]} to {ends[queue]} of {queue} were asked for, it holds "
                f"{bound.minimum} to {bound.maximum}; set failOnDataLoss to false to take these"
            )
