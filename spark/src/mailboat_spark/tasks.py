"""What both readers do on a worker."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mailboat.model.message_queue import MessageQueue
from mailboat_spark.client_thread import shared_client
from mailboat_spark.offsets import PlacedWitness
from mailboat_spark.options import SourceOptions
from mailboat_spark.planning import QueueRange
from mailboat_spark.range_reader import read_ranges

_MANY_OBJECTS: Final = 3000


class QueueRangesPartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(
        self,
        ranges: Sequence[QueueRange],
        witnesses: Mapping[MessageQueue, PlacedWitness] | None = None,
    ) -> None:
        """Keep the ranges as the partition's value, and what lay in their queues when planned."""
        super().__init__(tuple(ranges))
        known = witnesses or {}
        self.witnesses = {each.queue: known[each.queue] for each in ranges if each.queue in known}


def read_partition(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition as Arrow batches.

    Raises:
        MailboatError: as `mailboat_spark.range_reader.read_ranges`.
    """
    if options.freeze_worker_objects:
        _freeze_loaded_objects()
    # Spark puts an empty partition of its own in place of an empty list.
    ranges = partition.value or ()
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    thread = shared_client(options.namesrv, options.access)
    witnesses = getattr(partition, "witnesses", {})
    yield from read_ranges(thread, options, ranges, arrow_schema, witnesses)


def _freeze_loaded_objects() -> None:
    """Keep the collector away from what was loaded before.

    A pyspark worker collects after every task, and looking through all loaded modules each time
    costs more than a small task itself. Two calls freeze all; after that nearly nothing is left to
    freeze.
    """
    if len(gc.get_objects()) > _MANY_OBJECTS:
        gc.collect()
        gc.freeze()
