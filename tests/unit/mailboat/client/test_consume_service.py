import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from mailboat.client import background, consume_service
from mailboat.client.background import BackgroundTasks
from mailboat.client.consume_service import ConsumeService, GiveBack
from mailboat.client.handler_runner import ConsumeLater, ConsumeSettings, Handler
from mailboat.client.process_queue import ProcessQueue
from mailboat.errors import BrokerError
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)
Start = Callable[..., ConsumeService]


def message_at(queue_offset: int, topic: str = "T", **properties: str) -> MessageExt:
    """Return a message with that offset."""
    return MessageExt(
        topic, b"x", 0, queue_offset, 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, properties
    )


def put(process_queue: ProcessQueue, service: ConsumeService, *messages: MessageExt) -> None:
    """Let a service consume messages that were pulled."""
    process_queue.put(messages, messages[-1].queue_offset + 1)
    service.submit(process_queue, messages)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Return a function that starts a service; it is stopped after the test."""
    tasks = BackgroundTasks()

    def start_service(
        handlers: dict[str, Handler],
        give_back: GiveBack | None = None,
        settings: ConsumeSettings | None = None,
    ) -> ConsumeService:
        service = ConsumeService(handlers, settings or ConsumeSettings(4, 1, 60.0), give_back)
        service.start(tasks)
        return service

    yield start_service
    await tasks.cancel_all()


class Recorder:
    """A handler that remembers, and fails as often as it is told."""

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
        """Return once it was called `count` times."""
        async with asyncio.timeout(5):
            while len(self.calls) < count:
                self._called.clear()
                await self._called.wait()
        await asyncio.sleep(0)


async def test_finished_messages_move_the_commit_offset(start: Start):
    """What handlers have returned from is finished."""
    handler = Recorder()
    process_queue = ProcessQueue(QUEUE, 0)
    put(process_queue, start({"T": handler}), *(message_at(offset) for offset in range(3)))
    await handler.wait(3)
    assert process_queue.commit_offset == 3


async def test_batches_are_as_large_as_asked(start: Start):
    """A handler gets at most `batch_size` messages at a time, in order."""
    handler = Recorder()
    service = start({"T": handler}, settings=ConsumeSettings(1, 3, 60.0))
    put(ProcessQueue(QUEUE, 0), service, *(message_at(offset) for offset in range(7)))
    await handler.wait(3)
    assert handler.calls == [[0, 1, 2], [3, 4, 5], [6]]


async def test_failed_message_goes_back_to_the_broker(start: Start):
    """A message that the broker took back is finished here."""
    handler = Recorder(failures=1)
    taken: asyncio.Queue[int] = asyncio.Queue()

    async def give_back(queue: MessageQueue, message: MessageExt, delay_level: int) -> None:
        taken.put_nowait(message.queue_offset)

    process_queue = ProcessQueue(QUEUE, 0)
    put(process_queue, start({"T": handler}, give_back), message_at(0))
    assert await asyncio.wait_for(taken.get(), 5) == 0
    await asyncio.sleep(0)
    assert process_queue.commit_offset == 1


async def test_message_that_the_broker_refuses_is_consumed_again(start: Start, monkeypatch):
    """A message that the broker refuses (code 3) is not committed, and comes again."""
    monkeypatch.setattr(consume_service, "RECONSUME_PAUSE_S", 0.01)
    handler = Recorder(failures=2)

    async def refused(queue: MessageQueue, message: MessageExt, delay_level: int) -> None:
        assert process_queue.commit_offset == 0
        raise BrokerError(3, "request type 36 not supported")

    process_queue = ProcessQueue(QUEUE, 0)
    message = message_at(0)
    put(process_queue, start({"T": handler}, refused), message, message_at(1))
    await handler.wait(4)
    assert sorted(handler.calls) == [[0], [0], [1], [1]]
    assert (message.reconsume_times, process_queue.commit_offset) == (1, 2)


async def test_broadcasting_drops_a_failed_message(start: Start, caplog):
    """Without a broker to send to, a failure is logged and the queue goes on."""
    handler = Recorder(failures=1)
    process_queue = ProcessQueue(QUEUE, 0)
    put(process_queue, start({"T": handler}), message_at(0))
    await handler.wait(1)
    assert process_queue.commit_offset == 1
    assert "not now" in caplog.text


async def test_handler_that_takes_too_long_has_failed(start: Start):
    """A handler above the time limit is cancelled, and its message sent back."""
    taken: asyncio.Queue[int] = asyncio.Queue()

    async def give_back(queue: MessageQueue, message: MessageExt, delay_level: int) -> None:
        taken.put_nowait(message.queue_offset)

    async def hanging(messages: list[MessageExt]) -> None:
        await asyncio.Event().wait()

    service = start({"T": hanging}, give_back, ConsumeSettings(1, 1, 0.01))
    put(ProcessQueue(QUEUE, 0), service, message_at(0))
    assert await asyncio.wait_for(taken.get(), 5) == 0


async def test_retried_message_has_its_own_topic(start: Start):
    """A message of the retry topic comes to the handler of the topic it was sent to."""
    first, second = Recorder(), Recorder()
    service = start({"T": first, "U": second}, settings=ConsumeSettings(1, 8, 60.0))
    process_queue = ProcessQueue(MessageQueue("%RETRY%G", "broker-a", 0), 0)
    put(
        process_queue,
        service,
        message_at(0, "%RETRY%G", RETRY_TOPIC="T"),
        message_at(1, "%RETRY%G", RETRY_TOPIC="U"),
        message_at(2, "%RETRY%G", RETRY_TOPIC="U"),
    )
    await second.wait(1)
    assert (first.calls, first.topics) == ([[0]], ["T"])
    assert (second.calls, second.topics) == ([[1, 2]], ["U"])


async def test_dropped_queue_is_not_consumed(start: Start):
    """Messages of a queue that went to another member are left to that member."""
    handler = Recorder()
    service = start({"T": handler}, settings=ConsumeSettings(1, 1, 60.0))
    lost, kept = ProcessQueue(QUEUE, 0), ProcessQueue(QUEUE, 0)
    put(lost, service, message_at(0))
    lost.drop()
    put(kept, service, message_at(9))
    await handler.wait(1)
    assert handler.calls == [[9]]


async def test_stop_waits_for_running_handlers(start: Start):
    """Closing lets a handler finish that has begun, and begins no other."""
    begun, may_end = asyncio.Event(), asyncio.Event()
    finished: list[int] = []

    async def slow(messages: list[MessageExt]) -> None:
        begun.set()
        await may_end.wait()
        finished.append(messages[0].queue_offset)

    process_queue = ProcessQueue(QUEUE, 0)
    service = start({"T": slow}, settings=ConsumeSettings(1, 1, 60.0))
    put(process_queue, service, message_at(0), message_at(1))
    await begun.wait()
    stopping = asyncio.ensure_future(service.stop(5.0))
    await asyncio.sleep(0)
    may_end.set()
    await stopping
    assert finished == [0]
    assert process_queue.commit_offset == 1


async def test_concurrency_is_a_limit(start: Start):
    """No more handlers run at a time than asked for."""
    running = peak = 0
    gate = asyncio.Semaphore(0)

    async def counting(messages: list[MessageExt]) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await gate.acquire()
        running -= 1

    process_queue = ProcessQueue(QUEUE, 0)
    service = start({"T": counting}, settings=ConsumeSettings(3, 1, 60.0))
    put(process_queue, service, *(message_at(offset) for offset in range(10)))
    for _ in range(10):
        await asyncio.sleep(0)
        gate.release()
    await service.stop(5.0)
    assert peak == 3


async def test_handlers_that_wait_run_side_by_side(start: Start):
    """Of workers that had nothing to do, as many begin as there are messages, and no more."""
    running = peak = 0
    may_end = asyncio.Event()

    async def waiting(messages: list[MessageExt]) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await may_end.wait()
        running -= 1

    service = start({"T": waiting}, settings=ConsumeSettings(20, 1, 60.0))
    await asyncio.sleep(0)
    process_queue = ProcessQueue(QUEUE, 0)
    for first in (0, 3):
        put(process_queue, service, *(message_at(first + index) for index in range(3)))
        for _ in range(6):
            await asyncio.sleep(0)
        assert (running, peak) == (first + 3, first + 3)
    may_end.set()
    await service.stop(5.0)
    assert process_queue.commit_offset == 6


async def test_handlers_that_do_not_wait_leave_others_a_turn(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    """However many messages wait, the loop goes on in between."""
    monkeypatch.setattr(consume_service, "_TURN_S", 0.0)
    handler = Recorder()
    service = start({"T": handler})
    put(ProcessQueue(QUEUE, 0), service, *(message_at(offset) for offset in range(1000)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < len(handler.calls) < 1000
    await handler.wait(1000)


async def test_workers_share_one_turn(start: Start, monkeypatch: pytest.MonkeyPatch):
    """However many workers there are, one of them goes on in a round of the loop."""
    monkeypatch.setattr(consume_service, "_TURN_S", 0.0)
    gate = asyncio.Event()
    handler = Recorder()

    async def waiting(messages: list[MessageExt]) -> None:
        await gate.wait()
        await handler(messages)

    service = start({"T": waiting}, settings=ConsumeSettings(20, 1, 60.0))
    put(ProcessQueue(QUEUE, 0), service, *(message_at(offset) for offset in range(1000)))
    for _ in range(30):
        await asyncio.sleep(0)
    gate.set()
    await handler.wait(20)
    for _ in range(50):
        before = len(handler.calls)
        await asyncio.sleep(0)
        assert len(handler.calls) - before <= 2
    await handler.wait(1000)


async def test_handlers_that_raise_generator_exit_have_failed(start: Start):
    """The workers go on, as after any other failure."""
    given: list[int] = []
    handler = Recorder()

    async def give_back(queue: MessageQueue, message: MessageExt, delay_level: int) -> None:
        given.append(message.queue_offset)

    async def leaving(messages: list[MessageExt]) -> None:
        (message,) = messages
        if message.queue_offset % 2:
            await asyncio.sleep(0)
        if message.queue_offset < 8:
            raise GeneratorExit
        await handler(messages)

    process_queue = ProcessQueue(QUEUE, 0)
    put(process_queue, start({"T": leaving}, give_back), *(message_at(i) for i in range(20)))
    await handler.wait(12)
    assert sorted(given) == list(range(8))
    assert process_queue.commit_offset == 20


async def test_function_that_raises_stop_iteration_has_failed(start: Start):
    """It is not taken for a coroutine that returned."""
    taken: asyncio.Queue[int] = asyncio.Queue()

    async def give_back(queue: MessageQueue, message: MessageExt, delay_level: int) -> None:
        taken.put_nowait(message.queue_offset)

    def plain(messages: list[MessageExt]) -> Awaitable[None]:
        raise StopIteration

    put(ProcessQueue(QUEUE, 0), start({"T": plain}, give_back), message_at(0))
    assert await asyncio.wait_for(taken.get(), 5) == 0


async def test_handler_need_not_be_a_coroutine_function(start: Start):
    """Anything that can be awaited is waited for, before the message is finished."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    called = asyncio.Event()

    def plain(messages: list[MessageExt]) -> Awaitable[None]:
        called.set()
        return done

    process_queue = ProcessQueue(QUEUE, 0)
    service = start({"T": plain})
    put(process_queue, service, message_at(0))
    await asyncio.wait_for(called.wait(), 5)
    await asyncio.sleep(0)
    assert process_queue.commit_offset == 0
    done.set_result(None)
    await service.stop(5.0)
    assert process_queue.commit_offset == 1


@pytest.mark.parametrize(
    ("error", "delay_level"), [(ValueError("x"), 0), (ConsumeLater(4), 4), (ConsumeLater(-1), -1)]
)
async def test_handler_chooses_when_a_message_comes_again(start: Start, error, delay_level: int):
    """ConsumeLater names the delay level, or that the message is dead; others leave it open."""
    given: asyncio.Queue[tuple[MessageQueue, int, int]] = asyncio.Queue()

    async def give_back(queue: MessageQueue, message: MessageExt, delay_level: int) -> None:
        given.put_nowait((queue, message.queue_offset, delay_level))

    async def failing(messages: list[MessageExt]) -> None:
        raise error

    put(ProcessQueue(QUEUE, 0), start({"T": failing}, give_back), message_at(0))
    assert await asyncio.wait_for(given.get(), 5) == (QUEUE, 0, delay_level)


async def test_handler_that_raises_cancelled_error_has_failed(start: Start, caplog):
    """Something a handler waits for is cancelled: its message comes again, and workers go on."""
    given: list[int] = []
    handled: list[int] = []
    done = asyncio.Event()

    async def give_back(queue: MessageQueue, message: MessageExt, delay_level: int) -> None:
        given.append(message.queue_offset)

    async def handler(messages: list[MessageExt]) -> None:
        (message,) = messages
        if message.queue_offset < 8:
            raise asyncio.CancelledError
        handled.append(message.queue_offset)
        if len(handled) == 52:
            done.set()

    process_queue = ProcessQueue(QUEUE, 0)
    put(process_queue, start({"T": handler}, give_back), *(message_at(i) for i in range(60)))
    await asyncio.wait_for(done.wait(), 5)
    await asyncio.sleep(0)
    assert (given, process_queue.commit_offset) == (list(range(8)), 60)
    assert caplog.text.count("handler failed topic=T") == 8


@pytest.mark.parametrize("failure", [KeyError("a defect"), asyncio.CancelledError()])
async def test_message_of_a_worker_that_fails_comes_again(
    start: Start, failure: BaseException, caplog, monkeypatch: pytest.MonkeyPatch
):
    """Whatever giving back raises, neither the worker nor its message is gone."""
    monkeypatch.setattr(consume_service, "RECONSUME_PAUSE_S", 0.01)
    monkeypatch.setattr(background, "RESTART_PAUSE_S", 0.01)
    handler = Recorder(failures=1)

    async def give_back(queue: MessageQueue, message: MessageExt, delay_level: int) -> None:
        raise failure

    process_queue = ProcessQueue(QUEUE, 0)
    settings = ConsumeSettings(1, 1, 60.0)
    put(process_queue, start({"T": handler}, give_back, settings), message_at(0), message_at(1))
    await handler.wait(3)
    assert sorted(handler.calls) == [[0], [0], [1]]
    assert process_queue.commit_offset == 2
    assert "task consume 0 died" in caplog.text


async def test_handler_that_swallows_its_cancellation_does_not_keep_its_worker():
    """A service ends also where a handler takes its cancellation for something else."""
    entered = asyncio.Event()

    async def handler(messages: list[MessageExt]) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    tasks = BackgroundTasks()
    service = ConsumeService({"T": handler}, ConsumeSettings(1, 1, 60.0), None)
    service.start(tasks)
    put(ProcessQueue(QUEUE, 0), service, message_at(0))
    await entered.wait()
    await service.stop(0.0)
    await asyncio.wait_for(tasks.cancel_all(), 2)
