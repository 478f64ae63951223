"""SQL92 subscriptions over real sockets: pulls, long polling, heartbeats and checks."""

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from raw_client import RawClient, broker_settings, connected, running_broker

from mailboat.broker import sql_filters
from mailboat.broker.controller import BrokerController
from mailboat.broker.sql_filters import SqlFilters
from mailboat.errors import BrokerError
from mailboat.filtering.sql.sql_filter import SqlFilter
from mailboat.model.properties import encode_properties
from mailboat.model.record import decode_records
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.heartbeat import (
    CheckClientConfig,
    ConsumerData,
    HeartbeatData,
    encode_check_client_config,
    encode_heartbeat,
)

_SQL = "n > 5 AND (color = 'red' OR color IS NULL)"
_LONG_MS = 15_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    """Run a broker whose reads end with the queue: the clock of their slices stands still."""
    async with running_broker(tmp_path) as controller:
        controller.store.lookup._clock = lambda: 0.0
        yield controller


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    """Connect a client."""
    async with connected(broker, "10.0.0.1@1") as (client,):
        await client.make_topic("T")
        yield client


async def _send(client: RawClient, *numbers: int, color: str | None = None) -> None:
    for number in numbers:
        properties = {"n": str(number)} | ({"color": color} if color else {})
        await client.send("T", str(number).encode(), properties=encode_properties(properties))


async def _pull(
    client: RawClient,
    queue_offset: int,
    expression: str | None = _SQL,
    *,
    suspend_ms: int = 0,
    kind: str = "SQL92",
) -> RemotingCommand:
    fields: dict[str, ExtValue] = {
        "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": queue_offset,
        "maxMsgNums": 32, "sysFlag": (2 if suspend_ms else 0) + (0 if expression is None else 4),
        "commitOffset": 0, "suspendTimeoutMillis": suspend_ms, "subscription": expression,
        "subVersion": 0, "expressionType": kind,
    }  # fmt: skip
    return await client.call(RequestCode.PULL_MESSAGE, fields)


async def _heartbeat(client: RawClient, expression: str, kind: str = "SQL92") -> None:
    subscription = SubscriptionData("T", expression, sub_version=1, expression_type=kind)
    data = HeartbeatData(client.client_id)
    data.consumer_data_set.append(ConsumerData("G", subscription_data_set=[subscription]))
    await client.ok(RequestCode.HEART_BEAT, body=encode_heartbeat(data))


async def _check(client: RawClient, expression: str, kind: str = "SQL92") -> RemotingCommand:
    subscription = SubscriptionData("T", expression, expression_type=kind)
    body = encode_check_client_config(CheckClientConfig("c", "G", subscription))
    return await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=body)


def _seen(answer: RemotingCommand) -> tuple[int, int, list[int]]:
    """Return the code, where to go on, and the numbers of the messages."""
    numbers = [int(message.body) for message in decode_records(answer.body)]
    return answer.code, int(answer.ext_fields["nextBeginOffset"]), numbers


async def _until_held(broker: BrokerController) -> None:
    async with asyncio.timeout(10):
        while not len(broker.pull_holds):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)


async def test_a_pull_gets_what_its_expression_takes(client: RawClient) -> None:
    """20 with a moved offset where nothing matches, 19 at the end, as RocketMQ answers."""
    await _send(client, 1, 2, 6)
    await _send(client, 7, color="red")
    await _send(client, 8, color="blue")
    await _send(client, 9, 3)
    found, retry = ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY
    assert _seen(await _pull(client, 0)) == (found, 7, [6, 7, 9])
    assert _seen(await _pull(client, 4)) == (found, 7, [9])
    assert _seen(await _pull(client, 6)) == (retry, 7, [])
    assert _seen(await _pull(client, 7)) == (ResponseCode.PULL_NOT_FOUND, 7, [])
    assert _seen(await _pull(client, 0, "n = 1000")) == (retry, 7, [])


async def test_a_heartbeats_expression_filters_pulls_that_name_none(client: RawClient) -> None:
    """So do those of the Go client, which names it but says that it were tags."""
    await _send(client, 1, 6)
    await _heartbeat(client, _SQL)
    assert _seen(await _pull(client, 0, None)) == (ResponseCode.SUCCESS, 2, [6])
    assert _seen(await _pull(client, 0, None, kind="TAG")) == (ResponseCode.SUCCESS, 2, [6])
    assert _seen(await _pull(client, 0, _SQL, kind="TAG")) == (ResponseCode.SUCCESS, 2, [6])
    assert _seen(await _pull(client, 0, "other", kind="TAG"))[0] == 20


class _Counting:
    """A filter that counts how many messages it was asked about."""

    condition = None

    def __init__(self, expression: str) -> None:
        self._filter = SqlFilter(expression)
        self.asked = 0

    def matches(self, properties: Any) -> bool:
        return self._filter.matches(properties)

    def matches_text(self, text: bytes, start: int, end: int) -> bool:
        self.asked += 1
        return self._filter.matches_text(text, start, end)


async def test_a_waiting_pull_is_answered_by_the_first_match(
    broker: BrokerController, client: RawClient
) -> None:
    """What does not match leaves it waiting, and no message is judged twice."""
    counting = _Counting(_SQL)
    broker.sql_filters._keep(_SQL, counting)
    await _send(client, 1, 2)
    waiting = asyncio.create_task(_pull(client, 2, suspend_ms=_LONG_MS))
    await _until_held(broker)
    async with connected(broker, "10.0.0.2@1") as (sender,):
        for number in range(5):
            await _send(sender, number)
        assert not waiting.done()
        assert counting.asked == 5
        await _send(sender, 6)
    assert _seen(await asyncio.wait_for(waiting, 5)) == (ResponseCode.SUCCESS, 8, [6])
    assert counting.asked == 6


async def test_a_waiting_pull_says_how_far_it_looked_when_its_time_is_up(
    broker: BrokerController, client: RawClient
) -> None:
    """The consumer goes on behind the messages that its expression does not take."""
    waiting = asyncio.create_task(_pull(client, 0, suspend_ms=300))
    await _until_held(broker)
    async with connected(broker, "10.0.0.2@1") as (sender,):
        await _send(sender, 1, 2, 3)
    assert _seen(await waiting) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 3, [])
    late = await _pull(client, 3, suspend_ms=50)
    assert _seen(late) == (ResponseCode.PULL_NOT_FOUND, 3, [])


async def test_a_burst_that_takes_more_than_a_slice_is_looked_at_at_once(
    broker: BrokerController, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting pull whose slice ends is answered, so that its client asks for the rest."""
    # Judged in Python, which looks at the clock after each message.
    broker.sql_filters._keep(_SQL, _Counting(_SQL))
    ticks = itertools.count()
    monkeypatch.setattr(broker.store.lookup, "_clock", lambda: next(ticks) / 1000)
    await _send(client, *range(5))
    answers = [_seen(await _pull(client, 0))]
    while answers[-1][1] < 5:
        answers.append(_seen(await _pull(client, answers[-1][1])))
    assert len(answers) > 1
    assert {code for code, _, _ in answers} == {ResponseCode.PULL_RETRY_IMMEDIATELY}
    waiting = asyncio.create_task(_pull(client, 5, suspend_ms=_LONG_MS))
    await _until_held(broker)
    async with connected(broker, "10.0.0.2@1") as (sender,):
        await asyncio.gather(*(_send(sender, 1) for _ in range(60)), _send(sender, 6))
        code, at, numbers = _seen(await asyncio.wait_for(waiting, 5))
        while not numbers:
            assert code == ResponseCode.PULL_RETRY_IMMEDIATELY
            code, at, numbers = _seen(await _pull(client, at, suspend_ms=_LONG_MS))
    assert numbers == [6]


async def test_a_dropped_expression_is_compiled_again_for_a_waiting_pull(
    broker: BrokerController, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pull holds on to is the text; its client asks again at once."""
    monkeypatch.setattr(sql_filters, "MAX_EXPRESSIONS", 1)
    waiting = asyncio.create_task(_pull(client, 0, suspend_ms=_LONG_MS))
    await _until_held(broker)
    async with connected(broker, "10.0.0.2@1") as (sender,):
        assert (await _check(sender, "x = 1")).code == ResponseCode.SUCCESS
        await _send(sender, 6)
    assert _seen(await asyncio.wait_for(waiting, 5)) == (
        ResponseCode.PULL_RETRY_IMMEDIATELY, 0, []
    )  # fmt: skip
    assert _seen(await _pull(client, 0)) == (ResponseCode.SUCCESS, 1, [6])


async def test_a_pull_whose_expression_cannot_wait_is_not_held(
    broker: BrokerController, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused once, and takes no place among those that wait for a message."""

    def full(*_: object) -> None:
        raise BrokerError(ResponseCode.SYSTEM_BUSY, "too many wait")

    monkeypatch.setattr(SqlFilters, "compile", full)
    answer = await _pull(client, 0, suspend_ms=_LONG_MS)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, "too many wait")
    assert not broker.pull_holds._by_connection
    assert broker.pull_holds._count == 0


async def test_messages_on_the_disk_are_filtered_too(tmp_path: Path) -> None:
    """They are read away from the loop, so many bytes for each pull."""
    settings = broker_settings(tmp_path)
    store = dataclasses.replace(
        settings.store,
        access_message_in_memory_max_ratio=0,
        max_transfer_bytes_on_message_in_memory=20_000,
    )
    broker = BrokerController(dataclasses.replace(settings, store=store))
    await broker.start()
    try:
        async with connected(broker, "10.0.0.1@1") as (client,):
            await client.make_topic("T")
            for number in range(100):
                properties = encode_properties({"n": str(number)})
                await client.send("T", b"%d" % number + b" " * 1000, properties=properties)
            at, found, pulls = 0, [], 0
            while at < 100:
                _, at, numbers = _seen(await _pull(client, at, "n = 3 OR n >= 98"))
                found += numbers
                pulls += 1
            assert found == [3, 98, 99]
            assert pulls >= 3
    finally:
        await broker.shutdown()


async def test_a_wrong_expression_is_refused_with_the_place(client: RawClient) -> None:
    """By the check before a consumer starts, and by every pull that carries it."""
    assert (await _check(client, _SQL)).code == ResponseCode.SUCCESS
    assert (await _check(client, "whatever", "TAG")).code == ResponseCode.SUCCESS
    for answer in (await _check(client, "n > > 5"), await _pull(client, 0, "n > > 5")):
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert answer.remark is not None
        assert "unexpected '>' at position 5" in answer.remark
    for answer in (await _check(client, "", "SQL92"), await _pull(client, 0, "n" * 20_000)):
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert (await _pull(client, 0, "|| ", kind="TAG")).code == 23


async def test_a_heartbeat_with_a_wrong_expression_is_taken(
    client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Its pulls get RocketMQ's refusal with the reason behind it, and the log names the group."""
    await _heartbeat(client, "n > > 5")
    for _ in range(2):
        answer = await _pull(client, 0, None)
        assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
        assert answer.remark is not None
        assert "consumer filter data is not exist" in answer.remark
        assert "position 5" in answer.remark
    assert "bad subscription group=G topic=T" in caplog.text


async def test_an_unknown_expression_type_is_refused(client: RawClient) -> None:
    """RocketMQ lets such pulls have every message."""
    for answer in (await _check(client, "x", "JS"), await _pull(client, 0, "x", kind="JS")):
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert answer.remark == "unknown expression type 'JS'; use TAG or SQL92"


async def test_without_property_filters_sql_is_refused(tmp_path: Path) -> None:
    """enablePropertyFilter=false refuses as RocketMQ words it; tags still work."""
    async with (
        running_broker(tmp_path, enable_property_filter=False) as broker,
        connected(broker, "10.0.0.1@1") as (client,),
    ):
        await client.make_topic("T")
        await _heartbeat(client, _SQL)
        answers = await _check(client, _SQL), await _pull(client, 0), await _pull(client, 0, None)
        for answer in answers:
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == (
                "The broker does not support consumer to filter message by SQL92"
            )
        assert len(broker.sql_filters) == 0
        assert (await _check(client, "a || b", "TAG")).code == ResponseCode.SUCCESS
