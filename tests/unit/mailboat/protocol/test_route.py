"""Tests of mailboat.protocol.route."""

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.protocol.route import (
    BrokerData,
    BrokerMemberGroup,
    QueueData,
    TopicRouteData,
    decode_cluster_info,
    decode_member_group,
    decode_topic_route,
    encode_member_group,
    encode_topic_route,
)


def test_route_is_written_the_way_every_client_reads() -> None:
    """Compact, broker ids quoted, the filter server table there, no order configuration.

    The Rust client refuses a route whose brokers do not say that no slave acts for its master.
    """
    route = TopicRouteData(
        [QueueData("broker-a", 4, 4, 6)], [BrokerData("C", "broker-a", {0: "1.2.3.4:10911"})]
    )
    expected = (
        b'{"queueDatas":[{"brokerName":"broker-a","readQueueNums":4,"writeQueueNums":4,'
        b'"perm":6,"topicSysFlag":0}],"brokerDatas":[{"cluster":"C","brokerName":"broker-a",'
        b'"brokerAddrs":{"0":"1.2.3.4:10911"},"enableActingMaster":false}],'
        b'"filterServerTable":{}}'
    )
    assert expected == encode_topic_route(route)
    assert route == decode_topic_route(expected)


def test_newer_fields_and_nulls_of_a_route_are_ignored() -> None:
    """What 5.x adds does not disturb."""
    route = decode_topic_route(
        b'{"brokerDatas":[{"brokerAddrs":{0:"a:1"},"brokerName":"b","cluster":"C",'
        b'"enableActingMaster":false,"zoneName":null}],"filterServerTable":null,'
        b'"orderTopicConf":null,"queueDatas":null,"topicQueueMappingByBroker":{}}'
    )
    assert TopicRouteData([], [BrokerData("C", "b", {0: "a:1"})]) == route


def test_member_group_may_be_unknown() -> None:
    """A broker name that nobody registered has no group."""
    group = BrokerMemberGroup("C", "b", {0: "a:1", 2: "b:1"})
    assert group == decode_member_group(encode_member_group(group))
    assert decode_member_group(encode_member_group(None)) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{"x":"a:1"},"brokerName":"b","cluster":"C"}}}',
        b'{"brokerAddrTable":{"b":{}}}',
        b'{"clusterAddrTable":{"C":"b"}}',
    ],
)
def test_cluster_of_another_shape_is_a_protocol_error(body: bytes) -> None:
    """Broker ids are numbers, names are mandatory."""
    with pytest.raises(RemoteProtocolError):
        decode_cluster_info(body)
