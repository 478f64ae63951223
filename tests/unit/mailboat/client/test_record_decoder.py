from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from mailboat.client.record_decoder import decode_messages
from mailboat.errors import CorruptRecordError
from mailboat.model import compiled
from mailboat.model.record import HEAD_V4, MAGIC_V1, crc_property, decode_records

# Written by the encoder of rocketmq 4.9.8: body "hello", TAGS=TagA, k=v, queue 1, offset 2.
JAVA_RECORD = bytes.fromhex(
    "0000006f daa320a7 3610a686 00000001 00000000 0000000000000002 00000000000003e8 00000000 "
    "0000018bcfe56800 0a000001000004d2 0000018bcfe5687b 0a00000200002a9f 00000000 "
    "0000000000000000 00000005 68656c6c6f 02 5431 000d 6b017602 54414753 01 54616741"
)
V6_RECORD = JAVA_RECORD[:36] + (0x10).to_bytes(4, "big") + JAVA_RECORD[40:48] + bytes(12)
V6_RECORD += JAVA_RECORD[48:]
V6_RECORD = (len(V6_RECORD)).to_bytes(4, "big") + V6_RECORD[4:]


@pytest.fixture(autouse=True, params=["compiled", "python"])
def kind(request: pytest.FixtureRequest) -> Generator[None]:
    """Decode with the compiled core, and with its definition in Python."""
    if request.param == "compiled" and compiled.decode_records is None:
        pytest.skip("the compiled core is not installed")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(compiled, "decode_records", None)
        yield


def checked_record(queue_offset: int, body: bytes) -> bytes:
    """Return a record with a whole-record checksum."""
    properties = f"KEYS\x01k{queue_offset}\x02".encode()
    size = 91 + len(body) + 1 + len(properties) + 20
    host = bytes((127, 0, 0, 1, 0, 0, 0, 1))
    head = HEAD_V4.pack(
        size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, 0, 0, queue_offset, 0, 0, 1, host, 2, host, 0, 0,
        len(body),
    )  # fmt: skip
    record = head + body + b"\x01T" + (len(properties) + 20).to_bytes(2, "big") + properties
    return record + crc_property(record)


def test_java_record():
    """A record of a Java broker has the fields that were put into it."""
    (message,) = decode_messages(JAVA_RECORD)
    assert (message.topic, message.body, message.queue_id) == ("T1", b"hello", 1)
    assert (message.queue_offset, message.physical_offset) == (2, 1000)
    assert (message.born_timestamp_ms, message.born_address) == (1700000000000, "10.0.0.1:1234")
    assert (message.store_timestamp_ms, message.store_address) == (
        1700000000123,
        "10.0.0.2:10911",
    )
    assert message.properties == {"k": "v", "TAGS": "TagA"}


def test_mixed_body_equals_the_model():
    """IPv4, IPv6 and checksummed records back to back decode as the model decodes them."""
    body = JAVA_RECORD + V6_RECORD + checked_record(7, b"payload") + JAVA_RECORD
    assert decode_messages(body) == decode_records(body)
    assert len(decode_messages(body)) == 4


DAMAGED = checked_record(7, b"some payload") + JAVA_RECORD


@pytest.mark.parametrize("position", range(len(DAMAGED)))
def test_damaged_body_is_what_the_model_says(position: int):
    """Any one changed byte gives the message that the model gives, or an error as there."""
    damaged = bytearray(DAMAGED)
    damaged[position] ^= 0x55
    assert outcome(bytes(damaged)) == model_outcome(bytes(damaged))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_bytes_give_messages_or_an_error(data: bytes):
    """Whatever a broker sends, the answer is messages or CorruptRecordError."""
    assert outcome(data) == model_outcome(data)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(JAVA_RECORD) - 1))
def test_cut_record_is_an_error(length: int):
    """A record that is cut short is refused, not half decoded."""
    if length:
        with pytest.raises(CorruptRecordError):
            decode_messages(JAVA_RECORD[:length])


def test_wrong_checksum_is_refused():
    """A changed body byte is noticed by the body's CRC and by the record's."""
    for record, at in ((JAVA_RECORD, 90), (checked_record(1, b"payload"), 90)):
        damaged = bytearray(record)
        damaged[at] ^= 1
        with pytest.raises(CorruptRecordError, match="checksum"):
            decode_messages(bytes(damaged))


def outcome(data: bytes) -> object:
    """Return the messages, or that there was an error."""
    try:
        return decode_messages(data)
    except CorruptRecordError:
        return "corrupt"


def model_outcome(data: bytes) -> object:
    """Return what the model makes of the same bytes."""
    try:
        return decode_records(data)
    except CorruptRecordError:
        return "corrupt"
