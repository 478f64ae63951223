"""Promises of mailboat.broker.topics."""

import errno
import json
from random import Random

import pytest

from mailboat.broker.topics import TopicConfigManager
from mailboat.config import BrokerConfig
from mailboat.disk import Disk, read_file
from mailboat.disk.json_file import JsonFile
from mailboat.errors import BrokerError, DamagedStoreError, IllegalMessageError
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import ResponseCode
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
def test_a_first_message_makes_its_topic(asked: int, given: int) -> None:
    """The client's wish counts up to TBW102's 8 queues; the new topic does not pass INHERIT on."""
    topics = manager()
    topic = topics.create_in_send("T", "TBW102", asked)
    assert topic == TopicConfig("T", read_queue_nums=given, write_queue_nums=given, perm=6)
    assert topics.select("T") is topic


def test_a_known_topic_is_left_as_it_is() -> None:
    """A second first message, of another producer, changes nothing."""
    topics = manager()
    topic = topics.create_in_send("T", "TBW102", 4)
    version = topics.data_version.counter
    assert topics.create_in_send("T", "TBW102", 8) is topic
    assert topics.data_version.counter == version


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


def test_a_topic_made_by_a_message_survives_a_power_cut() -> None:
    """The message is acknowledged next, so its topic must be durable before."""
    disk = SimulatedDisk()
    manager(disk).create_in_send("T", "TBW102", 4)
    for seed in range(20):
        assert manager(disk.crash(Random(seed))).select("T") is not None


def test_a_topic_that_cannot_be_saved_is_not_made() -> None:
    """On a full disk the first message is refused with the reason, and nothing stays behind."""
    disk = FaultyDisk(SimulatedDisk())
    topics = manager(disk)
    changes: list[str] = []
    topics.on_change.append(lambda: changes.append("changed"))
    disk.inject(Fault(("pwrite",), 1, errno.ENOSPC, sticky=True))
    with pytest.raises(BrokerError, match=r"topic T was not made because .*No space left") as info:
        topics.create_in_send("T", "TBW102", 4)
    assert info.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert topics.select("T") is None
    assert changes == []
    disk.heal()
    assert topics.create_in_send("T", "TBW102", 4) is not None


def test_changes_are_told() -> None:
    """Every change moves the version on and tells the listeners, who register it."""
    topics = manager()
    versions: list[int] = []
    topics.on_change.append(lambda: versions.append(topics.data_version.counter))
    topics.create_in_send("T", "TBW102", 4)
    topics.create_retry_topic("G")
    topics.create_retry_topic("G")
    topics.create_dlq_topic("G")
    topics.update(TopicConfig("U"))
    topics.delete("U")
    topics.delete("U")
    assert versions == [1, 2, 3, 4, 5]


def test_a_group_gets_its_retry_and_dead_letter_topic() -> None:
    """Both have RocketMQ's names, one queue and read-write permission."""
    topics = manager()
    assert topics.create_retry_topic("G")
    assert topics.create_dlq_topic("G") is topics.create_dlq_topic("G")
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
    assert topics.registered_table()["T"].perm == 4
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
