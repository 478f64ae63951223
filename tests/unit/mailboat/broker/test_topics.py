"""Promises of mailboat.broker.topics."""

import asyncio
import errno
import json
import threading
import time
from random import Random

import pytest

from mailboat.broker.topic_creation import TopicCreation
from mailboat.broker.topics import TopicConfigManager
from mailboat.config import BrokerConfig
from mailboat.disk import Disk, read_file
from mailboat.disk.json_file import JsonFile
from mailboat.errors import BrokerError, DamagedStoreError, IllegalMessageError
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import ResponseCode
from mailboat.testing.disk_wrapper import DiskWrapper
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.testing.simulated_disk import SimulatedDisk

CONFIG = "/store/config"
PATH = CONFIG + "/topics.json"

# As RocketMQ 5.3 writes it.
JAVA_FILE = b"""{
\t"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1700000000000},
\t"topicConfigTable":{
\t\t"T":{
\t\t\t"attributes":{"message.type":"FIFO"},"order":true,"perm":6,"readQueueNums":4,
\t\t\t"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":5
\t\t},
\t\t"TBW102":{
\t\t\t"attributes":{},"order":false,"perm":7,"readQueueNums":3,
\t\t\t"topicFilterType":"SINGLE_TAG","topicName":"TBW102","topicSysFlag":0,"writeQueueNums":3
\t\t}
\t}
}"""


def manager(disk: Disk | None = None, config: BrokerConfig | None = None) -> TopicConfigManager:
    """Return the topics that a disk holds."""
    topics = TopicConfigManager(config or BrokerConfig(), disk or SimulatedDisk(), CONFIG)
    topics.load()
    return topics


async def made(creation: TopicCreation | None) -> TopicConfig:
    """Wait until a topic is made."""
    assert creation is not None
    return await creation.wait()


class HangingDisk(DiskWrapper):
    """A disk whose syncs wait for `go`."""

    def __init__(self, disk: Disk) -> None:
        """Hang from the start."""
        super().__init__(disk)
        self.go = threading.Event()

    def fdatasync(self, fd: int) -> None:
        """Wait, then sync."""
        assert self.go.wait(10)
        super().fdatasync(fd)


class BrokenDisk(DiskWrapper):
    """A disk whose code has a bug."""

    is_broken = True

    def fdatasync(self, fd: int) -> None:
        """Raise what no disk raises."""
        if self.is_broken:
            raise RuntimeError("planted")
        super().fdatasync(fd)


def shape(topics: TopicConfigManager) -> dict[str, tuple[int, int]]:
    """Return queues and permission of every topic."""
    assert all(topic.read_queue_nums == topic.write_queue_nums for topic in topics.table.values())
    return {name: (topic.write_queue_nums, topic.perm) for name, topic in topics.table.items()}


def test_a_new_broker_has_rocketmqs_own_topics() -> None:
    """Queue counts and permissions are those of a RocketMQ 5.3 broker at its first start."""
    assert shape(manager()) == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "DefaultCluster": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_wheel_timer": (1, 6),
    }


def test_settings_shape_the_brokers_own_topics() -> None:
    """No auto-creation means no TBW102; the trace topic comes on request."""
    topics = manager(
        config=BrokerConfig(
            auto_create_topic_enable=False,
            trace_topic_enable=True,
            cluster_topic_enable=False,
            broker_topic_enable=False,
        )
    )
    found = shape(topics)
    assert "TBW102" not in found
    assert found["RMQ_SYS_TRACE_TOPIC"] == (1, 6)
    assert found["DefaultCluster"] == (16, 1)
    assert found["broker-a"] == (1, 1)


@pytest.mark.parametrize(("asked", "given"), [(4, 4), (16, 8), (8, 8), (0, 1), (-3, 1)])
async def test_a_first_message_makes_its_topic(asked: int, given: int) -> None:
    """The client's wish counts up to TBW102's 8 queues; the new topic does not pass INHERIT on."""
    topics = manager()
    topic = await made(topics.create_in_send("T", "TBW102", asked))
    assert topic == TopicConfig("T", read_queue_nums=given, write_queue_nums=given, perm=6)
    assert topics.select("T") is topic


async def test_a_topic_that_is_being_made_is_made_once() -> None:
    """First messages of several producers wait for the same topic; it looks as the first one asked,
    and it is not there before it is durable."""
    disk = SimulatedDisk()
    topics = manager(disk)
    creation = topics.create_in_send("T", "TBW102", 4)
    assert topics.create_in_send("T", "TBW102", 8) is creation
    assert topics.select("T") is None
    topic = await made(creation)
    assert topic.read_queue_nums == 4
    assert topics.select("T") is topic
    assert manager(disk).select("T") == topic


async def test_topics_that_are_made_at_the_same_time_share_a_write() -> None:
    """A thousand new topics do not cost a thousand files."""
    disk = SimulatedDisk()
    topics = manager(disk)
    first = topics.create_in_send("T", "TBW102", 4)
    await made(first)
    changes = disk.changes
    await made(topics.create_in_send("U", "TBW102", 4))
    one_write = disk.changes - changes
    changes = disk.changes
    creations = [topics.create_in_send(f"T{number}", "TBW102", 4) for number in range(1000)]
    for creation in creations:
        await made(creation)
    assert disk.changes - changes <= 2 * one_write
    assert manager(disk).select("T999") is not None


class SlowGuest:
    """Takes a millisecond for a part of what waits; some have no end."""

    def __init__(self, told: list[str], name: str, *, ends: bool = True) -> None:
        """Tell `name` to a list with each part."""
        self.told, self.name, self.ends = told, name, ends

    def proceed(self) -> bool:
        """Take a millisecond."""
        time.sleep(0.001)
        self.told.append(self.name)
        return self.ends

    def refused(self, error: BrokerError) -> None:
        """Fail."""
        raise error


async def test_topics_that_are_durable_at_the_same_time_take_turns() -> None:
    """Two hundred with something to store: the loop looks at everybody else in between, and one
    for which there is always more keeps no other from being made."""
    topics, told = manager(), list[str]()
    creations = []
    for number in range(200):
        creation = topics.create_in_send(f"T{number}", "TBW102", 4)
        assert creation is not None
        creation.guest = SlowGuest(told, creation.config.topic_name, ends=number > 0)
        creations.append(creation)
    assert len(topics._makers) == 1
    most = 0
    while topics.select("T199") is None:
        before = len(told)
        await asyncio.sleep(0)
        most = max(most, len(told) - before)
    assert most < 20
    assert set(told) == {creation.config.topic_name for creation in creations}
    assert topics.is_being_made("T0")
    creations[0].guest = None
    await made(creations[0])


async def test_an_administrator_decides_over_a_topic_that_is_being_made() -> None:
    """What was configured meanwhile stays."""
    topics = manager()
    creation = topics.create_in_send("T", "TBW102", 4)
    topics.update(TopicConfig("T", 16, 16))
    await made(creation)
    assert shape(topics)["T"] == (16, 6)


async def test_a_stop_ends_what_is_being_made() -> None:
    """A disk that hangs makes nobody wait: the topic counts as not made."""
    disk = HangingDisk(SimulatedDisk())
    topics = manager(disk)
    creation = topics.create_in_send("T", "TBW102", 4)
    assert creation is not None
    try:
        await topics.settle(0.05)
        with pytest.raises(BrokerError, match="the broker is stopping"):
            await creation.wait()
        assert topics.select("T") is None
    finally:
        disk.go.set()


async def test_an_error_of_any_kind_ends_what_is_being_made() -> None:
    """Nobody waits for ever; the topic may be made later."""
    disk = BrokenDisk(SimulatedDisk())
    topics = manager(disk)
    with pytest.raises(
        BrokerError, match=r"topics.json cannot be saved \(RuntimeError: planted"
    ) as e:
        await made(topics.create_in_send("T", "TBW102", 4))
    assert e.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not topics.is_being_made("T")
    disk.is_broken = False
    await made(topics.create_in_send("T", "TBW102", 4))


@pytest.mark.parametrize("model", ["BenchmarkTest", "unknown", ""])
def test_only_a_topic_with_inherit_is_a_model(model: str) -> None:
    """A default topic that is not there, or does not allow it, makes no topic."""
    topics = manager()
    assert topics.create_in_send("T", model, 4) is None
    assert topics.select("T") is None


def test_without_auto_creation_no_message_makes_a_topic() -> None:
    """With autoCreateTopicEnable off, TBW102 is no model even if a file brought it back."""
    disk = SimulatedDisk()
    JsonFile(disk, PATH).save(JAVA_FILE)
    topics = manager(disk, BrokerConfig(auto_create_topic_enable=False))
    assert topics.select("T") is not None
    assert topics.select("TBW102") is None
    assert topics.create_in_send("U", "TBW102", 4) is None


async def test_a_topic_made_by_a_message_survives_a_power_cut() -> None:
    """The message is acknowledged next, so its topic must be durable before."""
    disk = SimulatedDisk()
    await made(manager(disk).create_in_send("T", "TBW102", 4))
    for seed in range(20):
        assert manager(disk.crash(Random(seed))).select("T") is not None


async def test_a_topic_that_cannot_be_saved_is_not_made() -> None:
    """On a full disk the first message is refused with the reason, and nothing stays behind."""
    disk = FaultyDisk(SimulatedDisk())
    topics = manager(disk)
    changes: list[str] = []
    topics.on_change.append(lambda: changes.append("changed"))
    disk.inject(Fault(("pwrite",), 1, errno.ENOSPC, sticky=True))
    with pytest.raises(BrokerError, match=r"topic T was not made because .*No space left") as info:
        await made(topics.create_in_send("T", "TBW102", 4))
    assert info.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert topics.select("T") is None
    assert changes == []
    disk.heal()
    await made(topics.create_in_send("T", "TBW102", 4))


async def test_changes_are_told() -> None:
    """Every change moves the version on and tells the listeners, who register it."""
    topics = manager()
    versions: list[int] = []
    topics.on_change.append(lambda: versions.append(topics.data_version.counter))
    await made(topics.create_in_send("T", "TBW102", 4))
    topics.create_retry_topic("G")
    topics.create_retry_topic("G")
    await made(topics.create_dlq_topic("G"))
    topics.update(TopicConfig("U"))
    topics.delete("U")
    topics.delete("U")
    assert len(versions) == 5
    assert versions == sorted(set(versions))


async def test_a_group_gets_its_retry_and_dead_letter_topic() -> None:
    """Both have RocketMQ's names, one queue and read-write permission."""
    topics = manager()
    assert topics.create_retry_topic("G")
    creation = topics.create_dlq_topic("G")
    assert topics.create_dlq_topic("G") is creation
    await made(creation)
    assert topics.create_dlq_topic("G") is None
    assert shape(topics)["%RETRY%G"] == (1, 6)
    assert shape(topics)["%DLQ%G"] == (1, 6)


def test_a_retry_topic_follows_the_order_of_what_its_group_reads() -> None:
    """The retry topic of a group that reads an ordered topic is ordered itself."""
    topics = manager()
    topics.create_retry_topic("G")
    assert topics.create_retry_topic("G", order=True)
    config = topics.select("%RETRY%G")
    assert config is not None
    assert config.order


def test_an_administrator_makes_and_changes_topics() -> None:
    """A change replaces the configuration; the same once more is no change."""
    topics = manager()
    assert topics.update(TopicConfig("T", read_queue_nums=4, write_queue_nums=4))
    version = topics.data_version.counter
    assert not topics.update(TopicConfig("T", read_queue_nums=4, write_queue_nums=4))
    assert topics.data_version.counter == version
    assert topics.update(TopicConfig("T", read_queue_nums=8, write_queue_nums=4, perm=4))
    config = topics.select("T")
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (8, 4, 4)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (TopicConfig(""), "empty"),
        (TopicConfig("../../etc"), "illegal character"),
        (TopicConfig("t" * 128), "128 characters; at most 127"),
        (TopicConfig("TBW102"), "broker's own"),
        (TopicConfig("DefaultCluster"), "broker's own"),
        (TopicConfig("rmq_sys_anything"), "broker's own"),
        (TopicConfig("T", read_queue_nums=-1), "-1 read queues"),
        (TopicConfig("T", write_queue_nums=2_000_000_000), "0 to 10000 are allowed"),
        (TopicConfig("T", perm=8), "permission 8"),
        (TopicConfig("T", attributes={"x": "y" * 66_000}), "attribute .x. is not supported"),
        (TopicConfig("T", attributes={"message.type": "y" * 66_000}), "it takes UNSPECIFIED"),
    ],
)
def test_an_illegal_topic_is_refused(config: TopicConfig, complaint: str) -> None:
    """Names, numbers and the broker's own topics are checked, each with a clear sentence."""
    topics = manager()
    before = dict(topics.table)
    with pytest.raises(IllegalMessageError, match=complaint):
        topics.update(config)
    assert topics.table == before


def test_the_brokers_own_topics_cannot_be_deleted() -> None:
    """Nobody deletes what the broker needs."""
    topics = manager()
    with pytest.raises(IllegalMessageError, match="broker's own"):
        topics.delete("SCHEDULE_TOPIC_XXXX")
    assert topics.select("SCHEDULE_TOPIC_XXXX") is not None


async def test_topics_survive_a_restart() -> None:
    """A topic is there after the next start, with its attributes, and the version goes on."""
    disk = SimulatedDisk()
    topics = manager(disk)
    topics.update(TopicConfig("T", order=True, attributes={"message.type": "FIFO"}))
    await topics.persist()
    again = manager(disk)
    assert again.select("T") == topics.select("T")
    assert again.data_version == topics.data_version


async def test_the_file_has_rocketmqs_shape() -> None:
    """A Java broker finds its keys in the file."""
    disk = SimulatedDisk()
    topics = manager(disk)
    topics.update(TopicConfig("T", read_queue_nums=4, write_queue_nums=5))
    await topics.persist()
    assert json.loads(read_file(disk, PATH))["topicConfigTable"]["T"] == {
        "topicName": "T",
        "readQueueNums": 4,
        "writeQueueNums": 5,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": {},
    }


def test_the_file_of_a_java_broker_is_read() -> None:
    """Its topics come along; what the settings say of TBW102 wins over the file."""
    disk = SimulatedDisk()
    JsonFile(disk, PATH).save(JAVA_FILE)
    topics = manager(disk)
    assert topics.select("T") == TopicConfig(
        "T", 4, 5, 6, order=True, attributes={"message.type": "FIFO"}
    )
    assert shape_of(topics, "TBW102") == (8, 7)
    assert topics.data_version.counter == 2


def shape_of(topics: TopicConfigManager, name: str) -> tuple[int, int]:
    """Return queues and permission of one topic."""
    config = topics.select(name)
    assert config is not None
    return config.write_queue_nums, config.perm


def test_a_damaged_file_is_refused() -> None:
    """A broker that forgot its topics would refuse its clients; it does not start instead."""
    disk = SimulatedDisk()
    JsonFile(disk, PATH).save(b'{"topicConfigTable":7}')
    with pytest.raises(DamagedStoreError, match="topics"):
        manager(disk)


def test_name_servers_see_no_more_than_the_broker_allows() -> None:
    """With brokerPermission 4 no topic is offered for sending, while the table stays as it is."""
    topics = manager(config=BrokerConfig(broker_permission=4))
    topics.update(TopicConfig("T", perm=6))
    assert {config.topic_name: config.perm for config in topics.registered()}["T"] == 4
    config = topics.select("T")
    assert config is not None
    assert config.perm == 6


def test_ordered_topics_of_the_name_server_are_taken_over() -> None:
    """Order configuration comes back with a registration; unknown topics do not matter."""
    topics = manager()
    topics.update(TopicConfig("T"))
    version = topics.data_version.counter
    topics.mark_ordered(["T", "unknown"])
    topics.mark_ordered(["T", "unknown"])
    config = topics.select("T")
    assert config is not None
    assert config.order
    assert topics.data_version.counter == version + 1


def test_a_retry_topic_has_no_more_queues_than_any_other() -> None:
    """Whatever a group asks for: every queue is listed somewhere."""
    topics = manager()
    for group, asked, queues in (("many", 10**25, 10_000), ("none", -5, 0), ("some", 3, 3)):
        topics.create_retry_topic(group, queue_nums=asked)
        config = topics.select(f"%RETRY%{group}")
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums) == (queues, queues)


def test_a_file_with_what_nobody_may_ask_for_is_made_to_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Numbers go to the nearest that is allowed; a name that is no folder is left out."""
    disk = SimulatedDisk()
    content = JAVA_FILE.replace(b'"readQueueNums":4', b'"readQueueNums":4' + b"0" * 30)
    content = content.replace(b'"perm":6', b'"perm":-1').replace(b'"TBW102"', b'"../x"')
    content = content.replace(b'Flag":0,"writeQueueNums":5', b'Flag":4294967296,"writeQueueNums":5')
    JsonFile(disk, PATH).save(content)
    topics = manager(disk)
    config = topics.select("T")
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (10_000, 5, 0)
    assert config.topic_sys_flag == (1 << 31) - 1
    assert "../x" not in topics.table
    assert "readQueueNums=10000 instead of 1e30 or so" in caplog.text
    assert "'../x'" in caplog.text


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"topic_sys_flag": 1 << 31}, "topicSysFlag=2147483648"),
        ({"topic_filter_type": "BOTH"}, "topicFilterType 'BOTH'; use SINGLE_TAG or MULTI_TAG"),
    ],
)
def test_what_a_java_broker_could_not_read_back_is_refused(
    changed: dict[str, object], words: str
) -> None:
    """The file is RocketMQ's too."""
    with pytest.raises(IllegalMessageError, match=words):
        manager().update(TopicConfig("T", **changed))  # type: ignore[arg-type]


async def test_a_group_of_an_old_directory_has_topics_of_its_own() -> None:
    """Its name may not be legal today: its consumers go on, and so do their retries."""
    topics = manager()
    assert topics.create_retry_topic("my.group")
    await made(topics.create_dlq_topic("my.group"))
    with pytest.raises(BrokerError, match="can be that of no folder"):
        topics.create_retry_topic("a/b")
    with pytest.raises(BrokerError, match="can be that of no folder"):
        topics.create_dlq_topic("g" * 255)
