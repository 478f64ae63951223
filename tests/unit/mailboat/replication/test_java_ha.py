"""The bytes between RocketMQ's masters and slaves; the hex is of real brokers of 4.9.7."""

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.replication.java_ha import FRAME_HEAD, ReportDecoder


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
