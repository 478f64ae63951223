"""Tests of mailboat.protocol.running_info."""

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.running_info import (
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
    decode_running_info,
    encode_running_info,
)


def test_running_info_survives_the_round_trip() -> None:
    """Properties, subscriptions, queues and rates come back."""
    info = ConsumerRunningInfo(
        {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
        [SubscriptionData("T", "a", {"a"}, {97}, 3)],
        {MessageQueue("T", "b", 0): ProcessQueueInfo(1, 2, 3, 4, 5, 6, 7, 8, True, 9, 10, True)},
        {"T": ConsumeStatus(1.5, 2.5, 3.5, 4.5, 5.5, 6)},
        'stack "1"',
    )
    assert info == decode_running_info(encode_running_info(info))


def test_javas_spelling_is_kept() -> None:
    """Java's field is called droped."""
    info = ConsumerRunningInfo(mq_table={MessageQueue("T", "b", 0): ProcessQueueInfo(dropped=True)})
    assert b'"droped":true' in encode_running_info(info)
    assert b"jstack" not in encode_running_info(info)


def test_absent_parts_are_empty() -> None:
    """A consumer that tells nothing runs nothing."""
    assert ConsumerRunningInfo() == decode_running_info(b'{"mqTable":null,"jstack":null}')


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"properties":[1]}',
        b'{"mqTable":{"x":{}}}',
        b'{"statusTable":{"T":1}}',
        b'{"subscriptionSet":[{}]}',
    ],
)
def test_running_info_of_another_shape_is_a_protocol_error(body: bytes) -> None:
    """What does not fit is refused."""
    with pytest.raises(RemoteProtocolError):
        decode_running_info(body)
