import struct
import zlib

import pytest


def _hosts(is_v6):
    host = bytes(15) + b"\x01" if is_v6 else b"\x7f\x00\x00\x01"
    return host + struct.pack(">i", 10911)


def _make_record(
    queue_offset,
    body=b"hello",
    *,
    properties=b"TAGS\x01a\x02",
    topic=b"T1",
    sys_flag=0,
    is_v6=False,
    with_crc=True,
    born_ms=1_700_000_000_000,
    store_ms=1_700_000_000_123,
    flag=0,
    reconsume_times=0,
):
    """Write a stored record straight from the field table of RocketMQ's format."""
    if is_v6:
        sys_flag |= 0x30
    is_v2 = len(topic) > 127
    crc_size = 20 if with_crc else 0
    rest = struct.pack(
        ">IIiiqqi",
        0xDAA320AB if is_v2 else 0xDAA320A7,
        zlib.crc32(body) & 0x7FFFFFFF,
        0,
        flag,
        queue_offset,
        1000 * queue_offset,
        sys_flag,
    )
    rest += struct.pack(">q", born_ms) + _hosts(is_v6) + struct.pack(">q", store_ms) + _hosts(is_v6)
    rest += struct.pack(">iqi", reconsume_times, 0, len(body)) + body
    rest += struct.pack(">H" if is_v2 else ">B", len(topic)) + topic
    rest += struct.pack(">H", len(properties) + crc_size) + properties
    record = struct.pack(">i", 4 + len(rest) + crc_size) + rest
    if with_crc:
        number = zlib.crc32(record) & 0x7FFFFFFF
        record += b"__CRC32#\x01" + f"{number:010d}"[::-1].encode() + b"\x02"
    return record


@pytest.fixture(scope="session")
def make_record():
    """Give the function that writes a stored record."""
    return _make_record
