"""The stored record: RocketMQ's own bytes, whole round trips, and refusal of everything else."""

import random
import struct
import zlib
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mailboat.errors import CorruptRecordError
from mailboat.model.record import (
    CRC_PROPERTY_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    crc_property,
    crc_property_holds,
    decode_record,
    decode_records,
    iterate_records,
    locate,
)

# Written by RocketMQ 4.9.8: "hello" to T1, tag TagA, property k=v, queue 1, queue offset 2.
GOLDEN = bytes.fromhex(
    "0000006f daa320a7 3610a686 00000001 00000000 0000000000000002 00000000000003e8 00000000"
    "0000018bcfe56800 0a000001000004d2 0000018bcfe5687b 0a00000200002a9f 00000000 0000000000000000"
    "00000005 68656c6c6f 02 5431 000d 6b01760254414753 01 54616741"
)


def build_record(
    *,
    topic: bytes = b"T1",
    body: bytes = b"hello",
    properties: bytes = b"TAGS\x01TagA\x02",
    queue_id: int = 1,
    queue_offset: int = 2,
    physical_offset: int = 1000,
    flag: int = 0,
    sys_flag: int = 0,
    born_host: bytes = b"\x0a\0\0\x01\0\0\x04\xd2",
    store_host: bytes = b"\x0a\0\0\x02\0\0\x2a\x9f",
    with_crc: bool = False,
) -> bytes:
    """Write a record straight from the field table of the format."""
    if len(born_host) == 20:
        sys_flag |= 0x10
    if len(store_host) == 20:
        sys_flag |= 0x20
    is_v2 = len(topic) > 127
    length = struct.pack(">H", len(topic)) if is_v2 else bytes([len(topic)])
    size_of_properties = len(properties) + (20 if with_crc else 0)
    rest = b"".join(
        (
            struct.pack(">I", 0xDAA320AB if is_v2 else 0xDAA320A7),
            struct.pack(">I", zlib.crc32(body) & 0x7FFFFFFF),
            struct.pack(">iiqqi", queue_id, flag, queue_offset, physical_offset, sys_flag),
            struct.pack(">q", 1_700_000_000_000) + born_host,
            struct.pack(">q", 1_700_000_000_123) + store_host,
            struct.pack(">iq", 3, 77),
            struct.pack(">i", len(body)) + body,
            length + topic,
            struct.pack(">H", size_of_properties) + properties,
        )
    )
    record = struct.pack(">i", 4 + len(rest) + (20 if with_crc else 0)) + rest
    if with_crc:
        number = zlib.crc32(record) & 0x7FFFFFFF
        digits = ""
        for _ in range(10):
            number, digit = divmod(number, 10)
            digits += str(digit)
        record += b"__CRC32#\x01" + digits.encode() + b"\x02"
    return record


def _data_with_crc(wanted: int) -> bytes:
    """Find four bytes whose CRC-32 is `wanted`, by running the shift register backwards."""
    table = [zlib.crc32(bytes([value ^ 0xFF])) ^ 0xFF000000 for value in range(256)]
    high = {entry >> 24: index for index, entry in enumerate(table)}
    register = wanted ^ 0xFFFFFFFF
    for _ in range(4):
        index = high[register >> 24]
        register = ((register ^ table[index]) << 8 & 0xFFFFFFFF) | index
    data = (register ^ 0xFFFFFFFF).to_bytes(4, "little")
    assert zlib.crc32(data) == wanted
    return data


def test_a_record_of_rocketmq_is_read_field_by_field() -> None:
    """Every field of the golden record has the value that RocketMQ's encoder was given."""
    message, end = decode_record(GOLDEN)
    assert end == len(GOLDEN) == 0x6F
    assert (message.topic, message.body, message.payload()) == ("T1", b"hello", b"hello")
    assert (message.queue_id, message.queue_offset, message.physical_offset) == (1, 2, 1000)
    assert message.properties == {"k": "v", "TAGS": "TagA"}
    assert (message.tags, message.keys, message.unique_key) == ("TagA", None, None)
    assert (message.born_timestamp_ms, message.born_address) == (1700000000000, "10.0.0.1:1234")
    assert (message.store_timestamp_ms, message.store_address) == (1700000000123, "10.0.0.2:10911")
    assert (message.body_crc, message.flag, message.sys_flag) == (0x3610A686, 0, 0)
    assert (message.reconsume_times, message.prepared_transaction_offset) == (0, 0)
    assert message.offset_message_id == "0A00000200002A9F00000000000003E8"
    assert message.message_id == message.offset_message_id
    assert message.store_size_bytes == 0x6F


def test_the_checksum_property_has_reversed_digits() -> None:
    """A CRC of 1234 is written 4321000000."""
    assert crc_property(_data_with_crc(1234)) == b"__CRC32#\x014321000000\x02"
    # Bit 31 is masked away.
    assert crc_property(_data_with_crc(1234 | 0x80000000)) == b"__CRC32#\x014321000000\x02"


def test_the_checksum_property_covers_every_byte_of_the_record() -> None:
    """Each single-bit flip of a record that carries it is noticed."""
    record = build_record(with_crc=True)
    assert crc_property_holds(record) is True
    assert decode_record(record)[0].properties["__CRC32#"] == record[-11:-1].decode()
    for bit in range(8 * len(record)):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        if flipped[-20:-10] != record[-20:-10] or flipped[-1] != record[-1]:
            # The property's own name is hit: no checksum is found, which its reader decides on.
            continue
        with pytest.raises(CorruptRecordError):
            decode_record(bytes(flipped))


def test_a_record_without_the_property_is_checked_by_its_body() -> None:
    """The body's CRC is what RocketMQ writes by default."""
    record = build_record()
    assert crc_property_holds(record) is None
    body_at = record.index(b"hello")
    broken = record[:body_at] + b"jello" + record[body_at + 5 :]
    with pytest.raises(CorruptRecordError, match="checksum does not match"):
        decode_record(broken)
    assert decode_record(broken, verify=False)[0].body == b"jello"


@pytest.mark.parametrize(("born", "store"), [(8, 8), (20, 8), (8, 20), (20, 20)])
def test_hosts_of_either_family_shift_the_fields(born: int, store: int) -> None:
    """IPv6 flags 0x10 and 0x20 each add twelve bytes, and ids grow to 56 characters."""
    hosts = {8: bytes([10, 0, 0, 1, 0, 0, 4, 210]), 20: bytes(15) + b"\x01\0\0\x04\xd2"}
    message, _ = decode_record(
        build_record(born_host=hosts[born], store_host=hosts[store], with_crc=True)
    )
    addresses = {8: "10.0.0.1:1234", 20: "[::1]:1234"}
    assert message.born_address == addresses[born]
    assert message.store_address == addresses[store]
    assert message.sys_flag == (0x10 if born == 20 else 0) | (0x20 if store == 20 else 0)
    assert len(message.offset_message_id) == (32 if store == 8 else 56)
    assert message.topic == "T1"


@pytest.mark.parametrize(("length", "magic"), [(127, MAGIC_V1), (128, MAGIC_V2), (255, MAGIC_V2)])
def test_a_long_topic_makes_the_second_version(length: int, magic: int) -> None:
    """Beyond 127 bytes the topic's length takes two bytes and the magic says so."""
    record = build_record(topic=b"t" * length)
    parts = locate(record, 0, len(record))
    assert parts.header.magic == magic
    assert decode_record(record)[0].topic == "t" * length


_FIELDS = st.fixed_dictionaries(
    {
        "topic": st.binary(min_size=1, max_size=255).map(lambda b: bytes(97 + x % 26 for x in b)),
        "body": st.binary(max_size=500),
        "properties": st.dictionaries(
            st.text("abcXYZ", min_size=1, max_size=8),
            st.text(st.characters(min_codepoint=3, exclude_categories=["Cs"]), min_size=1),
            max_size=4,
        ).map(lambda d: "".join(f"{k}\x01{v}\x02" for k, v in d.items()).encode()),
        "queue_id": st.integers(0, 2**31 - 1),
        "queue_offset": st.integers(0, 2**63 - 1),
        "physical_offset": st.integers(0, 2**63 - 1),
        "flag": st.integers(-(2**31), 2**31 - 1),
        "born_host": st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20),
        "store_host": st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20),
        "with_crc": st.booleans(),
    }
)


@given(fields=_FIELDS, before=st.binary(max_size=30))
def test_any_record_is_read_as_it_was_written(fields: dict[str, Any], before: bytes) -> None:
    """Values survive at any position of a buffer, and so does the position after them."""
    record = build_record(**fields)
    message, end = decode_record(memoryview(before + record + b"tail"), len(before))
    assert end == len(before) + len(record)
    assert message.topic.encode() == fields["topic"]
    assert message.body == fields["body"]
    assert (message.queue_id, message.queue_offset) == (fields["queue_id"], fields["queue_offset"])
    assert (message.physical_offset, message.flag) == (fields["physical_offset"], fields["flag"])
    assert (message.born_host, message.store_host) == (fields["born_host"], fields["store_host"])
    assert (message.reconsume_times, message.prepared_transaction_offset) == (3, 77)
    properties = dict(message.properties)
    assert ("__CRC32#" in properties) == fields["with_crc"]
    properties.pop("__CRC32#", None)
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    assert text.encode() == fields["properties"]


@given(records=st.lists(_FIELDS, max_size=5))
def test_records_back_to_back_are_read_one_by_one(records: list[dict[str, Any]]) -> None:
    """A pull answer's body is its records, nothing between them."""
    data = b"".join(build_record(**fields) for fields in records)
    messages = decode_records(data)
    assert [message.body for message in messages] == [fields["body"] for fields in records]
    assert [message.queue_offset for message in iterate_records(data)] == [
        fields["queue_offset"] for fields in records
    ]


@settings(max_examples=300)
@given(data=st.binary(max_size=400))
@example(b"")
@example(bytes(91))
@example(struct.pack(">iI", 2**31 - 1, MAGIC_V1) + bytes(200))
@example(struct.pack(">iI", -1, MAGIC_V1) + bytes(200))
@example(struct.pack(">iI", 91, MAGIC_V1) + bytes(76) + b"\xff" * 7)
@example(struct.pack(">iI", 100, 0xCBD43194) + bytes(92))
def test_any_bytes_are_a_record_or_a_documented_error(data: bytes) -> None:
    """Garbage raises CorruptRecordError and nothing else."""
    try:
        message, end = decode_record(data)
    except CorruptRecordError as exc:
        assert exc.physical_offset == 0
        assert str(exc).startswith("received bytes: record at physical offset 0: ")
        return
    assert message.store_size_bytes == end <= len(data)


@settings(max_examples=300)
@given(fields=_FIELDS, seed=st.integers(0, 2**32))
def test_a_damaged_record_is_refused_or_still_a_value(fields: dict[str, Any], seed: int) -> None:
    """Flipped, cut or overwritten bytes never raise anything undocumented."""
    source = random.Random(seed)
    data = bytearray(build_record(**fields))
    for _ in range(source.randint(1, 4)):
        data[source.randrange(len(data))] = source.randrange(256)
    if source.random() < 0.3:
        del data[source.randrange(len(data)) :]
    for verify in (True, False):
        try:
            message, end = decode_record(bytes(data), verify=verify)
        except CorruptRecordError:
            continue
        assert message.store_size_bytes == end <= len(data)


@pytest.mark.parametrize("cut", [1, 8, 50, 90, 110])
def test_a_record_that_is_cut_short_is_refused(cut: int) -> None:
    """Half a record is no record."""
    with pytest.raises(CorruptRecordError):
        decode_record(GOLDEN[:cut])
    with pytest.raises(CorruptRecordError):
        decode_records(GOLDEN + GOLDEN[:cut])


def test_sizes_must_add_up() -> None:
    """Parts that together are not the record's size are refused, each way."""
    for at, value in ((84, 6), (84, 4), (93, 3), (96, 14), (96, 12)):
        broken = bytearray(GOLDEN)
        broken[at + 3 if at == 84 else at] = value
        with pytest.raises(CorruptRecordError):
            decode_record(bytes(broken), verify=False)


def test_the_property_is_twenty_bytes() -> None:
    """Name, separator, ten digits, separator."""
    assert len(crc_property(b"anything")) == CRC_PROPERTY_BYTES == 20
