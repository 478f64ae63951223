"""Consuming in order: one handler at a time for each queue, and no message passes a failed one.

A handler that raises gets the same messages again after a second, until it returns or they have
failed `max_reconsume_times` times; then they are given up and become dead letters.

Source: apache/rocketmq client/impl/consumer/ConsumeMessageOrderlyService.java.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from mailboat.client.background import BackgroundTasks
from mailboat.client.handler_runner import ConsumeLater, ConsumeSettings, Handler, HandlerRunner
from mailboat.client.process_queue import ProcessQueue
from mailboat.client.retries import Retries, restore_topic
from mailboat.errors import MailboatError
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue

logger = logging.getLogger(__name__)

SUSPEND_S: Final = 1.0
# How soon a queue is looked at again whose lock is not held at the moment.
LOCK_PAUSE_S: Final = 0.2

MayConsume = Callable[[MessageQueue], bool]
"""Tells whether this member alone may consume a queue now."""


class OrderlyService:
    """Takes messages of each queue to handlers, strictly one after the other."""

    __slots__ = (
        "_draining",
        "_max_reconsume_times",
        "_may_consume",
        "_retries",
        "_runner",
        "_settings",
        "_slots",
        "_tasks",
        "_turns",
    )

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        settings: ConsumeSettings,
        *,
        may_consume: MayConsume,
        max_reconsume_times: int,
        retries: Retries | None,
    ) -> None:
        """Consume with the handler of each topic; `retries` is None for broadcasting."""
        self._settings = settings
        self._may_consume = may_consume
        self._max_reconsume_times = max_reconsume_times
        self._retries = retries
        self._runner = HandlerRunner(handlers, settings.timeout_s)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._turns: defaultdict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._draining: set[ProcessQueue] = set()
        self._tasks: BackgroundTasks | None = None

    def start(self, tasks: BackgroundTasks) -> None:
        """Begin consuming, with one of `tasks` for each queue that has messages."""
        self._tasks = tasks

    async def stop(self, patience_s: float) -> None:
        """Start no more handlers; return when those that run are done or `patience_s` is over."""
        await self._runner.stop(patience_s)

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Consume messages that `process_queue` holds, after those before them."""
        assert self._tasks is not None
        for message in messages:
            restore_topic(message)
        if process_queue not in self._draining:
            self._draining.add(process_queue)
            self._tasks.spawn(partial(self._drain, process_queue), f"consume {process_queue.queue}")

    async def wait_for_handler(self, queue: MessageQueue) -> None:
        """Return when no handler runs with messages of `queue`."""
        async with self._turns[queue]:
            pass

    async def _drain(self, process_queue: ProcessQueue) -> None:
        """Consume until nothing is left; a later `submit` begins anew."""
        queue = process_queue.queue
        while len(process_queue) and not self._is_over(process_queue):
            pause_s = LOCK_PAUSE_S
            # The turn outlives a process queue: its successor waits for the running handler.
            async with self._turns[queue], self._slots:
                if not self._is_over(process_queue) and self._may_consume(queue):
                    pause_s = await self._consume_next(process_queue)
            # Without a pause too: others get their turn between any two messages.
            await asyncio.sleep(pause_s)
        # Not where this fails: then it is begun anew by itself.
        self._draining.discard(process_queue)

    def _is_over(self, process_queue: ProcessQueue) -> bool:
        return process_queue.dropped or self._runner.is_stopping

    async def _consume_next(self, process_queue: ProcessQueue) -> float:
        """Run one handler; return how long to wait before the next one."""
        messages = process_queue.first(self._settings.batch_size)
        with self._runner.busy():
            error = await self._runner.run(messages)
            if error is None:
                process_queue.finish(messages)
                return 0.0
            pause_s = 0.0
            for message in messages:
                if process_queue.dropped:
                    break
                if await self._is_given_up(process_queue.queue, message, error):
                    process_queue.finish([message])
                else:
                    message.reconsume_times += 1
                    pause_s = SUSPEND_S
            return pause_s

    async def _is_given_up(
        self, queue: MessageQueue, message: MessageExt, reason: Exception
    ) -> bool:
        """Tell whether a failed message shall not come again here, and see where it goes."""
        is_unwanted = isinstance(reason, ConsumeLater) and reason.delay_level < 0
        if not is_unwanted and message.reconsume_times < self._max_reconsume_times:
            return False
        if self._retries is None:
            logger.warning(
                "message is dropped queue=%s queue_offset=%d", queue, message.queue_offset
            )
            return True
        give_up: Awaitable[None]
        if is_unwanted:
            give_up = self._retries.give_back(queue, message, -1)
        else:
            give_up = self._retries.give_up(message)
        try:
            await give_up
        except MailboatError as error:
            logger.warning(
                "no broker took a message that failed too often, it is consumed again in %g s "
                "queue=%s queue_offset=%d: %s",
                SUSPEND_S,
                queue,
                message.queue_offset,
                error,
            )
            return False
        return True
