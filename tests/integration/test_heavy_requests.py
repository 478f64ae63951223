"""Bodies that take long to read hold nobody up: they are bounded, or read a slice at a time."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from loop_lag import LoopLag
from real_time import at_most_s

from mailboat.model.data_version import DataVersion
from mailboat.model.names import HALF_TOPIC
from mailboat.model.topic import TopicConfig
from mailboat.namesrv.registrations import Registration
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.register_broker import encode_register_broker
from mailboat.protocol.topic_table import TopicConfigTable
from mailboat.remoting.turns import in_turns, listed_in_turns
from mailboat.testing.cluster import Cluster

pytestmark = pytest.mark.slow  # Each body is as large as it may be.

# Processor time, of which a busy machine takes more: two threads share one core of it. Work that is
# not cut into rounds takes half a second.
LIMIT_S = at_most_s(0.15, 0.28)
"""What was mended took 0.3 s to 7 s."""

MIB = 1024 * 1024
REGISTRATION = {
    "brokerName": "broker-x", "brokerAddr": "10.0.0.9:10911", "clusterName": "DefaultCluster",
    "brokerId": "0", "haServerAddr": "10.0.0.9:10912",
}  # fmt: skip


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run a name server and a broker in this loop."""
    async with Cluster(tmp_path, options={"autoCreateSubscriptionGroup": "true"}) as running:
        yield running


class Talk:
    """A connection on which requests are written as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use a connection."""
        self._reader, self._writer = reader, writer

    async def ask(self, *frames: bytes) -> list[tuple[int, str]]:
        """Send frames with one write; return code and remark of each answer, by opaque."""
        self._writer.write(b"".join(frames))
        answers: dict[int, tuple[int, str]] = {}
        async with asyncio.timeout(60):
            while len(answers) < len(frames):
                size = int.from_bytes(await self._reader.readexactly(4))
                data = await self._reader.readexactly(size)
                header = json.loads(data[4 : 4 + int.from_bytes(data[1:4])])
                if header["flag"] & 1:  # Not a request of the broker's own.
                    answers[header["opaque"]] = header["code"], header.get("remark", "")
        return [answers[opaque] for opaque in sorted(answers)]


@asynccontextmanager
async def talk(address: str) -> AsyncIterator[Talk]:
    """Connect."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    yield Talk(reader, writer)
    writer.close()
    await writer.wait_closed()


def frame(
    code: int, body: bytes, fields: Mapping[str, str] | None = None, opaque: int = 1
) -> bytes:
    """Return one request."""
    command = RemotingCommand.request(code, fields or {}, body)
    command.opaque = opaque
    return command.encode()


def bare_keys(size: int) -> bytes:
    """Return what is no JSON: number keys as they are."""
    return b"{" + b",".join([b"0:0"] * (size // 4)) + b"}"


def same_keys(size: int) -> bytes:
    """Return one key very often."""
    return b"{" + b",".join([b'"a":0'] * (size // 6)) + b"}"


def many_keys(size: int) -> bytes:
    """Return many different keys."""
    return b"{" + b",".join(b'"%d":0' % number for number in range(size // 12)) + b"}"


def deep(size: int) -> bytes:
    """Return nesting without an end."""
    return b"{0:" * (size // 3)


def long_numbers(size: int) -> bytes:
    """Return numbers of 4,000 digits."""
    return b"[" + b",".join([b"9" * 4000] * (size // 4001)) + b"]"


def nulls(size: int) -> bytes:
    """Return a list that needs the tolerant reader."""
    return b'{"mqSet":null,"clientID":[' + b",".join([b"null"] * (size // 5)) + b"]}"


def open_texts(size: int) -> bytes:
    """Return quotes without an end of a text."""
    return b"{0:" + b'\\"' * (size // 2)


def lines(size: int) -> bytes:
    """Return settings, or limits of groups, line by line."""
    return b"\n".join(b"g%d=1" % number for number in range(size // 10))


def one_line(size: int) -> bytes:
    """Return one name, or one line that goes on and on."""
    return b"g=\\\n" * (size // 4)


BROKER_CODES = [
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.HEART_BEAT,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
]
SHAPES = [bare_keys, same_keys, many_keys, deep, long_numbers, nulls, open_texts]


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_body_of_a_request_holds_the_broker(
    cluster: Cluster, shape: Callable[[int], bytes]
) -> None:
    """However large and however odd: each gets one clear sentence, and quickly."""
    bodies = [shape(size) for size in (60_000, MIB - 100, 15 * MIB)]
    async with talk(cluster.broker().address) as broker:
        for code, body in product(BROKER_CODES, bodies):
            request = frame(code, body)
            async with LoopLag() as lag:
                [(answer, remark)] = await broker.ask(request)
            assert answer != ResponseCode.SUCCESS
            assert 0 < len(remark) < 400
            assert "internal error" not in remark
            assert lag.longest_s < LIMIT_S, (code, len(body))


async def test_no_code_of_a_broker_reads_a_large_body_in_one_go(cluster: Cluster) -> None:
    """Every code there is, also those that nobody would send a body with."""
    bodies = [lines(3 * MIB), many_keys(3 * MIB), one_line(3 * MIB)]
    broker = cluster.broker()
    async with talk(broker.address) as wire:
        for code, body in product(sorted(broker.dispatcher.codes), bodies):
            request = frame(code, body)
            async with LoopLag() as lag:
                [(_, remark)] = await wire.ask(request)
            assert len(remark) < 400, code
            assert "internal error" not in remark
            assert lag.longest_s < LIMIT_S, (code, body[:20])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("code", [103, 217, 318, 322])
async def test_no_body_of_a_request_holds_the_name_server(
    cluster: Cluster, code: int, shape: Callable[[int], bytes]
) -> None:
    """The same, also below the place where a registration has its topics."""
    async with talk(cluster.namesrv_addresses) as name_server:
        for size in (60_000, 15 * MIB):
            content = shape(size)
            table = b'{"topicConfigSerializeWrapper":{"topicConfigTable":' + content + b"}}"
            for body in (content, table, zlib.compress(content)):
                request = frame(code, body, REGISTRATION | {"topic": "T"})
                async with LoopLag() as lag:
                    [(_, remark)] = await name_server.ask(request)
                assert len(remark) < 400
                assert "internal error" not in remark
                assert lag.longest_s < LIMIT_S, len(body)


async def test_many_such_requests_of_one_read_let_others_in(cluster: Cluster) -> None:
    """Each takes some milliseconds; together they are cut into rounds."""
    body = bare_keys(60_000)
    frames = [frame(RequestCode.LOCK_BATCH_MQ, body, opaque=number) for number in range(100)]
    async with talk(cluster.broker().address) as broker, LoopLag() as lag:
        answers = await broker.ask(*frames)
    assert {code for code, _ in answers} == {ResponseCode.SYSTEM_ERROR}
    assert lag.longest_s < LIMIT_S


def wide_table(count: int) -> TopicConfigTable:
    """Return the topics of a very large broker."""
    names = [f"a-topic-with-a-name-{number:06d}" for number in range(count)]
    return TopicConfigTable(DataVersion(1, 1), {name: TopicConfig(name, 8, 8) for name in names})


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_very_large_registration_is_taken_in_slices(
    cluster: Cluster, compressed: bool
) -> None:
    """60,000 topics, as many as a frame holds plain, are all there afterwards."""
    body = encode_register_broker(wide_table(60_000), compressed=compressed)
    fields = REGISTRATION | {"compressed": str(compressed).lower()}
    register = frame(RequestCode.REGISTER_BROKER, body, fields)
    gone = frame(RequestCode.UNREGISTER_BROKER, b"", REGISTRATION, opaque=2)
    routes = cluster.name_server().routes
    async with talk(cluster.namesrv_addresses) as name_server:
        async with LoopLag() as lag:
            [(code, remark)] = await name_server.ask(register)
        assert code == ResponseCode.SUCCESS, remark
        assert routes.topic_count() >= 60_000
        assert lag.longest_s < LIMIT_S
        # What comes behind a registration counts behind it, however long that takes.
        answers = await name_server.ask(register, gone)
    assert {code for code, _ in answers} == {ResponseCode.SUCCESS}
    assert "broker-x" not in routes.cluster_info().broker_addr_table


async def test_the_queue_mappings_of_a_java_broker_are_passed_over(cluster: Cluster) -> None:
    """RocketMQ 5 writes static topics with bare keys behind the table, however many there are."""
    plain = encode_register_broker(wide_table(2_000))
    mappings = b",".join(
        b'"s%d":{"bname":"broker-x","currIdMap":{%b},"dirty":false,"epoch":1,"totalQueues":8}'
        % (number, b",".join(b"%d:%d" % (queue, queue) for queue in range(8)))
        for number in range(1_000)
    )
    body = plain[:-2] + b',"topicQueueMappingInfoMap":{' + mappings + b"}}}"
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(body)
    request = frame(RequestCode.REGISTER_BROKER, body, REGISTRATION)
    async with talk(cluster.namesrv_addresses) as name_server, LoopLag() as lag:
        [(code, remark)] = await name_server.ask(request)
        assert code == ResponseCode.SUCCESS, remark
        assert cluster.name_server().routes.topic_count() >= 2_000
    assert lag.longest_s < LIMIT_S


async def test_as_many_locks_as_a_body_holds_let_others_in(cluster: Cluster) -> None:
    """They are put in order before they are locked, and before they are answered."""
    broker = cluster.broker()
    for topic in "TU":
        broker.topics.update(TopicConfig(topic, 10_000, 10_000))
    places = product("TU", range(10_000))
    queues = [{"brokerName": "", "queueId": number, "topic": topic} for topic, number in places]
    locks = json.dumps(
        {"consumerGroup": "g0", "clientId": "c", "mqSet": queues}, separators=(",", ":")
    )
    async with talk(broker.address) as client, LoopLag() as lag:
        [(answer, remark)] = await client.ask(frame(RequestCode.LOCK_BATCH_MQ, locks.encode()))
    assert answer == ResponseCode.SUCCESS, remark
    assert lag.longest_s < LIMIT_S


async def test_ten_thousand_locks_and_a_thousand_groups_let_others_in(cluster: Cluster) -> None:
    """What a large client may really ask for is done, a slice at a time."""
    broker = cluster.broker()
    broker.topics.update(TopicConfig("T", 10_000, 10_000))
    queues = [
        {"brokerName": "broker-a", "queueId": number, "topic": "T"} for number in range(10_000)
    ]
    locks = json.dumps({"consumerGroup": "g0", "clientId": "c", "mqSet": queues}).encode()
    subscriptions = [
        {
            "topic": f"{'t' * 40}{number}", "subString": "*", "tagsSet": [], "codeSet": [],
            "subVersion": 1_700_000_000_000, "expressionType": "TAG", "classFilterMode": False,
        }
        for number in range(4)
    ]  # fmt: skip
    groups = [
        {"groupName": f"g{number}", "subscriptionDataSet": subscriptions} for number in range(1_000)
    ]
    heartbeat = json.dumps({"clientID": "c", "consumerDataSet": groups}).encode()
    assert 700_000 < len(heartbeat) < 1_048_576
    too_many = json.dumps(
        {"clientID": "c", "producerDataSet": [{"groupName": f"g{n}"} for n in range(1_001)]}
    ).encode()
    async with talk(broker.address) as client, LoopLag() as lag:
        for code, body in (
            (RequestCode.HEART_BEAT, heartbeat),
            (RequestCode.LOCK_BATCH_MQ, locks),
            (RequestCode.UNLOCK_BATCH_MQ, locks),
        ):
            [(answer, remark)] = await client.ask(frame(code, body))
            assert answer == ResponseCode.SUCCESS, remark
        assert broker.topics.select("%RETRY%g999") is not None
        [(_, remark)] = await client.ask(frame(RequestCode.HEART_BEAT, too_many))
    assert "more than 1000 groups" in remark
    assert lag.longest_s < LIMIT_S


async def test_turns_go_round_by_connection(cluster: Cluster) -> None:
    """Sixty requests for all topics, all of one connection: another connection's is answered while
    they are under way, not behind them."""
    broker = cluster.broker()
    for name in wide_table(5_000).topic_config_table:
        broker.topics.update(TopicConfig(name))
    frames = [frame(RequestCode.GET_ALL_TOPIC_CONFIG, b"", opaque=number) for number in range(60)]
    async with talk(broker.address) as many, talk(broker.address) as other:
        answers = asyncio.create_task(many.ask(*frames))
        async with asyncio.timeout(20):
            while len(broker.dispatcher._tasks) < len(frames):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)
        [(code, remark)] = await other.ask(frame(RequestCode.GET_ALL_TOPIC_CONFIG, b""))
        assert code == ResponseCode.SUCCESS, remark
        assert len(broker.dispatcher._tasks) > 50
        assert {code for code, _ in await answers} == {ResponseCode.SUCCESS}


async def test_lists_of_very_many_topics_let_others_in(cluster: Cluster) -> None:
    """Two brokers with as many topics as one may register, half of them the same."""
    name_server = cluster.name_server()
    for broker, first in (("x", 0), ("y", 150_000)):
        names = [f"t{number:06d}" for number in range(first, first + 300_000)]
        registration = Registration(
            cluster_name="DefaultCluster",
            broker_name=broker,
            broker_id=0,
            address=f"{broker}:1",
            ha_server_address="",
            data_version=DataVersion(1, 1),
            topics={name: TopicConfig(name, topic_sys_flag=3) for name in names},
            host=broker,
        )
        await listed_in_turns(name_server.routes.register_in_steps(registration, broker))
    async with talk(cluster.namesrv_addresses) as client:
        for code in (206, 224, 311, 312):
            fields = {"cluster": "DefaultCluster"}
            answers = [await client.ask(frame(code, b"", fields))]
            assert answers == [[(ResponseCode.SUCCESS, "")]]
    names = await in_turns(name_server.routes.topics_of_cluster("DefaultCluster"))
    assert len(names) >= 450_000
    # All of the second one's are left out, and those that it shares with the first one stay.
    name_server.routes.delete_unlisted_topics = True
    fewer = replace(registration, topics=wide_table(2).topic_config_table)
    await listed_in_turns(name_server.routes.register_in_steps(fewer, "y"))
    assert 300_002 <= name_server.routes.topic_count() < 300_100


async def test_ends_of_large_transactions_let_others_in(cluster: Cluster) -> None:
    """A commit reads and stores its message once more: sixteen small requests, 64 MB."""
    broker = cluster.broker()
    fields = {
        "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "4", "g": "1", "h": "0",
        "i": "TRAN_MSG\x01true\x02PGROUP\x01PG\x02", "j": "0", "k": "false",
    }  # fmt: skip
    ends: list[bytes] = []
    async with talk(broker.address) as connection:
        for number in range(16):
            half = frame(RequestCode.SEND_MESSAGE_V2, bytes(4_000_000), fields)
            assert await connection.ask(half) == [(ResponseCode.SUCCESS, "")]
            end = {
                "producerGroup": "PG", "tranStateTableOffset": str(number),
                "commitLogOffset": str(broker.store.physical_position(HALF_TOPIC, 0, number)),
                "commitOrRollback": "8",
            }  # fmt: skip
            ends.append(frame(RequestCode.END_TRANSACTION, b"", end, number))
        async with LoopLag() as lag:
            answers = await connection.ask(*ends)
    assert answers == [(ResponseCode.SUCCESS, "")] * 16
    assert broker.store.max_offset("T", 0) == 16
    assert lag.longest_s < LIMIT_S
