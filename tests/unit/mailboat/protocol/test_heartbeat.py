"""Tests of mailboat.protocol.heartbeat."""

import json

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.bodies import LENIENT_REQUEST_MAX_BYTES
from mailboat.protocol.heartbeat import (
    CheckClientConfig,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    decode_check_client_config,
    decode_heartbeat,
    decode_subscription_data,
    encode_check_client_config,
    encode_heartbeat,
    encode_subscription_data,
)

SUBSCRIPTION = SubscriptionData("T", "a || b", {"a", "b"}, {97, 98}, 5, "TAG", False)


def test_heartbeat_survives_the_round_trip() -> None:
    """Client, groups and subscriptions come back."""
    heartbeat = HeartbeatData(
        "id",
        [ProducerData("P1"), ProducerData("P2")],
        [ConsumerData("C1", "CONSUME_ACTIVELY", "BROADCASTING", "X", [SUBSCRIPTION], True)],
    )
    assert heartbeat == decode_heartbeat(encode_heartbeat(heartbeat))


def test_client_id_has_javas_spelling() -> None:
    """The id of a heartbeat is written clientID, that of a check clientId."""
    assert encode_heartbeat(HeartbeatData("id")).startswith(b'{"clientID":"id"')
    check = CheckClientConfig("id", "G", SUBSCRIPTION)
    assert encode_check_client_config(check).startswith(b'{"clientId":"id","group":"G"')
    assert check == decode_check_client_config(encode_check_client_config(check))


def test_null_sets_are_empty() -> None:
    """Go sends null for the groups it has none of; Java may send null for any set."""
    body = (
        b'{"clientID":"id","producerDataSet":null,"consumerDataSet":[{"groupName":"G",'
        b'"subscriptionDataSet":[{"topic":"T","subString":"*","tagsSet":null,"codeSet":null,'
        b'"subVersion":0,"filterClassSource":null}]}],"heartbeatFingerprint":0}'
    )
    expected = HeartbeatData(
        "id", [], [ConsumerData("G", subscription_data_set=[SubscriptionData("T")])]
    )
    assert expected == decode_heartbeat(body)
    assert HeartbeatData("id") == decode_heartbeat(b'{"clientID":"id"}')


def test_null_sets_are_empty_in_a_large_heartbeat_too() -> None:
    """What Go writes of a thousand topics; a text that looks like a null set stays as it is."""
    odd = '"tagsSet":null'
    wanted = [
        {"topic": f"T{number}", "subString": odd, "tagsSet": None, "codeSet": None, "subVersion": 1}
        for number in range(1_000)
    ]
    group = {"groupName": "G", "subscriptionDataSet": wanted}
    body = {"clientID": "id", "producerDataSet": None, "consumerDataSet": [group]}
    content = json.dumps(body, separators=(",", ":")).encode()
    assert len(content) > LENIENT_REQUEST_MAX_BYTES
    (consumer,) = decode_heartbeat(content).consumer_data_set
    assert len(consumer.subscription_data_set) == 1_000
    assert consumer.subscription_data_set[-1] == SubscriptionData("T999", odd, sub_version=1)


def test_constants_may_be_numbers() -> None:
    """The C++ client writes the places of Java's constants; this is what 2.0 sends."""
    body = (
        b'{"clientID":"1@DEFAULT","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,'
        b'"groupName":"G","messageModel":0,"subscriptionDataSet":[{"codeSet":[0,0],'
        b'"subString":"red||blue","subVersion":"1795261062134","tagsSet":["red","blue"],'
        b'"topic":"T"}]}]}\n'
    )
    (consumer,) = decode_heartbeat(body).consumer_data_set
    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert consumer.consume_type == "CONSUME_PASSIVELY"
    assert consumer.message_model == "BROADCASTING"
    (subscription,) = consumer.subscription_data_set
    assert (subscription.tags_set, subscription.sub_version) == ({"red", "blue"}, 1795261062134)
    with pytest.raises(RemoteProtocolError, match="there is no constant 6"):
        decode_heartbeat(body.replace(b'Where":4', b'Where":6'))


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b'{"clientID":7}', b'{"clientID":"i","consumerDataSet":[{}]}', b"\xff"],
)
def test_heartbeat_without_the_names_is_a_protocol_error(body: bytes) -> None:
    """A heartbeat without client id or group names is refused."""
    with pytest.raises(RemoteProtocolError):
        decode_heartbeat(body)


def test_subscription_survives_the_round_trip() -> None:
    """A subscription alone comes back."""
    assert SUBSCRIPTION == decode_subscription_data(encode_subscription_data(SUBSCRIPTION))
    with pytest.raises(RemoteProtocolError):
        decode_subscription_data(b'{"subString":"*"}')


def test_names_have_a_length() -> None:
    """Each of them is kept for every group, and stands in the log."""
    for length, refused in ((1024, False), (1025, True)):
        name = "n" * 1024
        wanted = SubscriptionData(name, "*", set(), set(), 5, "TAG", False)
        for heartbeat in (
            HeartbeatData(name),
            HeartbeatData("id", [ProducerData(name)]),
            HeartbeatData("id", [], [ConsumerData(name)]),
            HeartbeatData("id", [], [ConsumerData("C", subscription_data_set=[wanted])]),
        ):
            body = encode_heartbeat(heartbeat).replace(b"n" * 1024, b"n" * length)
            if not refused:
                assert decode_heartbeat(body) == heartbeat
                continue
            with pytest.raises(RemoteProtocolError, match="1024"):
                decode_heartbeat(body)
