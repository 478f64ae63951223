"""What a pull consumer has read of one queue and not handed out yet."""

import asyncio
from collections import deque
from typing import Final

from mailboat.client.pulling import PullResult
from mailboat.model.message import MessageExt

MAX_MESSAGES: Final = 4096
MAX_BYTES: Final = 16 * 1024 * 1024


class QueueBuffer:
    """Messages of one queue in order, and the offset up to which they were handed out.

    A `QueueSink` for the reader; the messages stay in the lists they were decoded into.
    """

    __slots__ = (
        "_arrived", "_bytes", "_count", "_lists", "_room", "committed", "position", "read_to"
    )  # fmt: skip

    def __init__(self, position: int | None, arrived: asyncio.Event) -> None:
        """Begin at `position` (None until it is known); set `arrived` when messages come."""
        self.position = position
        self.read_to = position
        """Up to where the queue was read, handed out or not."""
        self.committed: int | None = None
        """The position that the group's offset is known to be at."""
        self._arrived = arrived
        # Each list with the bytes it came in; they count until its last message is handed out.
        self._lists: deque[tuple[list[MessageExt], int]] = deque()
        self._count = 0
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    @property
    def is_empty(self) -> bool:
        """Nothing waits to be handed out."""
        return not self._lists

    def begin(self, position: int) -> None:
        """Begin here; until now nobody knew where."""
        self.position = self.read_to = position

    def give(self, max_messages: int) -> list[MessageExt]:
        """Hand out the next messages, at most `max_messages`, and move the position behind them."""
        given: list[MessageExt] = []
        while self._lists and len(given) < max_messages:
            messages, size_bytes = self._lists.popleft()
            missing = max_messages - len(given)
            if len(messages) > missing:
                self._lists.appendleft((messages[missing:], size_bytes))
                messages = messages[:missing]
            else:
                self._bytes -= size_bytes
            given += messages
        self._count -= len(given)
        # Past the last message, offsets whose messages were filtered out count as handed out too.
        self.position = given[-1].queue_offset + 1 if self._lists else self.read_to
        self._update_room()
        return given

    async def wait_for_room(self) -> None:
        """Return once the buffer is below its limits."""
        await self._room.wait()

    def take(self, result: PullResult) -> None:
        """Take over what a pull brought."""
        messages = result.messages
        self.read_to = result.next_offset
        if messages:
            self._lists.append((messages, len(result.body)))
            self._count += len(messages)
            self._bytes += len(result.body)
            self._arrived.set()
            self._update_room()
        elif not self._lists:
            self.position = result.next_offset

    def moved(self, queue_offset: int) -> None:
        """Go on at an offset that the broker has, or that an administrator set for the group."""
        self.read_to = queue_offset
        self.committed = None
        if not self._lists:
            self.position = queue_offset

    def _update_room(self) -> None:
        if self._count < MAX_MESSAGES and self._bytes < MAX_BYTES:
            self._room.set()
        else:
            self._room.clear()
