"""Running the program's handlers on pulled messages, and deciding what becomes of the outcome.

A message is finished when its handler returns. When the handler raises, a clustering consumer sends
the message back to the broker, which delivers it again later; if the broker does not take it, the
message is consumed again here after 5 s. A broadcasting consumer drops it with a warning.

Source: apache/rocketmq client/impl/consumer/ConsumeMessageConcurrentlyService.java.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from mailboat.client.background import BackgroundTasks
from mailboat.client.process_queue import ProcessQueue
from mailboat.client.pulling import PullResult
from mailboat.errors import MailboatError
from mailboat.model.message import MessageExt
from mailboat.model.names import RETRY_PREFIX
from mailboat.model.properties import PropertyName

logger = logging.getLogger(__name__)

Handler = Callable[[list[MessageExt]], Awaitable[None]]
"""Consumes messages of one topic; raising means: deliver them again later."""

SendBack = Callable[[ProcessQueue, MessageExt], Awaitable[None]]
"""Gives a message back to its broker; raises MailboatError where the broker does not take it."""

RECONSUME_PAUSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ConsumeSettings:
    """How handlers are run."""

    concurrency: int
    """Handlers that run at the same time."""
    batch_size: int
    """Messages given to a handler at a time, at most."""
    timeout_s: float
    """A handler that takes longer is cancelled and counts as failed."""


class ConsumeService:
    """Workers that take messages from process queues to handlers."""

    __slots__ = (
        "_handlers",
        "_idle",
        "_is_stopping",
        "_requests",
        "_running",
        "_send_back",
        "_settings",
        "failed_count",
        "finished_count",
    )

    def __init__(
        self, handlers: Mapping[str, Handler], settings: ConsumeSettings, send_back: SendBack | None
    ) -> None:
        """Consume with the handler of each topic; `send_back` is None for broadcasting."""
        self._handlers = handlers
        self._settings = settings
        self._send_back = send_back
        self._requests: asyncio.Queue[tuple[ProcessQueue, list[MessageExt]]] = asyncio.Queue()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_stopping = False
        self.finished_count = 0
        self.failed_count = 0

    def start(self, tasks: BackgroundTasks) -> None:
        """Begin consuming, with as many tasks as handlers may run at the same time."""
        for number in range(self._settings.concurrency):
            tasks.spawn(self._work(), f"consume {number}")

    async def stop(self, patience_s: float) -> None:
        """Start no more handlers; return when those that run are done or `patience_s` is over."""
        self._is_stopping = True
        try:
            async with asyncio.timeout(patience_s):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("stopped while %d handlers still run", self._running)

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Consume messages that `process_queue` holds, as soon as a worker is free."""
        if process_queue.queue.topic.startswith(RETRY_PREFIX):
            for message in messages:
                message.topic = message.properties.get(PropertyName.RETRY_TOPIC, message.topic)
            groups = [list(group) for _, group in groupby(messages, key=attrgetter("topic"))]
        else:
            groups = [list(messages)]
        size = self._settings.batch_size
        for group in groups:
            for start in range(0, len(group), size):
                self._requests.put_nowait((process_queue, group[start : start + size]))

    async def _work(self) -> None:
        while True:
            process_queue, messages = await self._requests.get()
            if process_queue.dropped or self._is_stopping:
                continue
            self._running += 1
            self._idle.clear()
            try:
                await self._consume(process_queue, messages)
            finally:
                self._running -= 1
                if not self._running:
                    self._idle.set()

    async def _consume(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        topic = messages[0].topic
        try:
            handler = self._handlers.get(topic)
            if handler is None:
                raise MailboatError(f"topic {topic} has no handler any more")
            async with asyncio.timeout(self._settings.timeout_s):
                await handler(list(messages))
        except Exception as error:
            # Whatever the program's handler raises means the same: deliver again later.
            self.failed_count += len(messages)
            logger.warning(
                "handler failed topic=%s first_queue_offset=%d messages=%d: %r",
                topic,
                messages[0].queue_offset,
                len(messages),
                error,
            )
            await self._consume_later(process_queue, messages)
        else:
            self.finished_count += len(messages)
            process_queue.finish(messages)

    async def _consume_later(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        for message in messages:
            if process_queue.dropped:
                return
            if self._send_back is not None:
                try:
                    await self._send_back(process_queue, message)
                except MailboatError as error:
                    logger.warning(
                        "broker did not take a failed message back, it is consumed again in %g s "
                        "queue=%s queue_offset=%d: %s",
                        RECONSUME_PAUSE_S,
                        process_queue.queue,
                        message.queue_offset,
                        error,
                    )
                    message.reconsume_times += 1
                    asyncio.get_running_loop().call_later(
                        RECONSUME_PAUSE_S, self._requests.put_nowait, (process_queue, [message])
                    )
                    continue
            process_queue.finish([message])


class ConsumingSink:
    """Takes what is read of a queue to its process queue and to the handlers; a `QueueSink`."""

    __slots__ = ("_process_queue", "_service")

    def __init__(self, process_queue: ProcessQueue, service: ConsumeService) -> None:
        """Feed `process_queue`."""
        self._process_queue = process_queue
        self._service = service

    async def wait_for_room(self) -> None:
        """Return once flow control allows one more pull."""
        await self._process_queue.wait_for_room()

    def take(self, result: PullResult) -> None:
        """Hold the messages as unfinished and have them consumed."""
        messages = result.messages
        self._process_queue.put(messages, result.next_offset)
        if messages:
            self._service.submit(self._process_queue, messages)

    def moved(self, queue_offset: int) -> None:
        """Go on at an offset that the broker has."""
        self._process_queue.move(queue_offset)
