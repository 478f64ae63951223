import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from mailboat.client import orderly_service
from mailboat.client.background import BackgroundTasks
from mailboat.client.handler_runner import ConsumeSettings, Handler
from mailboat.client.orderly_service import OrderlyService
from mailboat.client.process_queue import ProcessQueue
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)
OTHER = MessageQueue("T", "broker-a", 1)
Start = Callable[..., OrderlyService]


def message_at(queue_offset: int, topic: str = "T", **properties: str) -> MessageExt:
    """Return a message with that offset."""
    return MessageExt(
        topic, b"x", 0, queue_offset, 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, properties
    )


def put(process_queue: ProcessQueue, service: OrderlyService, *messages: MessageExt) -> None:
    """Let a service consume messages that were pulled."""
    process_queue.put(messages, messages[-1].queue_offset + 1)
    service.submit(process_queue, messages)


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Return a function that starts a broadcasting service; it is stopped after the test."""
    monkeypatch.setattr(orderly_service, "SUSPEND_S", 0.01)
    monkeypatch.setattr(orderly_service, "LOCK_PAUSE_S", 0.01)
    tasks = BackgroundTasks()

    def start_service(
        handlers: dict[str, Handler],
        *,
        batch_size: int = 1,
        concurrency: int = 4,
        may_consume: Callable[[MessageQueue], bool] = lambda queue: True,
        max_reconsume_times: int = 100,
    ) -> OrderlyService:
        service = OrderlyService(
            handlers,
            ConsumeSettings(concurrency, batch_size, 60.0),
            may_consume=may_consume,
            max_reconsume_times=max_reconsume_times,
            retries=None,
        )
        service.start(tasks)
        return service

    yield start_service
    await tasks.cancel_all()


class Recorder:
    """A handler that remembers offsets, and fails as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        """Fail the first `failures` calls."""
        self.calls: list[list[int]] = []
        self.topics: list[str] = []
        self._failures = failures
        self._called = asyncio.Event()

    async def __call__(self, messages: list[MessageExt]) -> None:
        """Remember the offsets."""
        self.calls.append([message.queue_offset for message in messages])
        self.topics.append(messages[0].topic)
        self._called.set()
        if len(self.calls) <= self._failures:
            raise ValueError("not now")

    async def wait(self, count: int) -> None:
        """Return once it was called `count` times and the last outcome is noted."""
        async with asyncio.timeout(5):
            while len(self.calls) < count:
                self._called.clear()
                await self._called.wait()
        await asyncio.sleep(0)


class Gate:
    """A handler that waits until it is let through, and counts who is inside."""

    def __init__(self) -> None:
        """Begin closed."""
        self.inside: list[int] = []
        self.peak = 0
        self.entered = asyncio.Event()
        self.may_leave = asyncio.Event()

    async def __call__(self, messages: list[MessageExt]) -> None:
        """Stay until told to leave."""
        self.inside.append(messages[0].queue_offset)
        self.peak = max(self.peak, len(self.inside))
        self.entered.set()
        await self.may_leave.wait()
        self.inside.remove(messages[0].queue_offset)


async def test_failed_message_holds_up_those_behind_it(start: Start):
    """The same message comes again, counted, before the next one does."""
    handler = Recorder(failures=2)
    process_queue = ProcessQueue(QUEUE, 0)
    first = message_at(0)
    put(process_queue, start({"T": handler}), first, message_at(1), message_at(2))
    await handler.wait(5)
    assert handler.calls == [[0], [0], [0], [1], [2]]
    assert (first.reconsume_times, process_queue.commit_offset) == (2, 3)


async def test_batches_keep_the_order(start: Start):
    """A handler gets the next messages in order, some at a time, and all again if it fails."""
    handler = Recorder(failures=1)
    service = start({"T": handler}, batch_size=2)
    put(ProcessQueue(QUEUE, 0), service, *(message_at(offset) for offset in range(5)))
    await handler.wait(4)
    assert handler.calls == [[0, 1], [0, 1], [2, 3], [4]]


async def test_one_handler_for_a_queue_and_several_for_several(start: Start):
    """Messages of one queue never overlap, those of two queues may."""
    gate = Gate()
    service = start({"T": gate})
    put(ProcessQueue(QUEUE, 0), service, message_at(0), message_at(1))
    await gate.entered.wait()
    gate.entered.clear()
    put(ProcessQueue(OTHER, 10), service, message_at(10))
    await gate.entered.wait()
    assert gate.inside == [0, 10]
    gate.may_leave.set()
    await service.wait_for_handler(QUEUE)


async def test_queue_that_came_back_waits_for_its_running_handler(start: Start):
    """A process queue that replaces another begins when the old one's handler has ended."""
    gate = Gate()
    service = start({"T": gate})
    old, new = ProcessQueue(QUEUE, 0), ProcessQueue(QUEUE, 0)
    put(old, service, message_at(0), message_at(1))
    await gate.entered.wait()
    old.drop()
    put(new, service, message_at(0))
    for _ in range(5):
        await asyncio.sleep(0)
    assert gate.inside == [0]
    gate.may_leave.set()
    async with asyncio.timeout(5):
        while len(new):
            await service.wait_for_handler(QUEUE)
            await asyncio.sleep(0)
    assert gate.peak == 1
    assert (len(old), new.commit_offset) == (1, 1)


async def test_no_message_is_handed_out_without_the_lock(start: Start):
    """A queue whose lock is not held waits, and goes on when it is."""
    handler, is_held = Recorder(), False
    asked = asyncio.Event()

    def may_consume(queue: MessageQueue) -> bool:
        assert queue == QUEUE
        asked.set()
        return is_held

    put(ProcessQueue(QUEUE, 0), start({"T": handler}, may_consume=may_consume), message_at(0))
    await asked.wait()
    asked.clear()
    await asked.wait()
    assert handler.calls == []
    is_held = True
    await handler.wait(1)
    assert handler.calls == [[0]]


async def test_lost_lock_stops_between_two_messages(start: Start):
    """The lock is looked at before each message, not once for all that were pulled."""
    handler = Recorder()
    process_queue = ProcessQueue(QUEUE, 0)
    service = start({"T": handler}, may_consume=lambda queue: len(handler.calls) < 2)
    put(process_queue, service, *(message_at(offset) for offset in range(4)))
    await handler.wait(2)
    process_queue.drop()
    await service.wait_for_handler(QUEUE)
    assert handler.calls == [[0], [1]]


async def test_broadcasting_drops_what_failed_too_often(start: Start, caplog):
    """Without a broker to give it to, a message is dropped after its tries, with a warning."""
    handler = Recorder(failures=3)
    process_queue = ProcessQueue(QUEUE, 0)
    put(process_queue, start({"T": handler}, max_reconsume_times=2), message_at(0), message_at(1))
    await handler.wait(4)
    assert handler.calls == [[0], [0], [0], [1]]
    assert process_queue.commit_offset == 2
    assert "dropped" in caplog.text


async def test_retried_message_has_its_own_topic(start: Start):
    """A batch of the retry topic goes to one handler, that of the topic it was sent to."""
    first, second = Recorder(), Recorder()
    service = start({"T": first, "U": second}, batch_size=8)
    put(
        ProcessQueue(MessageQueue("%RETRY%G", "broker-a", 0), 0),
        service,
        message_at(0, "%RETRY%G", RETRY_TOPIC="T"),
        message_at(1, "%RETRY%G", RETRY_TOPIC="U"),
        message_at(2, "%RETRY%G", RETRY_TOPIC="U"),
    )
    await second.wait(1)
    assert (first.calls, first.topics) == ([[0]], ["T"])
    assert (second.calls, second.topics) == ([[1, 2]], ["U"])


async def test_stop_waits_for_the_running_handler(start: Start):
    """Closing lets a handler finish that has begun, and begins no other."""
    gate = Gate()
    process_queue = ProcessQueue(QUEUE, 0)
    service = start({"T": gate})
    put(process_queue, service, message_at(0), message_at(1))
    await gate.entered.wait()
    stopping = asyncio.ensure_future(service.stop(5.0))
    await asyncio.sleep(0)
    gate.may_leave.set()
    await stopping
    assert process_queue.commit_offset == 1


async def test_concurrency_is_a_limit_over_all_queues(start: Start):
    """No more handlers run at a time than asked for, however many queues have messages."""
    gate = Gate()
    service = start({"T": gate}, concurrency=2)
    for queue_id in range(5):
        queue = MessageQueue("T", "broker-a", queue_id)
        put(ProcessQueue(queue, queue_id), service, message_at(queue_id))
    for _ in range(20):
        await asyncio.sleep(0)
    assert gate.peak == 2
    gate.may_leave.set()
    await service.stop(5.0)


async def test_handler_that_raises_cancelled_error_has_failed(start: Start):
    """The queue stands still for the pause after a failure and no longer."""
    calls: list[int] = []
    done = asyncio.Event()

    async def handler(messages: list[MessageExt]) -> None:
        calls.append(messages[0].queue_offset)
        if len(calls) in (2, 3):
            raise asyncio.CancelledError
        if messages[0].queue_offset == 3:
            done.set()

    process_queue = ProcessQueue(QUEUE, 0)
    put(process_queue, start({"T": handler}), *(message_at(offset) for offset in range(4)))
    await asyncio.wait_for(done.wait(), 5)
    await asyncio.sleep(0)
    assert calls == [0, 1, 1, 1, 2, 3]
    assert process_queue.commit_offset == 4
