"""Running the program's handlers: one call with its time limit, and the end of all calls.

Source: apache/rocketmq client/impl/consumer/ConsumeMessageService.java.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mailboat.client.callbacks import begin_call
from mailboat.errors import MailboatError
from mailboat.model.message import MessageExt

logger = logging.getLogger(__name__)

Handler = Callable[[list[MessageExt]], Awaitable[None]]
"""Consumes messages of one topic; raising means: deliver them again later."""


class ConsumeLater(Exception):
    """Raised by a handler that wants to choose when a message comes again.

    Any other exception leaves that to the broker: after 10 s, 30 s, 1 min and so on up to 2 h.

    Example:
        raise ConsumeLater(delay_level=5)  # in a minute
        raise ConsumeLater(delay_level=-1)  # never: a dead letter
    """

    def __init__(self, delay_level: int = 0) -> None:
        """Choose a level of the broker's table of delays, 0 for its choice, -1 for never."""
        super().__init__(f"delay level {delay_level}")
        self.delay_level = delay_level


@dataclass(frozen=True, slots=True)
class ConsumeSettings:
    """How handlers are run."""

    concurrency: int
    """Handlers that run at the same time."""
    batch_size: int
    """Messages given to a handler at a time, at most."""
    timeout_s: float
    """A handler that takes longer is cancelled and counts as failed."""


class HandlerRunner:
    """Calls the handler of each topic and knows which calls still run."""

    __slots__ = (
        "_handlers",
        "_idle",
        "_running",
        "_timeout_s",
        "failed_count",
        "finished_count",
        "is_stopping",
    )

    def __init__(self, handlers: Mapping[str, Handler], timeout_s: float) -> None:
        """Call `handlers` by topic, and cancel calls that take longer than `timeout_s`.

        The calls are made for `handlers`; see `callbacks.is_inside`.
        """
        self._handlers = handlers
        self._timeout_s = timeout_s
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_stopping = False
        self.finished_count = 0
        self.failed_count = 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Have `stop` wait for what is done inside: a call and what becomes of its outcome."""
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def run(self, messages: Sequence[MessageExt]) -> Exception | None:
        """Call the handler of these messages' topic; return what it raised, or None."""
        task = asyncio.current_task()
        assert task is not None
        rest = self.begin(messages, task)
        return None if rest is None else await rest

    def begin(
        self, messages: Sequence[MessageExt], task: asyncio.Task[Any]
    ) -> Coroutine[Any, Any, Exception | None] | None:
        """As `run`, in this task, but return None at once where the handler does not wait."""
        topic = messages[0].topic
        try:
            handler = self._handlers.get(topic)
            if handler is None:
                raise MailboatError(f"topic {topic} has no handler any more")
            _, rest = begin_call(task, self._handlers, handler, list(messages), self._timeout_s)
        except Exception as error:
            return self._end(messages, None, error)
        if rest is not None:
            return self._end(messages, rest, None)
        self.finished_count += len(messages)
        return None

    async def _end(
        self,
        messages: Sequence[MessageExt],
        rest: Coroutine[Any, Any, None] | None,
        error: Exception | None,
    ) -> Exception | None:
        """Await the rest of a call; whatever it raises means the same: deliver again later."""
        if rest is not None:
            try:
                await rest
            except Exception as raised:
                error = raised
        if error is None:
            self.finished_count += len(messages)
            return None
        self.failed_count += len(messages)
        logger.warning(
            "handler failed topic=%s first_queue_offset=%d messages=%d: %r",
            messages[0].topic,
            messages[0].queue_offset,
            len(messages),
            error,
        )
        return error

    async def stop(self, patience_s: float) -> None:
        """Let nothing new begin; return when what runs is done or `patience_s` is over."""
        self.is_stopping = True
        try:
            async with asyncio.timeout(patience_s):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("stopped while %d handlers still run", self._running)
