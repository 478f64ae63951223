"""Answers to queries by key: how their bytes reach the connection."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from mailboat.broker.context import BrokerContext
from mailboat.broker.processors import query
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder
from mailboat.remoting.connection import Connection
from mailboat.remoting.connection_set import ConnectionSet
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.limits import RemotingLimits
from mailboat.store.key_search import KeyQuery, QueryResult


class _Transport(asyncio.Transport):
    """Keeps the very objects that are written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 5000)})
        self.written: list[bytes] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the mark."""

    def get_write_buffer_size(self) -> int:
        """Nothing is unsent."""
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take note."""
        self.written.append(cast(bytes, data))

    def is_closing(self) -> bool:
        """Never."""
        return False


def _broker(records: list[bytes]) -> BrokerContext:
    """Return a broker with a store that finds some records, whatever it is asked for."""

    def search(
        _: KeyQuery, done: Callable[[QueryResult | None, BaseException | None], None]
    ) -> None:
        done(QueryResult(records, 7, 8), None)

    return cast(
        BrokerContext,
        SimpleNamespace(
            store=SimpleNamespace(search=search), store_threads=SimpleNamespace(can_search=True)
        ),
    )


async def _ask(records: list[bytes], request: RemotingCommand) -> list[bytes]:
    """Return what is written to the one who asks."""
    dispatcher = Dispatcher()
    query.register(dispatcher, _broker(records))
    owner = ConnectionSet(RemotingLimits(), name="test", capacity=None, expects_frames=True)
    connection = Connection(dispatcher, owner)
    transport = _Transport()
    connection.connection_made(transport)
    connection.data_received(request.encode())
    await dispatcher.drain(5)
    return transport.written


def _request(*, oneway: bool = False, serialize_type: int = 0) -> RemotingCommand:
    fields: dict[str, ExtValue] = {
        "topic": "T", "key": "k", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 2**62,
    }  # fmt: skip
    request = RemotingCommand.request(RequestCode.QUERY_MESSAGE, fields, oneway=oneway)
    request.opaque = 5
    request.serialize_type = serialize_type
    return request


@pytest.mark.parametrize("serialize_type", [0, 1])
async def test_large_records_are_written_as_they_are(serialize_type: int) -> None:
    """Not one byte of them is copied on the event loop, and together they are one frame."""
    records = [bytes([number]) * 300_000 for number in range(4)]
    head, *written = await _ask(records, _request(serialize_type=serialize_type))
    assert [id(record) for record in written] == [id(record) for record in records]
    (frame,) = FrameDecoder().feed(b"".join([head, *written]))
    answer = decode_command(frame)
    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 5)
    assert answer.ext_fields == {
        "indexLastUpdateTimestamp": "7",
        "indexLastUpdatePhyoffset": "8",
    }
    assert answer.body == b"".join(records)


async def test_small_records_leave_with_one_write() -> None:
    """A packet for each would cost more than the copy."""
    records = [bytes([number]) * 100 for number in range(64)]
    (written,) = await _ask(records, _request())
    (frame,) = FrameDecoder().feed(written)
    assert decode_command(frame).body == b"".join(records)


async def test_a_query_that_wants_no_answer_gets_none() -> None:
    """However much was found."""
    assert await _ask([bytes(300_000)], _request(oneway=True)) == []
