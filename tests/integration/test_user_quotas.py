"""Users of a broker are kept within their quotas of sends, connections, topics and groups."""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from bounded_users import (
    BOUNDED,
    BUSY,
    FLOW,
    FREE,
    NO_GROUP,
    NO_TOPIC,
    ROOT,
    SUCCESS,
    bound,
    broker_for,
    fill,
    make_users,
    pull,
    refusals,
    send,
    stored,
)
from guarded import (
    GUARDED,
    SECRET,
    Users,
    Wire,
    client_of,
    guarded_broker,
    known_as,
    signed_frame,
    until,
    wire_to,
)
from locked_http import basic
from raw_client import RawClient

from mailboat.broker.controller import BrokerController
from mailboat.config import load_settings
from mailboat.config.security import SecurityConfig
from mailboat.model.batch import encode_batch
from mailboat.model.message import Message
from mailboat.node import Node
from mailboat.protocol.codes import RequestCode as Code
from mailboat.protocol.codes import ResponseCode
from mailboat.security.quotas import Quotas


@pytest.fixture
def users() -> Users:
    """Return a Super user, and two that may use everything; one of them is bounded."""
    return make_users()


@pytest.fixture
async def broker(tmp_path: Path, users: Users) -> AsyncIterator[BrokerController]:
    """Run a broker with a topic and a group."""
    async with broker_for(tmp_path, users) as controller:
        yield controller


@pytest.fixture
async def wire(broker: BrokerController) -> AsyncIterator[Wire]:
    """Connect to the broker."""
    async with wire_to(broker) as connection:
        yield connection


# -- sends --------------------------------------------------------------------------------------


async def test_who_waits_for_answers_is_slowed_down_to_the_quota(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """Not one send fails: a second's worth at once, the rest as the rate allows."""
    bound(users, publish_messages_per_second=50)
    begin_s = time.monotonic()
    times = []
    for number in range(100):
        wire.write(send(number))
        assert await wire.codes(1) == {number: SUCCESS}
        times.append(time.monotonic() - begin_s)
    # 100 messages: 50 at once, 50 in a second.
    assert 0.95 <= times[-1] < 3.0
    for index, at_s in enumerate(times):
        assert index + 1 <= 50 + 50 * at_s + 1
    assert stored(broker) == 100
    assert refusals(broker) == {}


async def test_who_does_not_wait_is_refused(
    broker: BrokerController, users: Users, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """The answers of a second come late; what is beyond is refused at once, and not stored."""
    bound(users, publish_messages_per_second=20)
    begin_s = time.monotonic()
    with caplog.at_level(logging.WARNING):
        wire.write(*(send(number, b"m%d" % number) for number in range(200)))
        answers = await wire.answers(200)
    codes = Counter(answer.code for answer in answers)
    assert set(codes) == {SUCCESS, FLOW}
    # 20 at once and 10 to wait for: half of what one connection alone could wait for.
    assert 29 <= codes[SUCCESS] <= 36
    assert stored(broker) == codes[SUCCESS]
    late = next(one for one in answers if one.code == FLOW)
    assert late.remark is not None
    assert late.remark.startswith("[FLOW]client has exhausted the send quota: user bounded may")
    assert "publishMessagesPerSecond" in late.remark
    assert time.monotonic() - begin_s >= 0.4
    assert refusals(broker) == {"publishMessagesPerSecond": codes[FLOW]}
    lines = [line for line in caplog.messages if "quota used up" in line]
    assert lines == ["quota used up user='bounded' quota=publishMessagesPerSecond suppressed=0"]
    # Messages keep their order: later ones were stored behind earlier ones.
    opaques = [one.opaque for one in answers if one.code == SUCCESS]
    assert opaques == sorted(opaques)


async def test_bytes_are_those_of_bodies(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """Ten thousand bytes a second: ten messages of a thousand at once, and five to wait for."""
    bound(users, publish_bytes_per_second=10_000)
    wire.write(*(send(number, bytes(1_000)) for number in range(60)))
    codes = Counter((await wire.codes(60)).values())
    assert 14 <= codes[SUCCESS] <= 20
    assert refusals(broker) == {"publishBytesPerSecond": codes[FLOW]}
    # One that is larger than a second's worth goes through, and is paid for afterwards.
    await asyncio.sleep(1.6)
    wire.write(send(70, bytes(25_000)), send(71, b"m"))
    assert await wire.codes(2) == {70: SUCCESS, 71: FLOW}


async def test_messages_are_counted_inside_of_batches(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """A batch of 40 is 40 messages."""
    bound(users, publish_messages_per_second=100)
    batch = encode_batch([Message("T", b"m")] * 40, [str(n) for n in range(40)])
    fields = {"m": True}
    wire.write(*(send(n, batch, fields=fields, code=Code.SEND_BATCH_MESSAGE) for n in range(6)))
    codes = Counter((await wire.codes(6)).values())
    # Two at once, one waits for 20 messages, one for 60 which is too long.
    assert codes == {SUCCESS: 3, FLOW: 3}
    assert stored(broker) == 120


async def test_what_wants_no_answer_is_dropped_and_counted(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """It cannot be slowed down, so a second's worth is all."""
    bound(users, publish_messages_per_second=30)
    wire.write(*(send(number, is_oneway=True) for number in range(100)))
    wire.write(signed_frame(Code.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}, FREE, opaque=7))
    assert await wire.codes(1) == {7: SUCCESS}
    assert 30 <= stored(broker) <= 45
    assert refusals(broker) == {"publishMessagesPerSecond": 100 - stored(broker)}


async def test_a_connection_that_does_not_wait_leaves_room_for_others(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """Each of two that wait for their answers gets some, and is never refused."""
    bound(users, publish_messages_per_second=40)
    is_over = False

    async def flood() -> None:
        opaque = 0
        while not is_over:
            wire.write(*(send(opaque + n) for n in range(50)))
            await wire.answers(50)
            opaque += 50

    async def polite() -> int:
        count = 0
        async with wire_to(broker) as own:
            while not is_over:
                own.write(send(count, fields={"e": 1}))
                assert await own.codes(1) == {count: SUCCESS}
                count += 1
        return count

    flooding = asyncio.create_task(flood())
    others = [asyncio.create_task(polite()) for _ in range(2)]
    await asyncio.sleep(4)
    is_over = True
    counts = await asyncio.gather(*others)
    await flooding
    # Theirs alone would be 160 and a second's worth.
    assert min(counts) >= 4
    assert stored(broker) + stored(broker, queue_id=1) <= 40 * (4 + 1 + 1 + 1)


async def test_others_are_not_bounded(broker: BrokerController, users: Users, wire: Wire) -> None:
    """Not by the quotas of somebody else, nor is the same connection under another name."""
    bound(users, publish_messages_per_second=1)
    wire.write(*(send(n) for n in range(20)), *(send(n, credentials=FREE) for n in range(20, 120)))
    codes = await wire.codes(120)
    assert {code for opaque, code in codes.items() if opaque >= 20} == {SUCCESS}
    assert FLOW in codes.values()
    users.change("root", quotas=Quotas(publish_messages_per_second=1))
    wire.write(*(send(n, credentials=ROOT) for n in range(20)))
    assert FLOW in (await wire.codes(20)).values()


async def test_answers_to_requests_are_sends_too(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """They bring a message, and nobody waits for them to come late."""
    bound(users, publish_messages_per_second=2)
    codes = []
    for number, code in enumerate([Code.SEND_REPLY_MESSAGE_V2] * 4):
        wire.write(send(number, code=code))
        codes += (await wire.codes(1)).values()
    assert FLOW not in codes[:2]
    assert FLOW in codes[2:]


async def test_answers_that_are_held_back_leave_before_the_end(
    tmp_path: Path, users: Users
) -> None:
    """What was stored is acknowledged: nobody sends it again."""
    bound(users, publish_messages_per_second=10)
    async with guarded_broker(tmp_path, users) as broker:
        async with client_of(broker, ROOT) as client:
            await client.make_topic("T")
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        wire = Wire(reader, writer)
        wire.write(*(send(n) for n in range(15)))
        answers = await wire.answers(10)
        await until(lambda: stored(broker) == 15)
    answers += await wire.answers(5)
    assert {answer.code for answer in answers} == {SUCCESS}
    writer.close()


# -- changes ------------------------------------------------------------------------------------


async def test_a_change_counts_with_the_next_request_and_forgives_nothing(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """On the same connection: a debt stays one under another quota, and none is none."""
    bound(users, publish_bytes_per_second=1_000)
    wire.write(send(1, bytes(6_000)))
    assert await wire.codes(1) == {1: SUCCESS}
    bound(users, publish_bytes_per_second=2_000, connections=5)
    wire.write(send(2))
    assert await wire.codes(1) == {2: FLOW}
    users.change("bounded", quotas=None)
    wire.write(send(3))
    assert await wire.codes(1) == {3: SUCCESS}
    assert broker.quotas is not None
    assert list(broker.quotas.uses()) == []


async def test_a_file_that_changes_counts_without_a_new_connection(tmp_path: Path) -> None:
    """Within the time in which files are looked at."""
    from mailboat.disk.real import RealDisk
    from mailboat.security.directory import Directory

    folder = tmp_path / "users"
    folder.mkdir()

    def write(**more: Any) -> None:
        user = {"username": "bounded", "password": SECRET, "userType": "Super", **more}
        (folder / "bounded.json").write_text(json.dumps(user))

    write()
    config = SecurityConfig(authentication_enabled=True, auth_users_path=str(folder))
    directory = Directory(config, RealDisk(), None)
    directory.load()
    async with guarded_broker(tmp_path / "store", directory, GUARDED) as broker:  # type: ignore[arg-type]
        async with wire_to(broker) as wire:
            wire.write(*(send(n) for n in range(20)))
            assert set((await wire.codes(20)).values()) == {SUCCESS}
            write(quotas={"publishMessagesPerSecond": 5})
            directory.look()
            directory.refresh()
            wire.write(*(send(n) for n in range(20)))
            assert Counter((await wire.codes(20)).values())[FLOW] >= 10


# -- connections --------------------------------------------------------------------------------


async def test_connections_are_counted_from_the_first_signed_request_to_their_end(
    broker: BrokerController, users: Users
) -> None:
    """One too many is told so and closed, whatever it asks; it takes nothing with it."""
    bound(users, connections=2)
    assert broker.quotas is not None
    for end in ("close", "abort", "half a frame"):
        async with wire_to(broker) as first, wire_to(broker) as second:
            for one in (first, second):
                one.write(send(1), send(2))
                assert await one.codes(2) == {1: SUCCESS, 2: SUCCESS}
            for frame in (send(3), pull(3), *([heartbeat(3)] * 2)):
                reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
                before = stored(broker)
                writer.write(frame + send(4))
                third = Wire(reader, writer)
                answers = await third.answers(2)
                assert [one.code for one in answers] == [BUSY, BUSY]
                assert "has 2 connections to this broker, its quota is 2" in str(answers[0].remark)
                assert await reader.read() == b""
                writer.close()
                assert stored(broker) == before
            # Somebody else may come as before, and so may a bad signature: it is told so.
            async with wire_to(broker) as other:
                other.write(
                    send(5, credentials=FREE), send(6, credentials=known_as("bounded", "x"))
                )
                assert await other.codes(2) == {5: SUCCESS, 6: ResponseCode.NO_PERMISSION}
            transport = first._writer.transport
            if end == "abort":
                transport.abort()
            elif end == "half a frame":
                first.write(send(9)[:20])
        await until(lambda: [len(use.connections) for use in broker.quotas.uses()] == [0])
    assert broker.quotas._by_connection == {}


def heartbeat(opaque: int) -> bytes:
    """Return a heartbeat of a producer."""
    body = json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "P"}]}).encode()
    return signed_frame(Code.HEART_BEAT, {}, BOUNDED, body, opaque=opaque)


async def test_a_lower_quota_closes_nothing_and_lets_nobody_in(
    broker: BrokerController, users: Users
) -> None:
    """Those that there are stay."""
    bound(users, connections=2)
    async with wire_to(broker) as first, wire_to(broker) as second, wire_to(broker) as third:
        for one in (first, second):
            one.write(send(1))
            assert await one.codes(1) == {1: SUCCESS}
        bound(users, connections=1)
        for one in (first, second):
            one.write(send(1))
            assert await one.codes(1) == {1: SUCCESS}
        third.write(send(1))
        assert await third.codes(1) == {1: BUSY}


# -- topics and groups --------------------------------------------------------------------------


async def test_topics_that_are_made_by_sends_are_bounded(tmp_path: Path, users: Users) -> None:
    """They count for as long as they are there, also after a restart; sends to others go on."""
    bound(users, topics=2)

    async def codes(broker: BrokerController, *topics: str, by: Any = BOUNDED) -> list[int]:
        async with wire_to(broker) as wire:
            wire.write(*(send(n, topic=topic, credentials=by) for n, topic in enumerate(topics)))
            answers = await wire.codes(len(topics))
        return [answers[n] for n in range(len(topics))]

    async with guarded_broker(tmp_path, users) as broker:
        assert await codes(broker, "A", "A", "B", "C", "A", "D") == [
            SUCCESS, SUCCESS, SUCCESS, NO_TOPIC, SUCCESS, NO_TOPIC,
        ]  # fmt: skip
        assert {"A", "B"} <= broker.topics.table.keys()
        assert broker.topics.table.keys().isdisjoint({"C", "D"})
        assert await codes(broker, "C", by=FREE) == [SUCCESS]
        assert await codes(broker, "C") == [SUCCESS]
        assert refusals(broker) == {"topics": 2}
    async with guarded_broker(tmp_path, users) as broker:
        assert await codes(broker, "D", "A") == [NO_TOPIC, SUCCESS]
        async with client_of(broker, ROOT) as client:
            await client.ok(Code.DELETE_TOPIC_IN_BROKER, {"topic": "A"})
            await client.make_topic("E")
        # Whether they are still there is looked at once a second.
        for _ in range(100):
            if await codes(broker, "D") == [SUCCESS]:
                break
            await asyncio.sleep(0.1)
        assert await codes(broker, "E", "F") == [SUCCESS, NO_TOPIC]


async def test_no_name_makes_a_topic_or_group_beside_the_quota(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """Not one that begins as those of groups do: a retry topic is its group's."""
    bound(users, topics=0, groups=0)
    before = sorted(broker.topics.table), sorted(broker.groups.table)
    names = ("%A", "%DLQ%G", "%DLQ%NEW", "%RETRY%NEW", "%RETRY%NEW")
    wire.write(
        *(send(number, topic=name, fields={"j": 99 * number}) for number, name in enumerate(names))
    )
    expected = [NO_TOPIC, NO_TOPIC, NO_TOPIC, NO_GROUP, NO_GROUP]
    assert await wire.codes(5) == dict(enumerate(expected))
    reply = Code.SEND_REPLY_MESSAGE_V2
    wire.write(send(5, topic="A", code=reply), send(6, topic="%RETRY%NEW", code=reply))
    assert await wire.codes(2) == {5: NO_TOPIC, 6: NO_GROUP}
    assert (sorted(broker.topics.table), sorted(broker.groups.table)) == before
    assert refusals(broker) == {"topics": 4, "groups": 3}
    # A group that is there has a retry topic and one for its dead letters, whoever sends there.
    wire.write(send(8, topic="%RETRY%G"), send(9, topic="%RETRY%G", fields={"j": 99}))
    assert await wire.codes(2) == {8: SUCCESS, 9: SUCCESS}


async def test_groups_that_are_made_by_use_are_bounded(
    broker: BrokerController, users: Users, wire: Wire
) -> None:
    """By heartbeats, pulls, locks and messages sent back alike; those that are there go on."""
    await fill(broker, 1)
    bound(users, groups=1)
    async with client_of(broker, BOUNDED) as client:
        await client.heartbeat("T", group="A")
        await client.heartbeat("T", group="G")
        await client.heartbeat("T", group="A")
        body = lock_body(client, "B")
        back = {"group": "B", "offset": 0, "delayLevel": 0}
        clone = {"srcGroup": "G", "destGroup": "B"}
        assert (await client.call(Code.CLONE_GROUP_OFFSET, clone)).code == NO_GROUP
        mode = b'{"topic":"T","consumerGroup":"B","mode":"PULL"}'
        assert (await client.call(Code.SET_MESSAGE_REQUEST_MODE, body=mode)).code == NO_GROUP
        assert (await client.call(Code.LOCK_BATCH_MQ, body=body)).code == NO_GROUP
        assert (await client.call(Code.CONSUMER_SEND_MSG_BACK, back)).code == NO_GROUP
        wire.write(pull(1, group="B"))
        [answer] = await wire.answers(1)
        assert answer.code == NO_GROUP
        assert "has made as many groups as its quota allows, 1" in str(answer.remark)
        with pytest.raises(AssertionError, match="has made as many groups"):
            await client.heartbeat("T", group="B")
    assert "A" in broker.groups.table
    assert "B" not in broker.groups.table
    assert refusals(broker) == {"groups": 6}


def lock_body(client: RawClient, group: str) -> bytes:
    """Return what a member that locks a queue sends."""
    return client._lock_body(group, "T", (0,))


# -- what is shown ------------------------------------------------------------------------------


async def test_audit_log_and_metrics_and_http(tmp_path: Path) -> None:
    """One line a minute; series of users with quotas only; HTTP is bounded as well."""
    folder, audit = tmp_path / "users", tmp_path / "audit"
    folder.mkdir()
    for name, quotas in (("bounded", {"publishMessagesPerSecond": 5}), ("free", {})):
        user = {"username": name, "password": SECRET, "userType": "Super", "quotas": quotas}
        (folder / f"{name}.json").write_text(json.dumps(user))
    overrides = {
        "httpPort": "0", "listenPort": "0", "namesrvListenPort": "0", "bindAddress": "127.0.0.1",
        "authenticationEnabled": "true", "authUsersPath": str(folder), "auditLogPath": str(audit),
        "storePathRootDir": str(tmp_path / "store"), "mappedFileSizeCommitLog": "1048576",
    }  # fmt: skip
    node = Node(load_settings("standalone", overrides=overrides))
    await node.start()
    try:
        await node.wait_http()
        broker = node.broker
        assert broker is not None
        async with wire_to(broker) as wire:
            wire.write(
                *(send(n) for n in range(50)), *(send(n, credentials=FREE) for n in range(9))
            )
            await wire.answers(59)
            base = f"http://{node.addresses()['http']}"
            async with aiohttp.ClientSession(base, headers=basic("bounded")) as session:
                body = {"messages": [{"body": "m"}] * 3}
                async with session.post("/api/v1/topics/T/messages", json=body) as answer:
                    assert answer.status == 429
                    assert "publishMessagesPerSecond" in await answer.text()
                async with session.get("/api/v1/users/bounded") as answer:
                    assert (await answer.json())["quotas"] == {"publishMessagesPerSecond": 5}
                async with session.get("/api/v1/users/free") as answer:
                    assert (await answer.json())["quotas"] == {}
                async with session.get("/metrics") as answer:
                    page = await answer.text()
        refused = refusals(broker)["publishMessagesPerSecond"]
        series = '{quota="publishMessagesPerSecond",user="bounded"}'
        assert f"mailboat_user_quota_refused_total{series} {refused:.1f}" in page
        assert f"mailboat_user_quota_delayed_total{series}" in page
        assert 'mailboat_user_quota_used{quota="connections",user="bounded"} 1.0' in page
        assert 'user="free"' not in page
    finally:
        await node.shutdown()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    told = [line for line in lines if line["event"] == "quota"]
    assert [(line["user"], line["quota"]) for line in told] == [
        ("bounded", "publishMessagesPerSecond")
    ]
