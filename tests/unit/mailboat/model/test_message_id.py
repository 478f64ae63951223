"""The broker's and the producer's message ids."""

import calendar
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.errors import IllegalMessageError
from mailboat.model.hosts import encode_host, format_host
from mailboat.model.message_id import (
    UniqKeyGenerator,
    decode_offset_message_id,
    encode_offset_message_id,
)
from mailboat.testing.virtual_time import VirtualTime


def test_the_id_of_rocketmq() -> None:
    """10.0.0.2:10911 at 1000, and the id of the first message of 127.0.0.1:20911."""
    host = encode_host("10.0.0.2", 10911)
    assert encode_offset_message_id(host, 1000) == "0A00000200002A9F00000000000003E8"
    assert decode_offset_message_id("7F000001000051AF0000000000000000") == ("127.0.0.1:20911", 0)


def test_ipv6_ids_have_56_characters() -> None:
    """Sixteen address bytes in place of four."""
    text = encode_offset_message_id(encode_host("::1", 10911), 1000)
    assert len(text) == 56
    assert decode_offset_message_id(text) == ("[::1]:10911", 1000)


@given(
    st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20),
    st.integers(0, 2**63 - 1),
)
def test_round_trip(host: bytes, physical_offset: int) -> None:
    """Any host and offset come back, in either case of hex."""
    text = encode_offset_message_id(host, physical_offset)
    expected = (format_host(host), physical_offset)
    assert decode_offset_message_id(text) == expected
    assert decode_offset_message_id(text.lower()) == expected


@given(st.text(max_size=60) | st.text("0123456789ABCDEF", min_size=30, max_size=58))
def test_any_text_is_an_id_or_a_documented_error(text: str) -> None:
    """A producer's key may look like an id; everything else is refused in one sentence."""
    try:
        decode_offset_message_id(text)
    except IllegalMessageError as exc:
        assert "32 or 56 hex digits" in str(exc)


def test_keys_have_rocketmqs_shape() -> None:
    """Address, process, identity, milliseconds of the month, counter."""
    clock = VirtualTime()
    clock.set_wall(calendar.timegm((2026, 11, 21, 12, 30, 15)) * 1000 + 250)
    generator = UniqKeyGenerator(bytes([10, 0, 0, 1]), clock.time)
    first, second = bytes.fromhex(generator.next()), bytes.fromhex(generator.next())
    assert len(first) == 16
    assert first[:4] == bytes([10, 0, 0, 1])
    elapsed_ms, counter = struct.unpack(">IH", first[10:])
    assert elapsed_ms == ((20 * 24 + 12) * 60 + 30) * 60_000 + 15_250
    assert first[:14] == second[:14]
    assert struct.unpack(">H", second[14:])[0] == (counter + 1) & 0xFFFF
    assert len(UniqKeyGenerator(bytes(16)).next()) == 56


def test_keys_do_not_repeat() -> None:
    """Neither within a millisecond, nor between generators, nor over the turn of a month."""
    clock = VirtualTime()
    clock.set_wall(calendar.timegm((2026, 12, 31, 23, 59, 59)) * 1000)
    generators = [UniqKeyGenerator(bytes(4), clock.time) for _ in range(4)]
    keys: list[str] = []
    for _ in range(3):
        keys += [generator.next() for generator in generators for _ in range(1000)]
        clock.advance(1)
    assert len(set(keys)) == len(keys)
    assert all(key == key.upper() for key in keys)


def test_a_new_month_starts_at_zero() -> None:
    """Milliseconds count from the first of the month, so they fit four bytes."""
    clock = VirtualTime()
    clock.set_wall(calendar.timegm((2026, 2, 28, 23, 59, 59)) * 1000)
    generator = UniqKeyGenerator(bytes(4), clock.time)
    assert _elapsed_ms(generator.next()) == 28 * 86_400_000 - 1000
    clock.advance(3)
    assert _elapsed_ms(generator.next()) == 2000
    clock.set_wall(clock.wall_ms() - 3_000)
    assert _elapsed_ms(generator.next()) == 28 * 86_400_000 - 1000


def _elapsed_ms(key: str) -> int:
    return int.from_bytes(bytes.fromhex(key)[10:14], "big")


@pytest.mark.parametrize("text", ["", "00", "zz" * 16, "0" * 31, "0" * 33, "0" * 55])
def test_texts_that_are_no_ids(text: str) -> None:
    """Wrong lengths and wrong digits."""
    with pytest.raises(IllegalMessageError):
        decode_offset_message_id(text)
