"""The part of the HTTP API that an operator uses, and the metrics of retention."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mailboat import __version__
from mailboat.broker import administration
from mailboat.broker.controller import BrokerController
from mailboat.client.producer import Producer
from mailboat.client.pull_consumer import PullConsumer
from mailboat.model.message import Message
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.store.retention import Pressure
from mailboat.testing.cluster import Cluster

TOPIC = "T"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
SEGMENT = 65_536


class Api:
    """A broker with HTTP."""

    def __init__(self, cluster: Cluster, http: aiohttp.ClientSession) -> None:
        """Ask through `http`."""
        self.cluster = cluster
        self._http = http

    @property
    def broker(self) -> BrokerController:
        """The broker."""
        return self.cluster.broker()

    async def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return status and JSON of a call."""
        async with self._http.request(method, path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> Any:
        """Return the JSON of a GET that succeeds."""
        status, body = await self.call("GET", path)
        assert status == 200, body
        return body

    async def metrics(self) -> dict[str, float]:
        """Return the samples by name and labels."""
        async with self._http.get("/metrics") as answer:
            page = await answer.text()
        return {
            ",".join([sample.name, *sample.labels.values()]): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    async def send(self, count: int) -> None:
        """Send messages of 10,000 bytes, each into segments of 64 KiB."""
        async with Producer("p", namesrv=self.cluster.namesrv_addresses) as producer:
            for _ in range(count):
                await producer.send(Message(TOPIC, bytes(4000)), queue=QUEUE)

    async def round_of_progress(self) -> None:
        """Wait until the next round of looking how far groups have read."""
        reading = self.broker.reading
        done = reading.rounds_done
        self.broker.store.cleaner.on_unread()  # type: ignore[misc]
        async with asyncio.timeout(5):
            while True:
                if reading.rounds_done > done:
                    return
                await asyncio.sleep(0.02)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """Run a broker with small segments."""
    options = {
        "httpPort": "0",
        "defaultTopicQueueNums": "1",
        "mappedFileSizeCommitLog": str(SEGMENT),
        "diskMaxUsedSpaceRatio": "95",
        "diskSpaceCleanForciblyRatio": "98",
        "cleanResourceInterval": "3600000",
    }
    async with Cluster(tmp_path, options=options) as cluster:
        base = f"http://{await cluster.http_address()}"
        async with aiohttp.ClientSession(base) as http:
            yield Api(cluster, http)


async def test_the_broker_says_who_it_is(api: Api) -> None:
    """Identity, phase and what each name server said last."""
    body = await api.get("/api/v1/broker")
    [server] = body.pop("name_servers")
    assert body.pop("uptime_seconds") >= 0
    assert body.pop("start_timestamp_ms") > 1 << 40
    assert body == {
        "version": __version__,
        "tls": None,
        "broker_name": "broker-a",
        "cluster_name": "DefaultCluster",
        "address": api.broker.address,
        "phase": "serving",
    }
    assert server.pop("last_success_timestamp_ms") > 1 << 40
    assert server == {
        "address": api.cluster.namesrv_addresses,
        "registered": True,
        "error": None,
        "held_by": None,
    }


async def test_a_topic_is_made_changed_and_removed(api: Api) -> None:
    """The name server knows each change when the answer comes."""
    path = "/api/v1/topics/made"
    change = {"read_queue_nums": 4, "write_queue_nums": 4, "perm": 6}
    status, body = await api.call("PUT", path, change)
    assert (status, body["topic"], body["read_queue_nums"], body["perm"]) == (200, "made", 4, 6)
    assert (await api.call("PUT", path, change))[0] == 200
    routes = api.cluster.name_server().routes
    route = routes.route("made")
    assert route is not None
    assert route.queue_datas[0].write_queue_nums == 4
    status, body = await api.call("PUT", path, {**change, "write_queue_nums": 2, "perm": 4})
    assert (status, body["write_queue_nums"], body["perm"]) == (200, 2, 4)
    assert await api.get(path) == body
    assert await api.call("DELETE", path) == (200, {"topic": "made", "deleted": True})
    assert await api.call("DELETE", path) == (200, {"topic": "made", "deleted": False})
    assert (await api.call("GET", path))[0] == 404


def saved_offsets(broker: BrokerController) -> str:
    """Return the file of committed offsets."""
    return Path(broker.store.paths.config, "consumerOffset.json").read_text()


async def test_what_a_group_left_in_a_topic_is_forgotten(api: Api) -> None:
    """Only there, and also in the file; a second time there is nothing, which is no error."""
    path = "/api/v1/groups/g/offsets/%25RETRY%25old"
    api.broker.offsets.commit("g", "%RETRY%old", 0, 3)
    api.broker.offsets.commit("g", TOPIC, 0, 4)
    answer = {"group": "g", "topic": "%RETRY%old"}
    assert await api.call("DELETE", path) == (200, {**answer, "deleted": True})
    assert await api.call("DELETE", path) == (200, {**answer, "deleted": False})
    assert api.broker.offsets.topics_of("g") == {TOPIC}
    saved = saved_offsets(api.broker)
    assert f"{TOPIC}@g" in saved
    assert "%RETRY%old@g" not in saved


async def test_what_connected_members_read_is_not_forgotten(api: Api) -> None:
    """One sentence says who has to be stopped first."""
    async with PullConsumer("g", namesrv=api.cluster.namesrv_addresses) as consumer:
        await api.send(1)
        await consumer.subscribe(TOPIC)
        api.broker.offsets.commit("g", TOPIC, 0, 1)
        status, body = await api.call("DELETE", f"/api/v1/groups/g/offsets/{TOPIC}")
    assert status == 400
    assert body["error"] == "connected members of group g subscribe to topic T: stop them first"
    assert api.broker.offsets.queues("g", TOPIC) == {0: 1}


@pytest.mark.parametrize(
    ("method", "topic", "change"),
    [
        ("PUT", "a b", {"read_queue_nums": 1, "write_queue_nums": 1, "perm": 6}),
        ("PUT", "TBW102", {"read_queue_nums": 1, "write_queue_nums": 1, "perm": 6}),
        ("PUT", "x", {"read_queue_nums": -1, "write_queue_nums": 1, "perm": 6}),
        ("PUT", "x", {"read_queue_nums": 1, "write_queue_nums": 1, "perm": 9}),
        ("PUT", "x", {"read_queue_nums": 1, "perm": 6}),
        ("PUT", "x", {"read_queue_nums": 1, "write_queue_nums": 1, "perm": 6, "other": 1}),
        ("DELETE", "TBW102", None),
    ],
)
async def test_an_illegal_topic_change_is_one_sentence(
    api: Api, method: str, topic: str, change: Any
) -> None:
    """400, and the table is as before."""
    before = dict(api.broker.topics.table)
    status, body = await api.call(method, f"/api/v1/topics/{topic}", change)
    assert status == 400
    assert body["error"]
    assert api.broker.topics.table == before


async def test_the_retention_document_of_a_log_half_read(api: Api) -> None:
    """Segments with their times, the group's oldest unread message, and what could go."""
    await api.send(60)
    api.broker.offsets.commit("g", TOPIC, 0, 40)
    await api.round_of_progress()
    body = await api.get("/api/v1/retention")
    log, store = api.broker.store.commit_log, api.broker.store
    position = store.physical_position(TOPIC, 0, 40)
    assert position is not None
    assert set(body) >= {
        *("broker_name", "timestamp_ms", "volume", "commitlog_bytes", "min_physical_offset"),
        *("max_physical_offset", "oldest_message_timestamp_ms", "thresholds", "active", "refusal"),
        *("retention", "reclaimable", "unread_bytes", "deleted", "unconsumed_deleted"),
        *("writes_rejected", "segments", "groups", "groups_omitted"),
    }
    assert (body["min_physical_offset"], body["max_physical_offset"]) == (0, log.end)
    assert body["groups"] == [
        {
            "group": "g",
            "topic": TOPIC,
            "queue_id": 0,
            "oldest_unread_physical_offset": position,
            "unread_messages": 20,
        }
    ]
    assert body["unread_bytes"] == log.end - position
    read = position // SEGMENT
    assert [item["is_read"] for item in body["segments"]] == [
        index < read for index in range(len(log.segments))
    ]
    assert body["reclaimable"] == {"expired_bytes": 0, "read_bytes": read * SEGMENT}
    now_ms = body["timestamp_ms"]
    for item in body["segments"]:
        assert now_ms - 60_000 < item["first_timestamp_ms"] <= item["last_timestamp_ms"] <= now_ms
    assert body["oldest_message_timestamp_ms"] == body["segments"][0]["first_timestamp_ms"]
    volume = body["volume"]
    assert 0 < volume["used_bytes"] < volume["capacity_bytes"]
    assert 0 < volume["inodes_used"] <= volume["inodes_total"]
    assert body["retention"] == {
        "file_reserved_time_hours": 72,
        "read_file_reserved_time_hours": 72,
        "delete_when": "04",
        "effective_seconds": 72 * 3600,
    }


async def test_nothing_is_called_read_before_members_can_be_back(api: Api) -> None:
    """A group whose members subscribe without an offset is unknown at a start; an operator that
    scales the broker away would take along what it has not read."""
    await api.send(3)
    api.broker.offsets.commit("g", TOPIC, 0, 3)
    await api.round_of_progress()
    assert (await api.get("/api/v1/retention"))["unread_bytes"] == 0
    api.broker.reading.await_members()
    body = await api.get("/api/v1/retention")
    assert body["unread_bytes"] == api.broker.store.commit_log.end
    assert body["reclaimable"]["read_bytes"] == 0


async def test_what_was_deleted_unread_is_counted_everywhere(api: Api) -> None:
    """Per group and topic, in the document and in the metrics."""
    await api.send(60)
    api.broker.offsets.commit("slow", TOPIC, 0, 5)
    api.broker.offsets.commit("fast", TOPIC, 0, 60)
    await api.round_of_progress()
    store = api.broker.store
    assert (await api.call("PATCH", "/api/v1/config", {"cleanUnconsumedFilesEnable": "true"}))[0]
    full = Pressure(in_window=False, expire=True, force_clean=True)
    store.retention.pressure = lambda freed_bytes=0: full  # type: ignore[method-assign]
    async with asyncio.timeout(20):
        while True:
            if store.clean():
                break
            await asyncio.sleep(0.05)
    gone = store.min_offset(TOPIC, 0)
    assert gone > 5
    body = await api.get("/api/v1/retention")
    assert body["unconsumed_deleted"] == [{"group": "slow", "topic": TOPIC, "messages": gone - 5}]
    files = body["deleted"]["files"]
    assert files["forced"] + files["consumed"] == len(range(0, store.commit_log.start, SEGMENT))
    values = await api.metrics()
    assert values[f"store_unconsumed_deleted_messages_total,slow,{TOPIC}"] == gone - 5
    assert values["store_files_deleted_total,forced"] == files["forced"]
    assert values["store_bytes_deleted_total,forced"] == files["forced"] * SEGMENT
    assert values["store_unconsumed_deleted_dropped_series_total"] == 0


async def test_a_cleaner_that_has_not_run_has_no_time(api: Api) -> None:
    """Its first round comes with the first file, or after the interval."""
    assert "store_cleaner_last_run_timestamp_seconds" not in await api.metrics()


async def test_the_metrics_have_the_documented_names(api: Api) -> None:
    """Dashboards and the operator rely on them."""
    await api.send(1)
    values = await api.metrics()
    assert values["store_volume_capacity_bytes"] > values["store_volume_used_bytes"] > 0
    assert values["store_volume_available_bytes"] > 0
    assert values["store_volume_inodes,free"] > 0
    assert values["store_volume_inodes,used"] > 0
    assert values["store_commitlog_bytes"] > 4000
    assert values["store_oldest_message_timestamp_seconds"] > 1_600_000_000
    assert values["store_threshold_ratio,expire,spec"] == 0.95
    assert values["store_threshold_ratio,reject_writes,effective"] == 1
    assert values["store_retention_effective_seconds"] == 72 * 3600
    for reason in ("expired", "consumed", "forced"):
        assert values[f"store_files_deleted_total,{reason}"] == 0
        assert values[f"store_bytes_deleted_total,{reason}"] == 0
    assert values["store_writes_rejected_total,disk_full"] == 0
    assert values["store_reclaimable_bytes,expired"] == 0
    assert values["store_reclaimable_bytes,consumed"] == 0
    assert values["store_write_state,open"] == 1
    assert values["store_write_state,rejecting"] == 0
    assert values["store_level_active,expire"] == 0
    api.broker.store.clean()
    api.broker.change_config({"diskSpaceCleanForciblyRatio": "97"})
    await asyncio.sleep(1.1)
    values = await api.metrics()
    assert values["store_cleaner_last_run_timestamp_seconds"] > 1_600_000_000
    assert values["store_threshold_ratio,force_clean,spec"] == 0.98
    assert values["store_threshold_ratio,force_clean,effective"] == 0.97


async def test_a_deletion_may_name_the_topic_that_it_saw(api: Api) -> None:
    """A topic of the same name that was made since stays, with its messages."""
    path = "/api/v1/topics/made"
    body = {"read_queue_nums": 1, "write_queue_nums": 1, "perm": 6}
    assert (await api.call("PUT", path, body))[0] == 200
    seen = (await api.get(path))["incarnation"]
    assert (await api.call("PUT", path, {**body, "perm": 4}))[0] == 200
    assert (await api.get(path))["incarnation"] == seen

    async def delete(incarnation: str) -> tuple[int, Any]:
        return await api.call("DELETE", path, headers={"If-Match": f'"{incarnation}"'})

    status, refused = await delete("1-0")
    assert (status, "If-Match" in refused["error"]) == (412, True)
    assert await delete(seen) == (200, {"topic": "made", "deleted": True})
    # What is gone is gone: a repeat is no error.
    assert await delete(seen) == (200, {"topic": "made", "deleted": False})
    assert (await api.call("PUT", path, body))[0] == 200
    assert (await delete(seen))[0] == 412
    again = (await api.get(path))["incarnation"]
    assert again != seen
    assert (await delete(again))[0] == 200


async def test_declarations_are_shown_and_made_where_they_are_missing(api: Api) -> None:
    """A new broker gets topics and groups with all their settings; what it has stays as it is."""
    topic = TopicConfig("made", 3, 2, 4, order=True, attributes={"message.type": "FIFO"})
    await administration.update_topic(api.broker, topic)
    await administration.update_group(
        api.broker, SubscriptionGroupConfig("g", retry_max_times=3, consume_enable=False)
    )
    api.broker.topics.create_retry_topic("g")
    shown = await api.get("/api/v1/declarations/topics?limit=1000")
    assert [item["topic_name"] for item in shown["topics"]] == ["made"]
    groups = await api.get("/api/v1/declarations/groups?limit=1000")
    assert [item["group_name"] for item in groups["groups"]] == ["g"]
    assert groups["groups"][0]["retry_max_times"] == 3
    other = {**shown["topics"][0], "topic_name": "other"}
    changed = {**shown["topics"][0], "perm": 6}
    body = {"topics": [changed, other], "groups": groups["groups"]}
    path = "/api/v1/declarations"
    assert await api.call("POST", path, body) == (200, {"topics": 1, "groups": 0})
    made = api.broker.topics.select("other")
    assert made == TopicConfig("other", 3, 2, 4, order=True, attributes={"message.type": "FIFO"})
    assert api.broker.topics.select("made") == topic
    illegal = {**other, "topic_name": "no good name"}
    last = {**other, "topic_name": "last"}
    assert (await api.call("POST", path, {"topics": [last, illegal]}))[0] == 400
    assert api.broker.topics.select("last") is None
    odd_group = {"group_name": "no/group"}
    assert (await api.call("POST", path, {"topics": [last], "groups": [odd_group]}))[0] == 400
    assert api.broker.topics.select("last") is None
    assert (await api.call("POST", path, {"topics": [last] * 1001}))[0] == 400
