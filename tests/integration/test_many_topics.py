"""Ninety thousand topics: what the name servers learn, and where there is an end."""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from loop_holds import LONGEST_WORK_S
from raw_client import RawClient, connected, running_broker

from mailboat.broker import topics as topics_module
from mailboat.config import NamesrvConfig, Settings
from mailboat.model.topic import TopicConfig
from mailboat.namesrv.controller import NamesrvController
from mailboat.protocol.bodies import decode_topic_list
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand

COUNT = 90_000
T = TypeVar("T")


@asynccontextmanager
async def running_namesrv() -> AsyncIterator[NamesrvController]:
    """Run a name server."""
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1")
    controller = NamesrvController(Settings(role="namesrv", namesrv=config))
    await controller.start()
    try:
        yield controller
    finally:
        await controller.shutdown()


async def longest_round_s(awaitable: Awaitable[T]) -> tuple[T, float]:
    """Await something; return with it the most processor time of one round of the loop."""
    # A look at all objects of this test process is not what is measured.
    gc.collect()
    gc.freeze()
    try:
        waiting = asyncio.ensure_future(awaitable)
        longest = 0.0
        begin = time.thread_time()
        while not waiting.done():
            await asyncio.sleep(0)
            now = time.thread_time()
            longest = max(longest, now - begin)
            begin = now
        return await waiting, longest
    finally:
        gc.unfreeze()


async def test_topics_that_fit_no_frame_are_registered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As JSON they would not fit a frame. Broker and name server, which share a loop here, let
    others have their turn meanwhile; a list that fits no frame is refused, not cut off."""
    async with AsyncExitStack() as stack:
        namesrv = await stack.enter_async_context(running_namesrv())
        address = f"127.0.0.1:{namesrv.port}"
        broker = await stack.enter_async_context(running_broker(tmp_path, namesrv_addr=address))
        [client] = await stack.enter_async_context(connected(broker, "a"))
        caplog.set_level(logging.WARNING)
        for number in range(COUNT):
            broker.topics.update(TopicConfig(f"topic-of-a-service-{number:06d}", 4, 4))
        registered, longest_s = await longest_round_s(broker.registration.register_now(30.0))
        assert registered
        assert longest_s < LONGEST_WORK_S
        assert namesrv.routes.topic_count() > COUNT
        assert namesrv.routes.route(f"topic-of-a-service-{COUNT - 1:06d}") is not None

        await client.send("Made", b"x")
        async with asyncio.timeout(30):
            while True:
                if namesrv.routes.route("Made") is not None:
                    break
                await asyncio.sleep(0.05)

        names = RawClient(address)
        stack.push_async_callback(names.close)
        answer = await names.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert len(decode_topic_list(answer.body)[0]) == namesrv.routes.topic_count()

        answer, longest_s = await longest_round_s(client.call(RequestCode.GET_ALL_TOPIC_CONFIG))
        assert longest_s < LONGEST_WORK_S
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "16777216" in (answer.remark or "")
        await client.send("Made", b"y")


async def test_topics_beyond_a_registration_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a message, by an administrator, for a consumer group: each time the sentence says why,
    and what is there goes on. A deleted topic makes room."""
    async with running_broker(tmp_path) as broker, connected(broker, "a") as [client]:
        await client.make_topic("T")
        room = broker.topics.registered_bytes + 30
        monkeypatch.setattr(topics_module, "MAX_REGISTERED_BYTES", room)
        await client.make_topic("Fits")
        for refused in (
            send_answer(client, "New"),
            client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("New")),
            client.pull("G", "%RETRY%G", 0),
        ):
            answer = await refused
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "cannot be made: this broker has" in (answer.remark or "")
            assert f"the {room} bytes that name servers take" in (answer.remark or "")
        await client.heartbeat("T", group="G")
        await client.send("T", b"x")
        assert (await client.pull("G", "T", 0)).code == ResponseCode.SUCCESS
        await client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", perm=4))
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Fits"})
        assert (await send_answer(client, "New")).code == ResponseCode.SUCCESS


async def test_a_topic_has_one_of_two_filter_types(tmp_path: Path) -> None:
    """Any other text would break the line that a name server reads."""
    async with running_broker(tmp_path) as broker, connected(broker, "a") as [client]:
        fields = topic_fields("T", topicFilterType="SINGLE_TAG x")
        answer = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "use SINGLE_TAG or MULTI_TAG" in (answer.remark or "")


async def send_answer(client: RawClient, topic: str) -> RemotingCommand:
    """Send a message and return the answer, whatever it is."""
    fields: dict[str, ExtValue] = {
        "a": "PG", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1,
        "h": 0, "i": "", "j": 0, "k": False,
    }  # fmt: skip
    return await client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")


def topic_fields(topic: str, **changes: ExtValue) -> dict[str, ExtValue]:
    """Return what mqadmin updateTopic sends."""
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
        "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, **changes,
    }  # fmt: skip
