"""Long work on the event loop, some milliseconds at a time: everybody else is served in between.

All that is under way takes turns: between two of them the loop looks at every connection once,
however many requests ask for long work.

Turns go round by address, those of an address by connection, and those of a connection by request:
each request waits in the queue of its connection, the first of which waits in that of its address,
the first of which waits in the one for all. So a peer with hundreds of long requests keeps another
one waiting for a single turn.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

TURN_S: Final = 0.005
"""How long one turn may take; the step that reaches it is finished."""

FIRST_TURN_S: Final = 0.001
"""How long work may take that has not waited for its turn: most is done by then, and hundreds of
connections may ask in one round of the loop."""


_SORTED_A_STEP: Final = 2_000


class Asker(NamedTuple):
    """Who asks for long work."""

    address: str = ""
    """ "ip"."""

    connection: object = None


SERVER: Final = Asker()
"""The server itself."""

asker: Final = ContextVar("asker", default=SERVER)
"""For whom a task works. The tasks that it starts inherit it; what others wait for as well begins
with an empty context, so that it does not stand behind the requests of one of them."""

_T = TypeVar("_T")


class Wait:
    """What a generator yields again and again until it is over: others have their turns meanwhile.

    `begin` gets it under way, and calls back on the loop once it is over, whatever came of it.
    """

    def __init__(self, begin: Callable[[Callable[[object], None]], None]) -> None:
        """Wait for what was not begun yet."""
        self._begin: Callable[[Callable[[object], None]], None] | None = begin
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether it has come to its end."""
        return self._over.is_set()

    def steps(self) -> Generator["Wait", None, None]:
        """Return the steps of a generator that waits for it."""
        while not self.is_over:
            yield self

    async def until_over(self) -> None:
        """Begin it, if nobody has, and return once it is over."""
        begin, self._begin = self._begin, None
        if begin is not None:
            begin(self._ended)
        await self._over.wait()

    def _ended(self, _result: object) -> None:
        self._over.set()


# A lock lives as long as somebody has it or waits for it.
_Queues = WeakValueDictionary[tuple[object, ...], asyncio.Lock]
_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queues] = WeakKeyDictionary()


async def in_turns(work: Generator[object, None, _T]) -> _T:
    """Run a generator to its end and return what it returns.

    Its steps must be short: each one, from a `yield` to the next, holds the loop. Where one yields
    a `Wait`, the generator has its next turn after that.
    """
    loop = asyncio.get_running_loop()
    queues = _queues.setdefault(loop, WeakValueDictionary())
    who = asker.get()
    of_connection = queues.setdefault(who, asyncio.Lock())
    of_address = queues.setdefault((who.address,), asyncio.Lock())
    of_all = queues.setdefault((), asyncio.Lock())
    step: object = None
    try:
        while True:
            if isinstance(step, Wait):
                await step.until_over()
            async with of_connection, of_address, of_all:
                # Whoever has its place here keeps it for a round of the loop. Without that nobody
                # would ever find it taken, and all would have their turns in the same round.
                await asyncio.sleep(0)
                end_s = loop.time() + TURN_S
                step = next(work)
                while loop.time() < end_s and not isinstance(step, Wait):
                    step = next(work)
    except StopIteration as done:
        value: _T = done.value
        return value


def listed_steps(items: Iterator[_T]) -> Generator[None, None, list[_T]]:
    """Return what an iterator yields, one item with each step."""
    results = []
    for result in items:
        results.append(result)
        yield
    return results


async def listed_in_turns(items: Iterator[_T]) -> list[_T]:
    """Return what an iterator yields."""
    return await in_turns(listed_steps(items))


def sorted_steps(
    items: Iterable[_T], key: Callable[[_T], Any] | None = None
) -> Generator[None, None, list[_T]]:
    """Sort items, by themselves or by a key, some thousand with each step."""
    left, runs = iter(items), []
    while run := list(islice(left, _SORTED_A_STEP)):
        runs.append(sorted(run, key=key))  # type: ignore[type-var, arg-type]
        yield
    result: list[_T] = []
    merged = heapq.merge(*runs, key=key)  # type: ignore[arg-type]
    while some := list(islice(merged, _SORTED_A_STEP)):
        result += some
        yield
    return result


async def joined_in_turns(slices: Iterator[bytes]) -> bytes:
    """Return what the slices of a body are together."""
    return b"".join(await listed_in_turns(slices))


def first_turn(work: Generator[object, None, _T]) -> _T | None:
    """Run a generator for `FIRST_TURN_S`; return what it returns, None if there is more to do, or
    something to wait for."""
    end_s = time.monotonic() + FIRST_TURN_S
    try:
        while time.monotonic() < end_s and not isinstance(next(work), Wait):
            pass
    except StopIteration as done:
        value: _T = done.value
        return value
    return None
