"""The messages of one queue between pull and consumption, and how far the queue may be committed.

The committed offset is the lowest one that is not finished, so a crash repeats messages and never
skips one. Flow control: the puller waits while too many messages, bytes or offsets are unfinished.

Source: apache/rocketmq client/impl/consumer/ProcessQueue.java and DefaultMQPushConsumerImpl.java
(pullThresholdForQueue, pullThresholdSizeForQueue, consumeConcurrentlyMaxSpan).
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue

MAX_MESSAGES: Final = 1000
MAX_BYTES: Final = 100 * 1024 * 1024
MAX_SPAN: Final = 2000


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """How much of one queue may be pulled and not yet finished."""

    max_messages: int = MAX_MESSAGES
    max_bytes: int = MAX_BYTES
    max_span: int = MAX_SPAN


class ProcessQueue:
    """Unfinished messages of one queue, in queue order."""

    __slots__ = (
        "_limits", "_offsets", "_room", "_unfinished", "bytes_held", "dropped", "queue", "read_to"
    )  # fmt: skip

    def __init__(
        self, queue: MessageQueue, queue_offset: int, limits: FlowLimits | None = None
    ) -> None:
        """Begin at `queue_offset`, the next one to be pulled."""
        self.queue = queue
        self.read_to = queue_offset
        self.bytes_held = 0
        self.dropped = False
        self._limits = limits or FlowLimits()
        self._unfinished: dict[int, MessageExt] = {}
        # From the lowest unfinished offset to the newest one; finished ones may lie between.
        self._offsets: deque[int] = deque()
        self._room = asyncio.Event()
        self._room.set()

    def __len__(self) -> int:
        """Return how many messages are unfinished."""
        return len(self._unfinished)

    @property
    def commit_offset(self) -> int:
        """The lowest queue offset that is not finished."""
        return self._offsets[0] if self._offsets else self.read_to

    @property
    def span(self) -> int:
        """How many offsets lie between the lowest unfinished message and the newest one."""
        return self._offsets[-1] - self._offsets[0] if self._offsets else 0

    def put(self, messages: Sequence[MessageExt], read_to: int) -> None:
        """Take over pulled messages, in queue order; everything before `read_to` has been read."""
        offsets = [message.queue_offset for message in messages]
        self._unfinished.update(zip(offsets, messages, strict=True))
        self._offsets += offsets
        self.bytes_held += sum([len(message.body) for message in messages])
        self.read_to = read_to
        self._update_room()

    def finish(self, messages: Iterable[MessageExt]) -> int:
        """Take finished messages out; return the offset that may now be committed."""
        unfinished, offsets = self._unfinished, self._offsets
        for message in messages:
            # The same offset may hold a newer copy after `move`.
            if unfinished.get(message.queue_offset) is message:
                del unfinished[message.queue_offset]
                self.bytes_held -= len(message.body)
        while offsets and offsets[0] not in unfinished:
            offsets.popleft()
        while offsets and offsets[-1] not in unfinished:
            offsets.pop()
        if not self._room.is_set():
            self._update_room()
        return offsets[0] if offsets else self.read_to

    def holds(self, message: MessageExt) -> bool:
        """Tell whether this very message is unfinished."""
        return self._unfinished.get(message.queue_offset) is message

    def first(self, max_messages: int) -> list[MessageExt]:
        """Return the first unfinished messages, as far as they have one topic."""
        messages: list[MessageExt] = []
        for message in self._unfinished.values():
            if len(messages) == max_messages or (messages and message.topic != messages[0].topic):
                break
            messages.append(message)
        return messages

    def move(self, queue_offset: int) -> None:
        """Go on at another offset, forgetting what is unfinished."""
        self._unfinished.clear()
        self._offsets.clear()
        self.bytes_held = 0
        self.read_to = queue_offset
        self._update_room()

    def drop(self) -> None:
        """Forget the queue: nothing of it is committed any more, waiting pullers wake up."""
        self.dropped = True
        self._room.set()

    async def wait_for_room(self) -> None:
        """Return once the limits allow one more pull, or the queue is dropped."""
        await self._room.wait()

    def _update_room(self) -> None:
        limits = self._limits
        if self.dropped or (
            len(self._unfinished) <= limits.max_messages
            and self.bytes_held <= limits.max_bytes
            and self.span <= limits.max_span
        ):
            self._room.set()
        else:
            self._room.clear()
