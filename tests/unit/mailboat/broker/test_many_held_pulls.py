"""As many waiting pulls as a broker takes: whatever happens to them, the event loop stays free."""

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Generator
from typing import cast

import pytest

from mailboat.broker import pull_request_hold
from mailboat.broker.pull_request_hold import HeldPull, PullRequestHoldService
from mailboat.remoting.connection import Connection
from mailboat.store.consume_queue import ConsumeQueue

_PEERS = 8
_PULLS = _PEERS * pull_request_hold.MAX_PER_CONNECTION
# A slice of 10 ms, and what a busy machine makes of it.
_LONGEST_ROUND_S = 0.04


class _Queue:
    """What the service looks at of a queue with new messages."""

    topic = "orders"
    queue_id = 0


class _Peer:
    """A connection of one address, as far as waiting pulls need it."""

    is_closed = False
    is_write_paused = False
    awaited_bytes = 0

    def __init__(self, host: int = 1) -> None:
        self.peer_host = bytes([10, 0, 0, host, 0, 0, 0, 1])

    def keep(self, size: int) -> None:
        """Nothing is kept beside the pull."""
        assert size == 0

    def release(self, size: int) -> None:
        """Nothing was kept."""
        assert size == 0

    def has_room(self) -> bool:
        """Tell whether the peer reads."""
        return not self.is_write_paused


class _Pull(HeldPull, gc=False, eq=False, kw_only=True):
    """Takes note that it was tried, and is answered unless it is `picky`."""

    number: int
    tried: list[int]
    is_picky: bool = False

    def retry(self, is_late: bool) -> bool:
        self.tried.append(self.number)
        return is_late or not self.is_picky


def _pull(peer: _Peer, number: int, tried: list[int]) -> _Pull:
    return _Pull(cast(Connection, peer), 0, number=number, tried=tried)


class _Many:
    """Pulls of several connections that all wait for one queue, turn about."""

    def __init__(self, suspend_s: float = 60.0) -> None:
        self.holds = PullRequestHoldService()
        self.peers = [_Peer() for _ in range(_PEERS)]
        self.tried: list[int] = []
        self.pulls = [
            _pull(self.peers[number % _PEERS], number, self.tried) for number in range(_PULLS)
        ]
        for pull in self.pulls:
            self.holds.hold(pull, "orders", 0, suspend_s)

    def arrive(self) -> None:
        self.holds.on_arrival([cast(ConsumeQueue, _Queue())])

    def left(self) -> int:
        """Return how many pulls somebody else still has."""
        free = [_pull(self.peers[0], 0, [])]
        (nobody_else,) = [sys.getrefcount(pull) for pull in free]
        return sum(sys.getrefcount(pull) > nobody_else for pull in self.pulls)

    async def run(self, is_done: Callable[[], bool]) -> float:
        """Let the loop run until something is so; return the work of its longest round."""
        longest_s = 0.0
        while not is_done():
            longest_s = max(longest_s, await _round())
        return longest_s


async def _round() -> float:
    """Return the work of the loop's next round."""
    began_s = time.thread_time()
    await asyncio.sleep(0)
    return time.thread_time() - began_s


@pytest.fixture(autouse=True)
def uncollected() -> Generator[None, None, None]:
    """A collection is not the service's work, and comes when it likes."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


async def test_a_message_that_wakes_all_holds_the_loop_for_a_slice_only() -> None:
    """They are answered who waits longest first, each once."""
    many = _Many()
    many.arrive()
    longest_s = await many.run(lambda: len(many.holds) == 0)
    assert many.tried == list(range(_PULLS))
    assert longest_s < _LONGEST_ROUND_S


async def test_peers_that_do_not_read_hold_the_loop_for_a_slice_only() -> None:
    """To put a pull off takes time, too; when they read, the longest waiting one comes first."""
    many = _Many()
    for peer in many.peers[1:]:
        peer.is_write_paused = True
    many.arrive()
    longest_s = await many.run(lambda: len(many.tried) == _PULLS // _PEERS)
    for peer in many.peers[1:]:
        peer.is_write_paused = False
        asyncio.get_running_loop().call_soon(many.holds.writing_resumed, cast(Connection, peer))
        longest_s = max(longest_s, await _round())
    longest_s = max(longest_s, await many.run(lambda: len(many.holds) == 0))
    assert [number for number in many.tried if number % _PEERS == 5] == list(
        range(5, _PULLS, _PEERS)
    )
    assert sorted(many.tried) == list(range(_PULLS))
    assert longest_s < _LONGEST_ROUND_S


async def test_a_time_that_ends_for_all_holds_the_loop_for_a_slice_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is answered, who came first before the others."""
    monkeypatch.setattr(pull_request_hold, "SLOT_S", 2.0)
    many = _Many(suspend_s=0.0)
    longest_s = await many.run(lambda: len(many.holds) == 0)
    assert many.tried == list(range(_PULLS))
    assert longest_s < _LONGEST_ROUND_S


async def test_a_connection_that_ends_holds_the_loop_for_a_slice_only() -> None:
    """All its pulls go, untried even if a message comes while they do; nothing of them stays."""
    many = _Many()
    loop = asyncio.get_running_loop()
    for peer in many.peers[1:]:
        peer.is_closed = True
        loop.call_soon(many.holds.connection_closed, cast(Connection, peer))
    many.arrive()
    longest_s = await many.run(lambda: len(many.holds) == 0)
    assert many.tried == list(range(0, _PULLS, _PEERS))
    assert longest_s < _LONGEST_ROUND_S
    assert not many.left()


async def test_an_end_holds_the_loop_for_a_slice_only() -> None:
    """All are answered, as if their time were up."""
    many = _Many()
    for pull in many.pulls:
        pull.is_picky = True
    closing = asyncio.ensure_future(many.holds.close())
    longest_s = await many.run(closing.done)
    assert sorted(many.tried) == list(range(_PULLS))
    assert len(many.holds) == 0
    assert longest_s < _LONGEST_ROUND_S


async def test_many_that_want_another_message_do_not_keep_one_that_wants_this_one() -> None:
    """Pulls that are tried in vain go on waiting, each tried once for each message; the queues
    that got messages take turns."""
    many = _Many()
    for pull in many.pulls:
        pull.is_picky = True
    other: list[int] = []
    many.holds.hold(_pull(_Peer(host=2), 1, other), "orders", 1, 60.0)
    many.arrive()
    queue = _Queue()
    queue.queue_id = 1
    many.holds.on_arrival([cast(ConsumeQueue, queue)])
    await many.run(lambda: bool(other))
    assert len(many.tried) < _PULLS
    await many.run(lambda: len(many.tried) == _PULLS)
    many.arrive()
    await many.run(lambda: len(many.tried) == 2 * _PULLS)
    assert many.tried == list(range(_PULLS)) * 2
    assert len(many.holds) == _PULLS


async def test_a_pull_that_goes_while_others_are_tried_leaves_nothing_behind() -> None:
    """Also the one whose turn it would be; the others keep theirs."""
    many = _Many()
    many.arrive()
    await asyncio.sleep(0)
    done = len(many.tried)
    assert 0 < done < _PULLS
    gone = many.peers[done % _PEERS]
    gone.is_closed = True
    many.holds.connection_closed(cast(Connection, gone))
    await many.run(lambda: len(many.holds) == 0)
    assert many.tried[:done] == list(range(done))
    assert many.tried[done:] == [
        number for number in range(done, _PULLS) if number % _PEERS != done % _PEERS
    ]
    assert not many.left()


async def test_the_collector_does_not_look_at_pulls_that_wait() -> None:
    """A full collection would take a microsecond for each object of theirs."""
    before = len(gc.get_objects())
    many = _Many()
    gc.collect()
    assert len(gc.get_objects()) - before < _PULLS // 100
    assert len(many.holds) == _PULLS
