"""Waiting pulls: woken by a message, by their time, or forgotten with their connection."""

import asyncio
from collections.abc import Callable
from typing import cast

from mailboat.broker.pull_request_hold import SLOT_S, PullRequestHoldService
from mailboat.remoting.connection import Connection
from mailboat.store.consume_queue import ConsumeQueue


class _Queue:
    """What the service looks at of a queue with new messages."""

    def __init__(self, queue_id: int) -> None:
        self.topic = "orders"
        self.queue_id = queue_id


class _Waiters:
    """Pulls that note when they were tried."""

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

        peer = cast(Connection, connection or self)
        self.holds.hold(peer, "orders", queue_id, suspend_s, retry)

    def arrive(self, *queue_ids: int) -> None:
        self.holds.on_arrival([cast(ConsumeQueue, _Queue(queue_id)) for queue_id in queue_ids])


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


async def test_a_pull_is_answered_when_its_time_is_up_and_not_before() -> None:
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


async def test_a_pull_that_was_answered_is_not_answered_again_at_its_time() -> None:
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
    gone = object()
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
    waiters.holds.close()
    assert waiters.tried == [("first", True), ("other", True)]
    assert len(waiters.holds) == 0
