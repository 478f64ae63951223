"""Ten thousand queues and a hundred groups: whoever asks about them holds nobody up."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from loop_lag import LoopLag
from prometheus_client.parser import text_string_to_metric_families
from raw_client import RawClient

from mailboat.model.topic import TopicConfig
from mailboat.protocol.bodies import encode_body
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.protocol.stats_bodies import decode_consume_stats, decode_topic_stats
from mailboat.store.consume_queue import UNIT
from mailboat.testing.cluster import Cluster

LIMIT_S = 0.25
"""What was mended took 0.3 s to 4.8 s."""

QUEUES = 10_000
QUEUES_MAX = 20_000
"""A page that has looked at more queues ends, and a group shows no more of them."""
GROUPS = [f"g{number:03d}" for number in range(100)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run a broker with one wide topic that many groups read."""
    async with Cluster(tmp_path, options={"httpPort": "0"}) as running:
        broker = running.broker()
        broker.topics.update(TopicConfig("T", QUEUES, QUEUES))
        client = RawClient(broker.address)
        for queue_id in (0, 9_999):
            await client.send("T", b"x", queue_id)
            await client.send("T", b"y", queue_id)
        await client.close()
        for group in GROUPS:
            broker.groups.find(group, "10.0.0.1")
            for queue_id in range(0, QUEUES, 100):
                broker.offsets.commit(group, "T", queue_id, 0)
        broker.offsets.commit("g007", "T", 0, 2)
        yield running


@pytest.fixture
async def http(cluster: Cluster) -> AsyncIterator[aiohttp.ClientSession]:
    """Return a session with it."""
    async with aiohttp.ClientSession(f"http://{await cluster.http_address()}") as session:
        yield session


async def get(http: aiohttp.ClientSession, path: str) -> bytes:
    """Return a page, which must not have held the loop."""
    async with LoopLag() as lag:
        async with http.get(path) as answer:
            body = await answer.read()
            assert answer.status == 200, body
    assert lag.longest_s < LIMIT_S, path
    return body


async def get_json(http: aiohttp.ClientSession, path: str) -> Any:
    """Return a page as JSON."""
    async with http.get(path) as answer:
        assert answer.status == 200
        return await answer.json()


async def test_the_metrics_show_every_lag_and_hold_nobody(http: aiohttp.ClientSession) -> None:
    """All hundred groups have their series, with the right numbers."""
    page = (await get(http, "/metrics")).decode()
    lags = {
        sample.labels["group"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "mailboat_group_lag_messages" and sample.labels["topic"] == "T"
    }
    assert lags == {group: 2 if group == "g007" else 4 for group in GROUPS}


async def test_the_groups_come_in_pages_that_are_not_too_large(http: aiohttp.ClientSession) -> None:
    """A page ends where it has shown so many queues; `next` leads to all of them."""
    await get(http, "/api/v1/groups?limit=1000")
    found: dict[str, int] = {}
    after = ""
    while True:
        body = await get_json(http, f"/api/v1/groups?limit=1000&after={after}")
        queues = [len(topic["queues"]) for each in body["groups"] for topic in each["topics"]]
        assert sum(queues) <= QUEUES_MAX + QUEUES
        found |= {each["group"]: each["lag"] for each in body["groups"]}
        if body["next"] is None:
            break
        after = body["next"]
    assert {group: found[group] for group in GROUPS} == {
        group: 2 if group == "g007" else 4 for group in GROUPS
    }


async def test_a_group_of_very_many_queues_shows_its_lag_without_them(
    cluster: Cluster, http: aiohttp.ClientSession
) -> None:
    """What it has not consumed is counted all the same, and how much is left out is told."""
    for number in range(4):
        cluster.broker().topics.update(TopicConfig(f"W{number}", QUEUES, QUEUES))
        cluster.broker().offsets.commit("g007", f"W{number}", 0, 0)
    await get(http, "/api/v1/groups/g007")
    body = await get_json(http, "/api/v1/groups/g007")
    shown = {
        each["topic"]: (len(each["queues"]), each.get("queues_omitted", 0), each["lag"])
        for each in body["topics"]
    }
    assert shown == {
        "T": (QUEUES, 0, 2),
        "W0": (QUEUES, 0, 0),
        **{f"W{number}": (0, QUEUES, 0) for number in (1, 2, 3)},
    }


@pytest.mark.parametrize(
    "path", ["/api/v1/topics?limit=1000", "/api/v1/topics/T", "/api/v1/retention", "/api/v1/store"]
)
async def test_no_other_page_holds_the_loop(
    cluster: Cluster, http: aiohttp.ClientSession, path: str
) -> None:
    """Topics that are as wide as may be, one beside the other."""
    for number in range(30):
        cluster.broker().topics.update(TopicConfig(f"W{number:02d}", QUEUES, QUEUES))
    await get(http, path)
    if "limit" in path:
        names = []
        after = ""
        while after is not None:
            body = await get_json(http, f"/api/v1/topics?limit=1000&after={after}")
            names += [each["topic"] for each in body["topics"]]
            after = body["next"]
        assert set(names) == set(cluster.broker().topics.table)
        assert len(names) == len(set(names))


ASKED: list[tuple[int, dict[str, ExtValue]]] = [
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
    (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g007", "topic": "T"}),
    (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g007", "topicList": "T;" * 1000}),
    (RequestCode.QUERY_CONSUME_TIME_SPAN, {"group": "g007", "topic": "T"}),
    (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"group": "g007", "topic": "T", "timestamp": 0, "isForce": True},
    ),
]


@pytest.mark.parametrize(("code", "fields"), ASKED)
async def test_no_question_of_a_tool_holds_the_loop(
    cluster: Cluster, code: int, fields: dict[str, ExtValue]
) -> None:
    """Every queue is in the answer."""
    client = RawClient(cluster.broker().address)
    await client.heartbeat("T", group="other")
    async with LoopLag() as lag:
        answer = await client.ok(code, fields)
    assert lag.longest_s < LIMIT_S
    if code == RequestCode.GET_TOPIC_STATS_INFO:
        assert len(decode_topic_stats(answer.body)) == QUEUES
    if code == RequestCode.GET_CONSUME_STATS:
        assert len(decode_consume_stats(answer.body).offset_table) == QUEUES
    assert answer.body.count(encode_body("broker-a")) == QUEUES
    await client.close()


async def test_the_progress_of_all_groups_at_once_is_refused_where_no_frame_holds_it(
    cluster: Cluster,
) -> None:
    """Before it is put together, with what to do instead."""
    client = RawClient(cluster.broker().address)
    async with LoopLag() as lag:
        answer = await client.call(
            RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False, "timeoutMillis": 5000}
        )
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "ask for fewer topics or groups" in (answer.remark or "")
    assert lag.longest_s < LIMIT_S
    await client.close()


def count_queues(data_dir: Path) -> int:
    """Count the folders of the topic's queues."""
    return len(list(data_dir.rglob("consumequeue/W/*")))


async def test_a_deleted_topic_of_very_many_queues_holds_nobody_up(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Their files go a few at a time, and nobody makes the topic anew before they are gone."""
    broker = cluster.broker()
    broker.topics.update(TopicConfig("W", 3000, 3000))
    queues = broker.store.queues
    for queue_id in range(3000):
        queue = queues.get_or_add("W", queue_id)
        start = broker.store.commit_log.start
        queue.append_units(UNIT.pack(start, 10, 0), start + 10)
        queues.mark_dirty(queue)
    queues.write()
    assert count_queues(tmp_path) == 3000
    client = RawClient(broker.address)
    async with LoopLag() as lag:
        deletion = asyncio.ensure_future(
            client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "W"})
        )
        while "W" not in broker.topics.going:  # noqa: ASYNC110 - the next rounds of the loop
            await asyncio.sleep(0)
        other = RawClient(broker.address)
        config: dict[str, ExtValue] = {
            "topic": "W", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
        }  # fmt: skip
        refused = await other.call(RequestCode.UPDATE_AND_CREATE_TOPIC, config)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "is being deleted" in (refused.remark or "")
        assert (await deletion).code == ResponseCode.SUCCESS
    assert lag.longest_s < LIMIT_S
    assert count_queues(tmp_path) == 0
    assert not broker.topics.going
    assert (await other.call(RequestCode.UPDATE_AND_CREATE_TOPIC, config)).code == 0
    for connection in (client, other):
        await connection.close()
