"""Delayed and half messages that the compiled core parks and restores, on a running broker."""

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from raw_client import RawClient, connected, running_broker

from mailboat import core
from mailboat.broker.controller import BrokerController
from mailboat.broker.processors.send_rounds import SendRounds
from mailboat.disk import Disk
from mailboat.model.message import MessageExt
from mailboat.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from mailboat.model.record import decode_records
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.store import commit_log
from mailboat.store.lookup import GetStatus
from mailboat.store.segment import Segment

pytestmark = pytest.mark.core
SEND = {
    "a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0",
    "k": "false", "m": "false",
}  # fmt: skip
HALF = "PGROUP\x01P\x02TRAN_MSG\x01true\x02"
DELAYED = "DELAY\x011\x02"
COMMIT = 8
GROWS_S = 60


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    """Run a broker whose core knows topic T and where messages are parked."""
    async with running_broker(tmp_path) as controller, connected(controller, "c@1") as (client,):
        await client.make_topic("T", 1)
        for properties in ("", DELAYED, HALF):
            await client.send("T", b"first", 0, f"UNIQ_KEY\x01first\x02{properties}")
        await until(lambda: controller.schedule.delivered == 1)
        yield controller


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    """Connect a well-behaved client."""
    async with connected(broker, "c@2") as (client,):
        yield client


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many messages each write of the core's holds."""
    counts: list[int] = []
    publish = SendRounds._publish

    def noted(self: SendRounds, round_: "core.native.Round", now_ms: int) -> None:
        counts.append(round_.message_count)
        publish(self, round_, now_ms)

    monkeypatch.setattr(SendRounds, "_publish", noted)
    return counts


def let_writes_fail(patch: pytest.MonkeyPatch, code: int) -> list[int]:
    """Have every write to the log fail; return the sizes of what was to be written."""
    sizes: list[int] = []

    def fails(_disk: Disk, _fd: int, data: bytes, _position: int) -> None:
        sizes.append(len(data))
        raise OSError(code, os.strerror(code))

    patch.setattr(commit_log, "write_fully", fails)
    return sizes


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the broker does by itself."""
    async with asyncio.timeout(GROWS_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


async def sent(broker: BrokerController, properties: str, count: int) -> list[dict[str, str]]:
    """Send messages with one write; return what their answers say."""
    requests = []
    for number in range(count):
        text = f"WAIT\x01true\x02UNIQ_KEY\x01U{number}\x02{properties}"
        command = RemotingCommand.request(
            RequestCode.SEND_MESSAGE_V2, SEND | {"i": text}, b"body %d" % number
        )
        command.opaque = number
        requests.append(command.encode())
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(b"".join(requests))
    answers: list[dict[str, str]] = []
    async with asyncio.timeout(GROWS_S):
        for number in range(count):
            data = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            header = json.loads(data[4 : 4 + int.from_bytes(data[1:4])])
            assert header["opaque"] == number
            answers.append(header["extFields"] | {"code": str(header["code"])})
    writer.close()
    return answers


def stored(broker: BrokerController, topic: str, queue_id: int = 0) -> list[MessageExt]:
    """Return the messages of a queue but for those of the fixtures."""
    result = broker.store.get_message(topic, queue_id, 0, 100, 1 << 20)
    assert result.status == GetStatus.FOUND
    messages = decode_records(b"".join(result.slices))
    return [message for message in messages if message.unique_key not in (None, "first")]


async def ended(client: RawClient, answer: dict[str, str]) -> RemotingCommand:
    """Commit a half message; return the answer."""
    return await client.call(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "P", "tranStateTableOffset": answer["queueOffset"],
            "commitLogOffset": str(int(answer["msgId"][16:], 16)), "commitOrRollback": str(COMMIT),
        },
    )  # fmt: skip


async def test_delayed_sends_of_one_read_are_one_write_each_way(
    broker: BrokerController, taken: list[int]
) -> None:
    """Ten of a read are parked together, and come together as they were sent."""
    answers = await sent(broker, DELAYED, 10)
    assert [(answer["code"], answer["queueOffset"]) for answer in answers] == [
        ("0", str(number)) for number in range(1, 11)
    ]
    parked = stored(broker, SCHEDULE_TOPIC)
    assert [message.properties["REAL_TOPIC"] for message in parked] == ["T"] * 10
    await until(lambda: broker.schedule.delivered == 11)
    messages = stored(broker, "T")
    assert [message.body for message in messages] == [b"body %d" % n for n in range(10)]
    assert messages[0].properties | {"__CRC32#": ""} == {
        "UNIQ_KEY": "U0", "DELAY": "1", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster", "WAIT": "true", "REAL_TOPIC": "T", "REAL_QID": "0",
        "__CRC32#": "",
    }  # fmt: skip
    waited_ms = messages[0].store_timestamp_ms - parked[0].store_timestamp_ms
    assert waited_ms >= 1_000
    assert taken == [10, 10]


async def test_half_messages_and_commits_are_the_cores(
    broker: BrokerController, client: RawClient, taken: list[int]
) -> None:
    """Answers name the transaction; commits that come together are one write of messages."""
    answers = await sent(broker, HALF, 4)
    assert [answer["transactionId"] for answer in answers] == ["U0", "U1", "U2", "U3"]
    halves = stored(broker, HALF_TOPIC)
    results = await asyncio.gather(*[ended(client, answer) for answer in answers])
    assert {result.code for result in results} == {ResponseCode.SUCCESS}
    messages = stored(broker, "T")
    assert [message.body for message in messages] == [half.body for half in halves]
    assert [message.prepared_transaction_offset for message in messages] == [
        half.physical_offset for half in halves
    ]
    assert {message.sys_flag for message in messages} == {COMMIT}
    assert "TRAN_MSG" not in messages[0].properties
    assert broker.transactions.counters.committed == 4
    assert broker.transactions.open_halves == 1
    assert sum(taken) == 8


async def test_half_messages_are_refused_when_they_are_to_be(broker: BrokerController) -> None:
    """A setting that changes holds for the next round."""
    broker.change_config({"rejectTransactionMessage": "true"})
    # Python takes the first round after a change.
    for _ in range(2):
        [answer] = await sent(broker, HALF, 1)
        assert int(answer["code"]) == ResponseCode.NO_PERMISSION
    broker.change_config({"rejectTransactionMessage": "false"})
    [answer] = await sent(broker, HALF, 1)
    assert int(answer["code"]) == ResponseCode.SUCCESS


async def test_nobody_sends_to_where_messages_are_parked(client: RawClient) -> None:
    """The core knows these topics, and takes no send that names one."""
    for topic in (SCHEDULE_TOPIC, HALF_TOPIC):
        fields = SEND | {"b": topic, "i": "UNIQ_KEY\x01U\x02"}
        answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_a_delivery_that_cannot_be_written_is_made_later(
    broker: BrokerController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message comes once, after the disk takes it."""
    await sent(broker, DELAYED, 3)
    with monkeypatch.context() as patch:
        refused = let_writes_fail(patch, errno.ENOSPC)
        await until(lambda: bool(refused))
        assert broker.schedule.delivered == 1
    await until(lambda: broker.schedule.delivered == 4)
    assert [message.unique_key for message in stored(broker, "T")] == ["U0", "U1", "U2"]


@pytest.mark.parametrize("is_undone", [True, False])
async def test_a_commit_that_cannot_be_written_says_what_became_of_it(
    broker: BrokerController, client: RawClient, monkeypatch: pytest.MonkeyPatch, is_undone: bool
) -> None:
    """Refused where nothing is in the log, unknown where that cannot be said."""
    [answer] = await sent(broker, HALF, 1)

    def fails(_self: Segment, *_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        let_writes_fail(patch, errno.EIO)
        if not is_undone:
            patch.setattr(Segment, "cut", fails)
        result = await ended(client, answer)
    assert result.code == (
        ResponseCode.SERVICE_NOT_AVAILABLE if is_undone else ResponseCode.FLUSH_DISK_TIMEOUT
    )
    assert broker.transactions.open_halves == 2
    if is_undone:
        assert (await ended(client, answer)).code == ResponseCode.SUCCESS
        assert [message.unique_key for message in stored(broker, "T")] == ["U0"]
