"""How much of what was read is handled in one go."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from mailboat.broker.dispatcher import BrokerDispatcher, Send
from mailboat.broker.processors.send_rounds import SendRounds
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.connection import Connection, ConnectionSet
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
        self.rounds: list[int] = []
        self.awaited = 0
        self.are_all_there = asyncio.Event()

    def send(self, sends: list[Send]) -> None:
        """Take some time."""
        self.rounds.append(len(sends))
        time.sleep(20e-6 * len(sends))
        if sum(self.rounds) >= self.awaited:
            self.are_all_there.set()

    def begin(self, store_others: Callable[[], None], arrivals: object) -> None:
        """Take note of what goes before."""
        self._store_others = store_others

    def store(self) -> None:
        """Leave all reads as they are."""
        reads = list(self.reads.items())
        self.reads.clear()
        self._store_others()
        SendRounds._hand_on(self, reads, time.monotonic() + ROUND_S)  # type: ignore[arg-type]

    def learn(self, places: Iterable[tuple[str, int]]) -> None:
        """Do not care."""


class Transport(asyncio.Transport):
    """Writes to nobody."""

    def __init__(self) -> None:
        """Stand for a connected socket."""
        super().__init__({"peername": ("10.0.0.1", 5000)})

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the mark."""

    def is_closing(self) -> bool:
        """Stay open."""
        return False

    def pause_reading(self) -> None:
        """Go on: what is read meanwhile has to wait."""

    def resume_reading(self) -> None:
        """Nothing was paused."""


@pytest.mark.parametrize("peers", [1, PEERS])
async def test_what_the_core_leaves_of_large_reads_shares_the_loop(
    monkeypatch: pytest.MonkeyPatch, peers: int
) -> None:
    """A second's worth of sends arrives before the loop comes round."""
    sends, dispatcher = SlowSends(), BrokerDispatcher()
    pull: Any = SimpleNamespace(arrivals=nullcontext)
    dispatcher.use(sends, pull, lambda _: None, sends)
    owner = ConnectionSet(RemotingLimits(), name="test", capacity=None, expects_frames=True)
    connections = [Connection(dispatcher, owner) for _ in range(peers)]
    for connection in connections:
        connection.connection_made(Transport())
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
        for connection in connections:
            connection.data_received(data[start : start + READ_BYTES])
    async with asyncio.timeout(10):
        await sends.are_all_there.wait()
    assert max(sends.rounds) <= MOST_AT_ONCE
    assert max(handled) <= 2 * MOST_AT_ONCE
    for connection in connections:
        connection.connection_lost(None)
