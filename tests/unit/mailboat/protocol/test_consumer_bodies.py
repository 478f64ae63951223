"""Promises of mailboat.protocol.consumer_bodies; the texts are what fastjson makes of Java's."""

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.consumer_bodies import (
    QueueTimeSpan,
    consumer_status_slices,
    decode_client_status,
    decode_consumer_status,
    decode_correction_offsets,
    decode_group_subscription,
    decode_time_spans,
    encode_client_status,
    encode_correction_offsets,
    encode_group_subscription,
    encode_time_spans,
    offset_list_slices,
)
from mailboat.protocol.queue_map import MessageQueueBody

QUEUE = MessageQueue("T", "b", 0)
RAW_KEY = b'{"brokerName":"b","queueId":0,"topic":"T"}'


def test_resets_for_cpp_are_a_list() -> None:
    """C++ clients cannot read objects as keys."""
    assert b"".join(offset_list_slices({QUEUE: 5})) == (
        b'{"offsetTable":[{"brokerName":"b","offset":5,"queueId":0,"topic":"T"}]}'
    )


def test_the_progress_of_a_client_is_read() -> None:
    """Queues as raw object keys, as Java writes them, and as text, as others do."""
    java = b'{"consumerTable":{},"messageQueueTable":{' + RAW_KEY + b":7}}"
    assert encode_client_status({QUEUE: 7}) == java
    assert decode_client_status(java) == {QUEUE: 7}
    text_key = RAW_KEY.replace(b'"', b'\\"')
    assert decode_client_status(b'{"messageQueueTable":{"' + text_key + b'":7}}') == {QUEUE: 7}
    assert decode_client_status(b"{}") == {}


def test_the_progress_of_a_group_is_listed_by_client() -> None:
    """mqadmin getConsumerStatus reads consumerTable."""
    java = b'{"consumerTable":{"c":{' + RAW_KEY + b':7}},"messageQueueTable":{}}'
    assert b"".join(consumer_status_slices({"c": {QUEUE: 7}})) == java
    assert decode_consumer_status(java) == {"c": {QUEUE: 7}}


def test_time_spans_are_javas() -> None:
    """One entry per queue, times in ms."""
    span = QueueTimeSpan(MessageQueueBody("b", 0, "T"), 1, 2, 3, 4)
    java = (
        b'{"consumeTimeSpanSet":[{"messageQueue":' + RAW_KEY + b',"minTimeStamp":1,'
        b'"maxTimeStamp":2,"consumeTimeStamp":3,"delayTime":4}]}'
    )
    assert encode_time_spans([span]) == java
    assert decode_time_spans(java) == [span]


def test_correction_offsets_are_javas() -> None:
    """Queue ids as keys: written with quotes, read without them too."""
    assert encode_correction_offsets({0: 5}) == b'{"correctionOffsets":{"0":5}}'
    assert decode_correction_offsets(b'{"correctionOffsets":{0:5,1:9223372036854775807}}') == {
        0: 5,
        1: (1 << 63) - 1,
    }


def test_a_groups_subscription_comes_back() -> None:
    """The filter with everything that the members said; absent for a topic nobody reads."""
    subscription = SubscriptionData("T", "a || b", {"a", "b"}, {97, 98}, 5)
    body = encode_group_subscription("G", "T", subscription)
    assert decode_group_subscription(body) == subscription
    assert encode_group_subscription("G", "T", None) == b'{"group":"G","topic":"T"}'
    assert decode_group_subscription(b'{"group":"G","topic":"T"}') is None


@pytest.mark.parametrize(
    "decode",
    [
        decode_client_status,
        decode_consumer_status,
        decode_time_spans,
        decode_correction_offsets,
        decode_group_subscription,
    ],
)
@pytest.mark.parametrize("body", [b"", b"[]", b'"x"', b"{"])
def test_other_bodies_are_refused(decode: object, body: bytes) -> None:
    """Whatever a client answers, the broker gets a value or one kind of error."""
    assert callable(decode)
    with pytest.raises(RemoteProtocolError):
        decode(body)
