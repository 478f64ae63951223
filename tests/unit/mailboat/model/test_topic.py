"""Topic configuration, queue identity, table versions."""

from mailboat.model.data_version import DataVersion
from mailboat.model.message_queue import MessageQueue
from mailboat.model.topic import Perm, TopicConfig


def test_a_topic_starts_as_rocketmq_makes_it() -> None:
    """Sixteen queues each way, readable and writable: perm 6."""
    topic = TopicConfig("T")
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (16, 16, 6)
    assert topic.topic_filter_type == "SINGLE_TAG"


def test_permissions_are_bits() -> None:
    """4 reads, 2 writes."""
    assert [(TopicConfig("T", perm=perm).is_readable, TopicConfig("T", perm=perm).is_writable)
            for perm in (0, Perm.WRITE, Perm.READ, Perm.READ | Perm.WRITE)] == [
        (False, False), (False, True), (True, False), (True, True)
    ]  # fmt: skip


def test_queues_order_as_in_java() -> None:
    """By topic, then broker, then number; allocation strategies depend on it."""
    queues = [MessageQueue("b", "x", 0), MessageQueue("a", "y", 2), MessageQueue("a", "x", 10)]
    assert sorted(queues) == [queues[2], queues[1], queues[0]]
    assert len({MessageQueue("a", "x", 1), MessageQueue("a", "x", 1)}) == 1
    assert str(queues[0]) == "b@x:0"


def test_a_table_version_counts_and_dates_its_changes() -> None:
    """Name servers compare both."""
    version = DataVersion()
    version.advance(1000)
    version.advance(2000)
    assert (version.counter, version.timestamp, version.state_version) == (2, 2000, 0)
