"""The HTTP port of a running broker, asked as a probe, a scraper, an operator and a producer
ask."""

import asyncio
import base64
import contextlib
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mailboat.client.pull_consumer import PullConsumer
from mailboat.model.message_queue import MessageQueue
from mailboat.testing.cluster import Cluster

GROUP = "g"
TOPIC = "T"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


class Http:
    """A broker with HTTP and a client of it."""

    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession) -> None:
        """Ask through `session`."""
        self.cluster = cluster
        self._session = session

    async def get(self, path: str) -> tuple[int, Any]:
        """Return status and JSON of a GET."""
        async with self._session.get(path) as answer:
            return answer.status, await answer.json()

    async def text(self, path: str) -> str:
        """Return the text of a GET that succeeds."""
        async with self._session.get(path) as answer:
            assert answer.status == 200
            return await answer.text()

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Return status and JSON of a POST; bytes go as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._session.post(path, data=data) as answer:
            return answer.status, await answer.json()

    async def produce(self, *bodies: str, topic: str = TOPIC) -> Any:
        """Store messages and return the answer."""
        messages = [{"body": body} for body in bodies]
        status, answer = await self.post(f"/api/v1/topics/{topic}/messages", {"messages": messages})
        assert status == 200, answer
        return answer

    async def metrics(self) -> dict[str, float]:
        """Return the samples of the metrics page by name and labels."""
        page = await self.text("/metrics")
        return {
            ",".join([sample.name, *sample.labels.values()]): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }


@pytest.fixture
async def http_broker(tmp_path: Path) -> AsyncIterator[Http]:
    """Run a cluster of one broker with HTTP; topics it makes by itself have one queue."""
    options = {"httpPort": "0", "defaultTopicQueueNums": "1", "httpMaxRequestBytes": "100000"}
    async with Cluster(tmp_path, options=options) as cluster:
        base = f"http://{await cluster.http_address()}"
        async with aiohttp.ClientSession(base) as session:
            yield Http(cluster, session)


async def _consumer(cluster: Cluster) -> PullConsumer:
    consumer = PullConsumer(GROUP, namesrv=cluster.namesrv_addresses)
    await consumer.start()
    return consumer


async def test_probes_of_a_serving_broker(http_broker: Http) -> None:
    """All three are good, and say so in JSON."""
    assert await http_broker.get("/livez") == (200, {"status": "alive"})
    assert await http_broker.get("/readyz") == (200, {"status": "ready"})
    status, body = await http_broker.get("/startupz")
    assert (status, body["status"]) == (200, "started")
    assert body["recovery"] == {"records": 0, "torn_tail_bytes": 0, "damaged_bytes": 0}


async def test_a_full_disk_is_not_unready(http_broker: Http) -> None:
    """Consumers must reach the broker to make room; sends are refused with the reason."""
    retention = http_broker.cluster.broker().store.retention
    retention.refusal = "the broker's disk is full"
    assert (await http_broker.get("/readyz"))[0] == 200
    _, store = await http_broker.get("/api/v1/store")
    assert store["writable"] is False
    assert store["state"]["refusal"] == "the broker's disk is full"
    body = {"messages": [{"body": "x"}]}
    status, refused = await http_broker.post(f"/api/v1/topics/{TOPIC}/messages", body)
    assert status >= 500
    assert refused["error"]
    retention.refusal = None


async def test_a_failed_store_is_unready_with_the_reason(http_broker: Http) -> None:
    """What only a restart mends is told to whoever asks."""
    http_broker.cluster.broker().store.commit_log.poison("fsync failed: EIO")
    status, body = await http_broker.get("/readyz")
    assert status == 503
    assert body["status"] == "unready"
    assert "fsync failed: EIO" in body["reason"]
    values = await http_broker.metrics()
    assert (values["mailboat_store_failed"], values["mailboat_store_writable"]) == (1, 0)


async def test_a_broker_whose_name_another_one_has_is_unready(
    http_broker: Http, tmp_path: Path
) -> None:
    """No client would find it; the probe says who has the name, and so does the API."""
    options = {"httpPort": "0", "namesrvAddr": http_broker.cluster.namesrv_addresses}
    async with Cluster(tmp_path / "second", name_servers=0, options=options) as second:
        address = f"http://{await second.http_address()}"
        async with aiohttp.ClientSession(address) as session:
            http = Http(second, session)
            status, body = await http.get("/readyz")
            assert (status, body["status"]) == (503, "unready")
            first = http_broker.cluster.broker().address
            assert body["reason"].startswith(f"{first} has the broker name broker-a at name server")
            [server] = (await http.get("/api/v1/broker"))[1]["name_servers"]
            assert (server["registered"], server["held_by"]) == (False, first)
            assert (await http.get("/livez"))[0] == 200
    assert (await http_broker.get("/readyz"))[0] == 200


async def test_a_failed_background_task_is_not_alive(http_broker: Http) -> None:
    """Only a restart helps, which is what liveness is for."""
    http_broker.cluster.broker().supervisor.fail("background task flush has stalled")
    status, body = await http_broker.get("/livez")
    assert (status, body) == (
        503,
        {"status": "failed", "reason": "background task flush has stalled"},
    )
    assert (await http_broker.get("/readyz"))[0] == 503


async def test_produced_messages_can_be_consumed(http_broker: Http) -> None:
    """Text, bytes, tags, keys and properties arrive as they were given."""
    messages = [
        {"body": "hällo", "tags": "a", "keys": ["k1", "k2"], "properties": {"color": "red"}},
        {"body_base64": base64.b64encode(b"\x00\xff").decode()},
    ]
    status, answer = await http_broker.post(
        f"/api/v1/topics/{TOPIC}/messages", {"messages": messages, "queue_id": 0}
    )
    assert (status, answer["status"], answer["queue_id"]) == (200, "SEND_OK", 0)
    assert [item["queue_offset"] for item in answer["messages"]] == [0, 1]
    consumer = await _consumer(http_broker.cluster)
    result = await consumer.pull(QUEUE, 0, 32)
    await consumer.close()
    first, second = result.messages
    assert (first.payload(), second.payload()) == ("hällo".encode(), b"\x00\xff")
    assert (first.tags, first.keys, first.properties["color"]) == ("a", "k1 k2", "red")
    assert [first.unique_key, second.unique_key] == [
        item["message_id"] for item in answer["messages"]
    ]
    assert first.offset_message_id == answer["messages"][0]["offset_message_id"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body cannot be taken"),
        (b"\xff", "the body cannot be taken"),
        (b"[" * 50_000, "the body cannot be taken"),
        ({"messages": []}, "length >= 1"),
        ({"messages": [{"body": "x"}], "queue_id": -1}, ">= 0"),
        ({"messages": [{"body": "x"}], "queue_id": 1}, "has the queues 0 to 0, not 1"),
        ({"messages": [{"body": "x"}], "queue": 1}, "unknown field `queue`"),
        ({"messages": [{}]}, "message 0 needs either body or body_base64"),
        ({"messages": [{"body": "x", "body_base64": ""}]}, "needs either"),
        ({"messages": [{"body_base64": "?"}]}, "the body cannot be taken"),
        ({"messages": [{"body": ""}]}, "has no body"),
        ({"messages": [{"body": "x", "properties": {"DELAY": "3"}}]}, "DELAY, which is reserved"),
        ({"messages": [{"body": "x", "properties": {"a": "\x01"}}]}, "U+0001"),
        ({"messages": [{"body": "x", "properties": {"a": "y" * 40_000}}]}, "at most 32767"),
    ],
)
async def test_bad_messages_are_refused_and_nothing_is_stored(
    http_broker: Http, body: Any, reason: str
) -> None:
    """Status 400 and one sentence."""
    status, answer = await http_broker.post(f"/api/v1/topics/{TOPIC}/messages", body)
    assert status == 400
    assert reason in answer["error"]
    assert http_broker.cluster.broker().store.state().max_physical_offset == 0


async def test_a_request_that_is_too_large_is_refused(http_broker: Http) -> None:
    """httpMaxRequestBytes bounds what one request may cost."""
    status, answer = await http_broker.post(f"/api/v1/topics/{TOPIC}/messages", b"x" * 100_001)
    assert status == 413
    assert answer["error"]


@pytest.mark.parametrize(
    ("topic", "status"),
    [("SCHEDULE_TOPIC_XXXX", 400), ("bad%20name", 400), ("x" * 128, 400), ("%25RETRY%25g", 400)],
)
async def test_topics_that_take_no_batch_are_refused(
    http_broker: Http, topic: str, status: int
) -> None:
    """Illegal, reserved and retry topics are named in the answer."""
    body = {"messages": [{"body": "x"}]}
    answered, _ = await http_broker.post(f"/api/v1/topics/{topic}/messages", body)
    assert answered == status


async def test_topics_are_shown_with_their_queues(http_broker: Http) -> None:
    """Counts are those of the messages that are there."""
    await http_broker.produce("a", "b", "c")
    status, topic = await http_broker.get(f"/api/v1/topics/{TOPIC}")
    assert status == 200
    assert (topic["message_count"], topic["perm"], topic["is_system"]) == (3, 6, False)
    assert topic["queues"] == [{"queue_id": 0, "min_offset": 0, "max_offset": 3}]
    status, missing = await http_broker.get("/api/v1/topics/none")
    assert (status, missing) == (404, {"error": "there is no topic none"})


async def test_lists_come_in_pages(http_broker: Http) -> None:
    """Walking the pages by `next` shows every topic once, in order."""
    found: list[str] = []
    following: str | None = ""
    while following is not None:
        _, page = await http_broker.get(f"/api/v1/topics?limit=3&after={following}")
        assert len(page["topics"]) <= 3
        found += [item["topic"] for item in page["topics"]]
        following = page["next"]
    assert found == sorted(http_broker.cluster.broker().topics.table)


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "", "99999999999999999999", "٣"])
async def test_a_page_must_have_a_sensible_size(http_broker: Http, limit: str) -> None:
    """One page never holds the whole of a large broker."""
    status, answer = await http_broker.get(f"/api/v1/groups?limit={limit}")
    assert (status, answer) == (400, {"error": "limit must be a number from 1 to 1000"})


async def test_the_lag_of_a_group_is_shown_by_queue(http_broker: Http) -> None:
    """Lag is the difference between the end and what was committed; metrics show the same."""
    await http_broker.produce("a", "b", "c")
    broker = http_broker.cluster.broker()
    broker.offsets.commit(GROUP, TOPIC, 0, 1)
    status, group = await http_broker.get(f"/api/v1/groups/{GROUP}")
    assert status == 200
    queue = {"queue_id": 0, "committed_offset": 1, "max_offset": 3, "lag": 2}
    assert group["topics"] == [{"topic": TOPIC, "lag": 2, "queues": [queue]}]
    assert (group["lag"], group["members"]) == (2, [])
    _, page = await http_broker.get("/api/v1/groups")
    assert group in page["groups"]
    assert (await http_broker.metrics())[f"mailboat_group_lag_messages,{GROUP},{TOPIC}"] == 2
    broker.offsets.commit(GROUP, TOPIC, 0, 9)
    _, group = await http_broker.get(f"/api/v1/groups/{GROUP}")
    assert group["lag"] == 0
    assert (await http_broker.get("/api/v1/groups/none"))[0] == 404


async def test_the_store_is_shown(http_broker: Http) -> None:
    """Offsets and segments are those of the log."""
    await http_broker.produce("a")
    _, body = await http_broker.get("/api/v1/store")
    state = http_broker.cluster.broker().store.state()
    assert body["writable"] is True
    assert body["state"]["max_physical_offset"] == state.max_physical_offset > 0
    assert [item["physical_offset"] for item in body["state"]["segments"]] == [0]
    assert body["retention"]["file_reserved_time_hours"] == 72


async def test_metrics_count_messages(http_broker: Http) -> None:
    """What was stored is there in the sum and by topic, with the promised window of loss."""
    await http_broker.produce("a", "b")
    values = await http_broker.metrics()
    assert values["mailboat_messages_in_total"] == 2
    assert values[f"mailboat_topic_messages_in_total,{TOPIC}"] == 2
    assert values["mailboat_commit_log_max_offset"] > 0
    assert {"mailboat_unflushed_bytes", "mailboat_unflushed_age_seconds"} <= set(values)
    assert values["mailboat_name_servers_registered"] == 1


async def test_the_cluster_is_shown_by_its_broker(http_broker: Http) -> None:
    """A broker knows itself and its name servers."""
    _, body = await http_broker.get("/api/v1/cluster")
    broker = http_broker.cluster.broker()
    assert body["brokers"] == {
        "broker-a": {"cluster": "DefaultCluster", "addresses": {"0": broker.address}}
    }
    assert body["name_servers"] == {http_broker.cluster.namesrv_addresses: True}


async def test_unknown_paths_and_methods_are_answered_in_json(http_broker: Http) -> None:
    """Refusals look the same everywhere, and a wrong method names the right ones."""
    assert (await http_broker.get("/nope"))[0] == 404
    status, answer = await http_broker.post("/livez", b"")
    assert status == 405
    assert answer["error"]


async def test_no_request_makes_the_server_fail(http_broker: Http) -> None:
    """Whatever the method, path, headers and body, there is no 5xx, and the next is served."""
    host, _, port = (await http_broker.cluster.http_address()).rpartition(":")
    chance = random.Random(7)
    for _ in range(300):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(_odd_request(chance))
        writer.write_eof()
        async with asyncio.timeout(5):
            status_line = await reader.readline()
        if status_line:
            assert int(status_line.split()[1]) < 500, status_line
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    assert (await http_broker.get("/livez"))[0] == 200


def _odd_request(chance: random.Random) -> bytes:
    """Return a request that is wrong in one way or another."""
    method = chance.choice(["GET", "POST", "PUT", "HEAD", "OPTIONS", "get", "CONNECT", "\xe9"])
    root = chance.choice(["/api/v1/topics/", "/api/v1/groups", "/api/v1/store", "/metrics", "*"])
    rest = "".join(f"%{chance.randrange(256):02X}" for _ in range(chance.randrange(8)))
    tail = chance.choice(["", "/messages", "?limit=%00", "?limit=5&after=%FF", "?%", "#", " x"])
    body = chance.choice(
        [b"", b"{}", b"null", b'{"messages":[{"body":"\\ud800"}]}', chance.randbytes(20)]
    )
    length = chance.choice([str(len(body)), "0", "999", "-1", "x", "9" * 40])
    extra = chance.choice(["", "Transfer-Encoding: chunked\r\n", "Expect: x\r\n", "A" * 9000])
    head = f"{method} {root}{rest}{tail} HTTP/1.1\r\nHost: localhost\r\n"
    return f"{head}Content-Length: {length}\r\n{extra}\r\n".encode("latin-1") + body
