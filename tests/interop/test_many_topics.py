"""RocketMQ's name servers take the registration of more topics than a frame of JSON can hold."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from interop_jars import SERVER_LINES
from interop_servers import start_java_namesrv

from mailboat.broker.controller import BrokerController
from mailboat.config import load_settings
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.route import decode_topic_route
from mailboat.remoting.client import RemotingClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

COUNT = 90_000


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    """Return a client of any name server."""
    client = RemotingClient()
    yield client
    await client.close()


@pytest.mark.parametrize("line", SERVER_LINES)
async def test_name_servers_know_all_of_many_topics(
    java_classpath: Callable[[str, str], str],
    tmp_path: Path,
    client: RemotingClient,
    caplog: pytest.LogCaptureFixture,
    line: str,
) -> None:
    """The last one too, with its queues, and one of a group."""
    java_classpath("server", line)
    java = start_java_namesrv(line, tmp_path / "java")
    ours = {
        "listenPort": "0", "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.1",
        "namesrvAddr": java.address, "storePathRootDir": str(tmp_path / "store"),
    }  # fmt: skip
    broker = BrokerController(load_settings("broker", overrides=ours))
    try:
        await broker.start()
        caplog.set_level(logging.WARNING)
        for number in range(COUNT):
            broker.topics.update(TopicConfig(f"topic-of-a-service-{number:06d}", 3, 2))
        broker.topics.create_retry_topic("G")
        for topic, queues in (
            (f"topic-of-a-service-{COUNT - 1:06d}", (3, 2)),
            ("%RETRY%G", (1, 1)),
        ):
            request = RemotingCommand.request(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": True}
            )
            async with asyncio.timeout(60):
                while True:
                    answer = await client.request(java.address, request, 20.0)
                    if answer.code == ResponseCode.SUCCESS:
                        break
                    await asyncio.sleep(0.2)
            [route] = decode_topic_route(answer.body).queue_datas
            assert (route.read_queue_nums, route.write_queue_nums) == queues
    finally:
        await broker.shutdown()
        java.stop()
