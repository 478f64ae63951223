"""The bytes of the link between replicas: every frame comes back, and nothing else is believed."""

import contextlib
import zlib
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.errors import RemoteProtocolError
from mailboat.replication.epochs import EpochStart
from mailboat.replication.frames import (
    Ack,
    Answer,
    Ask,
    Beat,
    Data,
    Fetch,
    Fetched,
    Hello,
    Refused,
    TakeOver,
    Welcome,
)
from mailboat.replication.wire import PREFIX_BYTES, Bulk, Decoder, Message, Open, Proof, encode

_INT = st.integers(-1, 2**56)
_COUNT = st.integers(0, 2**56)
_TEXT = st.text(max_size=20)
_EPOCHS = st.lists(st.builds(EpochStart, _COUNT, _COUNT), min_size=1, max_size=5).map(tuple)
_VALUES: Any = {int: _INT, str: _TEXT, dict[int, str]: st.dictionaries(_INT, _TEXT, max_size=3)}
_MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Proof, st.binary(max_size=40)),
    st.builds(Open, **{field.name: _VALUES[field.type] for field in fields(Open)}),
    st.builds(Hello, _INT, _INT, _TEXT),
    st.builds(Welcome, _INT, _TEXT, _INT, _EPOCHS, _INT, _INT, _INT),
    st.builds(Refused, _INT),
    st.builds(Data, _INT, _INT, _INT, _INT, _INT, st.binary(max_size=300)),
    st.builds(Beat, _INT, _INT, _INT, _INT, _INT, st.booleans(), st.booleans()),
    st.builds(Ack, _INT, _INT, _INT, _INT, st.booleans()),
    st.builds(Ask, _INT, _INT, _INT),
    st.builds(TakeOver, _INT, _INT),
    st.builds(Fetch, _INT, _TEXT, _EPOCHS, _INT, _INT, _INT),
    st.builds(Fetched, _INT, _INT, _INT, _TEXT, st.binary(max_size=300)),
    st.builds(Answer, _INT, _INT, _INT, _INT, _INT, *[st.booleans()] * 3),
)


def _bytes(message: Message) -> bytes:
    records: Any = message.records if isinstance(message, Bulk) else b""
    return encode(message) + bytes(records)


@given(st.lists(_MESSAGES, max_size=6), st.integers(1, 40))
def test_frames_come_back_however_they_are_cut(messages: list[Message], piece: int) -> None:
    """What is sent arrives, in order, whatever the network makes of it."""
    data = b"".join(map(_bytes, messages))
    decoder = Decoder()
    found: list[Message] = []
    for at in range(0, len(data), piece):
        found += decoder.feed(data[at : at + piece])
    assert found == messages
    assert decoder.buffered_bytes == 0


@given(_MESSAGES, st.data())
def test_a_changed_head_is_refused(message: Message, data: st.DataObject) -> None:
    """A wrong bit in prefix or head of a frame never gives another frame."""
    frame = bytearray(encode(message))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= 1 << data.draw(st.integers(0, 7))
    decoder = Decoder()
    found: list[Message] = []
    with contextlib.suppress(RemoteProtocolError):
        found = decoder.feed(bytes(frame))
    # The byte that nobody reads is covered by the checksum too.
    assert found == []


@given(st.binary(max_size=400))
def test_what_is_no_frame_raises_nothing_else(data: bytes) -> None:
    """Any bytes are frames, the start of one, or refused with a sentence."""
    with contextlib.suppress(RemoteProtocolError):
        Decoder().feed(data)


@given(_MESSAGES, st.binary(max_size=60))
def test_a_head_of_other_values_is_refused(message: Message, head: bytes) -> None:
    """A head with a good checksum and wrong content is refused, not half read."""
    prefix = bytearray(encode(message)[:PREFIX_BYTES])
    prefix[4:8] = len(head).to_bytes(4, "big")
    prefix[8:12] = bytes(4)
    checksum = zlib.crc32(head, zlib.crc32(bytes(prefix[:12])))
    prefix[12:16] = checksum.to_bytes(4, "big")
    with contextlib.suppress(RemoteProtocolError):
        for found in Decoder().feed(bytes(prefix) + head):
            assert _bytes(found)


@pytest.mark.parametrize(
    "message",
    [
        Refused(2**56 + 1),
        Refused(-2),
        Ack(1, 8, 2**62, 0, True),
        Welcome(1, "", 8, (EpochStart(8, -1),), 0, 0, 0),
        Welcome(1, "", 8, (EpochStart(2**60, 0),), 0, 0, 0),
        Fetch(1, "", (EpochStart(8, -1),), 0, 0, 1),
    ],
)
def test_numbers_beyond_all_measure_are_refused(message: Message) -> None:
    """What would be stored, or counted on from, is checked where it enters."""
    with pytest.raises(RemoteProtocolError, match=r"cannot be read|out of range"):
        Decoder().feed(encode(message))


@pytest.mark.parametrize("at", [4, 8])
def test_a_huge_frame_is_refused_before_it_arrives(at: int) -> None:
    """A size beyond all measure keeps no memory waiting."""
    frame = bytearray(encode(Refused(1)))
    frame[at : at + 4] = (0xFFFFFFFF).to_bytes(4, "big")
    with pytest.raises(RemoteProtocolError, match="a frame of"):
        Decoder().feed(bytes(frame))
