import tracemalloc
import zlib
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from mailboat.errors import ConfigError, CorruptRecordError
from mailboat.model.message_queue import MessageQueue
from mailboat_spark.batches import BatchBuilder
from mailboat_spark.schema import COLUMNS, check_schema, default_schema

FOREVER = 2**62
QUEUE = MessageQueue("orders", "broker-a", 3)
PROPERTIES = b"TAGS\x01paid\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01ID7\x02color\x01gr\xc3\xbcn\x02"


def builder(schema, *, max_rows=1000, max_bytes=2**30):
    """Return a builder and the Arrow schema that Spark checks the first batch against."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    return BatchBuilder(arrow, max_rows=max_rows, max_bytes=max_bytes, tags=frozenset()), arrow


def columns(*names):
    """Return a schema of some columns of the source."""
    return StructType([StructField(name, COLUMNS[name].spark_type) for name in names])


def test_kafka_columns(make_record):
    """The default columns have the names, types and meaning of Spark's Kafka source."""
    schema = default_schema("kafka", include_headers=True)
    kinds = {field.name: field.dataType.simpleString() for field in schema}
    # As Spark's Structured Streaming and Kafka guide lists them.
    assert kinds == {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "timestampType": "int",
        "headers": "array<struct<key:string,value:binary>>",
    }
    batches, arrow = builder(schema)
    record = make_record(9, b"v", properties=PROPERTIES, store_ms=1)
    batches.add(QUEUE, record, start=9, end=FOREVER)
    [batch] = batches.take_rest()
    batch.validate(full=True)
    assert batch.schema.equals(arrow)
    [row] = batch.to_pylist()
    headers = {header["key"]: header["value"] for header in row.pop("headers")}
    assert row == {
        "key": b"k1 k2",
        "value": b"v",
        "topic": "orders",
        "partition": 3,
        "offset": 9,
        "timestamp": datetime(1970, 1, 1, 0, 0, 0, 1000, UTC),
        "timestampType": 1,
    }
    assert headers == {
        "TAGS": b"paid",
        "KEYS": b"k1 k2",
        "UNIQ_KEY": b"ID7",
        "color": "grün".encode(),
    }


def test_rocketmq_columns(make_record):
    """The other mode has RocketMQ's fields; the record's own checksum is no property."""
    schema = default_schema("rocketmq", include_headers=False)
    batches, arrow = builder(schema)
    record = make_record(
        9, b"v", properties=PROPERTIES, born_ms=1_700_000_000_001, flag=4, reconsume_times=2
    )
    batches.add(QUEUE, record, start=0, end=FOREVER)
    [batch] = batches.take_rest()
    batch.validate(full=True)
    assert batch.schema.equals(arrow)
    [row] = batch.to_pylist(maps_as_pydicts="strict")
    assert row == {
        "topic": "orders",
        "broker_name": "broker-a",
        "queue_id": 3,
        "queue_offset": 9,
        "keys": "k1 k2",
        "tags": "paid",
        "value": b"v",
        "properties": {"TAGS": "paid", "KEYS": "k1 k2", "UNIQ_KEY": "ID7", "color": "grün"},
        "message_id": "ID7",
        "flag": 4,
        "reconsume_times": 2,
        "born_timestamp": datetime(2023, 11, 14, 22, 13, 20, 1000, UTC),
        "store_timestamp": datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
    }


def test_a_message_without_tags_and_keys_has_nulls(make_record):
    """What a producer did not give is null, not empty."""
    schema = columns("key", "keys", "tags", "message_id")
    batches, _ = builder(schema)
    batches.add(QUEUE, make_record(0, properties=b""), start=0, end=FOREVER)
    [batch] = batches.take_rest()
    assert batch.to_pylist() == [{"key": None, "keys": None, "tags": None, "message_id": None}]


def test_bytes_that_are_no_text_do_not_stop_a_query(make_record):
    """Properties of other clients may not be UTF-8; text columns replace, binary ones keep."""
    schema = columns("key", "keys", "properties")
    batches, _ = builder(schema)
    batches.add(QUEUE, make_record(0, properties=b"KEYS\x01\xff\x02"), start=0, end=FOREVER)
    [batch] = batches.take_rest()
    [row] = batch.to_pylist(maps_as_pydicts="strict")
    assert row == {"key": b"\xff", "keys": "\ufffd", "properties": {"KEYS": "\ufffd"}}


def test_a_time_beyond_sparks_is_null(make_record):
    """Clients may send nanoseconds for milliseconds; such a message comes, without its time."""
    schema = columns("queue_offset", "born_timestamp", "store_timestamp")
    batches, arrow = builder(schema)
    # Spark's timestamps are microseconds in 64 bits.
    latest_ms = (2**63 - 1) // 1000
    times_ms = [1, 1_700_000_000_000_000_000, latest_ms, latest_ms + 1, -latest_ms, -(2**63)]
    body = b"".join(make_record(n, born_ms=ms, store_ms=ms) for n, ms in enumerate(times_ms))
    batches.add(QUEUE, body, start=0, end=FOREVER)
    [batch] = batches.take_rest()
    batch.validate(full=True)
    assert batch.schema.equals(arrow)
    wanted = [1000, None, latest_ms * 1000, None, -latest_ms * 1000, None]
    for name in ("born_timestamp", "store_timestamp"):
        assert batch.column(name).cast(pa.int64()).to_pylist() == wanted


def test_a_value_that_cannot_be_unpacked_is_told_of_once(make_record, caplog):
    """One warning per queue says which message came as it is stored."""
    batches, _ = builder(columns("value"))
    other = MessageQueue("orders", "broker-a", 4)
    for queue in (QUEUE, other):
        for at in (5, 8):
            body = make_record(at, b"plain", sys_flag=0x1) + make_record(at + 1)
            batches.add(queue, body, start=at, end=FOREVER)
    [batch] = batches.take_rest()
    assert batch.column("value").to_pylist() == [b"plain", b"hello"] * 4
    texts = [record.getMessage() for record in caplog.records]
    assert [text.partition(": ")[0] for text in texts] == [
        "orders@broker-a:3 at queue offset 5",
        "orders@broker-a:4 at queue offset 5",
    ]
    assert "cannot be read" in texts[0]


@pytest.mark.parametrize(("whole", "queue_offset"), [(0, 7), (2, 9)])
def test_a_damaged_record_is_named_by_its_place(make_record, whole, queue_offset):
    """The sentence says in which queue, and from which offset on, bytes are no record."""
    batches, _ = builder(columns("value"))
    body = b"".join(make_record(7 + n) for n in range(whole)) + b"\x00\x00\x00\x05rubbish"
    with pytest.raises(CorruptRecordError) as caught:
        batches.add(QUEUE, body, start=7, end=FOREVER)
    assert str(caught.value).startswith(
        f"orders@broker-a:3 from queue offset {queue_offset} on, received bytes: record at "
    )


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_alone_and_empty_handed(make_record, name):
    """Any single column is built as Spark's own converter declares it."""
    schema = StructType([StructField(name, COLUMNS[name].spark_type)])
    batches, arrow = builder(schema)
    batches.add(QUEUE, make_record(0) + make_record(1, with_crc=False), start=0, end=FOREVER)
    [batch] = batches.take_rest()
    batch.validate(full=True)
    assert batch.num_rows == 2
    assert batch.schema.equals(arrow)


def test_batches_grow_over_pulls_and_queues(make_record):
    """Rows of several pulls and queues come as one batch; Spark pays per batch."""
    schema = columns("partition", "offset")
    batches, _ = builder(schema, max_rows=5)
    other = MessageQueue("orders", "broker-a", 4)
    batches.add(QUEUE, make_record(0) + make_record(1), start=0, end=FOREVER)
    assert list(batches.take_full()) == []
    batches.add(other, make_record(7) + make_record(8), start=0, end=FOREVER)
    assert list(batches.take_full()) == []
    batches.add(QUEUE, make_record(2), start=0, end=FOREVER)
    [batch] = batches.take_full()
    assert isinstance(batch, pa.RecordBatch)
    rows = [(row["partition"], row["offset"]) for row in batch.to_pylist()]
    assert rows == [(3, 0), (3, 1), (4, 7), (4, 8), (3, 2)]
    assert list(batches.take_rest()) == []


def test_large_messages_end_a_batch_early(make_record):
    """A batch is bounded in bytes as well, so that memory is."""
    batches, _ = builder(columns("value"), max_bytes=3000)
    batches.add(QUEUE, make_record(0, b"x" * 2000), start=0, end=FOREVER)
    assert list(batches.take_full()) == []
    batches.add(QUEUE, make_record(1, b"x" * 2000), start=0, end=FOREVER)
    assert [batch.num_rows for batch in batches.take_full()] == [2]


def test_what_grows_by_unpacking_ends_a_batch_within_an_answer(make_record):
    """One answer of a few KiB may hold gigabytes, so it is taken in parts, none of them lost."""
    packed = zlib.compress(b"x" * 100_000)
    body = b"".join(make_record(at, packed, sys_flag=0x1) for at in range(20))
    assert len(body) < 10_000
    batches, _ = builder(columns("queue_offset", "value"), max_bytes=250_000)
    body_at, seen = 0, []
    while body_at < len(body):
        part = batches.add(QUEUE, body, body_at=body_at, start=len(seen), end=FOREVER)
        assert part.body_at > body_at
        body_at = part.body_at
        [batch] = [*batches.take_full()] or [*batches.take_rest()]
        assert batch.nbytes < 250_000 + 100_000 + 1000
        seen += batch.column("queue_offset").to_pylist()
    assert seen == list(range(20))


@pytest.mark.parametrize("name", ["properties", "headers"])
def test_many_small_properties_need_no_more_memory_than_others(make_record, name):
    """As Python's objects they would take ten times their bytes."""
    names = [f"{number:x}" for number in range(4000)]
    properties = "".join(f"{name}\x01{number % 7}\x02" for number, name in enumerate(names))
    body = b"".join(make_record(n, b"v", properties=properties.encode()) for n in range(80))
    batches, _ = builder(columns(name))
    batches.add(QUEUE, body, start=0, end=FOREVER)
    tracemalloc.start()
    [batch] = batches.take_rest()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 3 * len(body)
    batch.validate(full=True)
    for found in batch.column(0).to_pylist():
        pairs = found if name == "properties" else [tuple(entry.values()) for entry in found]
        assert [key for key, _ in pairs] == names
        assert [int(value) for _, value in pairs] == [number % 7 for number in range(4000)]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (StructField("wert", BinaryType()), "there is no such column"),
        (StructField("value", StringType()), "is string here and binary in the source"),
        (StructField("offset", LongType(), nullable=False), "must be nullable"),
    ],
)
def test_a_wrong_schema_is_refused_with_the_column(field, reason):
    """A schema of the user's that cannot be filled is an error that names the column."""
    with pytest.raises(ConfigError, match=f"schema={field.name}: .*{reason}"):
        check_schema(StructType([field]))


def test_a_subset_of_both_modes_is_a_schema():
    """Columns may be picked from both modes."""
    check_schema(columns("value", "tags", "offset"))
