"""Requests and replies of our client through a real broker."""

import asyncio
from pathlib import Path

import pytest

from mailboat.client import (
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    StartPoint,
)
from mailboat.errors import BrokerError
from mailboat.testing.cluster import Cluster

FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)


async def test_requests_get_their_replies(tmp_path: Path):
    """Each request gets the reply of the consumer that got it, several at a time."""
    async with (
        Cluster(tmp_path) as cluster,
        Producer("R", namesrv=cluster.namesrv_addresses) as replier,
        Producer("A", namesrv=cluster.namesrv_addresses) as asker,
    ):

        async def answer(messages: list[MessageExt]) -> None:
            for message in messages:
                await replier.reply(message, b"re:" + message.payload())

        consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST)
        consumer.subscribe("T", "*", answer)
        async with consumer:
            replies = await asyncio.gather(
                *(asker.request(Message("T", b"%d" % i), timeout_s=20.0) for i in range(10))
            )
    assert [reply.payload() for reply in replies] == [b"re:%d" % i for i in range(10)]


async def test_reply_to_a_client_that_is_gone_is_refused(tmp_path: Path):
    """The replier learns that nobody waits any more."""
    received: asyncio.Queue[MessageExt] = asyncio.Queue()

    async def keep(messages: list[MessageExt]) -> None:
        received.put_nowait(messages[0])

    async with Cluster(tmp_path) as cluster:
        consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST)
        consumer.subscribe("T", "*", keep)
        async with (
            consumer,
            Producer("R", namesrv=cluster.namesrv_addresses) as replier,
        ):
            async with Producer("A", namesrv=cluster.namesrv_addresses) as asker:
                asking = asyncio.create_task(asker.request(Message("T", b"?")))
                request = await asyncio.wait_for(received.get(), 20)
                asking.cancel()
            with pytest.raises(BrokerError, match="not found"):
                await replier.reply(request, b"!")
