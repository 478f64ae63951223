"""The bytes between RocketMQ's masters and slaves; the hex is of real brokers of 4.9.7."""

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.model.record import BLANK_MAGIC, FILLER, MAGIC_V1
from mailboat.replication.java_ha import FRAME_HEAD, RecordWalk, ReportDecoder

_SEGMENT_BYTES = 1000


def _record(physical_offset: int, size: int = 100) -> bytes:
    head = size.to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big") + bytes(20)
    return (head + physical_offset.to_bytes(8, "big")).ljust(size, b"\x5a")


def _segment(start: int) -> bytes:
    """Return nine records of 100 bytes and the filler behind them, whose rest may be anything."""
    records = b"".join(_record(start + 100 * number) for number in range(9))
    return records + FILLER.pack(100, BLANK_MAGIC) + b"\xee" * 92


def _feed(walk: RecordWalk, segment: bytes, piece_bytes: int) -> None:
    for at in range(0, len(segment), piece_bytes):
        walk.feed(segment[at : at + piece_bytes], 3000 + at)


def test_the_last_whole_report_counts() -> None:
    """Reports come in any pieces, and only the last one matters."""
    reports = ReportDecoder()
    assert reports.feed(bytes.fromhex("00000000000017")) is None
    assert reports.feed(bytes.fromhex("b8")) == 0x17B8
    assert reports.feed(bytes.fromhex("00000000000017b8 0000000000002000 00")) == 0x2000
    assert reports.feed(bytes.fromhex("00000000000000")) == 0


@pytest.mark.parametrize("report", ["b001000000000000", "ffffffffffffffff", "0100000000000000"])
def test_what_no_slave_reports_is_refused(report: str) -> None:
    """An offset below 0 or beyond 2 ** 56 is no slave's."""
    with pytest.raises(RemoteProtocolError):
        ReportDecoder().feed(bytes.fromhex(report))


def test_a_frame_is_an_offset_and_a_size() -> None:
    """A frame of the first 0x17b8 bytes, and the heartbeat behind it."""
    assert FRAME_HEAD.pack(0, 0x17B8).hex() == "0000000000000000000017b8"
    assert FRAME_HEAD.pack(0x17B8, 0).hex() == "00000000000017b800000000"


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 333, 5000])
@pytest.mark.parametrize("begin", [0, 1, 100, 350, 900, 950])
def test_a_sound_log_is_walked_whatever_the_pieces(begin: int, piece_bytes: int) -> None:
    """From a record, from inside one, from a filler and from what is behind it."""
    log = _segment(0) + _segment(1000) + _segment(2000)
    first_bytes = min(max(piece_bytes, 64), _SEGMENT_BYTES - begin)
    walk = RecordWalk(begin, _SEGMENT_BYTES, log[begin : begin + first_bytes])
    for at in range(begin, len(log), piece_bytes):
        walk.feed(log[at : at + piece_bytes], at)
    damaged = bytearray(_segment(3000))
    damaged[505] ^= 1
    with pytest.raises(ValueError, match="no record begins at 3500"):
        _feed(walk, bytes(damaged), piece_bytes)


@pytest.mark.parametrize(
    "record",
    [
        _record(100)[:50] + bytes(50),
        _record(200),
        _record(100, 1000),
        bytes(4) + _record(100)[4:],
        bytes(100),
    ],
    ids=["sound", "of another place", "beyond the segment", "without a size", "zeros"],
)
def test_what_is_no_record_is_found(record: bytes) -> None:
    """Size, magic, place and the end of the segment are looked at; only the first one is sound."""
    walk = RecordWalk(0, _SEGMENT_BYTES, _record(0))
    walk.feed(_record(0), 0)
    if record.endswith(bytes(50)) and record != bytes(100):
        walk.feed(record, 100)
        return
    with pytest.raises(ValueError, match="no record begins at 100"):
        walk.feed(record, 100)
