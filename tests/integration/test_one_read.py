"""Requests that arrive with one read, each of them short: others are served in between."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from loop_lag import LoopLag
from raw_client import connected, running_broker
from test_heavy_requests import LIMIT_S, Talk, frame, talk

from mailboat.broker.controller import BrokerController
from mailboat.broker.pull_request_hold import MAX_BYTES_PER_CONNECTION
from mailboat.model.batch import MAX_BATCH_MESSAGES
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand

MESSAGES = 1500
PULL = {
    "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
    "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip

BATCH = {
    "a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
    "i": "", "j": "0", "k": "false", "m": "true",
}  # fmt: skip


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    """Run a broker with a queue of messages that no filter below takes, and a large one."""
    async with running_broker(tmp_path) as controller, connected(controller, "c@1") as (client,):
        await client.make_topic("T")
        for _ in range(MESSAGES):
            await client.send("T", b"x", properties="a\x01b\x02")
        yield controller


@pytest.fixture
async def attacker(broker: BrokerController) -> AsyncIterator[Talk]:
    """Connect one more client."""
    async with talk(f"127.0.0.1:{broker.port}") as connection:
        yield connection


def pull(expression: str, kind: str, opaque: int, topic: str = "T") -> bytes:
    """Return a pull from the start of the queue."""
    fields = PULL | {"topic": topic, "subscription": expression, "expressionType": kind}
    return frame(RequestCode.PULL_MESSAGE, b"", fields, opaque)


@pytest.mark.parametrize(("expression", "kind"), [("a = 'c'", "SQL92"), ("nothing", "TAG")])
async def test_pulls_that_find_nothing_share_the_loop(
    attacker: Talk, expression: str, kind: str
) -> None:
    """Two milliseconds for each with SQL92, and a read holds hundreds of them."""
    await attacker.ask(pull(expression, kind, 1))
    async with LoopLag() as lag:
        pulls = [pull(expression, kind, opaque) for opaque in range(2, 602)]
        answers = await attacker.ask(*pulls)
    assert {code for code, _ in answers} == {ResponseCode.PULL_RETRY_IMMEDIATELY}
    assert len(answers) == 600
    assert lag.longest_s < LIMIT_S


async def test_different_requests_have_the_time_of_one_read_together(attacker: Talk) -> None:
    """A run of like requests has no time of its own."""
    await attacker.ask(pull("a = 'c'", "SQL92", 1))
    end = RemotingCommand.request(
        RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}, oneway=True
    ).encode()
    pairs = [end + pull("a = 'c'", "SQL92", opaque) for opaque in range(2, 302)]
    async with LoopLag() as lag:
        await attacker.ask(*pairs)
    assert lag.longest_s < LIMIT_S


@pytest.mark.parametrize("properties", ["", "UNIQ_KEY\x011"])
async def test_a_batch_of_tiny_messages_is_bounded(attacker: Talk, properties: str) -> None:
    """Its size alone would allow 190,000 of them: two seconds."""
    item = struct.pack(">iiiiiH", 22 + len(properties), 0, 0, 0, 0, len(properties))
    item += properties.encode()
    code = RequestCode.SEND_BATCH_MESSAGE
    async with LoopLag() as lag:
        many = await attacker.ask(frame(code, item * (4_000_000 // len(item)), BATCH))
        batches = [frame(code, item * MAX_BATCH_MESSAGES, BATCH, opaque) for opaque in range(8)]
        answers = await attacker.ask(*batches)
    assert many[0][0] == ResponseCode.MESSAGE_ILLEGAL
    assert "at most 1900 messages" in many[0][1]
    assert {code for code, _ in answers} == {ResponseCode.SUCCESS}
    assert lag.longest_s < LIMIT_S


def properties(seed: int, count: int) -> str:
    """Return properties with names of their own."""
    return "".join(f"{seed:x}.{number:x}\x01\x02" for number in range(count))


def batch(*texts: str) -> bytes:
    """Return a batch of one message for each properties text."""
    return b"".join(
        struct.pack(">iiiii", 23 + len(text), 0, 0, 0, 1) + b"x" + struct.pack(">H", len(text))
        + text.encode()
        for text in texts
    )  # fmt: skip


async def test_a_batch_of_very_many_properties_is_refused(attacker: Talk) -> None:
    """Half a million of them fit the bytes that a batch may have: 0.3 seconds."""
    code = RequestCode.SEND_BATCH_MESSAGE
    request = frame(code, batch(*(properties(n % 10, 3000) for n in range(150))), BATCH)
    for _ in range(2):
        async with LoopLag() as lag:
            [(answer, remark)] = await attacker.ask(request)
        assert answer == ResponseCode.MESSAGE_ILLEGAL
        assert "at most 20000 properties" in remark
        assert lag.longest_s < LIMIT_S
    allowed = batch(*[properties(1, 10)] * MAX_BATCH_MESSAGES)
    assert await attacker.ask(frame(code, allowed, BATCH)) == [(ResponseCode.SUCCESS, "")]


@pytest.mark.parametrize("unique_key", ["", "UNIQ_KEY\x011\x02"])
async def test_a_batch_of_very_many_keys_is_refused(attacker: Talk, unique_key: str) -> None:
    """Two million of them fit the bytes that a batch may have, half a million took a second."""
    code = RequestCode.SEND_BATCH_MESSAGE
    text = f"{unique_key}KEYS\x01{' '.join(f'{number:x}' for number in range(4000))}\x02"
    for _ in range(2):
        async with LoopLag() as lag:
            [(answer, remark)] = await attacker.ask(frame(code, batch(*[text] * 50), BATCH))
        assert answer == ResponseCode.MESSAGE_ILLEGAL
        assert "at most 20000 keys" in remark
        assert lag.longest_s < LIMIT_S
        few = await attacker.ask(frame(code, batch(*[text] * 5), BATCH))
        assert few == [(ResponseCode.SUCCESS, "")]


async def test_batches_with_names_of_their_own_share_the_loop(attacker: Talk) -> None:
    """For names that come again a way of reading is made: a millisecond, or fifty for very many."""
    code = RequestCode.SEND_BATCH_MESSAGE
    short = [frame(code, batch(properties(n, 60)), BATCH, n) for n in range(400)]
    long = [frame(code, batch(properties(n, 3500)), BATCH, n) for n in range(7)]
    for frames in (long, long, short, short):
        async with LoopLag() as lag:
            answers = await attacker.ask(*frames)
        assert {answer for answer, _ in answers} == {ResponseCode.SUCCESS}
        assert lag.longest_s < LIMIT_S


async def test_keys_of_many_sends_share_the_loop(attacker: Talk) -> None:
    """Each of these has 6,000 index entries: five milliseconds."""
    fields = BATCH | {"m": "false", "i": "KEYS\x01" + " ".join(map(str, range(5_500)))}
    code = RequestCode.SEND_MESSAGE_V2
    frames = [frame(code, b"x", fields, opaque) for opaque in range(60)]
    async with LoopLag() as lag:
        answers = await attacker.ask(*frames)
    assert answers == [(ResponseCode.SUCCESS, "")] * 60
    assert lag.longest_s < LIMIT_S


async def test_what_stands_before_damage_is_answered_after_its_turn(attacker: Talk) -> None:
    """A header that nobody can read ends the connection, not what was asked before."""
    await attacker.ask(pull("a = 'c'", "SQL92", 1))
    pulls = [pull("a = 'c'", "SQL92", opaque) for opaque in range(2, 102)]
    damaged = b"\0\0\0\x08\0\0\0\x04nope"
    answers = await attacker.ask(*pulls[:-1], pulls[-1] + damaged)
    assert len(answers) == 100


@pytest.mark.parametrize("subscription", [" " * 60_000 + "t", " || ".join(map(str, range(8000)))])
async def test_subscriptions_of_waiting_pulls_are_kept_for_their_peer(
    broker: BrokerController, attacker: Talk, subscription: str
) -> None:
    """A connection has 16,384 pulls that wait, and each of them up to 60 KB of tags."""
    waiting = {"queueOffset": str(MESSAGES), "sysFlag": "6", "suspendTimeoutMillis": "3000"}
    fields = PULL | waiting | {"subscription": subscription}
    pulls = [frame(RequestCode.PULL_MESSAGE, b"", fields, opaque) for opaque in range(300)]
    most = 0
    asking = asyncio.create_task(attacker.ask(*pulls))
    while not asking.done():
        most = max(most, *(peer.kept_bytes() for peer in broker._server.connections))
        await asyncio.sleep(0.01)
    answers = await asking
    refused = [remark for code, remark in answers if code == ResponseCode.SYSTEM_BUSY]
    assert MAX_BYTES_PER_CONNECTION * 0.9 < most < MAX_BYTES_PER_CONNECTION + 1024 * 1024
    assert 100 < len(refused) < 300
    assert all("bytes of subscriptions" in remark for remark in refused)
    assert [peer.awaited_bytes for peer in broker._server.connections] == [0] * 2
