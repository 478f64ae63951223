"""Waiting pulls: woken by a message, by their time, or forgotten with their connection."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from mailboat.broker import pull_request_hold
from mailboat.broker.pull_request_hold import SLOT_S, HeldPull, PullRequestHoldService
from mailboat.errors import BrokerError
from mailboat.protocol.codes import ResponseCode
from mailboat.remoting.connection import Connection
from mailboat.store.consume_queue import ConsumeQueue
from mailboat.testing.virtual_time import VirtualTime


class _Queue:
    """What the service looks at of a queue with new messages."""

    def __init__(self, queue_id: int) -> None:
        self.topic = "orders"
        self.queue_id = queue_id


class _Pull(HeldPull, gc=False, eq=False, kw_only=True):
    """A pull that calls something to be tried."""

    call: Callable[[bool], bool]
    failure: Exception | None = None

    def retry(self, is_late: bool) -> bool:
        return self.call(is_late)

    def failed(self, error: Exception) -> None:
        self.failure = error


def _pull(peer: object, call: Callable[[bool], bool], size: int = 0) -> _Pull:
    return _Pull(cast(Connection, peer), size, call=call)


class _Waiters:
    """Pulls that note when they were tried, and the connection of most of them."""

    is_closed = False
    is_write_paused = False
    is_roomy = True
    awaited_bytes = 0
    peer_host = b"\x0a\0\0\1\0\0\0\1"

    def keep(self, size: int) -> None:
        """Count bytes."""
        self.awaited_bytes += size

    def release(self, size: int) -> None:
        """Count them no more."""
        self.awaited_bytes -= size

    def has_room(self) -> bool:
        """Tell whether the peer reads and there is memory."""
        return self.is_roomy and not self.is_write_paused

    def __init__(self) -> None:
        self.holds = PullRequestHoldService()
        self.tried: list[tuple[str, bool]] = []
        self.late = asyncio.Event()

    def hold(
        self,
        name: str,
        *,
        queue_id: int = 0,
        suspend_s: float = 60.0,
        is_answered: bool = True,
        connection: object = None,
    ) -> None:
        def retry(is_late: bool) -> bool:
            self.tried.append((name, is_late))
            if is_late:
                self.late.set()
            return is_answered or is_late

        self.holds.hold(_pull(connection or self, retry), "orders", queue_id, suspend_s)

    def arrive(self, *queue_ids: int) -> None:
        self.holds.on_arrival([cast(ConsumeQueue, _Queue(queue_id)) for queue_id in queue_ids])


def _done_by(call: Callable[[], None]) -> Callable[[bool], bool]:
    """Return how a pull is tried that is answered by a call."""

    def retry(_: bool) -> bool:
        call()
        return True

    return retry


async def _next_round() -> None:
    """Return once everything that is due in this round of the loop has run."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    call: Callable[[], None] = done.set
    loop.call_soon(call)
    await done.wait()


async def test_a_message_wakes_the_pulls_of_its_queue_only() -> None:
    """In the order in which they came, and once however many messages arrive in one round."""
    waiters = _Waiters()
    waiters.hold("first")
    waiters.hold("second")
    waiters.hold("other", queue_id=1)
    waiters.arrive(0)
    waiters.arrive(0, 2)
    assert waiters.tried == []
    await _next_round()
    assert waiters.tried == [("first", False), ("second", False)]
    assert len(waiters.holds) == 1


@pytest.mark.parametrize("way", ["message", "time"])
async def test_a_pull_that_cannot_be_tried_keeps_no_other_waiting(way: str) -> None:
    """It is told and done with; the others are tried, and so are those whose time comes later."""

    def fail(_: bool) -> bool:
        raise LookupError("no filter")

    waiters = _Waiters()
    bad = _pull(waiters, fail)
    waiters.holds.hold(bad, "orders", 0, SLOT_S)
    waiters.hold("good", suspend_s=60.0 if way == "message" else 2 * SLOT_S)
    if way == "message":
        waiters.arrive(0)
        await _next_round()
    else:
        async with asyncio.timeout(5):
            await waiters.late.wait()
    assert isinstance(bad.failure, LookupError)
    assert [name for name, _ in waiters.tried] == ["good"]
    assert len(waiters.holds) == 0


async def test_messages_stored_together_wake_at_once_when_all_are_stored() -> None:
    """Inside `with` nothing is answered; at its end every pull is, without another round."""
    waiters = _Waiters()
    waiters.hold("first")
    waiters.hold("other", queue_id=1)
    with waiters.holds:
        waiters.arrive(0)
        waiters.arrive(1)
        waiters.arrive(0)
        assert waiters.tried == []
    assert sorted(waiters.tried) == [("first", False), ("other", False)]
    await _next_round()
    assert len(waiters.tried) == 2


async def test_what_arrived_before_and_inside_is_tried_once() -> None:
    """The wake-up that was due for later finds nothing more to do."""
    waiters = _Waiters()
    waiters.hold("first", is_answered=False)
    waiters.arrive(0)
    with waiters.holds:
        waiters.arrive(0)
    await _next_round()
    assert waiters.tried == [("first", False)]


async def test_a_pull_that_is_not_answered_goes_on_waiting() -> None:
    """It is tried again with the next message."""
    waiters = _Waiters()
    waiters.hold("picky", is_answered=False)
    for _ in range(2):
        with waiters.holds:
            waiters.arrive(0)
    assert waiters.tried == [("picky", False)] * 2
    assert len(waiters.holds) == 1


async def test_a_pull_is_answered_when_its_time_is_up_and_not_before(
    driven_time: VirtualTime,
) -> None:
    """The shorter one first, whatever order they came in; each once and at most a slot late."""
    waiters = _Waiters()
    loop = asyncio.get_running_loop()
    began = loop.time()
    waiters.hold("long", suspend_s=0.3)
    waiters.hold("short", suspend_s=0.1)
    await waiters.late.wait()
    assert 0.1 <= loop.time() - began + 0.001
    assert waiters.tried == [("short", True)]
    waiters.late.clear()
    await waiters.late.wait()
    assert 0.3 <= loop.time() - began + 0.001
    assert waiters.tried == [("short", True), ("long", True)]
    assert len(waiters.holds) == 0


async def test_a_pull_that_was_answered_is_not_answered_again_at_its_time(
    driven_time: VirtualTime,
) -> None:
    """Its deadline went with it: the timer passes without a call."""
    waiters = _Waiters()
    waiters.hold("answered", suspend_s=0.05)
    with waiters.holds:
        waiters.arrive(0)
    waiters.hold("later", suspend_s=0.05 + 3 * SLOT_S)
    await waiters.late.wait()
    assert waiters.tried == [("answered", False), ("later", True)]


async def test_the_pulls_of_a_connection_go_with_it() -> None:
    """Those of others stay, and nobody writes to the one that is gone."""
    waiters = _Waiters()
    gone = _Waiters()
    waiters.hold("gone", connection=gone)
    waiters.hold("gone too", queue_id=1, connection=gone)
    waiters.hold("stays")
    waiters.holds.connection_closed(cast(Connection, gone))
    assert len(waiters.holds) == 1
    with waiters.holds:
        waiters.arrive(0, 1)
    assert waiters.tried == [("stays", False)]


async def test_closing_answers_all_as_if_their_time_were_up() -> None:
    """Nobody waits in vain for a broker that stops."""
    waiters = _Waiters()
    waiters.hold("first")
    waiters.hold("other", queue_id=1, is_answered=False)
    await waiters.holds.close()
    assert waiters.tried == [("first", True), ("other", True)]
    assert len(waiters.holds) == 0


async def test_a_peer_that_does_not_read_is_answered_when_it_does(driven_time: VirtualTime) -> None:
    """One by one, as long as it reads; a time that is up meanwhile is no reason to write."""
    waiters, peer = _Waiters(), _Waiters()
    for name in ("first", "second", "third"):
        waiters.hold(name, suspend_s=0.05, connection=peer)
    waiters.hold("other")
    peer.is_write_paused = True
    waiters.arrive(0)
    await asyncio.sleep(0.05 + 2 * SLOT_S)
    assert waiters.tried == [("other", False)]
    waiters.tried.clear()
    peer.is_write_paused = False
    waiters.holds.writing_resumed(cast(Connection, peer))
    assert waiters.tried == [(name, True) for name in ("first", "second", "third")]
    assert len(waiters.holds) == 0


async def test_a_peer_that_stops_reading_again_keeps_the_rest_waiting() -> None:
    """What its answers fill is seen between two of them."""
    waiters = _Waiters()
    tried: list[int] = []

    def fill(number: int) -> Callable[[bool], bool]:
        def retry(_: bool) -> bool:
            tried.append(number)
            waiters.is_write_paused = True
            return True

        return retry

    peer = cast(Connection, waiters)
    for number in range(3):
        waiters.holds.hold(_pull(peer, fill(number)), "orders", 0, 60.0)
    with waiters.holds:
        waiters.arrive(0)
    for expected in ([0], [0, 1], [0, 1, 2]):
        assert tried == expected
        waiters.is_write_paused = False
        waiters.holds.writing_resumed(peer)
    assert len(waiters.holds) == 0


async def test_short_memory_lets_pulls_wait_until_there_is_room(driven_time: VirtualTime) -> None:
    """Nobody has to say so: it is looked for."""
    waiters = _Waiters()
    waiters.is_roomy = False
    waiters.hold("first")
    answered = asyncio.Event()
    waiters.holds.keep(_pull(waiters, _done_by(answered.set)))()
    with waiters.holds:
        waiters.arrive(0)
    await asyncio.sleep(0.03)
    assert (waiters.tried, answered.is_set()) == ([], False)
    waiters.is_roomy = True
    await answered.wait()
    await _next_round()
    assert waiters.tried == [("first", False)]


async def test_a_message_that_wakes_many_does_not_hold_the_loop() -> None:
    """They are answered in slices, in the order in which they came, each once."""
    waiters = _Waiters()
    tried: list[int] = []

    def slow(number: int) -> Callable[[bool], bool]:
        def retry(_: bool) -> bool:
            began_s = time.monotonic()
            while time.monotonic() < began_s + 0.001:
                pass
            tried.append(number)
            return True

        return retry

    for number in range(60):
        waiters.holds.hold(_pull(waiters, slow(number)), "orders", 0, 60.0)
    waiters.arrive(0)
    rounds = 0
    while len(tried) < 60:
        before = len(tried)
        await _next_round()
        assert len(tried) - before <= 24  # two slices
        rounds += 1
    assert rounds >= 3
    assert tried == list(range(60))


async def test_what_waits_for_something_else_is_tried_when_it_is_there() -> None:
    """Unless its connection has ended; what went on to wait for a message does so."""
    waiters = _Waiters()
    gone = _Waiters()
    tried: list[str] = []

    calls = [
        waiters.holds.keep(_pull(peer, _done_by(partial(tried.append, name))))
        for name, peer in (("gone", gone), ("here", waiters))
    ]
    waiters.holds.connection_closed(cast(Connection, gone))
    for call in calls:
        call()
        call()
    assert tried == ["here"]


async def test_waiting_pulls_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Per connection and in all; who goes makes room."""
    monkeypatch.setattr(pull_request_hold, "MAX_PER_CONNECTION", 2)
    monkeypatch.setattr(pull_request_hold, "MAX_HELD", 3)
    waiters, other, third = _Waiters(), _Waiters(), _Waiters()
    waiters.hold("a")
    waiters.hold("b", queue_id=1)
    with pytest.raises(BrokerError, match="2 pulls of this connection and 2 in all wait") as error:
        waiters.hold("c", queue_id=2)
    assert error.value.code == ResponseCode.SYSTEM_BUSY
    waiters.hold("d", connection=other)
    with pytest.raises(BrokerError, match="0 pulls of this connection and 3 in all"):
        waiters.holds.keep(_pull(third, lambda _: True))
    waiters.holds.connection_closed(cast(Connection, other))
    waiters.hold("e", connection=third)
    assert len(waiters.holds) == 3


async def test_one_address_leaves_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many connections it opens; who goes makes room."""
    monkeypatch.setattr(pull_request_hold, "MAX_PER_ADDRESS", 2)
    waiters, same, other = _Waiters(), _Waiters(), _Waiters()
    same.peer_host = b"\x0a\0\0\1\0\0\0\2"
    other.peer_host = b"\x0a\0\0\2\0\0\0\1"
    waiters.hold("a")
    waiters.hold("b", connection=same)
    with pytest.raises(BrokerError, match="half of them for one address"):
        waiters.hold("c", connection=same)
    waiters.hold("d", connection=other)
    waiters.holds.connection_closed(cast(Connection, same))
    waiters.hold("e")
    assert len(waiters.holds) == 3


async def test_the_texts_of_waiting_pulls_are_kept_for_their_peer() -> None:
    """They are counted while they wait, and a connection has no more than a share of them."""
    waiters = _Waiters()
    peer = cast(Connection, waiters)
    half = pull_request_hold.MAX_BYTES_PER_CONNECTION // 2
    waiters.holds.hold(_pull(peer, lambda _: True, half), "orders", 0, 60.0)
    ready = waiters.holds.keep(_pull(peer, lambda _: True, half))
    with pytest.raises(BrokerError, match="bytes of subscriptions") as error:
        waiters.holds.hold(_pull(peer, lambda _: True, 1), "orders", 1, 60.0)
    assert error.value.code == ResponseCode.SYSTEM_BUSY
    waiters.holds.hold(_pull(peer, lambda _: True), "orders", 1, 60.0)
    assert waiters.awaited_bytes == 2 * half
    ready()
    assert waiters.awaited_bytes == half
    waiters.holds.connection_closed(peer)
    assert waiters.awaited_bytes == 0
