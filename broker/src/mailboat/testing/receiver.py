"""A handler for tests: it keeps what it gets and lets a test wait for it.

receiver = Receiver()
consumer.subscribe("orders", "*", receiver)
async with consumer:
    assert await receiver.wait(2) == [b"first", b"second"]
"""

import asyncio
import time
from typing import Final

from mailboat.model.message import MessageExt

PATIENCE_S: Final = 30.0


class Receiver:
    """Remembers messages, and when they came."""

    def __init__(self) -> None:
        """Begin without messages."""
        self.messages: list[MessageExt] = []
        self.times_s: list[float] = []
        """When each message came, on the monotonic clock."""
        self._came = asyncio.Event()

    async def __call__(self, messages: list[MessageExt]) -> None:
        """Remember messages."""
        self.messages += messages
        self.times_s += [time.monotonic()] * len(messages)
        self._came.set()

    @property
    def bodies(self) -> list[bytes]:
        """What came so far, in order."""
        return [message.payload() for message in self.messages]

    async def wait(self, count: int, timeout_s: float = PATIENCE_S) -> list[bytes]:
        """Return the bodies once there are at least `count` messages.

        Raises:
            TimeoutError: they did not come in time; the text says how many did.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while len(self.messages) < count:
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            raise TimeoutError(
                f"only {len(self.messages)} of {count} messages after {timeout_s:g} s"
            ) from None
        return self.bodies
