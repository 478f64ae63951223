"""Whatever numbers clients ask for, what is stored fits Java's, and the broker starts with it."""

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from real_time import at_most_s

from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.route import decode_topic_route
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.testing.cluster import Cluster

INT32 = range(-(1 << 31), 1 << 31)
INT64 = range(-(1 << 63), 1 << 63)
SCRAPE_S = at_most_s(3, 30)
"""Without the limits a scrape did not return for as long as anybody waited."""

EDGES = [0, 1, 15, 10_000, 10_001, 10**25, -(10**25), 10**400]
EDGES += [sign * ((1 << bits) + step) for sign in (1, -1) for bits in (31, 63) for step in (-1, 0)]
NUMBERS = st.sampled_from(EDGES) | st.integers() | st.integers(0, 20_000)

Request = tuple[int, dict[str, ExtValue], Any]
"""Code, header fields, body."""

GROUP_KEYS = (
    "retryQueueNums", "retryMaxTimes", "brokerId", "whichBrokerWhenConsumeSlowly", "groupSysFlag",
    "consumeTimeoutMinute",
)  # fmt: skip
TOPIC_KEYS = ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag")


@st.composite
def any_numbers(draw: st.DrawFn, keys: tuple[str, ...]) -> dict[str, int]:
    """Return numbers for some of the keys; the others keep what they are by default."""
    chosen = draw(st.lists(st.sampled_from(keys), min_size=1, max_size=2))
    return {key: draw(NUMBERS) for key in chosen}


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Return requests with every body and header that leads to a file."""
    found: list[Request] = []
    for number in range(draw(st.integers(2, 8))):
        name = f"n{number}"
        group = {"groupName": name, **draw(any_numbers(GROUP_KEYS))}
        topic = {"topicName": name, **draw(any_numbers(TOPIC_KEYS))}
        header = {key: str(topic.get(key, 4)) for key in TOPIC_KEYS}
        subscription = {"topic": "T", "subString": "*", "subVersion": draw(NUMBERS)}
        consumer = {"groupName": name, "subscriptionDataSet": [subscription]}
        queue = {"topic": "T", "group": name, "consumerGroup": name, "isForce": "true"}
        place = {"brokerName": "broker-a", "topic": "T", "queueId": draw(NUMBERS)}
        found += [
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group),
            (
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
                {},
                {"groupConfigList": [{**group, "groupName": f"l{number}"}]},
            ),
            (RequestCode.HEART_BEAT, {}, {"clientID": "c", "consumerDataSet": [consumer]}),
            (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": name, **header}, None),
            (
                RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
                {},
                {"topicConfigList": [{**topic, "topicName": f"l{number}"}]},
            ),
            (
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {**queue, "queueId": str(draw(NUMBERS)), "commitOffset": str(draw(NUMBERS))},
                None,
            ),
            (
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                {
                    **queue,
                    "queueId": str(draw(NUMBERS)),
                    "offset": str(draw(NUMBERS)),
                    "timestamp": str(draw(NUMBERS)),
                },
                None,
            ),
            (
                RequestCode.LOCK_BATCH_MQ,
                {},
                {"consumerGroup": name, "clientId": "c", "mqSet": [place]},
            ),
        ]
    return found


@st.composite
def registrations(draw: st.DrawFn) -> list[Request]:
    """Return what brokers and tools tell a name server, with any numbers."""
    topics = {
        f"t{number}": {"topicName": f"t{number}", **draw(any_numbers(TOPIC_KEYS))}
        for number in range(2)
    }
    version = {key: draw(NUMBERS) for key in ("counter", "timestamp", "stateVersion")}
    identity: dict[str, ExtValue] = {
        "brokerName": "broker-x", "brokerAddr": "10.0.0.9:10911", "clusterName": "DefaultCluster",
        "brokerId": str(draw(st.sampled_from([0, 0, 1]) | NUMBERS)), "haServerAddr": "",
        "heartbeatTimeoutMillis": str(draw(NUMBERS)), "topic": "t0",
    }  # fmt: skip
    wrapper = {"dataVersion": version, "topicConfigTable": topics}
    queues = {"brokerName": "broker-a", **draw(any_numbers(TOPIC_KEYS))}
    return [
        (RequestCode.REGISTER_BROKER, identity, {"topicConfigSerializeWrapper": wrapper}),
        (RequestCode.QUERY_DATA_VERSION, identity, version),
        (RequestCode.REGISTER_TOPIC_IN_NAMESRV, identity, {"queueDatas": [queues]}),
    ]


def numbers_in(value: Any) -> list[int]:
    """Return every number of a JSON document, its number keys too."""
    if isinstance(value, dict):
        keys = [int(key) for key in value if key.lstrip("-").isdigit()]
        return [*keys, *(number for item in value.values() for number in numbers_in(item))]
    if isinstance(value, list):
        return [number for item in value for number in numbers_in(item)]
    return [value] if type(value) is int else []


def check_files(root: Path) -> None:
    """Compare every number of the state files with the type it has in Java."""
    for path in root.rglob("*.json"):
        document, _ = json.JSONDecoder().raw_decode(path.read_text())  # A checksum may follow.
        assert all(number in INT64 for number in numbers_in(document)), path
    config = next(root.rglob("topics.json")).parent
    topics = json.loads((config / "topics.json").read_text())["topicConfigTable"]
    for topic in topics.values():
        assert all(topic[key] in INT32 for key in TOPIC_KEYS)
        assert max(topic["readQueueNums"], topic["writeQueueNums"]) <= 10_000
    groups = json.loads((config / "subscriptionGroup.json").read_text())["subscriptionGroupTable"]
    for group in groups.values():
        assert all(group[key] in INT32 for key in GROUP_KEYS if "roker" not in key)
    if (config / "consumerOffset.json").exists():
        offsets = json.loads((config / "consumerOffset.json").read_text())["offsetTable"]
        assert all(int(queue) in INT32 for queues in offsets.values() for queue in queues)


async def ask(cluster: Cluster, wanted: list[Request], told: list[Request]) -> None:
    """Send the requests, whatever comes of each, and scrape the metrics."""
    remoting = RemotingClient(Dispatcher())
    for address, each in ((cluster.broker().address, wanted), (cluster.namesrv_addresses, told)):
        for code, fields, body in each:
            content = b"" if body is None else json.dumps(body).encode()
            command = RemotingCommand.request(code, fields, content)
            answer = await remoting.request(address, command, 10.0)
            assert "internal error" not in (answer.remark or ""), answer.remark
    for topic in ("t0", "t1"):
        command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        answer = await remoting.request(cluster.namesrv_addresses, command, 10.0)
        if answer.code == ResponseCode.SUCCESS:
            # The typed reader refuses what is no int32.
            assert decode_topic_route(answer.body).queue_datas
    await remoting.close()
    await scrape(cluster)


async def scrape(cluster: Cluster) -> None:
    """Read the metrics and the groups, in time."""
    started_s = time.monotonic()
    async with aiohttp.ClientSession(f"http://{await cluster.http_address()}") as http:
        for path in ("/metrics", "/api/v1/groups", "/api/v1/topics"):
            async with http.get(path) as answer:
                assert answer.status == 200
                await answer.read()
    assert time.monotonic() - started_s < SCRAPE_S


async def one_life_and_the_next(root: Path, wanted: list[Request], told: list[Request]) -> None:
    """Ask, stop, look at the files, start again."""
    options = {"httpPort": "0", "defaultTopicQueueNums": "2"}
    async with Cluster(root, options=options) as cluster:
        remoting = RemotingClient(Dispatcher())
        fields: dict[str, ExtValue] = {
            "topic": "T", "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
        }  # fmt: skip
        command = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        await remoting.request(cluster.broker().address, command, 10.0)
        await remoting.close()
        await ask(cluster, wanted, told)
    check_files(root)
    async with Cluster(root, options=options) as cluster:
        await scrape(cluster)


# To make a failing example small would take minutes: each one is two lives of a cluster.
@settings(max_examples=12, phases=[Phase.generate])
@given(requests(), registrations())
def test_what_is_stored_fits_java_and_is_read_at_the_next_start(
    wanted: list[Request], told: list[Request]
) -> None:
    """Any number in any field of every body and header that leads to a file or to a route."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(asyncio.wait_for(one_life_and_the_next(Path(folder), wanted, told), 60))
