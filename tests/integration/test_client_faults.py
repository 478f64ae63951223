"""What goes wrong inside a program that uses the client: nothing of it ends the client silently."""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from cli_shell import until

from mailboat.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    StartPoint,
    TransactionProducer,
    TransactionState,
    background,
    push_consumer,
)
from mailboat.client.instance import ClientInstance
from mailboat.errors import MailboatError
from mailboat.testing.cluster import Cluster

FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Return a cluster whose topic T holds the message 0."""
    async with Cluster(tmp_path / "cluster", options={"defaultTopicQueueNums": "1"}) as cluster:
        await send(cluster, 0)
        yield cluster


async def send(cluster: Cluster, *numbers: int) -> None:
    """Send numbers to the one queue of topic T."""
    async with Producer("P", namesrv=cluster.namesrv_addresses) as producer:
        for number in numbers:
            await producer.send(Message("T", b"%d" % number))


class Receiver:
    """A handler that remembers numbers."""

    def __init__(self) -> None:
        """Begin with none."""
        self.numbers: list[int] = []

    async def __call__(self, messages: list[MessageExt]) -> None:
        """Remember them."""
        self.numbers += [int(message.payload()) for message in messages]

    async def wait(self, numbers: set[int]) -> None:
        """Return once all of these came."""

        async def came() -> bool:
            return numbers <= set(self.numbers)

        await until(came, within_s=20.0)


def lasting(instance: ClientInstance, *more: background.BackgroundTasks) -> set[asyncio.Task[None]]:
    """Return the background tasks of a client that shall live as long as the client."""
    tasks = set().union(*(each._tasks for each in (instance.tasks, *more)))
    return {task for task in tasks if not task.get_name().startswith("leave ")}


async def plant(task: asyncio.Task[None], failure: BaseException) -> None:
    """Have what the task waits for fail, or be cancelled by somebody else."""
    waited_for: asyncio.Future[object] | None = None

    async def waits() -> bool:
        nonlocal waited_for
        waited_for = task._fut_waiter  # type: ignore[attr-defined]
        return type(waited_for).__name__ == "Future" and not waited_for.done()

    await until(waits)
    assert waited_for is not None
    if isinstance(failure, asyncio.CancelledError):
        waited_for.cancel()
    else:
        waited_for.set_exception(failure)


async def check_tasks(
    tasks: set[asyncio.Task[None]], failure: BaseException, log: pytest.LogCaptureFixture
) -> None:
    """Let each task fail once; each is reported and runs again."""
    for task in tasks:
        name = task.get_name()
        await plant(task, failure)

        async def is_reported(name: str = name) -> bool:
            return f"task {name} died" in log.text and f"task {name} is begun anew" in log.text

        await until(is_reported)
        assert not task.done()


FAILURES = [KeyError("a defect"), asyncio.CancelledError()]
each_failure = pytest.mark.parametrize("failure", FAILURES, ids=["defect", "cancelled"])
PUSH_TASKS = {
    "shared": {"heartbeat", "route poll", "rebalance", "save offsets", "consume 0", "read T@_:0"},
    "ordered": {
        "heartbeat", "route poll", "rebalance", "save offsets", "renew locks", "read T@_:0",
    },
    "broadcasting": {
        "heartbeat", "route poll", "rebalance", "save offsets", "consume 0", "read T@_:0",
    },
}  # fmt: skip


def names(tasks: set[asyncio.Task[None]]) -> set[str]:
    """Return the tasks' names, without brokers' names and the retry topic's."""
    found = {re.sub(r"@[^:]*:", "@_:", task.get_name()) for task in tasks}
    return {name for name in found if "%RETRY%" not in name}


@each_failure
@pytest.mark.parametrize("kind", PUSH_TASKS)
async def test_every_task_of_a_push_consumer_outlives_a_failure(
    cluster: Cluster, kind: str, failure, caplog, monkeypatch, tmp_path: Path
):
    """Heartbeats, routes, shares, locks, offsets, readers and workers go on; so do messages."""
    monkeypatch.setattr(background, "RESTART_PAUSE_S", 0.01)
    monkeypatch.setattr(push_consumer, "PERSIST_INTERVAL_S", 0.05)
    receiver = Receiver()
    path = tmp_path / "offsets.json"
    consumer = PushConsumer(
        "G",
        namesrv=cluster.namesrv_addresses,
        start_point=FIRST,
        concurrency=1,
        order=kind == "ordered",
        model=MessageModel.BROADCASTING if kind == "broadcasting" else MessageModel.CLUSTERING,
        offsets_path=path,
    )
    consumer.subscribe("T", "*", receiver)
    async with consumer:
        await receiver.wait({0})
        tasks = lasting(consumer._instance, consumer._workers)
        if kind == "ordered":
            # It lives as long as there are messages.
            tasks = {task for task in tasks if not task.get_name().startswith("consume ")}
        assert names(tasks) == PUSH_TASKS[kind]
        await check_tasks(tasks, failure, caplog)
        assert lasting(consumer._instance, consumer._workers) >= tasks
        await send(cluster, 1, 2)
        await receiver.wait({1, 2})
        (queue,) = [queue for queue in consumer.assignment if queue.topic == "T"]

        async def is_stored() -> bool:
            if kind == "broadcasting":
                return path.exists() and ":3" in path.read_text()
            return (await consumer._offset_store.stored(queue)).stored == 3

        await until(is_stored)


@each_failure
async def test_every_task_of_a_pull_consumer_outlives_a_failure(
    cluster: Cluster, failure, caplog, monkeypatch
):
    """What was read before is handed out once, and what comes later too."""
    monkeypatch.setattr(background, "RESTART_PAUSE_S", 0.01)
    async with PullConsumer("G", namesrv=cluster.namesrv_addresses, start_point=FIRST) as consumer:
        await consumer.subscribe("T")

        async def has_read() -> bool:
            return any(not buffer.is_empty for buffer in consumer._buffers.values())

        await until(has_read)
        tasks = lasting(consumer._instance)
        assert names(tasks) == {"heartbeat", "route poll", "rebalance", "read T@_:0"}
        await check_tasks(tasks, failure, caplog)
        await send(cluster, 1)
        numbers: list[int] = []
        async with asyncio.timeout(20):
            while len(numbers) < 2:
                numbers += [int(message.payload()) for message in await consumer.poll()]
        assert numbers == [0, 1]


@each_failure
async def test_every_task_of_a_producer_outlives_a_failure(
    cluster: Cluster, failure, caplog, monkeypatch
):
    """Heartbeats, routes and transaction checks go on; so do sends."""
    monkeypatch.setattr(background, "RESTART_PAUSE_S", 0.01)

    async def check(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT

    async with TransactionProducer(
        "G", check, namesrv=cluster.namesrv_addresses, check_concurrency=1
    ) as producer:
        tasks = lasting(producer._instance)
        assert names(tasks) == {"heartbeat", "route poll", "transaction check 0"}
        await check_tasks(tasks, failure, caplog)
        await producer.send(Message("T", b"1"))


def nothing_left() -> Callable[[], Awaitable[bool]]:
    """Return a check that no task of a client is there which was not there before."""
    before = asyncio.all_tasks()

    async def check() -> bool:
        return not {
            task
            for task in asyncio.all_tasks() - before
            if re.match(
                r"heartbeat|route poll|rebalance|read |save |consume |renew", task.get_name()
            )
        }

    return check


async def test_listener_that_raises_changes_nothing(cluster: Cluster, caplog):
    """The queues are read and given back, whatever a listener makes of them."""
    receiver = Receiver()
    told: list[str] = []

    def raising(topic: str, queues: list[MessageQueue]) -> None:
        raise KeyError(topic)

    def cancelled(topic: str, queues: list[MessageQueue]) -> None:
        raise asyncio.CancelledError

    consumer = PushConsumer("G", namesrv=cluster.namesrv_addresses, start_point=FIRST)
    consumer.on_assignment += [raising, cancelled, lambda topic, queues: told.append(topic)]
    consumer.subscribe("T", "*", receiver)
    async with consumer:
        await receiver.wait({0})
    assert "T" in told
    assert "task rebalance died" not in caplog.text
    assert "assignment listener failed topic=T" in caplog.text


async def test_disk_of_local_offsets_fails_and_heals(
    cluster: Cluster, tmp_path: Path, caplog, monkeypatch
):
    """Offsets that cannot be written are logged and written later; closing closes everything."""
    monkeypatch.setattr(push_consumer, "PERSIST_INTERVAL_S", 0.02)
    folder = tmp_path / "offsets"
    folder.write_text("a file where a folder should be")
    receiver = Receiver()

    def consumer() -> PushConsumer:
        consumer = PushConsumer(
            "G",
            namesrv=cluster.namesrv_addresses,
            model=MessageModel.BROADCASTING,
            start_point=FIRST,
            offsets_path=folder / "offsets.json",
        )
        consumer.subscribe("T", "*", receiver)
        return consumer

    with pytest.raises(MailboatError, match="offsets cannot be read: Not a directory"):
        await consumer().start()
    folder.unlink()
    is_gone = nothing_left()
    first = consumer()
    async with first:
        folder.write_text("a file where a folder should be")
        await receiver.wait({0})

        async def is_logged() -> bool:
            return "offsets cannot be written: " in caplog.text

        await until(is_logged)
        folder.unlink()

        async def is_written() -> bool:
            return (folder / "offsets.json").exists()

        await until(is_written)
        await asyncio.to_thread(os.rename, folder, tmp_path / "away")
        folder.write_text("a file where a folder should be")
        await send(cluster, 1)
        await receiver.wait({1})
    assert await is_gone()
    assert len(first._instance.remoting._connections) == 0


async def test_handler_closes_its_consumer(cluster: Cluster):
    """Stop after so many messages: what was handled is stored and the group is left, at once."""
    is_gone = nothing_left()
    numbers: list[int] = []

    async def handle(messages: list[MessageExt]) -> None:
        numbers.extend(int(message.payload()) for message in messages)
        if len(numbers) == 3:
            await asyncio.wait_for(consumer.close(), 5)

    await send(cluster, 1, 2, 3, 4)
    consumer = PushConsumer(
        "G", namesrv=cluster.namesrv_addresses, start_point=FIRST, concurrency=1
    )
    consumer.subscribe("T", "*", handle)
    await consumer.start()
    await until(is_gone, within_s=4.0)
    await asyncio.wait_for(consumer.close(), 5)
    assert numbers == [0, 1, 2]
    async with Admin(namesrv=cluster.namesrv_addresses) as admin:
        assert await admin.groups.connection("G") is None
    receiver = Receiver()
    again = PushConsumer("G", namesrv=cluster.namesrv_addresses)
    again.subscribe("T", "*", receiver)
    async with again:
        await receiver.wait({3, 4})
    assert receiver.numbers == [3, 4]


async def test_start_that_is_cancelled_leaves_nothing_behind(cluster: Cluster, monkeypatch):
    """Wherever a start is cancelled: at every point where it waits."""
    is_gone = nothing_left()
    for number in range(200):
        consumer = PushConsumer("G", namesrv=cluster.namesrv_addresses)
        consumer.subscribe("T", "*", Receiver())
        starting = asyncio.ensure_future(consumer.start())
        for _ in range(number):
            await asyncio.sleep(0)
            if starting.done():
                break
        if starting.done():
            break
        starting.cancel()
        await asyncio.wait([starting])
        assert await is_gone(), number
        assert len(consumer._instance.remoting._connections) == 0
    else:
        raise AssertionError("the start never ended by itself")
    await consumer.close()
    assert number > 10


async def test_loop_that_ends_with_an_open_consumer_is_not_held_up(cluster: Cluster, caplog):
    """What cancels every task of a loop ends ours too, and the log says so."""
    consumer = PushConsumer("G", namesrv=cluster.namesrv_addresses, start_point=FIRST)
    receiver = Receiver()
    consumer.subscribe("T", "*", receiver)
    await consumer.start()
    await receiver.wait({0})
    caplog.set_level(logging.WARNING)
    tasks = lasting(consumer._instance, consumer._workers)
    for task in tasks:
        task.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert "task heartbeat was cancelled from outside of the client" in caplog.text
    await consumer.close()
