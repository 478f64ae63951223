"""A group of our replicas at real name servers, and stock clients that read from its slave."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from interop_jars import SERVER_LINES
from replica_nodes import ReplicaNodes

from mailboat.broker import administration
from mailboat.client import Message, Producer
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.route import TopicRouteData, decode_topic_route
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.dispatcher import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import JavaClientFactory

FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]


async def _route(namesrv: str, topic: str) -> TopicRouteData:
    client = RemotingClient(Dispatcher())
    try:
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        answer = await client.request(namesrv, request, 10.0)
        return decode_topic_route(answer.body)
    finally:
        await client.close()


async def _until_numbers(namesrv: str, topic: str, expected: dict[int, str]) -> TopicRouteData:
    async with asyncio.timeout(20):
        while True:
            route = await _route(namesrv, topic)
            [broker] = [data for data in route.broker_datas if data.broker_name == "broker-a"]
            if broker.broker_addrs == expected:
                return route
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("line", SERVER_LINES)
async def test_numbers_follow_the_master(
    line: str, java_namesrv: Callable[[str], str], tmp_path: Path
) -> None:
    """A promoted slave is 0 at once, with the topics of its master; that one comes back as 1.

    Without a word of the old master too: its place goes to who has the newer state.
    """
    namesrv = await asyncio.to_thread(java_namesrv, line)
    topic = f"made-{line.replace('.', '-')}"
    async with ReplicaNodes(tmp_path, 2, {"namesrvAddr": namesrv}) as nodes:
        await nodes.in_sync()
        await administration.update_topic(nodes.broker(0), TopicConfig(topic, 3, 3, perm=6))
        first, second = nodes.broker(0).address, nodes.broker(1).address
        await _until_numbers(namesrv, topic, {0: first, 1: second})
        await nodes.switch(1)
        route = await _until_numbers(namesrv, topic, {0: second})
        assert route.queue_datas[0].write_queue_nums == 3
        await nodes.start(0)
        await nodes.in_sync()
        await _until_numbers(namesrv, topic, {0: second, 1: first})
        # Hangs, and its connection stays open.
        nodes.group(1).end()
        nodes.broker(1).registration.broker_id = lambda: -1
        await nodes.promote(0)
        route = await _until_numbers(namesrv, topic, {0: first})
        assert route.queue_datas[0].write_queue_nums == 3


@pytest.mark.parametrize("line", SERVER_LINES)
async def test_who_begins_empty_takes_no_route(
    line: str, java_namesrv: Callable[[str], str], tmp_path: Path
) -> None:
    """A replica 0 without a store, in the place of one that was replaced, is nobody's master.

    RocketMQ's 4.9 would lead clients to whoever registers as 0 last, for up to 30 s.
    """
    namesrv = await asyncio.to_thread(java_namesrv, line)
    topic = f"kept-{line.replace('.', '-')}"
    async with ReplicaNodes(tmp_path, 2, {"namesrvAddr": namesrv}) as nodes:
        await nodes.in_sync()
        await administration.update_topic(nodes.broker(0), TopicConfig(topic, 3, 3, perm=6))
        await nodes.switch(1)
        first, second = f"127.0.0.1:{nodes.ports(0)[0]}", nodes.broker(1).address
        await _until_numbers(namesrv, topic, {0: second})
        await asyncio.to_thread(shutil.rmtree, tmp_path / "replica-0")
        masters: set[str | None] = set()

        async def watch() -> None:
            while True:
                route = await _route(namesrv, topic)
                [broker] = [data for data in route.broker_datas if data.broker_name == "broker-a"]
                masters.add(broker.broker_addrs.get(0))
                if broker.broker_addrs.get(1) == first:
                    return

        watching = asyncio.create_task(watch())
        await nodes.start(0)
        async with asyncio.timeout(40):
            await watching
        await nodes.in_sync()
        assert masters == {second}


@pytest.mark.parametrize("line", ["4.9.8", "5.5.0"])
async def test_a_stock_consumer_reads_on_at_a_slave(
    line: str, new_java_client: JavaClientFactory, tmp_path: Path
) -> None:
    """With the master gone it gets what it has not had, and what it commits is not lost."""
    async with ReplicaNodes(tmp_path, 2, {"slaveReadEnable": "true"}) as nodes:
        await nodes.in_sync()
        await administration.update_topic(nodes.broker(0), TopicConfig("T", 1, 1, perm=6))
        async with Producer("P", namesrv=nodes.namesrv) as producer:
            for number in range(20):
                await producer.send(Message("T", b"m-%d" % number))
        slave = nodes.broker(1)
        await nodes.until(lambda: slave.store.max_offset("T", 0) == 20)
        client = await asyncio.to_thread(new_java_client, line, nodes.namesrv)
        # The group is the master's to make.
        first = client.start("push", topic="T", group="G", **FIRST)
        await asyncio.to_thread(first.wait_messages, 20)
        await asyncio.to_thread(client.call, "stop", handle=first.number)
        await nodes.until(lambda: slave.offsets.query("G", "T", 0) == 20)
        async with Producer("P", namesrv=nodes.namesrv) as producer:
            for number in range(20, 30):
                await producer.send(Message("T", b"m-%d" % number))
        await nodes.until(lambda: slave.store.max_offset("T", 0) == 30)
        await nodes.stop(0)
        second = client.start("push", topic="T", group="G", **FIRST)
        events = await asyncio.to_thread(second.wait_messages, 10)
        assert len(events) == 10
        await asyncio.to_thread(client.call, "stop", handle=second.number)
        await nodes.until(lambda: slave.offsets.query("G", "T", 0) == 30)
        await nodes.start(0)
        await nodes.in_sync()
        master = nodes.broker(0).offsets
        await nodes.until(lambda: master.query("G", "T", 0) == 30)
