"""What a slave makes of the bytes of a master of RocketMQ."""

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.model.record import BLANK_MAGIC, FILLER, MAGIC_V1
from mailboat.replication.java_ha import FRAME_HEAD, FrameDecoder, Overlap, RecordTail

_SEGMENT_BYTES = 1000
_GARBAGE = b"\xda\xa3\x20\xa7" * 23


def _record(physical_offset: int) -> bytes:
    head = (100).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big") + bytes(20)
    return (head + physical_offset.to_bytes(8, "big")).ljust(100, b"\x5a")


def _records(start: int) -> bytes:
    return b"".join(_record(start + 100 * number) for number in range(9))


def _segment(start: int) -> bytes:
    """Return nine records of 100 bytes and the filler behind them, whose rest may be anything."""
    return _records(start) + FILLER.pack(100, BLANK_MAGIC) + _GARBAGE


@pytest.mark.parametrize("piece_bytes", [1, 5, 12, 13, 1000])
def test_frames_come_in_any_pieces(piece_bytes: int) -> None:
    """All their bytes come in their order, of heartbeats between them none but the last."""
    sent = FRAME_HEAD.pack(0, 5) + b"first" + FRAME_HEAD.pack(5, 0) * 3
    sent += FRAME_HEAD.pack(5, 6) + b"second" + FRAME_HEAD.pack(11, 0) * 100
    decoder = FrameDecoder()
    found = []
    for at in range(0, len(sent), piece_bytes):
        found += decoder.feed(sent[at : at + piece_bytes])
    expected = 0
    for physical_offset, content in found:
        assert physical_offset == expected
        expected += len(content)
    assert b"".join(content for _, content in found) == b"firstsecond"


def test_frames_out_of_place_come_by_themselves() -> None:
    """One that does not go on where the one before ends is seen, also a heartbeat."""
    frames = [(0, b"first"), (9, b"second"), (3, b""), (9, b"")]
    sent = b"".join(FRAME_HEAD.pack(at, len(content)) + content for at, content in frames)
    assert FrameDecoder().feed(sent) == frames


def test_many_small_frames_come_as_one() -> None:
    """A master that sends a byte a frame makes hardly more work than another one."""
    sent = b"".join(FRAME_HEAD.pack(7 + at, 1) + b"x" for at in range(20_000))
    found = FrameDecoder().feed(sent)
    assert len(found) < 50
    assert b"".join(content for _, content in found) == b"x" * 20_000


def test_nobody_waits_for_a_record_without_end() -> None:
    """One larger than any is refused at once, not kept until it is whole."""
    tail = RecordTail(0, 1 << 30)
    head = (1 << 29).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big")
    with pytest.raises(ValueError, match="a record of 536870912 bytes begins at 100"):
        tail.feed(_record(0) + head)


@pytest.mark.parametrize("head", [(-1, 0), (0, -1), (1 << 56, 0), (0, (4 << 20) + 1)])
def test_what_no_master_sends_is_refused(head: tuple[int, int]) -> None:
    """Offsets and sizes below 0 or too large: memory never holds more than 4 MiB of a frame."""
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().feed(FRAME_HEAD.pack(*head))


@pytest.mark.parametrize("piece_bytes", [1, 7, 100, 333, 1000, 5000])
def test_pieces_become_whole_records(piece_bytes: int) -> None:
    """Records of one segment, then the head of its filler; what is behind that is dropped."""
    log = _segment(0) + _segment(1000) + _records(2000)
    tail = RecordTail(0, _SEGMENT_BYTES)
    pieces = []
    for at in range(0, len(log), piece_bytes):
        pieces += tail.feed(log[at : at + piece_bytes])
        assert tail.received_end == min(at + piece_bytes, len(log))
    filler = FILLER.pack(100, BLANK_MAGIC)
    expected = [_records(0), filler, _records(1000), filler, _records(2000)]
    assert b"".join(pieces) == b"".join(expected)
    assert pieces.count(filler) == 2
    assert all(piece == filler or len(piece) % 100 == 0 for piece in pieces)


@pytest.mark.parametrize(
    "data",
    [bytes(100), (99).to_bytes(4, "big") + bytes(96), (90).to_bytes(4, "big") + _record(0)[4:]],
    ids=["zeros", "no magic", "too small"],
)
def test_what_is_no_record_is_not_taken(data: bytes) -> None:
    """Nor what would lie in two segments."""
    with pytest.raises(ValueError, match="no record begins at 100"):
        RecordTail(0, _SEGMENT_BYTES).feed(_record(0) + data)
    with pytest.raises(ValueError, match="no record begins at 950"):
        RecordTail(950, _SEGMENT_BYTES).feed(_record(950))


@pytest.mark.parametrize("piece_bytes", [1, 64, 1000])
def test_the_end_of_a_log_is_compared(piece_bytes: int) -> None:
    """What is behind it is given on, and a byte that differs is found, wherever it is."""
    ours, theirs = _segment(0)[:908] + bytes(92), _segment(0)
    for end in (650, 900, 1000):
        overlap = Overlap(ours[300:end], 300, _SEGMENT_BYTES)
        assert (
            _behind(overlap, (theirs + b"behind")[300:], piece_bytes) == (theirs + b"behind")[end:]
        )
        assert overlap.is_over
        for at in (300, 301, end - 101):
            other = bytearray(theirs)
            other[at] ^= 1
            overlap = Overlap(ours[300:end], 300, _SEGMENT_BYTES)
            with pytest.raises(ValueError, match="another log"):
                _behind(overlap, bytes(other[300:]), piece_bytes)


def _behind(overlap: Overlap, data: bytes, piece_bytes: int) -> bytes:
    return b"".join(
        overlap.take(data[at : at + piece_bytes]) for at in range(0, len(data), piece_bytes)
    )
