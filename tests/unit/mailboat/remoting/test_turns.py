"""Promises of mailboat.remoting.turns."""

import asyncio
import time
from collections.abc import Generator
from contextvars import Context, copy_context
from itertools import pairwise

import pytest

import mailboat.remoting.turns as turns
from mailboat.remoting.turns import Asker, asker, in_turns

STEPS = 5
REQUESTS = 200


class Work:
    """Long work of several peers; takes note of whose steps were done, in order."""

    def __init__(self) -> None:
        """Begin with nothing done."""
        self.done: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, name: str, address: str, connection: object) -> "asyncio.Task[None]":
        """Begin a request of a peer with so many steps, each as long as a turn."""
        context = copy_context()
        context.run(asker.set, Asker(address, connection))
        return self._begin(name, context)

    def begin_own(self, name: str) -> "asyncio.Task[None]":
        """Begin work of the server itself."""
        return self._begin(name, Context())

    async def end(self) -> None:
        """Wait for all of it."""
        await asyncio.gather(*self._tasks)

    def _begin(self, name: str, context: Context) -> "asyncio.Task[None]":
        def steps() -> Generator[None, None, None]:
            for _ in range(STEPS):
                self.done.append(name)
                until_s = time.monotonic() + turns.TURN_S
                while time.monotonic() < until_s:
                    pass
                yield

        task = asyncio.get_running_loop().create_task(in_turns(steps()), context=context)
        self._tasks.append(task)
        return task


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand turns take little time."""
    monkeypatch.setattr(turns, "TURN_S", 0.0002)


async def test_a_connection_with_many_requests_has_one_turn_of_each_round() -> None:
    """Another one of the same address waits for as many turns as it takes, not for all of them."""
    work = Work()
    for _ in range(REQUESTS):
        work.begin("many", "10.0.0.1", "first")
    await asyncio.sleep(0)
    await work.begin("one", "10.0.0.1", "second")
    assert work.done.count("one") == STEPS
    assert work.done.count("many") <= STEPS + 3
    await work.end()
    assert work.done.count("many") == REQUESTS * STEPS


async def test_an_address_with_many_connections_has_one_turn_of_each_round() -> None:
    """Whoever comes from elsewhere does not stand behind hundreds of clients, nor does the
    server's own work."""
    work = Work()
    for number in range(REQUESTS):
        work.begin("many", "10.0.0.1", number)
    await asyncio.sleep(0)
    await asyncio.gather(work.begin("one", "10.0.0.2", "alone"), work.begin_own("server"))
    assert work.done.count("one") == work.done.count("server") == STEPS
    assert work.done.count("many") <= STEPS + 3
    await work.end()


async def test_requests_of_one_connection_take_turns_too() -> None:
    """The last of them is done about when the first one is."""
    work = Work()
    for name in "abc":
        work.begin(name, "10.0.0.1", "same")
    await work.end()
    assert work.done == list("abc") * STEPS


async def test_the_loop_looks_at_everybody_between_two_turns() -> None:
    """However many begin and end together, a callback never waits for more than one of them."""
    work = Work()
    seen: list[int] = []

    def look() -> None:
        seen.append(len(work.done))
        if seen[-1] < REQUESTS * STEPS:
            asyncio.get_running_loop().call_soon(look)

    for number in range(REQUESTS):
        work.begin("many", f"10.0.0.{number}", number)
    look()
    await work.end()
    assert max(after - before for before, after in pairwise(seen)) <= 2


async def test_nothing_is_kept_of_work_that_has_ended() -> None:
    """Connections come and go, and so do their places; also of work that fails or is given up."""
    work = Work()
    given_up = work.begin("a", "10.0.0.1", "first")
    behind = work.begin("b", "10.0.0.1", "first")
    await asyncio.sleep(0)
    given_up.cancel()
    await behind
    with pytest.raises(asyncio.CancelledError):
        await given_up

    def fails() -> Generator[None, None, None]:
        yield
        raise OSError("as planned")

    with pytest.raises(OSError, match="as planned"):
        await in_turns(fails())
    assert not turns._queues[asyncio.get_running_loop()]
