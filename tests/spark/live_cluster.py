"""A cluster in a thread of its own, for tests whose calls block."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from mailboat.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    Producer,
    SendResult,
    StartPoint,
)
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.store.retention import Pressure
from mailboat.testing.cluster import Cluster

_Result = TypeVar("_Result")
_TIMEOUT_S = 60.0


class LiveCluster:
    """Name server and brokers with real sockets, driven from synchronous tests."""

    def __init__(
        self, root: Path, *, brokers: int = 1, options: Mapping[str, str] | None = None
    ) -> None:
        """Prepare a cluster with its data below `root`."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster")
        self._cluster = Cluster(root, brokers=brokers, options=options)
        self._producer: Producer | None = None

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        self.run(self._cluster.__aenter__())
        self._producer = Producer("test-producer", namesrv=self.namesrv)
        self.run(self._producer.start())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End everything."""
        assert self._producer is not None
        try:
            self.run(self._producer.close())
            self.run(self._cluster.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def namesrv(self) -> str:
        """The name servers' addresses."""
        return self._cluster.namesrv_addresses

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine on the cluster's loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT_S)

    def create_topic(self, topic: str, queues: int = 2) -> list[MessageQueue]:
        """Make a topic, or give it more queues, and return its queues."""

        async def create() -> None:
            async with Admin(namesrv=self.namesrv) as admin:
                await admin.topics.create(
                    TopicConfig(topic, read_queue_nums=queues, write_queue_nums=queues)
                )

        self.run(create())
        return [MessageQueue(topic, "broker-a", queue_id) for queue_id in range(queues)]

    def create_group(self, group: str) -> None:
        """Make a consumer group."""

        async def create() -> None:
            async with Admin(namesrv=self.namesrv) as admin:
                await admin.groups.create(SubscriptionGroupConfig(group))

        self.run(create())

    def reset_group(self, group: str, topic: str) -> None:
        """Move a group to the beginning of a topic, as an administrator does."""

        async def reset() -> None:
            async with Admin(namesrv=self.namesrv) as admin:
                first = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
                await admin.offsets.reset(group, topic, first)

        self.run(reset())

    def delete_topic(self, topic: str) -> None:
        """Remove a topic and all its messages."""

        async def delete() -> None:
            async with Admin(namesrv=self.namesrv) as admin:
                await admin.topics.delete(topic)

        self.run(delete())

    def delete_topic_unheard(self, topic: str) -> None:
        """Remove a topic on the broker; for the moment the name server still has its route."""
        topics = self._cluster.broker().topics

        async def delete() -> None:
            topics.delete(topic)

        self.run(delete())

    def send(self, queue: MessageQueue, messages: Sequence[Message]) -> None:
        """Send messages to a queue, in order."""
        assert self._producer is not None
        for at in range(0, len(messages), 200):
            batch = messages[at : at + 200]
            self.run(self._producer.send_batch(batch, queue=queue, timeout_s=30))

    def send_one(self, queue: MessageQueue, message: Message) -> SendResult:
        """Send one message by itself; above 4 KiB it is compressed."""
        assert self._producer is not None
        return self.run(self._producer.send(message, queue=queue, timeout_s=30))

    def fill(self, topic: str, queues: int, per_queue: int) -> list[MessageQueue]:
        """Make a topic and put numbered messages `b"<queue>-<offset>"` into each of its queues."""
        made = self.create_topic(topic, queues)
        for queue in made:
            self.send(queue, numbered(queue, 0, per_queue))
        return made

    def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset that a broker has stored for a group, None where there is none."""
        offsets = self._cluster.broker().offsets

        async def ask() -> int:
            return offsets.query(group, queue.topic, queue.queue_id)

        stored = self.run(ask())
        return None if stored < 0 else stored

    def minimum_offset(self, queue: MessageQueue) -> int:
        """Return the first offset that the broker still holds of a queue."""
        store = self._cluster.broker().store

        async def ask() -> int:
            return store.min_offset(queue.topic, queue.queue_id)

        return self.run(ask())

    def http_json(self, path: str) -> Any:
        """Ask the broker's HTTP (option httpPort=0) for a document."""
        address = self.run(self._cluster.http_address(0))
        with urllib.request.urlopen(f"http://{address}{path}", timeout=_TIMEOUT_S) as answer:
            return json.loads(answer.read())

    def expire_all_but_newest(self) -> None:
        """Drop every CommitLog segment but the last, as a full disk makes a broker do."""

        async def expire() -> None:
            broker = self._cluster.broker()
            broker.change_config({"cleanUnconsumedFilesEnable": "true"})
            store = broker.store
            full = Pressure(in_window=False, expire=True, force_clean=True)
            original = store.retention.pressure
            store.retention.pressure = lambda freed_bytes=0: full  # type: ignore[method-assign]
            try:
                while store.clean():
                    pass
            finally:
                store.retention.pressure = original  # type: ignore[method-assign]
                broker.change_config({"cleanUnconsumedFilesEnable": "false"})

        self.run(expire())

    def stop_broker(self) -> None:
        """End the broker in order."""
        self.run(self._cluster.stop_broker(0))

    def start_broker(self, *, at_other_address: bool = False) -> None:
        """Start the broker again, on its old port or on another one."""
        if at_other_address:
            self._cluster._ports.clear()
        self.run(self._cluster.start_broker(0))

    def swap_addresses(self) -> None:
        """Have the first two brokers come back at each other's address."""

        async def swap() -> None:
            ports = self._cluster._ports
            for index in (0, 1):
                await self._cluster.stop_broker(index)
            ports[0], ports[1] = ports[1], ports[0]
            for index in (0, 1):
                await self._cluster.start_broker(index)

        self.run(swap())


def numbered(queue: MessageQueue, first: int, end: int, tag: str | None = None) -> list[Message]:
    """Return messages `b"<queue>-<number>"` with the number as key."""
    return [
        Message(queue.topic, b"%d-%d" % (queue.queue_id, number), tags=tag, keys=f"k{number}")
        for number in range(first, end)
    ]
