"""Delayed messages, messages sent back, dead letters: a broker over real sockets.

What is expected is what a Java broker 5.x stores and answers; times are those of the test's table.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from promises import promised
from raw_client import connected, running_broker
from real_time import IS_TIMED
from small_store import small_store

from mailboat.broker.controller import BrokerController
from mailboat.config import BrokerConfig, Settings
from mailboat.model.batch import encode_batch
from mailboat.model.message import Message, MessageExt
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.message_queue import MessageQueue
from mailboat.model.properties import encode_properties
from mailboat.model.record import decode_record
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.web.delay_metrics import delay_metrics

LATE_MS = 100
"""What is promised where times count."""

MANY_LATE_MS = 5_000
"""What is promised there where very many messages are due at once."""

PATIENCE_S = 60
"""What is granted to an answer and to what the broker does by itself."""


def settings(root: Path, *, store: Mapping[str, Any] = {}, **broker: Any) -> Settings:
    """Return the settings of a small broker whose delays are short."""
    return Settings(
        role="broker",
        broker=BrokerConfig(listen_port=0, bind_address="127.0.0.1", **broker),
        store=small_store(
            root,
            **{
                "mapped_file_size_commit_log": 1 << 22,
                "message_delay_level": "1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 11s 12s 13s 14s 15s 16s 17s",
                **store,
            },
        ),
    )


class Side:
    """A broker and a client of it."""

    def __init__(self, broker: BrokerController) -> None:
        """Connect with the first request."""
        self.broker = broker
        self._remoting = RemotingClient(Dispatcher())

    async def call(
        self, code: int, fields: Mapping[str, ExtValue], body: bytes = b"", *, version: int = 479
    ) -> RemotingCommand:
        """Send a request and return the answer."""
        command = RemotingCommand.request(code, fields, body)
        command.version = version
        return await self._remoting.request(self.broker.address, command, PATIENCE_S)

    async def send(
        self,
        topic: str,
        body: bytes = b"body",
        *,
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
        version: int = 479,
        batch: bool = False,
        **properties: str,
    ) -> RemotingCommand:
        """Send a message to queue 0; the properties are the client's."""
        fields: dict[str, ExtValue] = {
            "a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 5,
            "i": encode_properties(properties), "j": reconsume_times, "k": False, "m": batch,
        }  # fmt: skip
        if max_reconsume_times is not None:
            fields["l"] = max_reconsume_times
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        return await self.call(code, fields, body, version=version)

    async def send_back(
        self, physical_offset: int, group: str = "G", delay_level: int = 0, **fields: ExtValue
    ) -> RemotingCommand:
        """Send a message back."""
        place: dict[str, ExtValue] = {
            "offset": physical_offset, "group": group, "delayLevel": delay_level,
            "originMsgId": "", "originTopic": "T", "unitMode": False,
        }  # fmt: skip
        return await self.call(RequestCode.CONSUMER_SEND_MSG_BACK, {**place, **fields})

    async def stored(self, topic: str, body: bytes = b"body", **how: Any) -> MessageExt:
        """Send a message and return it as it is stored where it was sent."""
        answer = await self.send(topic, body, **how)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return self.messages(topic)[-1]

    def add_group(self, name: str, **changes: Any) -> None:
        """Make a consumer group."""
        self.broker.groups.update(SubscriptionGroupConfig(name, **changes))

    def messages(self, topic: str, queue_id: int = 0) -> list[MessageExt]:
        """Return what lies in a queue."""
        store = self.broker.store
        found: list[MessageExt] = []
        for queue_offset in range(store.max_offset(topic, queue_id)):
            position = store.physical_position(topic, queue_id, queue_offset)
            assert position is not None
            record = store.look_message_by_offset(position)
            assert record is not None
            found.append(decode_record(record)[0])
        return found

    async def wait(self, topic: str, count: int, queue_id: int = 0) -> None:
        """Wait until a queue has so many messages."""
        place: dict[str, ExtValue] = {"topic": topic, "queueId": queue_id}
        fields: dict[str, ExtValue] = {
            **place, "consumerGroup": "R", "maxMsgNums": 1, "sysFlag": 6, "commitOffset": 0,
            "suspendTimeoutMillis": 1_000, "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        async with asyncio.timeout(PATIENCE_S):
            while self.broker.store.max_offset(topic, queue_id) < count:
                # A waiting pull is answered as soon as something arrives.
                fields["queueOffset"] = self.broker.store.max_offset(topic, queue_id)
                await self.call(RequestCode.PULL_MESSAGE, fields)

    async def close(self) -> None:
        """Disconnect and end the broker."""
        await self._remoting.close()
        await self.broker.shutdown()


async def start(root: Path, **changes: Any) -> Side:
    """Start a broker over a folder."""
    broker = BrokerController(settings(root, **changes))
    await broker.start()
    side = Side(broker)
    broker.topics.update(TopicConfig("T", 4, 4))
    return side


@pytest.fixture
async def side(tmp_path: Path) -> AsyncIterator[Side]:
    """Run a broker."""
    side = await start(tmp_path)
    yield side
    await side.close()


# -- delay ----------------------------------------------------------------------------------------


async def _watch_lag(lags_ms: list[float]) -> None:
    """Note how much later than asked for the event loop wakes a sleeper."""
    while True:
        begin_s = time.monotonic()
        await asyncio.sleep(0.01)
        lags_ms.append((time.monotonic() - begin_s) * 1000 - 10)


async def test_delayed_messages_are_never_early(side: Side) -> None:
    """By the store's own clock, from before the send to the record that consumers read."""
    lags_ms: list[float] = []
    watch = asyncio.create_task(_watch_lag(lags_ms))
    for number in range(60):
        level = 1 + number % 2
        body = b"%d %d" % (time.time_ns() // 1_000_000, level)
        answer = await side.send("T", body, DELAY=str(level), UNIQ_KEY=f"U{number}")
        assert (answer.code, answer.ext_fields["queueId"]) == (ResponseCode.SUCCESS, "0")
        await asyncio.sleep(0.01)
    await side.wait("T", 60)
    watch.cancel()
    late_ms = []
    for message in side.messages("T"):
        begin_ms, level = map(int, message.body.split())
        late_ms.append(message.store_timestamp_ms - begin_ms - level * 1_000)
    with promised("no delayed message is early"):
        assert min(late_ms) >= 0
    # What else the machine does takes the processor from broker and client alike.
    if IS_TIMED:
        assert sorted(late_ms)[len(late_ms) // 2] <= LATE_MS + max(lags_ms)
        assert max(late_ms) <= LATE_MS + 3 * max(lags_ms)


async def test_a_delayed_message_is_delivered_as_rocketmq_does(side: Side) -> None:
    """Parked in queue level - 1 of the schedule topic; WAIT, DELAY and REAL_* stay with it."""
    answer = await side.send("T", DELAY="1", UNIQ_KEY="U", TAGS="a", WAIT="true", colour="red")
    parked = side.messages("SCHEDULE_TOPIC_XXXX", 0)[0]
    position = decode_offset_message_id(answer.ext_fields["msgId"]).physical_offset
    assert position == parked.physical_offset
    assert parked.properties["MAILBOAT_DELAY_MS"] == "1000"
    await side.wait("T", 1)
    delivered = side.messages("T")[0]
    delivered.properties.pop("__CRC32#", None)
    assert delivered.properties == {
        "DELAY": "1", "UNIQ_KEY": "U", "TAGS": "a", "WAIT": "true", "colour": "red",
        "REAL_TOPIC": "T", "REAL_QID": "0", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }  # fmt: skip
    assert (delivered.flag, delivered.born_timestamp_ms) == (5, 1)


@pytest.mark.parametrize("level", ["0", "-1"])
async def test_no_level_is_no_delay(side: Side, level: str) -> None:
    """RocketMQ parks levels from 1 on."""
    assert (await side.stored("T", DELAY=level)).body == b"body"


async def test_a_level_beyond_the_table_is_the_last(side: Side) -> None:
    """RocketMQ never refuses a level."""
    await side.send("T", DELAY="99")
    assert len(side.messages("SCHEDULE_TOPIC_XXXX", 16)) == 1


async def test_a_level_that_is_no_number_is_refused(side: Side) -> None:
    """To take it as an ordinary message would be a lie."""
    answer = await side.send("T", DELAY="soon")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "DELAY='soon'" in (answer.remark or "")


async def test_a_client_cannot_say_when_a_message_is_due(side: Side) -> None:
    """What marks a parked record is the broker's own."""
    message = await side.stored("T", MAILBOAT_DELIVER_MS="1", MAILBOAT_DELAY_MS="1")
    assert not {"MAILBOAT_DELIVER_MS", "MAILBOAT_DELAY_MS"} & message.properties.keys()
    await side.send("T", DELAY="17", MAILBOAT_DELIVER_MS="1")
    parked = side.messages("SCHEDULE_TOPIC_XXXX", 16)[0]
    assert int(parked.properties["MAILBOAT_DELIVER_MS"]) > time.time() * 1000 + 10_000


async def test_many_messages_that_are_due_at_once_come_at_once(side: Side) -> None:
    """Two thousand of them, while requests are still answered."""

    async def send() -> None:
        await side.send("T", b"%d" % (time.time_ns() // 1_000_000), DELAY="3")

    for _ in range(20):
        await asyncio.gather(*[send() for _ in range(100)])
    await side.wait("T", 2_000)
    late_ms = [
        message.store_timestamp_ms - int(message.body) - 3_000 for message in side.messages("T")
    ]
    with promised("no delayed message is early"):
        assert min(late_ms) >= 0
    assert max(late_ms) <= MANY_LATE_MS or not IS_TIMED
    assert side.broker.stats.topic_flows()["T"].messages == 2_000


async def test_a_restart_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Parked over an orderly restart, delivered before it and after it; 45 shows how far."""
    side = await start(tmp_path)
    await side.send("T", b"before", DELAY="1")
    await side.send("T", b"after", DELAY="3")
    await side.wait("T", 1)
    await side.close()
    side = await start(tmp_path)
    try:
        await side.wait("T", 2)
        with promised("a restart loses and doubles nothing"):
            assert [message.body for message in side.messages("T")] == [b"before", b"after"]
        answer = await side.call(RequestCode.GET_ALL_DELAY_OFFSET, {})
        assert json.loads(answer.body)["offsetTable"] == {"1": 1, "3": 1}
    finally:
        await side.close()


async def test_progress_is_saved_every_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the consumer offsets; RocketMQ's file, at RocketMQ's place."""
    side = await start(tmp_path, flush_consumer_offset_interval=20)
    try:
        await side.send("T", DELAY="1")
        await side.wait("T", 1)
        schedule = side.broker.schedule
        saved = asyncio.Event()
        persist = schedule.persist

        async def save() -> None:
            await persist()
            saved.set()

        monkeypatch.setattr(schedule, "persist", save)
        async with asyncio.timeout(PATIENCE_S):
            await saved.wait()
        file = tmp_path / "config" / "delayOffset.json"
        assert json.loads(file.read_bytes())["offsetTable"] == {"1": 1}
    finally:
        await side.close()


async def test_with_sync_flush_a_delayed_message_comes_too(tmp_path: Path) -> None:
    """Flushed when parked, flushed again before a consumer sees it."""
    side = await start(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"})
    try:
        assert (await side.send("T", DELAY="1")).code == ResponseCode.SUCCESS
        await side.wait("T", 1)
        store = side.broker.store
        assert store.flushed_offset > side.messages("T")[0].physical_offset
    finally:
        await side.close()


async def test_a_delayed_message_whose_properties_grow_too_large_is_refused(side: Side) -> None:
    """32 KB with what parking adds; the broker goes on."""
    answer = await side.send("T", DELAY="1", long="x" * 32_550)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert (await side.send("T")).code == ResponseCode.SUCCESS


async def test_the_metrics_show_delays_retries_and_dead_letters(side: Side) -> None:
    """What waits, by level, and what became of the rest."""
    side.add_group("G")
    await side.send("T", DELAY="17")
    message = await side.stored("T")
    await side.send_back(message.physical_offset, delay_level=16)
    await side.send_back(message.physical_offset, delay_level=-1)
    found = {
        (sample.name, sample.labels.get("level")): sample.value
        for metric in delay_metrics(side.broker.schedule, side.broker.retry)
        for sample in metric.samples
    }
    assert found["mailboat_delay_parked_messages", "17"] == 1
    assert found["mailboat_delay_parked_messages", "16"] == 1
    assert found["mailboat_delay_late_seconds", "17"] == 0
    assert found["mailboat_retry_messages_total", None] == 1
    assert found["mailboat_dead_letters_total", None] == 1


# -- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "word"), [({"DELAY": "1"}, "delayed"), ({"TRAN_MSG": "true"}, "half")]
)
async def test_a_batch_takes_no_delayed_and_no_half_messages(
    side: Side, properties: dict[str, str], word: str
) -> None:
    """All or nothing: the other items are not stored either."""
    items = [Message("T", b"plain"), Message("T", b"other", properties=properties)]
    answer = await side.send("T", encode_batch(items, ["A", "B"]), batch=True)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"item 1 of the batch is a {word} message" in (answer.remark or "")
    assert side.messages("T") == []


async def test_a_batch_is_not_for_a_retry_topic(side: Side) -> None:
    """Nor does the refusal make the topic."""
    body = encode_batch([Message("%RETRY%new", b"plain")], ["A"])
    answer = await side.send("%RETRY%new", body, batch=True)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert side.broker.topics.select("%RETRY%new") is None


async def test_the_first_send_to_a_retry_topic_has_a_queue(side: Side) -> None:
    """Whichever the sender took from the route of another topic; later it has to be right."""
    fields: dict[str, ExtValue] = {
        "a": "PG", "b": "%RETRY%new", "c": "TBW102", "d": 4, "e": 3, "f": 0, "g": 1, "h": 0,
        "i": "UNIQ_KEY\x01U\x02", "j": 0, "k": False,
    }  # fmt: skip
    answer = await side.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
    assert (answer.code, answer.ext_fields["queueId"]) == (ResponseCode.SUCCESS, "0")
    assert [message.body for message in side.messages("%RETRY%new")] == [b"x"]
    answer = await side.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
    assert "queueId[3] is illegal" in (answer.remark or "")


# -- sent back ------------------------------------------------------------------------------------


async def test_a_message_sent_back_comes_again_in_the_retry_topic(side: Side) -> None:
    """After the delay of level 3, with what a consumer needs to know where it is from."""
    side.add_group("G")
    first = await side.stored("T", UNIQ_KEY="U", TAGS="a", KEYS="k")
    assert (await side.send_back(first.physical_offset)).code == ResponseCode.SUCCESS
    assert side.broker.topics.table["%RETRY%G"] == TopicConfig("%RETRY%G", 1, 1, 6)
    await side.wait("%RETRY%G", 1)
    again = side.messages("%RETRY%G")[0]
    again.properties.pop("__CRC32#", None)
    assert again.properties == {
        "UNIQ_KEY": "U", "TAGS": "a", "KEYS": "k", "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true", "CLUSTER": "DefaultCluster", "RETRY_TOPIC": "T", "WAIT": "false",
        "ORIGIN_MESSAGE_ID": first.offset_message_id, "DELAY": "3", "REAL_TOPIC": "%RETRY%G",
        "REAL_QID": "0",
    }  # fmt: skip
    assert (again.body, again.reconsume_times) == (b"body", 1)
    assert (again.born_timestamp_ms, again.born_host) == (1, first.born_host)
    waited_ms = again.store_timestamp_ms - first.store_timestamp_ms
    with promised("no retry is early"):
        assert waited_ms >= 3_000


@pytest.mark.parametrize("times", range(16))
async def test_each_try_waits_a_level_longer(side: Side, times: int) -> None:
    """The first retry has level 3, the sixteenth 18; the table of this test ends at 17."""
    side.add_group("G")
    tried = await side.stored(
        "%RETRY%G", reconsume_times=times, RETRY_TOPIC="T", ORIGIN_MESSAGE_ID="first"
    )
    await side.send_back(tried.physical_offset)
    level = min(3 + times, 17)
    parked = side.messages("SCHEDULE_TOPIC_XXXX", level - 1)[0]
    assert parked.reconsume_times == times + 1
    assert parked.properties["DELAY"] == str(level)
    # Where it came from at first is kept over all tries.
    assert parked.properties["RETRY_TOPIC"] == "T"
    assert parked.properties["ORIGIN_MESSAGE_ID"] == "first"
    assert side.messages("%DLQ%G") == []


async def test_after_sixteen_tries_a_message_is_a_dead_letter(side: Side) -> None:
    """At once, in the one queue of a topic that is made for it."""
    side.add_group("G")
    tried = await side.stored("%RETRY%G", reconsume_times=16, RETRY_TOPIC="T")
    assert (await side.send_back(tried.physical_offset)).code == ResponseCode.SUCCESS
    assert side.broker.topics.table["%DLQ%G"] == TopicConfig("%DLQ%G", 1, 1, 6)
    dead = side.messages("%DLQ%G")[0]
    assert (dead.reconsume_times, dead.properties["DELAY"]) == (17, "0")
    assert dead.properties["RETRY_TOPIC"] == "T"
    assert side.broker.retry.counts.dead_letters == 1


async def test_a_message_is_tried_as_often_as_the_group_says_and_then_dead(side: Side) -> None:
    """The whole way, with two retries of a second each."""
    side.add_group("G", retry_max_times=2)
    message = await side.stored("T", b"never")
    for times in (1, 2):
        await side.send_back(message.physical_offset, delay_level=1)
        await side.wait("%RETRY%G", times)
        message = side.messages("%RETRY%G")[-1]
        assert message.reconsume_times == times
    await side.send_back(message.physical_offset, delay_level=1)
    assert [dead.body for dead in side.messages("%DLQ%G")] == [b"never"]


async def test_a_negative_level_is_a_dead_letter_at_once(side: Side) -> None:
    """So a consumer says that it never wants to see a message again."""
    side.add_group("G")
    message = await side.stored("T")
    await side.send_back(message.physical_offset, delay_level=-1)
    assert len(side.messages("%DLQ%G")) == 1


@pytest.mark.parametrize(("version", "queue"), [(121, "%DLQ%G"), (120, "SCHEDULE_TOPIC_XXXX")])
async def test_a_client_may_set_the_number_of_tries_from_version_3_4_9_on(
    side: Side, version: int, queue: str
) -> None:
    """An older one gets the group's 16."""
    side.add_group("G")
    message = await side.stored("%RETRY%G", reconsume_times=5)
    fields: dict[str, ExtValue] = {
        "offset": message.physical_offset, "group": "G", "delayLevel": 0, "maxReconsumeTimes": 5,
    }  # fmt: skip
    await side.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields, version=version)
    assert len(side.messages(queue, 0 if queue == "%DLQ%G" else 7)) == 1


async def test_a_group_that_wants_no_retries_gets_success_and_nothing_is_stored(side: Side) -> None:
    """RocketMQ drops the message."""
    side.add_group("G", retry_queue_nums=0)
    message = await side.stored("T")
    end = side.broker.store.commit_log.end
    assert (await side.send_back(message.physical_offset)).code == ResponseCode.SUCCESS
    assert side.broker.store.commit_log.end == end


async def test_a_group_with_several_retry_queues_gets_them(side: Side) -> None:
    """And the queue is one of those that the topic has."""
    side.add_group("G", retry_queue_nums=3)
    message = await side.stored("T")
    for _ in range(40):
        await side.send_back(message.physical_offset)
    assert side.broker.topics.table["%RETRY%G"].read_queue_nums == 3
    parked = side.messages("SCHEDULE_TOPIC_XXXX", 2)
    assert {message.properties["REAL_QID"] for message in parked} == {"0", "1", "2"}


async def test_sends_back_are_refused_for_a_reason(side: Side) -> None:
    """A group that is not there 26, a message that is not there 1, a missing field 1."""
    side.add_group("G")
    side.broker.groups.configure(auto_create=False)
    answer = await side.send_back(0, "nobody")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert answer.remark == "subscription group not exist, nobody"
    answer = await side.send_back(12_345)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "look message by offset failed, 12345"
    answer = await side.call(RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "G", "delayLevel": 0})
    assert "field 'offset' is missing" in (answer.remark or "")
    side.broker.topics.create_retry_topic("G")
    side.broker.topics.table["%RETRY%G"].perm = 4
    message = await side.stored("T")
    answer = await side.send_back(message.physical_offset)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the topic[%RETRY%G] sending message is forbidden"


async def test_a_broker_that_may_not_be_written_to_takes_nothing_back(tmp_path: Path) -> None:
    """brokerPermission without write answers 16."""
    side = await start(tmp_path, broker_permission=4)
    try:
        side.add_group("G")
        answer = await side.send_back(0)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the broker[broker-a] sending message is forbidden"
    finally:
        await side.close()


async def test_what_is_parked_cannot_be_sent_back(side: Side) -> None:
    """No consumer can have got it: a message must not be delivered before its time."""
    side.add_group("G")
    await side.send("T", DELAY="17")
    parked = side.messages("SCHEDULE_TOPIC_XXXX", 16)[0]
    answer = await side.send_back(parked.physical_offset)
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_a_full_disk_takes_nothing_back(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer is told, and tries elsewhere."""
    side.add_group("G")
    message = await side.stored("T")
    retention = side.broker.store.retention
    # The state of this machine's own disk is not looked at.
    monkeypatch.setattr(retention, "look", lambda *_: None)
    retention.refusal = "the disk is full"
    answer = await side.send_back(message.physical_offset)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "the disk is full" in (answer.remark or "")


async def test_with_sync_flush_a_send_back_is_answered_once_it_is_durable(tmp_path: Path) -> None:
    """The consumer commits behind the message on the strength of this answer."""
    side = await start(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"})
    try:
        side.add_group("G")
        message = await side.stored("T")
        assert (await side.send_back(message.physical_offset)).code == ResponseCode.SUCCESS
        assert side.broker.store.flushed_offset == side.broker.store.commit_log.end
    finally:
        await side.close()


# -- sent to a retry topic ------------------------------------------------------------------------


async def test_a_clients_own_retry_waits_and_comes(side: Side) -> None:
    """What a Java consumer does when a send-back fails: DELAY and reconsumeTimes are its own."""
    side.add_group("G")
    answer = await side.send(
        "%RETRY%G", reconsume_times=1, DELAY="1", RETRY_TOPIC="T", TRAN_MSG="true"
    )
    assert answer.code == ResponseCode.SUCCESS
    await side.wait("%RETRY%G", 1)
    assert side.messages("%RETRY%G")[0].reconsume_times == 1


@pytest.mark.parametrize(("times", "is_dead"), [(16, False), (17, True)])
async def test_a_clients_own_retry_is_dead_beyond_the_last_try(
    side: Side, times: int, is_dead: bool
) -> None:
    """More than the group's 16, as RocketMQ 5; stored at once, with DELAY=-1."""
    side.add_group("G")
    answer = await side.send("%RETRY%G", reconsume_times=times, DELAY="3", RETRY_TOPIC="T")
    assert answer.code == ResponseCode.SUCCESS
    dead = side.messages("%DLQ%G")
    assert len(dead) == is_dead
    assert len(side.messages("SCHEDULE_TOPIC_XXXX", 2)) == (not is_dead)
    if is_dead:
        assert dead[0].properties["DELAY"] == "-1"
        assert dead[0].reconsume_times == 17


@pytest.mark.parametrize(("version", "is_dead"), [(121, True), (120, False)])
async def test_the_request_may_set_the_number_of_tries(
    side: Side, version: int, is_dead: bool
) -> None:
    """From clients of version 3.4.9 on."""
    side.add_group("G")
    await side.send("%RETRY%G", reconsume_times=3, max_reconsume_times=2, version=version)
    assert len(side.messages("%DLQ%G")) == is_dead


async def test_a_group_that_consumes_in_order_sends_to_the_dead_letters(side: Side) -> None:
    """It has tried in place: RocketMQ 5 does not try again."""
    side.add_group("G")
    side.broker.queue_locks.lock("G", "10.0.0.1@1", [MessageQueue("T", "broker-a", 0)])
    await side.send("%RETRY%G", reconsume_times=1, DELAY="3")
    assert len(side.messages("%DLQ%G")) == 1


async def test_a_retry_for_a_group_that_is_not_there_is_refused(side: Side) -> None:
    """Where groups are not made by themselves."""
    side.broker.groups.configure(auto_create=False)
    answer = await side.send("%RETRY%nobody")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert answer.remark == "subscription group not exist, nobody"
    assert side.broker.topics.select("%RETRY%nobody") is None


@pytest.mark.parametrize("level", ["0_0", "\u0661", " 1", "2147483648", "9" * 5_000, "x"])
async def test_a_delay_level_that_java_cannot_read_is_refused(tmp_path: Path, level: str) -> None:
    """Python reads more as a number; with a level of 0 it would be stored as it came."""
    fields: dict[str, ExtValue] = {
        "a": "PG", "b": "T", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1,
        "h": 0, "i": f"DELAY\x01{level}\x02", "j": 0, "k": False,
    }  # fmt: skip
    async with running_broker(tmp_path) as broker, connected(broker, "c") as [client]:
        answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert len(answer.remark or "") < 100
        assert broker.store.commit_log.end == 0
