"""The columns of the source.

`schemaMode=kafka` (the default) has the columns of Spark's Kafka source, so that a query changes
its format name only; `schemaMode=rocketmq` has RocketMQ's. Spark does not tell a Python source
which columns a query uses, so a schema given by the user (`.schema("value binary, tags string")`)
may name any subset of both sets: only these columns are built.

Kafka's `partition` is the queue id, `timestamp` the store time, `key` the index keys. Where a topic
lies on several brokers, queue ids repeat; `broker_name` tells them apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mailboat.errors import ConfigError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.properties import PropertyName
from mailboat_spark.options import SchemaMode
from mailboat_spark.records import (
    HEAD_BORN_MS,
    HEAD_FLAG,
    HEAD_QUEUE_OFFSET,
    HEAD_RECONSUME_TIMES,
    HEAD_STORE_MS,
    RawRows,
    property_values,
)

# Kafka's number for "the broker's clock when it appended", which a store timestamp is.
_LOG_APPEND_TIME: Final = 1
_CHECKSUM: Final = PropertyName.CRC32.encode()
_PROPERTIES_AT_A_TIME: Final = 50_000
_UTC_MS: Final = pa.timestamp("ms", tz="UTC")
# Spark counts microseconds in 64 bits: the year 294247.
_LATEST_MS: Final = (2**63 - 1) // 1000
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

Build = Callable[[RawRows, MessageQueue, pa.DataType], pa.Array]
"""Makes one column of the rows of one queue, of the given Arrow type."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's Spark type and how it is made."""

    spark_type: DataType
    build: Build


def default_schema(mode: SchemaMode, *, include_headers: bool) -> StructType:
    """Return the schema of a mode."""
    names = list(_KAFKA_COLUMNS if mode == "kafka" else _ROCKETMQ_COLUMNS)
    if include_headers:
        names.append("headers")
    return StructType([StructField(name, COLUMNS[name].spark_type) for name in names])


def check_schema(schema: StructType) -> None:
    """Refuse a schema given by the user that holds what the source does not have.

    Raises:
        ConfigError: a column is unknown, of another type, or said to be never null.
    """
    for field in schema.fields:
        column = COLUMNS.get(field.name)
        kind = field.dataType.simpleString()
        if column is None:
            reason = f"there is no such column; there are {', '.join(COLUMNS)}"
            raise ConfigError("schema", field.name, reason)
        if field.dataType != column.spark_type:
            reason = f"is {kind} here and {column.spark_type.simpleString()} in the source"
            raise ConfigError("schema", field.name, reason)
        if not field.nullable:
            raise ConfigError("schema", field.name, "must be nullable; leave 'not null' out")


# Builders.


def _payloads(rows: RawRows, queue: MessageQueue, arrow_type: pa.DataType) -> pa.Array:
    return pa.array(rows.payloads, arrow_type)


def _property(name: str) -> Build:
    def build(rows: RawRows, queue: MessageQueue, arrow_type: pa.DataType) -> pa.Array:
        return _array(property_values(rows.properties, name), arrow_type)

    return build


def _array(values: Sequence[bytes | None], arrow_type: pa.DataType) -> pa.Array:
    """Return bytes as an array of bytes or text; what is no UTF-8 is replaced in text."""
    try:
        return pa.array(values, arrow_type)
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values]
        return pa.array(texts, arrow_type)


def _constant(value: Callable[[MessageQueue], Any]) -> Build:
    def build(rows: RawRows, queue: MessageQueue, arrow_type: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value(queue), arrow_type), len(rows))

    return build


def _numbers(place: int) -> Build:
    def build(rows: RawRows, queue: MessageQueue, arrow_type: pa.DataType) -> pa.Array:
        return pa.array([head[place] for head in rows.heads], arrow_type)

    return build


def _timestamps(place: int) -> Build:
    def build(rows: RawRows, queue: MessageQueue, arrow_type: pa.DataType) -> pa.Array:
        times_ms = [head[place] for head in rows.heads]
        try:
            return pa.array(times_ms, _UTC_MS).cast(arrow_type)
        except pa.ArrowInvalid:
            # Clients may send anything, such as nanoseconds: what is no time for Spark is null.
            known = [ms if -_LATEST_MS <= ms <= _LATEST_MS else None for ms in times_ms]
            return pa.array(known, _UTC_MS).cast(arrow_type)

    return build


class _PropertyEntries(NamedTuple):
    """All properties of some rows: where each row's begin, names and values."""

    offsets: pa.Array
    names: pa.Array
    values: pa.Array


def _property_entries(
    rows: RawRows, name_type: pa.DataType, value_type: pa.DataType
) -> _PropertyEntries:
    """Return all properties, the record's checksum left out.

    A property of four bytes is two objects of some 35 bytes each, so they become arrays in parts.
    """
    offsets, names, values = [0], list[bytes](), list[bytes]()
    name_parts, value_parts = list[pa.Array](), list[pa.Array]()
    count = 0
    for text in rows.properties:
        seen = {}
        for entry in text.split(b"\x02"):
            name, _, value = entry.partition(b"\x01")
            if value and name:
                seen[name] = value
        seen.pop(_CHECKSUM, None)
        names += seen
        values += seen.values()
        count += len(seen)
        offsets.append(count)
        if len(names) >= _PROPERTIES_AT_A_TIME:
            name_parts.append(_array(names, name_type))
            value_parts.append(_array(values, value_type))
            names, values = [], []
    name_parts.append(_array(names, name_type))
    value_parts.append(_array(values, value_type))
    return _PropertyEntries(
        pa.array(offsets, pa.int32()), pa.concat_arrays(name_parts), pa.concat_arrays(value_parts)
    )


def _properties(rows: RawRows, queue: MessageQueue, arrow_type: pa.MapType) -> pa.Array:
    found = _property_entries(rows, arrow_type.key_type, arrow_type.item_type)
    return pa.MapArray.from_arrays(found.offsets, found.names, found.values).cast(arrow_type)


def _headers(rows: RawRows, queue: MessageQueue, arrow_type: pa.ListType) -> pa.Array:
    found = _property_entries(rows, pa.string(), pa.binary())
    entries = pa.StructArray.from_arrays(
        [found.names, found.values], fields=list(arrow_type.value_type)
    )
    return pa.ListArray.from_arrays(found.offsets, entries).cast(arrow_type)


_KAFKA_COLUMNS: Final = (
    "key", "value", "topic", "partition", "offset", "timestamp", "timestampType"
)  # fmt: skip
_ROCKETMQ_COLUMNS: Final = (
    "topic", "broker_name", "queue_id", "queue_offset", "keys", "tags", "value", "properties",
    "message_id", "flag", "reconsume_times", "born_timestamp", "store_timestamp",
)  # fmt: skip

COLUMNS: Final[dict[str, Column]] = {
    "key": Column(BinaryType(), _property(PropertyName.KEYS)),
    "value": Column(BinaryType(), _payloads),
    "topic": Column(StringType(), _constant(lambda queue: queue.topic)),
    "partition": Column(IntegerType(), _constant(lambda queue: queue.queue_id)),
    "offset": Column(LongType(), _numbers(HEAD_QUEUE_OFFSET)),
    "timestamp": Column(TimestampType(), _timestamps(HEAD_STORE_MS)),
    "timestampType": Column(IntegerType(), _constant(lambda queue: _LOG_APPEND_TIME)),
    "headers": Column(ArrayType(_HEADER), _headers),
    "broker_name": Column(StringType(), _constant(lambda queue: queue.broker_name)),
    "queue_id": Column(IntegerType(), _constant(lambda queue: queue.queue_id)),
    "queue_offset": Column(LongType(), _numbers(HEAD_QUEUE_OFFSET)),
    "keys": Column(StringType(), _property(PropertyName.KEYS)),
    "tags": Column(StringType(), _property(PropertyName.TAGS)),
    "properties": Column(MapType(StringType(), StringType()), _properties),
    "message_id": Column(StringType(), _property(PropertyName.UNIQ_KEY)),
    "flag": Column(IntegerType(), _numbers(HEAD_FLAG)),
    "reconsume_times": Column(IntegerType(), _numbers(HEAD_RECONSUME_TIMES)),
    "born_timestamp": Column(TimestampType(), _timestamps(HEAD_BORN_MS)),
    "store_timestamp": Column(TimestampType(), _timestamps(HEAD_STORE_MS)),
}
"""Every column, by name."""


def build_columns(
    names: Sequence[str], rows: RawRows, queue: MessageQueue, arrow_schema: pa.Schema
) -> list[pa.Array]:
    """Return the named columns of rows that all belong to `queue`."""
    return [COLUMNS[name].build(rows, queue, arrow_schema.field(name).type) for name in names]
