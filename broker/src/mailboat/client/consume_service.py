"""Consuming in any order: as many handlers at a time as allowed, whatever queue they are of.

A message is finished when its handler returns. When the handler raises, a clustering consumer gives
the message back to the brokers, which deliver it again later; if no broker takes it, the message is
consumed again here after 5 s. A broadcasting consumer drops it with a warning.

Source: apache/rocketmq client/impl/consumer/ConsumeMessageConcurrentlyService.java.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, Protocol

from mailboat.client.background import BackgroundTasks
from mailboat.client.handler_runner import (
    ConsumeLater,
    ConsumeSettings,
    Handler,
    HandlerRunner,
)
from mailboat.client.process_queue import ProcessQueue
from mailboat.client.pulling import PullResult
from mailboat.client.retries import restore_topic
from mailboat.errors import MailboatError
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import RETRY_PREFIX

logger = logging.getLogger(__name__)

GiveBack = Callable[[MessageQueue, MessageExt, int], Awaitable[None]]
"""Gives a message back to the brokers with a delay level; see `Retries.give_back`."""

RECONSUME_PAUSE_S: Final = 5.0
# How long handlers that do not wait may follow each other before everybody else has a turn.
_TURN_S: Final = 0.01

_Request = tuple[ProcessQueue, Sequence[MessageExt]]
"""Messages of one topic for one call of its handler."""


class MessageService(Protocol):
    """Takes pulled messages to handlers, in one order or another."""

    def start(self, tasks: BackgroundTasks) -> None:
        """Begin consuming."""

    async def stop(self, patience_s: float) -> None:
        """Start no more handlers; return when those that run are done or `patience_s` is over."""

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Consume messages that `process_queue` holds."""


class ConsumeService:
    """Workers that take messages from process queues to handlers."""

    __slots__ = (
        "_give_back", "_idle", "_is_pausing", "_is_waking", "_requests", "_runner", "_settings"
    )  # fmt: skip

    def __init__(
        self, handlers: Mapping[str, Handler], settings: ConsumeSettings, give_back: GiveBack | None
    ) -> None:
        """Consume with the handler of each topic; `give_back` is None for broadcasting."""
        self._settings = settings
        self._give_back = give_back
        self._runner = HandlerRunner(handlers, settings.timeout_s)
        self._requests: deque[_Request] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        # One worker is woken at a time: where handlers do not wait, it does the work of all.
        self._is_waking = False
        # And one at a time goes on after its turn, or each round of the loop had a turn of each.
        self._is_pausing = False

    def start(self, tasks: BackgroundTasks) -> None:
        """Begin consuming, with as many tasks as handlers may run at the same time."""
        for number in range(self._settings.concurrency):
            tasks.spawn(self._work, f"consume {number}")

    async def stop(self, patience_s: float) -> None:
        """Start no more handlers; return when those that run are done or `patience_s` is over."""
        await self._runner.stop(patience_s)

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Consume messages that `process_queue` holds, as soon as a worker is free."""
        groups: Iterable[Sequence[MessageExt]] = (messages,)
        if process_queue.queue.topic.startswith(RETRY_PREFIX):
            for message in messages:
                restore_topic(message)
            groups = [list(group) for _, group in groupby(messages, key=attrgetter("topic"))]
        size = self._settings.batch_size
        self._requests += [
            (process_queue, group[start : start + size])
            for group in groups
            for start in range(0, len(group), size)
        ]
        self._wake()

    async def _work(self) -> None:
        try:
            while True:
                while not self._requests or self._is_pausing:
                    await self._wait()
                with self._runner.busy():
                    await self._consume()
        finally:
            # What this worker left is another's.
            self._wake()

    async def _wait(self) -> None:
        """Return when there may be requests."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(woken)
        try:
            await woken
        finally:
            if woken in self._idle:
                self._idle.remove(woken)
            else:
                self._is_waking = False

    def _wake(self) -> None:
        """Have one more worker look for requests, if there are any."""
        if self._is_waking or self._is_pausing or not self._requests:
            return
        while self._idle:
            woken = self._idle.popleft()
            # One that is cancelled has not left yet.
            if not woken.done():
                self._is_waking = True
                woken.set_result(None)
                return

    async def _consume(self) -> None:
        """Take requests to handlers until there are none, or others should have a turn."""
        requests, runner, task = self._requests, self._runner, asyncio.current_task()
        assert task is not None
        end_s = time.monotonic() + _TURN_S
        while requests:
            process_queue, messages = requests.popleft()
            if process_queue.dropped or runner.is_stopping:
                continue
            try:
                outcome = runner.begin(messages, task)
                error = None
                if outcome is not None:
                    self._wake()
                    error = await outcome
                if error is None:
                    process_queue.finish(messages)
                else:
                    await self._consume_later(process_queue, messages, error)
            except BaseException:
                # A defect ends this worker for a moment; its messages must not wait for ever.
                self._consume_again(process_queue, messages)
                raise
            if time.monotonic() >= end_s:
                if self._is_pausing:
                    return
                await self._pause()
                end_s = time.monotonic() + _TURN_S

    async def _pause(self) -> None:
        """Let everybody else have a turn; workers that end theirs meanwhile become idle."""
        self._is_pausing = True
        try:
            await asyncio.sleep(0)
        finally:
            self._is_pausing = False

    async def _consume_later(
        self, process_queue: ProcessQueue, messages: Sequence[MessageExt], reason: Exception
    ) -> None:
        delay_level = reason.delay_level if isinstance(reason, ConsumeLater) else 0
        for message in messages:
            if process_queue.dropped:
                return
            if self._give_back is not None:
                try:
                    await self._give_back(process_queue.queue, message, delay_level)
                except MailboatError as error:
                    logger.warning(
                        "no broker took a failed message, it is consumed again in %g s "
                        "queue=%s queue_offset=%d: %s",
                        RECONSUME_PAUSE_S,
                        process_queue.queue,
                        message.queue_offset,
                        error,
                    )
                    message.reconsume_times += 1
                    self._consume_again(process_queue, [message])
                    continue
            process_queue.finish([message])

    def _consume_again(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Consume those of the messages that are unfinished once more, after a pause."""
        unfinished = [message for message in messages if process_queue.holds(message)]
        if unfinished:
            loop = asyncio.get_running_loop()
            loop.call_later(RECONSUME_PAUSE_S, self._request, process_queue, unfinished)

    def _request(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        self._requests.append((process_queue, messages))
        self._wake()


class ConsumingSink:
    """Takes what is read of a queue to its process queue and to the handlers; a `QueueSink`."""

    __slots__ = ("_process_queue", "_service")

    def __init__(self, process_queue: ProcessQueue, service: MessageService) -> None:
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
