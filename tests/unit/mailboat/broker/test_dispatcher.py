"""How much of what was read is handled in one go, and when it is answered."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from mailboat.broker.dispatcher import BrokerDispatcher, Send
from mailboat.broker.processors.send_rounds import SendRounds
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder
from mailboat.protocol.send_header import PullRequest
from mailboat.remoting.connection import Connection
from mailboat.remoting.connection_set import ConnectionSet
from mailboat.remoting.dispatcher import ROUND_S
from mailboat.remoting.limits import RemotingLimits

READ_BYTES = 256 * 1024  # what the loop reads at most before it hands it on
PEERS = 8
MOST_AT_ONCE = 512
SEND = {
    "a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
    "i": "", "j": "0", "k": "false",
}  # fmt: skip


class SlowSends:
    """Takes as long for each send as storing it alone does, and leaves everything to itself."""

    def __init__(self) -> None:
        """Begin without sends."""
        self.reads: dict[Connection, bytes] = {}
        self._kept: dict[Connection, int] = {}
        self.rounds: list[int] = []
        self.awaited = 0
        self.are_all_there = asyncio.Event()
        self.store_others: Callable[[], None] = lambda: None

    def send(self, sends: list[Send]) -> None:
        """Take some time."""
        self.rounds.append(len(sends))
        time.sleep(20e-6 * len(sends))
        if sum(self.rounds) >= self.awaited:
            self.are_all_there.set()

    def store(self) -> None:
        """Leave all reads as they are."""
        reads = list(self.reads.items())
        self.reads.clear()
        self.store_others()
        SendRounds._leave(self, reads, 0, time.monotonic() + ROUND_S)  # type: ignore[arg-type]

    def learn(self, places: Iterable[tuple[str, int]]) -> None:
        """Do not care."""


class Transport(asyncio.Transport):
    """Writes to nobody."""

    def __init__(self) -> None:
        """Stand for a connected socket."""
        super().__init__({"peername": ("10.0.0.1", 5000)})
        self.is_read = asyncio.Event()
        self.is_read.set()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the mark."""

    def is_closing(self) -> bool:
        """Stay open."""
        return False

    def pause_reading(self) -> None:
        """Take note."""
        self.is_read.clear()

    def resume_reading(self) -> None:
        """Take note."""
        self.is_read.set()


class NotedTransport(Transport):
    """Takes note of what is written, and of its end."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take note."""
        assert not self.is_closed
        self.written.append(bytes(data))

    def close(self) -> None:
        """Take note."""
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        """Return that all was read."""
        return 0

    def answers(self) -> list[RemotingCommand]:
        """Return what was written."""
        return [decode_command(frame) for frame in FrameDecoder().feed(b"".join(self.written))]


class Pulls:
    """Finds a body for every pull, or fails."""

    arrivals = nullcontext

    def __init__(self, body: bytes = b"records") -> None:
        """Find this one."""
        self.body = body

    def pull(self, connection: Connection, request: PullRequest) -> list[bytes]:
        """Answer in two pieces."""
        assert not connection.is_closed
        if request.fields.topic == "damaged":
            raise ZeroDivisionError("of the test")
        command = RemotingCommand.request(request.code)
        command.opaque = request.opaque
        return [command.response(0).encode_head(len(self.body)), self.body]


PULL = {
    "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
}  # fmt: skip


def pull_frame(opaque: int, *, body: bytes = b"", **changes: str) -> bytes:
    """Return one PULL_MESSAGE."""
    command = RemotingCommand.request(RequestCode.PULL_MESSAGE, PULL | changes, body)
    command.opaque = opaque
    return command.encode()


def connect(pulls: Pulls, count: int) -> list[tuple[Connection, NotedTransport]]:
    """Connect so many peers to a dispatcher with these pulls."""
    dispatcher, sends = BrokerDispatcher(), SlowSends()
    sends.store_others = dispatcher.store_gathered
    processor: Any = pulls
    dispatcher.use(sends, processor, lambda _: None, sends)
    owner = ConnectionSet(RemotingLimits(), name="test", capacity=None, expects_frames=True)
    pairs = [(Connection(dispatcher, owner), NotedTransport()) for _ in range(count)]
    for connection, transport in pairs:
        connection.connection_made(transport)
    return pairs


@pytest.mark.parametrize("peers", [1, PEERS])
async def test_what_the_core_leaves_of_large_reads_shares_the_loop(
    monkeypatch: pytest.MonkeyPatch, peers: int
) -> None:
    """A second's worth of sends arrives as fast as it is read."""
    sends, dispatcher = SlowSends(), BrokerDispatcher()
    sends.store_others = dispatcher.store_gathered
    pull: Any = SimpleNamespace(arrivals=nullcontext)
    dispatcher.use(sends, pull, lambda _: None, sends)
    owner = ConnectionSet(RemotingLimits(), name="test", capacity=None, expects_frames=True)
    pairs = [(Connection(dispatcher, owner), Transport()) for _ in range(peers)]
    for connection, transport in pairs:
        connection.connection_made(transport)
    one = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, SEND, b"x").encode()
    count = READ_BYTES * 16 // peers // len(one)
    data = one * count
    sends.awaited = count * peers
    handled: list[int] = []
    store = sends.store

    def noted() -> None:
        before = sum(sends.rounds)
        store()
        handled.append(sum(sends.rounds) - before)

    monkeypatch.setattr(sends, "store", noted)
    for start in range(0, len(data), READ_BYTES):
        for connection, transport in pairs:
            while not transport.is_read.is_set():  # It may be paused again by now.
                await transport.is_read.wait()
            connection.data_received(data[start : start + READ_BYTES])
    async with asyncio.timeout(10):
        await sends.are_all_there.wait()
    assert max(sends.rounds) <= MOST_AT_ONCE
    assert max(handled) <= 2 * MOST_AT_ONCE
    for connection, _ in pairs:
        connection.connection_lost(None)


async def test_pulls_of_a_round_are_answered_at_its_end_together() -> None:
    """Clients that are answered together come together in the next round."""
    pairs = connect(Pulls(), PEERS)
    for number, (connection, _) in enumerate(pairs):
        connection.data_received(pull_frame(number))
    assert [transport.written for _, transport in pairs] == [[]] * PEERS
    await asyncio.sleep(0)
    for number, (connection, transport) in enumerate(pairs):
        (answer,) = transport.answers()
        assert (answer.opaque, answer.code, answer.body) == (number, 0, b"records")
        connection.connection_lost(None)


async def test_few_answers_wait_for_the_end_of_a_round() -> None:
    """They are in no budget until they are written: a megabyte of them is written at once."""
    pairs = connect(Pulls(bytes(READ_BYTES)), PEERS)
    for number, (connection, _) in enumerate(pairs):
        connection.data_received(pull_frame(number))
    assert [len(transport.written) for _, transport in pairs] == [1] * PEERS
    for connection, _ in pairs:
        connection.connection_lost(None)


async def test_answers_do_not_wait_for_the_end_of_a_long_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hundreds of pulls may look through two milliseconds of messages each."""
    pairs = connect(Pulls(), PEERS)
    now_s = itertools.count(0.0, ROUND_S / 2.5)
    monkeypatch.setattr(time, "monotonic", lambda: next(now_s))
    for number, (connection, _) in enumerate(pairs):
        connection.data_received(pull_frame(number))
    waiting = [number for number, (_, transport) in enumerate(pairs) if not transport.written]
    assert len(waiting) <= 2
    monkeypatch.undo()
    for connection, _ in pairs:
        connection.connection_lost(None)


@pytest.mark.parametrize("end", ["eof", "malformed input"])
async def test_a_peer_that_ends_gets_what_its_pull_has_found(end: str) -> None:
    """Nothing is written to a connection that is closed."""
    ((connection, transport),) = connect(Pulls(), 1)
    connection.data_received(pull_frame(7))
    if end == "eof":
        connection.eof_received()
    else:
        connection.data_received(b"GET / HTTP/1.1")
    assert transport.is_closed
    assert [answer.opaque for answer in transport.answers()] == [7]
    connection.connection_lost(None)


async def test_pulls_of_any_form_are_answered() -> None:
    """Alone or with others, whole or in parts, with a body, of a field too few, or in failure."""
    reads = [
        [pull_frame(0)],
        [pull_frame(1) + pull_frame(2)],
        [pull_frame(3)[:-1], pull_frame(3)[-1:] + pull_frame(4)[:20], pull_frame(4)[20:]],
        [pull_frame(5, body=b"of no use")],
        [pull_frame(6, topic="damaged")],
        [pull_frame(7, topic="damaged") + pull_frame(8)],
        [pull_frame(9, queueId="one")],
        [pull_frame(10, queueId="one") + pull_frame(11)],
    ]
    ((connection, transport),) = connect(Pulls(), 1)
    for parts in reads:
        for part in parts:
            connection.data_received(part)
        await asyncio.sleep(0)
    answers = transport.answers()
    assert [answer.opaque for answer in answers] == list(range(12))
    assert [answer.opaque for answer in answers if answer.code] == [6, 7, 9, 10]
    assert answers[6].remark == "internal error: ZeroDivisionError: of the test"
    assert "queueId" in str(answers[9].remark)
    assert connection.kept_bytes() == 0
    connection.connection_lost(None)
