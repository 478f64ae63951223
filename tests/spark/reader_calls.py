"""Spark's calls of the two readers, made by the test."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructField, StructType

from mailboat_spark.schema import COLUMNS
from mailboat_spark.source import MailboatDataSource

ALL = ReadAllAvailable()
ROW_SCHEMA = StructType(
    [StructField(name, COLUMNS[name].spark_type) for name in ("queue_id", "queue_offset", "value")]
)


def source(cluster, topic, **options):
    """Return the source with the options every test gives."""
    given = {"namesrv": cluster.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    return MailboatDataSource({**given, "retryTimeoutMs": "15000", **options})


def stream(cluster, topic, **options):
    """Return a stream reader that asks brokers every time."""
    options = {"offsetFetchIntervalMs": "0", **options}
    return source(cluster, topic, **options).streamReader(ROW_SCHEMA)


def read(reader, start, end):
    """Read what lies between two offsets; return rows as (queue, offset, value), sorted."""
    rows = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    return sorted(rows)


def expected(queues, first, end):
    """Return the rows of `numbered` messages."""
    return [(q, n, b"%d-%d" % (q, n)) for q in range(queues) for n in range(first, end)]


def read_all(reader):
    """Read a batch query; return rows as (queue, offset, value), sorted."""
    rows = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    return sorted(rows)


def noise(size):
    """Return bytes that compression does not shrink."""
    state, out = 1, bytearray()
    while len(out) < size:
        state = state * 6364136223846793005 + 1442695040888963407 & (1 << 4096) - 1
        out += state.to_bytes(512, "big")
    return bytes(out[:size])
