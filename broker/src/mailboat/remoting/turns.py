"""Long work on the event loop, some milliseconds at a time: everybody else is served in between.

All that is under way takes turns: between two of them the loop looks at every connection once,
however many requests ask for long work.
"""

import asyncio
import time
from collections.abc import Generator, Iterator
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

TURN_S: Final = 0.005
"""How long one turn may take; the step that reaches it is finished."""

_T = TypeVar("_T")
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def in_turns(work: Generator[object, None, _T]) -> _T:
    """Run a generator to its end and return what it returns.

    Its steps must be short: each one, from a `yield` to the next, holds the loop.
    """
    loop = asyncio.get_running_loop()
    turn = _turns.setdefault(loop, asyncio.Lock())
    try:
        while True:
            # Who waits here is woken in the next round of the loop, the longest waiting one first.
            async with turn:
                end_s = loop.time() + TURN_S
                while loop.time() < end_s:
                    next(work)
            await asyncio.sleep(0)
    except StopIteration as done:
        value: _T = done.value
        return value


async def listed_in_turns(steps: Iterator[_T]) -> list[_T]:
    """Return what an iterator yields."""

    def work() -> Generator[None, None, list[_T]]:
        results = []
        for result in steps:
            results.append(result)
            yield
        return results

    return await in_turns(work())


async def joined_in_turns(slices: Iterator[bytes]) -> bytes:
    """Return what the slices of a body are together."""
    return b"".join(await listed_in_turns(slices))


def first_turn(work: Generator[object, None, _T]) -> _T | None:
    """Run a generator for one turn; return what it returns, None if there is more to do."""
    end_s = time.monotonic() + TURN_S
    try:
        while time.monotonic() < end_s:
            next(work)
    except StopIteration as done:
        value: _T = done.value
        return value
    return None
