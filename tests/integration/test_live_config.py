"""Settings changed over HTTP while the broker runs: each named live takes effect, the others are
refused."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from real_time import at_most_s

from mailboat.broker.controller import BrokerController
from mailboat.client.producer import Producer
from mailboat.config import live_keys
from mailboat.errors import BrokerError
from mailboat.model.message import Message
from mailboat.model.names import AUTO_CREATE_TOPIC, TOOLS_GROUP
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.client import RemotingClient
from mailboat.store.retention import Pressure
from mailboat.testing.cluster import Cluster

OPTIONS = {
    "httpPort": "0",
    "cleanResourceInterval": "3600000",
    "flushIntervalCommitLog": "3600000",
    "diskMaxUsedSpaceRatio": "75",
    "diskSpaceCleanForciblyRatio": "85",
    "diskSpaceWarningLevelRatio": "100",
}


class Live:
    """A broker with two name servers, registered at the first, and its HTTP."""

    def __init__(self, cluster: Cluster, http: aiohttp.ClientSession) -> None:
        """Change settings through `http`."""
        self.cluster = cluster
        self.http = http

    @property
    def broker(self) -> BrokerController:
        """The broker."""
        return self.cluster.broker()

    async def patch(self, changes: Any) -> tuple[int, Any]:
        """Return status and answer of a change."""
        async with self.http.patch("/api/v1/config", json=changes) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> Any:
        """Return the JSON of a GET that succeeds."""
        async with self.http.get(path) as answer:
            assert answer.status == 200
            return await answer.json()

    async def send(self, topic: str = "T", size: int = 10) -> None:
        """Send one message as a client does."""
        async with Producer("p", namesrv=self.cluster.namesrv_addresses) as producer:
            await producer.send(Message(topic, b"x" * size), timeout_s=3)


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    """Run the broker."""
    async with Cluster(tmp_path, options=OPTIONS, name_servers=2) as cluster:
        base = f"http://{await cluster.http_address()}"
        async with aiohttp.ClientSession(base) as http:
            yield Live(cluster, http)


async def until(check: Callable[[], bool], within_s: float = 5) -> None:
    """Wait until the answer is yes."""
    async with asyncio.timeout(within_s):
        while True:
            if check():
                return
            await asyncio.sleep(0.02)


def at(*path: str, value: Any) -> Callable[[Live], Awaitable[None]]:
    """Expect a value in the document of retention."""

    async def check(live: Live) -> None:
        found = await live.get("/api/v1/retention")
        for name in path:
            found = found[name]
        assert found == value

    return check


def goes(reason: str | None, *, is_read: bool) -> Callable[[Live], Awaitable[None]]:
    """Expect what becomes of a young segment on a full disk."""

    async def check(live: Live) -> None:
        retention = live.broker.store.retention
        pressure = Pressure(in_window=False, expire=True, force_clean=True)
        now_ms = retention.now_ms()
        found = retention.removal_reason(pressure, newest_ms=lambda: now_ms, is_read=is_read)
        assert found == reason

    return check


async def _deletes_one_a_round(live: Live) -> None:
    assert live.broker.store.cleaner.batch_max == 1


async def _cleans_often(live: Live) -> None:
    cleaner = live.broker.store.cleaner
    first = cleaner.last_round_ms
    await until(lambda: cleaner.last_round_ms > first)
    second = cleaner.last_round_ms
    await until(lambda: cleaner.last_round_ms > second)


async def _flushes_soon(live: Live) -> None:
    await live.send()
    await until(lambda: live.broker.store.state().unflushed_bytes == 0, 3)


async def _waits_shortly(live: Live) -> None:
    answered = asyncio.get_running_loop().create_future()
    started = time.monotonic()
    live.broker.flush.wait(1 << 60, answered.set_result)
    assert await asyncio.wait_for(answered, 20) is False
    assert time.monotonic() - started < at_most_s(3, 4.8)


async def _refuses_large_messages(live: Live) -> None:
    await live.send(size=100)
    with pytest.raises(BrokerError, match="at most 100 are allowed"):
        await live.send(size=101)


async def _allows_reading_only(live: Live) -> None:
    broker = live.broker.settings.broker.broker_name
    [data] = [
        data
        for data in _route(live, 0, AUTO_CREATE_TOPIC).queue_datas
        if data.broker_name == broker
    ]
    assert data.perm & 6 == 4


async def _offers_three_queues(live: Live) -> None:
    [data] = _route(live, 0, AUTO_CREATE_TOPIC).queue_datas
    assert (data.read_queue_nums, data.write_queue_nums) == (3, 3)


async def _makes_no_topic(live: Live) -> None:
    client = RemotingClient(name="test")
    fields = {"a": "p", "b": "new", "c": AUTO_CREATE_TOPIC, "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    request = RemotingCommand.request(
        RequestCode.SEND_MESSAGE_V2, {**fields, "i": "", "j": 0, "k": False}, b"x"
    )
    answer = await client.request(live.broker.address, request, 3)
    await client.close()
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def _makes_no_group(live: Live) -> None:
    assert live.broker.groups.find("new", "10.0.0.1") is None


async def _resets_through_members(live: Live) -> None:
    fields = {"topic": AUTO_CREATE_TOPIC, "group": TOOLS_GROUP, "timestamp": 0, "isForce": "true"}
    request = RemotingCommand.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    client = RemotingClient(name="test")
    answer = await client.request(live.broker.address, request, 3)
    await client.close()
    # A reset on the server needs neither members nor stored offsets.
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def _stores_no_reply(live: Live) -> None:
    topic = f"{live.broker.settings.broker.broker_cluster_name}_REPLY_TOPIC"
    fields = {"a": "p", "b": topic, "c": AUTO_CREATE_TOPIC, "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    request = RemotingCommand.request(
        RequestCode.SEND_REPLY_MESSAGE_V2,
        {**fields, "i": "REPLY_TO_CLIENT\x01nobody\x02", "j": 0, "k": False},
        b"x",
    )
    client = RemotingClient(name="test")
    answer = await client.request(live.broker.address, request, 3)
    await client.close()
    assert answer.ext_fields["msgId"] == "0"


async def _takes_no_condition(live: Live) -> None:
    subscription = {"topic": "t", "subString": "a = 1", "expressionType": "SQL92"}
    body = {"clientId": "c", "group": "g", "subscriptionData": subscription}
    client = RemotingClient(name="test")
    request = RemotingCommand.request(
        RequestCode.CHECK_CLIENT_CONFIG, body=msgspec.json.encode(body)
    )
    answer = await client.request(live.broker.address, request, 3)
    await client.close()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "does not support consumer to filter message by SQL92" in (answer.remark or "")


def _route(live: Live, index: int, topic: str) -> Any:
    route = live.cluster.name_server(index).routes.route(topic)
    assert route is not None
    return route


HOUR_S = 3600
EFFECTS: dict[str, tuple[str, Callable[[Live], Awaitable[None]]]] = {
    "fileReservedTime": ("48", at("retention", "file_reserved_time_hours", value=48)),
    "readFileReservedTime": ("24", at("retention", "effective_seconds", value=24 * HOUR_S)),
    "deleteWhen": ("01;13", at("retention", "delete_when", value="01;13")),
    "diskMaxUsedSpaceRatio": ("70", at("thresholds", "expire", "percent", value=70)),
    "diskSpaceCleanForciblyRatio": ("80", at("thresholds", "force_clean", "percent", value=80)),
    "diskSpaceWarningLevelRatio": ("95", at("thresholds", "reject_writes", "percent", value=95)),
    "diskExpireFreeBytes": ("3000", at("thresholds", "expire", "free_bytes", value=3000)),
    "diskForceCleanFreeBytes": ("2000", at("thresholds", "force_clean", "free_bytes", value=2000)),
    "diskRejectFreeBytes": ("1000", at("refusal", value=None)),
    "diskThresholdHysteresisPercent": ("5", at("thresholds", "hysteresis_percent", value=5)),
    "cleanFileForciblyEnable": ("false", goes(None, is_read=True)),
    "cleanUnconsumedFilesEnable": ("true", goes("forced", is_read=False)),
    "deleteFileBatchMax": ("1", _deletes_one_a_round),
    "cleanResourceInterval": ("10", _cleans_often),
    "flushIntervalCommitLog": ("10", _flushes_soon),
    "syncFlushTimeout": ("100", _waits_shortly),
    "maxMessageSize": ("100", _refuses_large_messages),
    "brokerPermission": ("4", _allows_reading_only),
    "defaultTopicQueueNums": ("3", _offers_three_queues),
    "autoCreateTopicEnable": ("false", _makes_no_topic),
    "autoCreateSubscriptionGroup": ("false", _makes_no_group),
    "useServerSideResetOffset": ("false", _resets_through_members),
    "storeReplyMessageEnable": ("false", _stores_no_reply),
    "enablePropertyFilter": ("false", _takes_no_condition),
}


# Tried below, in test_broker_registration.py, in test_transactions.py, and (the size, read at each
# write) in test_records.py.
TRIED_ELSEWHERE = {
    "maxHaTransferByteInSecond",
    "namesrvAddr",
    "rejectTransactionMessage",
    "routeKeptSeconds",
    "slaveReadEnable",
    "transactionTimeOut",
    "transactionCheckInterval",
    "transactionCheckMax",
    "transactionOpMsgMaxSize",
}


def test_every_live_key_is_tried() -> None:
    """A key that is named live and not tried may do nothing at all."""
    assert set(EFFECTS) | TRIED_ELSEWHERE == live_keys()


@pytest.mark.parametrize("key", sorted(EFFECTS))
async def test_a_live_key_takes_effect(live: Live, key: str) -> None:
    """Without a restart; the answer and GET_BROKER_CONFIG show the new value."""
    value, takes_effect = EFFECTS[key]
    status, answer = await live.patch({key: value})
    assert (status, answer["values"][key]) == (200, value)
    await live.broker.registration.register_now()
    await takes_effect(live)
    client = RemotingClient(name="test")
    request = RemotingCommand.request(RequestCode.GET_BROKER_CONFIG)
    shown = await client.request(live.broker.address, request, 3)
    await client.close()
    assert f"{key}={value}".encode() in shown.body.splitlines()


async def test_a_free_bytes_threshold_refuses_sends_and_takes_them_again(live: Live) -> None:
    """No disk has a pebibyte free; 0 takes the threshold away."""
    await live.send()
    assert (await live.patch({"diskRejectFreeBytes": str(1 << 50)}))[0] == 200
    await until(lambda: live.broker.store.refusal() is not None)
    with pytest.raises(BrokerError, match="disk is full") as caught:
        await live.send()
    assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (await live.patch({"diskRejectFreeBytes": "0"}))[0] == 200
    await until(lambda: live.broker.store.refusal() is None)
    await live.send()


async def test_another_name_server_gets_the_broker_and_the_old_one_loses_it(live: Live) -> None:
    """The broker leaves in order: the old name server forgets it at once."""
    await live.send()
    first, second = live.cluster.namesrv_addresses.split(";")
    routes = [live.cluster.name_server(index).routes for index in (0, 1)]
    assert (await live.patch({"namesrvAddr": second}))[0] == 200
    await until(lambda: routes[0].route("T") is None)
    assert routes[1].route("T") is not None
    assert (await live.patch({"namesrvAddr": f"{second};{first}"}))[0] == 200
    await until(lambda: routes[0].route("T") is not None)
    state = await live.get("/api/v1/broker")
    servers = {server["address"]: server for server in state["name_servers"]}
    assert set(servers) == {first, second}
    assert all(server["registered"] for server in servers.values())
    assert all(server["last_success_timestamp_ms"] > 1 << 40 for server in servers.values())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"fileReservedTime": "24", "mappedFileSizeCommitLog": "65536"},
            "mappedFileSizeCommitLog=65536: takes effect with a restart only",
        ),
        (
            {"fileReservedTime": "24", "fileReservedTme": "1"},
            "fileReservedTme=<hidden>: is not a setting of broker; "
            "the nearest one is fileReservedTime",
        ),
        (
            {"fileReservedTime": "24", "deleteWhen": "25"},
            "deleteWhen=25: must be hours of the day such as 04, or 04;16 for several",
        ),
        (
            {"fileReservedTime": "24", "diskMaxUsedSpaceRatio": "86"},
            "diskMaxUsedSpaceRatio=86: must not be above diskSpaceCleanForciblyRatio=85",
        ),
        ({"fileReservedTime": 24}, None),
        ([], None),
    ],
)
async def test_a_change_is_taken_whole_or_not_at_all(
    live: Live, changes: Any, sentence: str | None
) -> None:
    """The answer is one sentence, and nothing has changed."""
    before = await live.get("/api/v1/config")
    status, answer = await live.patch(changes)
    assert status == 400
    assert answer["error"]
    assert sentence is None or answer["error"] == sentence
    assert await live.get("/api/v1/config") == before
    assert before["values"]["fileReservedTime"] == "72"


async def test_each_change_is_logged_with_both_values(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever reads the log later can tell since when; what stayed the same is not mentioned."""
    caplog.set_level(logging.INFO, "mailboat.broker.live_config")
    await live.patch({"fileReservedTime": "48", "deleteWhen": "04"})
    messages = [record.message for record in caplog.records if "setting changed" in record.message]
    assert messages == ["setting changed fileReservedTime=48, was 72"]


async def test_the_document_names_the_live_keys(live: Live) -> None:
    """An operator sends these and restarts for the others."""
    body = await live.get("/api/v1/config")
    assert body["live_keys"] == sorted(live_keys())
    assert body["values"]["brokerName"] == "broker-a"
