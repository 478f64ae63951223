import pytest

from mailboat.errors import BrokerError
from mailboat_spark.broker_client import has_no_queue


@pytest.mark.parametrize(
    ("code", "remark", "expected"),
    [
        (17, "topic[t] not exist, apply first please!", True),
        # What brokers of release 5, and before it, say of a queue id that a topic does not have.
        (29, "queueId[5] is illegal, topic:[t] topicConfig.readQueueNums:[4]", True),
        (1, "queueId[5] is illegal, topic:[t] topicConfig.readQueueNums:[4]", True),
        (29, "subVersion is no number", False),
        (1, "the store is starting", False),
        (26, "subscription group [queueId] does not exist", False),
        (16, "the topic[t] pulling message is forbidden", False),
    ],
)
def test_a_queue_that_is_gone_is_told_from_other_refusals(code, remark, expected):
    """Only what a broker says of topic and queue means that messages are gone."""
    assert has_no_queue(BrokerError(code, remark)) is expected
