"""The two message ids.

The *offset message id* is made by the broker: upper-case hex of the store host (4 or 16 address
bytes and an int32 port) and the int64 physical offset: 32 or 56 characters.

The *unique key* is made by the producer, upper-case hex of

    size     field
    4 or 16  IP address
    2        process id
    4        hash of something that tells processes apart
    4        milliseconds since the start of the month
    2        counter

Source: apache/rocketmq common/message/MessageDecoder.java (createMessageId) and
MessageClientIDSetter.java.
"""

import calendar
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from mailboat.errors import IllegalMessageError
from mailboat.model.hosts import format_host


class OffsetMessageId(NamedTuple):
    """Where a message lies: the broker's address `ip:port` and the CommitLog byte."""

    address: str
    physical_offset: int


def encode_offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the id of the record at `physical_offset` of the broker at `store_host`."""
    return (store_host + physical_offset.to_bytes(8, "big")).hex().upper()


def decode_offset_message_id(text: str) -> OffsetMessageId:
    """Return what an offset message id says.

    Raises:
        IllegalMessageError: it is not 32 or 56 hex characters.
    """
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) not in (16, 28):
        raise IllegalMessageError(f"{text!r} is not a message id: it needs 32 or 56 hex digits")
    return OffsetMessageId(format_host(data[:-8]), int.from_bytes(data[-8:], "big"))


class UniqKeyGenerator:
    """Makes unique keys for one process; call `next` as often as needed."""

    __slots__ = ("_clock", "_counter", "_month_end_s", "_month_start_s", "_prefix")

    def __init__(self, ip: bytes, clock: Callable[[], float] = time.time) -> None:
        """Start a generator for the host with the address bytes `ip` (4 or 16)."""
        identity = int.from_bytes(os.urandom(4), "big")
        self._prefix = (
            (ip + (os.getpid() & 0xFFFF).to_bytes(2, "big") + identity.to_bytes(4, "big"))
            .hex()
            .upper()
        )
        self._clock = clock
        self._counter = 0
        self._month_start_s = 0.0
        self._month_end_s = 0.0

    def next(self) -> str:
        """Return the next key: 32 characters for an IPv4 host, 56 for IPv6."""
        now = self._clock()
        if not self._month_start_s <= now < self._month_end_s:
            self._enter_month(now)
        self._counter = (self._counter + 1) & 0xFFFF
        elapsed_ms = int((now - self._month_start_s) * 1000) & 0xFFFFFFFF
        return f"{self._prefix}{elapsed_ms:08X}{self._counter:04X}"

    def _enter_month(self, now: float) -> None:
        month = time.gmtime(now)
        year, number = month.tm_year, month.tm_mon
        self._month_start_s = float(calendar.timegm((year, number, 1, 0, 0, 0)))
        days = calendar.monthrange(year, number)[1]
        self._month_end_s = self._month_start_s + days * 86400.0
