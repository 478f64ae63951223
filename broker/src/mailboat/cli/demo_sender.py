"""Sends the demo's lines: batches, several of them on their way at a time.

Reading happens in the calling thread, which may wait for standard input; the producer has an event
loop in a thread of its own.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Final, Self, TypeVar

from mailboat.cli.demo_lines import Line
from mailboat.cli.demo_tally import Tally
from mailboat.client import Admin, Message, MessageQueue, Producer
from mailboat.model.topic import TopicConfig

BATCH_MESSAGES: Final = 500
BATCH_BYTES: Final = 262_144
BATCHES_ON_THE_WAY: Final = 8
QUEUES: Final = 4
# Long, and no retries: a message that is sent again after a lost answer may be stored twice.
SEND_TIMEOUT_S: Final = 60.0

_Result = TypeVar("_Result")


def send_lines(
    namesrv: str, topic: str, lines: Iterator[Line], on_progress: Callable[[int], None]
) -> Tally:
    """Make the topic, send every line and return what was sent.

    `on_progress` gets the number of messages that were answered so far.

    Raises:
        MailboatError: a line could not be read or a message not be sent.
    """
    tally = Tally()
    with _LoopThread() as loop:
        submit = loop.submit
        submit(_create_topic(namesrv, topic)).result()
        producer = Producer("demo-producer", namesrv=namesrv, retries=0)
        submit(producer.start()).result()
        try:
            queues = submit(producer.queues(topic)).result()
            on_the_way: deque[Future[int]] = deque()
            answered = 0
            for index, batch in enumerate(_batches(topic, lines, tally)):
                while len(on_the_way) >= BATCHES_ON_THE_WAY:
                    answered += on_the_way.popleft().result()
                    on_progress(answered)
                on_the_way.append(submit(_send(producer, batch, queues[index % len(queues)])))
            for future in on_the_way:
                answered += future.result()
                on_progress(answered)
        finally:
            submit(producer.close()).result()
    return tally


async def _create_topic(namesrv: str, topic: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        config = TopicConfig(topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        await admin.topics.create(config)


async def _send(producer: Producer, batch: list[Message], queue: MessageQueue) -> int:
    if len(batch) == 1:
        # A batch cannot be compressed; a long line by itself is.
        await producer.send(batch[0], queue=queue, timeout_s=SEND_TIMEOUT_S)
    else:
        await producer.send_batch(batch, queue=queue, timeout_s=SEND_TIMEOUT_S)
    return len(batch)


def _batches(topic: str, lines: Iterator[Line], tally: Tally) -> Iterator[list[Message]]:
    batch: list[Message] = []
    batch_bytes = 0
    for line in lines:
        tally.add(line.tag, line.key, line.body)
        size = len(line.key) + len(line.body)
        if batch and (len(batch) >= BATCH_MESSAGES or batch_bytes + size > BATCH_BYTES):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(Message(topic, line.body, tags=line.tag, keys=line.key))
        batch_bytes += size
    if batch:
        yield batch


class _LoopThread:
    """Runs an event loop in a thread; what still runs on it at the end is cancelled."""

    def __enter__(self) -> Self:
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._submitted: set[Future[Any]] = set()
        # A daemon, so that a Ctrl-C right here does not leave the process waiting for it.
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live()), name="demo producer", daemon=True
        )
        self._thread.start()
        self._loop, self._stopped = self._started.result()
        return self

    def __exit__(self, *_: object) -> None:
        for future in list(self._submitted):
            future.cancel()
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def submit(self, work: Coroutine[Any, Any, _Result]) -> "Future[_Result]":
        """Start `work` on the loop."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._submitted.add(future)
        future.add_done_callback(self._submitted.discard)
        return future

    async def _live(self) -> None:
        stopped = asyncio.Event()
        self._started.set_result((asyncio.get_running_loop(), stopped))
        await stopped.wait()
