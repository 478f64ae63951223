"""The stored message record: the bytes of the CommitLog and of a pull answer.

All integers are big-endian. Positions are for IPv4 hosts; each IPv6 host adds 12.

    position  size    field
    0         4       record size, this field included
    4         4       magic: v1 0xDAA320A7, v2 0xDAA320AB (topic longer than 127 bytes)
    8         4       CRC32 of the body as stored, 31 bits
    12        4       queue id
    16        4       flag, opaque
    20        8       queue offset
    28        8       physical offset
    36        4       sysFlag
    40        8       born timestamp, ms
    48        8 | 20  born host (`mailboat.model.hosts`)
    56        8       store timestamp, ms
    64        8 | 20  store host
    72        4       reconsume times
    76        8       prepared transaction offset
    84        4       body size n
    88        n       body
    88+n      1 | 2   topic size t (one byte in v1, two in v2)
    89+n      t       topic, UTF-8
    89+n+t    2       properties size p
    91+n+t    p       properties text

A segment ends with a filler: int32 bytes to the segment's end, int32 0xCBD43194, and anything.

Whole-record checksum: the last 20 bytes of the properties may be `__CRC32#` 0x01, ten digits, 0x02.
The number is the CRC32 of the record without these 20 bytes, 31 bits, its digits in reverse order.

Source: apache/rocketmq store/CommitLog.java, common/message/MessageDecoder.java and
common/UtilAll.java (crc32) @ rocketmq-all-5.3.3.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from mailboat.errors import CorruptRecordError
from mailboat.model.message import MessageExt
from mailboat.model.properties import decode_properties
from mailboat.model.sys_flag import BORN_HOST_V6, STORE_HOST_V6

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
BLANK_MAGIC: Final = 0xCBD43194

FIXED_BYTES: Final = 91
FILLER_BYTES: Final = 8
IPV6_EXTRA_BYTES: Final = 12

# size, magic, body crc, queue id, flag, queue offset, physical offset, sysFlag, born timestamp
HEAD: Final = struct.Struct(">iIiiiqqiq")
# reconsume times, prepared transaction offset, body size
TAIL: Final = struct.Struct(">iqi")
# The 88 bytes before the body when both hosts are IPv4.
HEAD_V4: Final = struct.Struct(">iIiiiqqiq8sq8siqi")
FILLER: Final = struct.Struct(">iI")
assert HEAD.size == 48
assert HEAD_V4.size == 88

CRC_PROPERTY_HEAD: Final = b"__CRC32#\x01"
CRC_PROPERTY_BYTES: Final = 20
_CRC_MASK: Final = 0x7FFFFFFF


class RecordHeader(NamedTuple):
    """The fields of a record that locate and check it."""

    size_bytes: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int


class RecordParts(NamedTuple):
    """Where the parts of a checked record lie, as positions in the buffer it was read from."""

    header: RecordHeader
    store_timestamp_ms: int
    body_at: int
    body_end: int
    topic_at: int
    topic_end: int
    properties_at: int
    properties_end: int


def crc_property(record_without_property: bytes) -> bytes:
    """Return the 20 bytes that make the checksum property of a record."""
    digits = b"%010d" % (crc32(record_without_property) & _CRC_MASK)
    return b"%b%b\x02" % (CRC_PROPERTY_HEAD, digits[::-1])


def crc_property_holds(record: bytes | memoryview) -> bool | None:
    """Check a whole record against its checksum property; None when it carries none."""
    tail = bytes(record[-CRC_PROPERTY_BYTES:])
    if not tail.startswith(CRC_PROPERTY_HEAD):
        return None
    return tail == crc_property(record[:-CRC_PROPERTY_BYTES])  # type: ignore[arg-type]


def has_damaged_checksum_name(record: bytes | memoryview) -> bool:
    """Tell whether a whole record ends with its checksum under a name that is not that one's."""
    tail, name_bytes = bytes(record[-CRC_PROPERTY_BYTES:]), len(CRC_PROPERTY_HEAD)
    whole = crc_property(record[:-CRC_PROPERTY_BYTES])  # type: ignore[arg-type]
    return tail != whole and tail[name_bytes:-1] == whole[name_bytes:-1]


def locate(buffer: bytes | memoryview, position: int, limit: int) -> RecordParts:
    """Check the shape of the record at `position`, which must end at or before `limit`.

    Magic, sizes and their sum are checked; the checksums are not.

    Raises:
        ValueError: the bytes are not a whole record; the text says why.
    """
    if limit - position < FIXED_BYTES:
        raise ValueError("fewer bytes than a record has")
    header = RecordHeader(*HEAD.unpack_from(buffer, position))
    size = header.size_bytes
    if header.magic not in (MAGIC_V1, MAGIC_V2):
        raise ValueError(f"magic 0x{header.magic:08X} is not a record's")
    if size < FIXED_BYTES or position + size > limit:
        raise ValueError(f"record size {size} does not fit")
    end = position + size
    at = position + 48 + (20 if header.sys_flag & BORN_HOST_V6 else 8)
    store_timestamp_ms = int.from_bytes(buffer[at : at + 8], "big", signed=True)
    at += 8 + (20 if header.sys_flag & STORE_HOST_V6 else 8)
    if at + TAIL.size > end:
        raise ValueError("fields run over the end of the record")
    body_size = TAIL.unpack_from(buffer, at)[2]
    body_at = at + TAIL.size
    body_end = body_at + body_size
    length_bytes = 2 if header.magic == MAGIC_V2 else 1
    topic_at = body_end + length_bytes
    if body_size < 0 or topic_at > end:
        raise ValueError(f"body size {body_size} does not fit")
    topic_end = topic_at + int.from_bytes(buffer[body_end:topic_at], "big")
    properties_at = topic_end + 2
    if properties_at > end:
        raise ValueError("the topic runs over the end of the record")
    properties_end = properties_at + int.from_bytes(buffer[topic_end:properties_at], "big")
    if properties_end != end:
        raise ValueError("the sizes of the parts do not add up to the record size")
    return RecordParts(
        header,
        store_timestamp_ms,
        body_at,
        body_end,
        topic_at,
        topic_end,
        properties_at,
        properties_end,
    )


def check_sums(buffer: bytes | memoryview, position: int, parts: RecordParts) -> None:
    """Check a located record's checksums: the whole record's where it has one, else the body's.

    Raises:
        ValueError: a checksum does not hold.
    """
    record = buffer[position : parts.properties_end]
    holds = crc_property_holds(record)
    # Where it lies before the properties it is a body that ends like one.
    is_short = parts.properties_end - parts.properties_at < CRC_PROPERTY_BYTES
    if holds is None or (is_short and not holds):
        body_crc = crc32(buffer[parts.body_at : parts.body_end]) & _CRC_MASK
        holds = body_crc == parts.header.body_crc & _CRC_MASK
    if not holds:
        raise ValueError("the checksum does not match the bytes")


def to_message(buffer: bytes | memoryview, position: int, parts: RecordParts) -> MessageExt:
    """Build the message of a located record; the body is copied."""
    header = parts.header
    born_size = 20 if header.sys_flag & BORN_HOST_V6 else 8
    store_at = position + 48 + born_size + 8
    store_size = 20 if header.sys_flag & STORE_HOST_V6 else 8
    reconsume_times, prepared_transaction_offset, _ = TAIL.unpack_from(
        buffer, store_at + store_size
    )
    text = bytes(buffer[parts.properties_at : parts.properties_end]).decode("utf-8", "replace")
    return MessageExt(
        topic=bytes(buffer[parts.topic_at : parts.topic_end]).decode("utf-8", "replace"),
        body=bytes(buffer[parts.body_at : parts.body_end]),
        queue_id=header.queue_id,
        queue_offset=header.queue_offset,
        physical_offset=header.physical_offset,
        store_size_bytes=header.size_bytes,
        flag=header.flag,
        sys_flag=header.sys_flag,
        body_crc=header.body_crc,
        born_timestamp_ms=header.born_timestamp_ms,
        born_host=bytes(buffer[position + 48 : position + 48 + born_size]),
        store_timestamp_ms=parts.store_timestamp_ms,
        store_host=bytes(buffer[store_at : store_at + store_size]),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        properties=decode_properties(text),
    )


def decode_record(
    buffer: bytes | memoryview, position: int = 0, *, verify: bool = True
) -> tuple[MessageExt, int]:
    """Return the message at `position` and the position after it.

    Raises:
        CorruptRecordError: the bytes are not a whole record, or (with `verify`) a checksum fails.
    """
    try:
        parts = locate(buffer, position, len(buffer))
        if verify:
            check_sums(buffer, position, parts)
    except ValueError as exc:
        raise CorruptRecordError("received bytes", position, str(exc)) from exc
    return to_message(buffer, position, parts), parts.properties_end


def iterate_records(buffer: bytes | memoryview, *, verify: bool = True) -> Iterator[MessageExt]:
    """Yield the messages of records that lie back to back, as a pull answer's body has them.

    Raises:
        CorruptRecordError: the bytes at some position are not a record.
    """
    position = 0
    while position < len(buffer):
        message, position = decode_record(buffer, position, verify=verify)
        yield message


def decode_records(buffer: bytes | memoryview, *, verify: bool = True) -> list[MessageExt]:
    """Return the messages of records that lie back to back.

    Raises:
        CorruptRecordError: the bytes at some position are not a record.
    """
    return list(iterate_records(buffer, verify=verify))
