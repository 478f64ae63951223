"""Offsets that administrators set: reset, clone, correction; over real sockets.

What is expected is what a RocketMQ 5.3 broker answers, or a 4.9 one where
`useServerSideResetOffset=false` asks for it.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import pytest
from loop_lag import LoopLag
from raw_client import BROKER_NAME, RawClient, connected, running_broker

from mailboat.broker.controller import BrokerController
from mailboat.model.record import decode_records
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.consumer_bodies import decode_correction_offsets
from mailboat.protocol.queue_map import decode_offset_table
from mailboat.protocol.stats_bodies import decode_consume_stats

_END = -1


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    """Connect a member of group G; queue 0 of topic T holds ten messages, queue 1 none."""
    async with connected(broker, "a") as [client]:
        await fill(client)
        yield client


async def fill(client: RawClient) -> None:
    """Make a topic with two queues and ten messages in the first, and let group G read five."""
    await client.make_topic("T", 2)
    await client.heartbeat("T", group="G")
    for number in range(10):
        await client.send("T", str(number).encode())
    await client.commit("G", "T", 5)
    await client.commit("G", "T", 0, queue_id=1)


async def reset(client: RawClient, timestamp_ms: int, **fields: ExtValue) -> RemotingCommand:
    """Reset group G in topic T as mqadmin does."""
    return await client.call(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": "T", "group": "G", "timestamp": timestamp_ms, "isForce": True, **fields},
    )


def table(answer: RemotingCommand) -> dict[int, int]:
    """Return the offsets of an answer by queue id."""
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    offsets = decode_offset_table(answer.body)
    assert {(queue.topic, queue.broker_name) for queue in offsets} == {("T", BROKER_NAME)}
    return {queue.queue_id: queue_offset for queue, queue_offset in offsets.items()}


# -- on the server --------------------------------------------------------------------------------


async def test_the_answer_has_rocketmqs_form(client: RawClient) -> None:
    """Every queue with its new offset, the queues as raw object keys."""
    answer = await reset(client, _END)
    assert answer.body == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:10,'
        b'{"brokerName":"broker-a","queueId":1,"topic":"T"}:0}}'
    )


async def test_queues_that_a_topic_has_no_more_are_lag_until_they_are_skipped(
    client: RawClient,
) -> None:
    """No route leads there: 208 shows what lies in them, and a reset of the topic reaches it."""
    await client.send("T", b"x", queue_id=1)
    await client.make_topic("T", 1)
    fields: dict[str, ExtValue] = {"consumerGroup": "G", "topic": "T"}
    stats = await client.ok(RequestCode.GET_CONSUME_STATS, fields)
    lags = {
        queue.queue_id: offsets.broker_offset - offsets.consumer_offset
        for queue, offsets in decode_consume_stats(stats.body).offset_table.items()
    }
    assert lags == {0: 5, 1: 1}
    assert table(await reset(client, _END)) == {0: 10, 1: 1}
    assert await client.committed("G", "T", queue_id=1) == 1


async def test_a_reset_is_stored_and_seen_by_the_next_pull(client: RawClient) -> None:
    """Commits of members are ignored until their pull was answered by OFFSET_MOVED."""
    assert table(await reset(client, 0)) == {0: 0, 1: 0}
    assert await client.committed("G", "T") == 0
    ignored = await client.commit("G", "T", 6)
    assert ignored.code == ResponseCode.SUCCESS
    assert ignored.remark == "Offset has been previously reset"
    assert await client.committed("G", "T") == 0
    answer = await client.pull("G", "T", 8, commit_offset=7)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext_fields["nextBeginOffset"] == "0"
    assert answer.ext_fields["minOffset"] == "0"
    assert answer.ext_fields["maxOffset"] == "10"
    assert await client.committed("G", "T") == 0
    answer = await client.pull("G", "T", 0, commit_offset=0)
    assert answer.code == ResponseCode.SUCCESS
    assert decode_records(answer.body)[0].body == b"0"
    await client.commit("G", "T", 1)
    assert await client.committed("G", "T") == 1


async def test_a_pull_that_waits_notices_a_reset_at_once(client: RawClient) -> None:
    """An idle consumer would otherwise go on waiting for up to 15 s."""
    waiting = asyncio.create_task(client.pull("G", "T", 10, suspend_ms=15_000))
    await client.ok(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
    await reset(client, 0)
    answer = await asyncio.wait_for(waiting, 5)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext_fields["nextBeginOffset"] == "0"


async def test_other_groups_are_left_alone(client: RawClient) -> None:
    """Neither their offsets nor their pulls notice anything."""
    await client.heartbeat("T", group="H")
    await client.commit("H", "T", 3)
    await reset(client, 0)
    assert await client.committed("H", "T") == 3
    assert (await client.pull("H", "T", 3, commit_offset=3)).code == ResponseCode.SUCCESS


async def test_a_group_that_is_offline_is_reset(broker: BrokerController) -> None:
    """RocketMQ 5 needs no member; one that comes later starts at the new offset at once."""
    async with connected(broker, "a") as [client]:
        await fill(client)
    async with connected(broker, "b") as [client]:
        assert table(await reset(client, 0)) == {0: 0, 1: 0}
        assert await client.committed("G", "T") == 0
        answer = await client.pull("G", "T", 0)
        assert answer.code == ResponseCode.SUCCESS
        assert len(decode_records(answer.body)) == 10


async def test_a_group_without_offsets_is_reset(client: RawClient) -> None:
    """A group that never committed gets an offset in every queue."""
    await client.heartbeat("T", group="H")
    assert table(await reset(client, _END, group="H")) == {0: 10, 1: 0}
    assert await client.committed("H", "T") == 10


async def test_a_reset_by_time_finds_the_first_message_since(client: RawClient) -> None:
    """A time before all is the beginning, one after all is the end."""
    records = decode_records((await client.pull("X", "T", 0)).body)
    first_ms, last_ms = records[0].store_timestamp_ms, records[-1].store_timestamp_ms
    assert table(await reset(client, first_ms - 1)) == {0: 0, 1: 0}
    assert table(await reset(client, last_ms + 60_000)) == {0: 10, 1: 0}
    expected = next(r.queue_offset for r in records if r.store_timestamp_ms >= last_ms)
    assert table(await reset(client, last_ms)) == {0: expected, 1: 0}


async def test_one_queue_is_reset_to_an_offset(client: RawClient) -> None:
    """mqadmin 5 resets a single queue with -q and -o; the others stay."""
    assert table(await reset(client, 0, queueId=0, offset=3)) == {0: 3}
    assert await client.committed("G", "T") == 3
    assert table(await reset(client, _END, queueId=0)) == {0: 10}
    assert table(await reset(client, 0, queueId=0, offset=-1)) == {0: 0}
    assert await client.committed("G", "T", 1) == 0


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, "unknown"),
        ({"group": "unknown"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "unknown"),
        ({"queueId": 2}, ResponseCode.INVALID_PARAMETER, "queueId 2"),
        ({"queueId": 0, "offset": 11}, ResponseCode.SYSTEM_ERROR, "[0-10]"),
        ({"queueId": 0, "offset": -2}, ResponseCode.SYSTEM_ERROR, "[0-10]"),
        ({"queueId": "x"}, ResponseCode.SYSTEM_ERROR, "queueId"),
        ({"timestamp": "soon"}, ResponseCode.SYSTEM_ERROR, "timestamp"),
        ({"timestamp": None}, ResponseCode.SYSTEM_ERROR, "timestamp"),
        ({"isForce": None}, ResponseCode.SYSTEM_ERROR, "isForce"),
        ({"topic": None}, ResponseCode.SYSTEM_ERROR, "topic"),
        ({"group": None}, ResponseCode.SYSTEM_ERROR, "group"),
    ],
)
async def test_a_reset_that_makes_no_sense_is_refused(
    client: RawClient, fields: dict[str, ExtValue], code: int, words: str
) -> None:
    """The answer names what is wrong, and nothing is changed."""
    answer = await client.call(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": "T", "group": "G", "timestamp": 0, "isForce": True, **fields},
    )
    assert answer.code == code
    assert words in (answer.remark or "")
    assert await client.committed("G", "T") == 5
    assert (await client.commit("G", "T", 6)).code == ResponseCode.SUCCESS
    assert await client.committed("G", "T") == 6


async def test_a_reset_is_durable_when_it_is_answered(tmp_path: Path) -> None:
    """After a kill the members' old commits are still ignored."""
    async with running_broker(tmp_path) as broker, connected(broker, "a") as [client]:
        await fill(client)
        await reset(client, 0)
        saved = json.loads((tmp_path / "config" / "consumerOffset.json").read_bytes())
        assert saved["offsetTable"]["T@G"] == {"0": 0, "1": 0}
    async with running_broker(tmp_path) as broker, connected(broker, "a") as [client]:
        await client.commit("G", "T", 6)
        assert await client.committed("G", "T") == 0
        answer = await client.pull("G", "T", 6, commit_offset=6)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED


# -- by the members -------------------------------------------------------------------------------


@pytest.fixture
async def old_broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    """Run a broker that resets as RocketMQ 4 does."""
    async with running_broker(tmp_path, use_server_side_reset_offset=False) as controller:
        yield controller


async def test_members_are_told_of_a_reset(old_broker: BrokerController) -> None:
    """Each gets the offsets in the form of its language; the broker changes nothing itself."""
    async with (
        connected(old_broker, "a") as [java],
        connected(old_broker, "b", language="CPP") as [cpp],
    ):
        await fill(java)
        await cpp.heartbeat("T", group="G")
        assert table(await reset(java, 0)) == {0: 0, 1: 0}
        code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        push = await java.next_push(code)
        assert push.is_oneway
        assert push.ext_fields["topic"] == "T"
        assert push.ext_fields["group"] == "G"
        assert push.ext_fields["timestamp"] == "0"
        assert push.body == (
            b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:0,'
            b'{"brokerName":"broker-a","queueId":1,"topic":"T"}:0}}'
        )
        assert json.loads((await cpp.next_push(code)).body) == {
            "offsetTable": [
                {"brokerName": "broker-a", "offset": 0, "queueId": 0, "topic": "T"},
                {"brokerName": "broker-a", "offset": 0, "queueId": 1, "topic": "T"},
            ]
        }
        assert await java.committed("G", "T") == 5
        await java.commit("G", "T", 6)
        assert await java.committed("G", "T") == 6


@pytest.mark.parametrize(
    ("timestamp_ms", "is_forced", "expected"), [(_END, True, 10), (_END, False, 5), (0, False, 0)]
)
async def test_a_reset_that_is_not_forced_goes_back_only(
    old_broker: BrokerController, timestamp_ms: int, is_forced: bool, expected: int
) -> None:
    """Without isForce nothing is skipped."""
    async with connected(old_broker, "a") as [client]:
        await fill(client)
        answer = await reset(client, timestamp_ms, isForce=is_forced)
        assert table(answer) == {0: expected, 1: 0}


async def test_the_way_of_resetting_can_be_changed_live(
    broker: BrokerController, client: RawClient
) -> None:
    """Like mqadmin updateBrokerConfig does it, without a restart."""
    broker.change_config({"useServerSideResetOffset": "false"})
    assert table(await reset(client, 0)) == {0: 0, 1: 0}
    await client.next_push(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    assert await client.committed("G", "T") == 5


async def test_members_must_be_online_to_be_told(old_broker: BrokerController) -> None:
    """206 makes mqadmin 4.9 change the offsets by itself."""
    async with connected(old_broker, "a") as [client]:
        await fill(client)
    async with connected(old_broker, "b") as [client]:
        answer = await reset(client, 0)
        assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
        assert "not online" in (answer.remark or "")
        answer = await reset(client, 0, topic="unknown")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_members_without_offsets_cannot_be_told(old_broker: BrokerController) -> None:
    """RocketMQ 4 answers an error where a queue has no offset of the group."""
    async with connected(old_broker, "a") as [client]:
        await fill(client)
        await client.heartbeat("T", group="H")
        answer = await reset(client, 0, group="H")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "not exist" in (answer.remark or "")


# -- clone and correction -------------------------------------------------------------------------


async def clone(client: RawClient, **fields: ExtValue) -> RemotingCommand:
    """Give group H the offsets of group G."""
    return await client.call(
        RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "H", **fields}
    )


async def test_offsets_are_cloned(client: RawClient) -> None:
    """In one topic or in all; the group that gets them need not exist."""
    await client.make_topic("U")
    await client.commit("G", "U", 0)
    assert (await clone(client, topic="T")).code == ResponseCode.SUCCESS
    assert await client.committed("H", "T") == 5
    assert await client.committed("H", "U") is None
    assert (await clone(client, offline=True)).code == ResponseCode.SUCCESS
    assert await client.committed("H", "U") == 0
    saved = json.loads((await client.ok(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)
    assert saved["offsetTable"]["T@H"] == {"0": 5, "1": 0}


async def test_topics_that_are_no_longer_read_are_not_cloned(client: RawClient) -> None:
    """Unless the group counts as offline, its members' subscriptions decide."""
    await client.make_topic("U")
    await client.commit("G", "U", 0)
    assert (await clone(client, offline=False)).code == ResponseCode.SUCCESS
    assert await client.committed("H", "T") == 5
    assert await client.committed("H", "U") is None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"srcGroup": "unknown"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"destGroup": "bad name"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"srcGroup": None}, ResponseCode.SYSTEM_ERROR),
        ({"destGroup": None}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_clone_of_nothing_is_refused(
    client: RawClient, fields: dict[str, ExtValue], code: int
) -> None:
    """Unknown topics and groups, and missing fields, never look like success."""
    answer = await clone(client, **fields)
    assert answer.code == code
    assert answer.remark


async def test_the_slowest_group_of_a_queue_is_found(client: RawClient) -> None:
    """Groups that are left out do not count, and lose nothing by being asked about."""
    await client.heartbeat("T", group="H")
    await client.commit("H", "T", 3)

    async def corrections(compared: str, left_out: str | None = None) -> dict[int, int]:
        answer = await client.ok(
            RequestCode.QUERY_CORRECTION_OFFSET,
            {"topic": "T", "compareGroup": compared, "filterGroups": left_out},
        )
        return decode_correction_offsets(answer.body)

    assert await corrections("G") == {0: 3, 1: 0}
    assert await corrections("H", "H,X") == {0: (1 << 63) - 1, 1: 0}
    assert await client.committed("H", "T") == 3
    answer = await client.call(
        RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "unknown", "compareGroup": "G"}
    )
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_million_offsets_hold_nobody_up(broker: BrokerController) -> None:
    """A thousand groups that read a wide topic, and one that reads many."""
    offsets = broker.offsets
    async with connected(broker, "a") as [client]:
        await client.make_topic("T", 1000)
        for group, queue_id in product(range(1000), range(1000)):
            offsets.commit(f"H{group}", "T", queue_id, 0)
        for number in range(300):
            broker.topics.update(TopicConfig(f"U{number}", 1000, 1000))
        for number, queue_id in product(range(300), range(1000)):
            offsets.commit("G", f"U{number}", queue_id, 0)
        broker.groups.find("G", "10.0.0.1")
        async with LoopLag() as lag:
            fields: dict[str, ExtValue] = {"topic": "T", "compareGroup": "H0"}
            answer = await client.ok(RequestCode.QUERY_CORRECTION_OFFSET, fields)
            await client.ok(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "H"})
    assert decode_correction_offsets(answer.body) == dict.fromkeys(range(1000), 0)
    assert offsets.topics_of("H") == {f"U{number}" for number in range(300)}
    assert lag.longest_s < 0.1, "it took 0.2 s and 0.4 s"


@pytest.mark.parametrize("on_server", ["true", "false"])
async def test_a_time_is_found_behind_a_million_messages_that_are_lost(
    tmp_path: Path, on_server: str
) -> None:
    """A damaged log leaves blank units; a search skips them, and holds nobody up meanwhile."""
    lost = 1_000_000
    options = {"use_server_side_reset_offset": on_server == "true"}
    async with running_broker(tmp_path, **options) as broker, connected(broker, "a") as [client]:
        await fill(client)
        queue = broker.store.queues.get("T", 0)
        assert queue is not None
        queue.append_blanks(10 + lost)
        broker.store.queues.mark_dirty(queue)
    async with running_broker(tmp_path, **options) as broker, connected(broker, "a") as [client]:
        await client.heartbeat("T", group="G")
        await client.send("T", b"behind")
        queue = broker.store.queues.get("T", 0)
        assert queue is not None
        assert queue.max_offset == 10 + lost + 1
        time_ms = broker.store.store_timestamp("T", 0, 10 + lost)
        place: dict[str, ExtValue] = {"topic": "T", "queueId": 0}
        for searched_ms, boundary, expected in (
            (time_ms, "LOWER", 10),
            (time_ms + 1, "LOWER", 10 + lost + 1),
            (time_ms - 1, "UPPER", 9),
            (time_ms, "UPPER", 10 + lost),
        ):
            fields = {**place, "timestamp": searched_ms, "boundaryType": boundary}
            answer = await client.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
            assert answer.ext_fields == {"offset": str(expected)}
        assert table(await reset(client, time_ms)) == {0: 10, 1: 0}
