"""The body of a batch request."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailboat.errors import IllegalMessageError
from mailboat.model.batch import (
    MAX_BATCH_MESSAGES,
    count_messages,
    decode_batch,
    encode_batch,
)
from mailboat.model.message import Message

# Written by RocketMQ 4.9.8: "b1", tag TagA, property k=v.
GOLDEN = bytes.fromhex(
    "0000002f 00000000 00000000 00000000 00000002 6231 0017 6b0176 02 57414954 01 74727565 02"
    "54414753 01 54616741"
)


def test_a_batch_of_rocketmq_is_read() -> None:
    """Flag, body and properties text of the golden item."""
    item = (0, b"b1", b"k\x01v\x02WAIT\x01true\x02TAGS\x01TagA")
    assert decode_batch(GOLDEN) == [item]
    assert decode_batch(GOLDEN * 3) == [item] * 3


def test_an_item_is_written_as_rocketmq_does() -> None:
    """The golden bytes, in our order of properties, with UNIQ_KEY and the last separator."""
    data = encode_batch([Message("T", b"b1", tags="TagA", properties={"k": "v"})], ["U1"])
    properties = b"k\x01v\x02TAGS\x01TagA\x02WAIT\x01true\x02UNIQ_KEY\x01U1\x02"
    size = 22 + 2 + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, 0, 2)
    assert data == head + b"b1" + struct.pack(">h", len(properties)) + properties


@given(
    bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=8),
    flag=st.integers(-(2**31), 2**31 - 1),
)
def test_round_trip(bodies: list[bytes], flag: int) -> None:
    """Every message comes back in order with its flag, body and key."""
    messages = [Message("T", body, flag=flag) for body in bodies]
    keys = [f"K{number}" for number in range(len(bodies))]
    items = decode_batch(encode_batch(messages, keys))
    assert [(flag, body) for flag, body, _ in items] == [(flag, body) for body in bodies]
    for (_, _, properties), key in zip(items, keys, strict=True):
        assert f"UNIQ_KEY\x01{key}\x02".encode() in properties


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"", 0),
        (GOLDEN[:21], 0),
        (GOLDEN, 1),
        (GOLDEN * 32, 32),
        (GOLDEN + GOLDEN[:30], 2),
        (struct.pack(">iiiiiH", 22, 0, 0, 0, 0, 0) * 100_000, MAX_BATCH_MESSAGES),
        (struct.pack(">i", 0) * 100, MAX_BATCH_MESSAGES),
        (struct.pack(">i", -500) * 100, 2),
        (struct.pack(">i", 2**31 - 1) * 100, 1),
    ],
)
def test_messages_are_counted_without_reading_them(body: bytes, count: int) -> None:
    """Whatever stands in the sizes, the count ends."""
    assert count_messages(body) == count


@settings(max_examples=300)
@given(st.binary(max_size=100))
def test_any_bytes_are_items_or_a_documented_error(data: bytes) -> None:
    """Garbage raises IllegalMessageError and nothing else."""
    try:
        assert decode_batch(data)
    except IllegalMessageError as exc:
        assert "batch" in str(exc)


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_damaged_batches_are_items_or_a_documented_error(seed: int) -> None:
    """Wrong sizes never read beyond their item and never raise anything undocumented."""
    source = random.Random(seed)
    data = bytearray(GOLDEN * source.randint(1, 3))
    for _ in range(source.randint(1, 3)):
        data[source.randrange(len(data))] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
    try:
        items = decode_batch(bytes(data))
    except IllegalMessageError:
        return
    sizes = [22 + len(item_body) + len(text) for _, item_body, text in items]
    assert sum(sizes) == len(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "holds no message"),
        (GOLDEN[:10], "item 0 of the batch is cut short"),
        (GOLDEN + GOLDEN[:-1], "item 1 of the batch has the size 47"),
        (struct.pack(">iiiii", -1, 0, 0, 0, 0) + bytes(2), "has the size -1"),
        (struct.pack(">iiiii", 22, 0, 0, 0, -5) + bytes(2), "has the size 22"),
        (struct.pack(">iiiii", 22, 0, 0, 0, 0) + b"\0\x05", "properties of 5 bytes"),
        (struct.pack(">iiiii", 23, 0, 0, 0, 0) + b"\0\0\0", "properties of 0 bytes"),
    ],
)
def test_refusals_say_which_item_and_why(data: bytes, reason: str) -> None:
    """One sentence for the sender."""
    with pytest.raises(IllegalMessageError, match=reason):
        decode_batch(data)


def test_items_of_one_size_may_be_cut_differently() -> None:
    """Where the first item has its properties size, the text of the second has the same bytes."""
    first = struct.pack(">i8xii", 32, 0, 4) + b"body" + struct.pack(">H", 6) + b"k\x01val\x02"
    second = struct.pack(">i8xii", 32, 1, 2) + b"bo" + struct.pack(">H", 8) + b"\0\x06name\x01\x02"
    assert decode_batch(first + second) == [
        (0, b"body", b"k\x01val\x02"),
        (1, b"bo", b"\0\x06name\x01\x02"),
    ]


def test_properties_beyond_a_signed_short_are_refused() -> None:
    """Java could not read their length."""
    with pytest.raises(IllegalMessageError, match="at most 32767"):
        encode_batch([Message("T", b"", properties={"k": "v" * 32767})], ["U"])
