"""Where a topic lives: the bodies of the name server's route requests.

    105 GET_ROUTEINFO_BY_TOPIC, 217  TopicRouteData
    106 GET_BROKER_CLUSTER_INFO      ClusterInfo
    901 GET_BROKER_MEMBER_GROUP      BrokerMemberGroup

Broker ids are quoted object keys; every known client reads that, old ones write them bare.

Source: apache/rocketmq remoting/protocol/route/*.java, body/{ClusterInfo,BrokerMemberGroup}.java
"""

from typing import Final

import msgspec

from mailboat.protocol.bodies import decode_body, encode_body
from mailboat.protocol.command import Int32, Int64

MASTER_ID: Final = 0


class BrokerData(msgspec.Struct, rename="camel"):
    """The brokers that share one name: id 0 is the master, the others are slaves."""

    cluster: str
    broker_name: str
    broker_addrs: dict[Int64, str] = {}
    enable_acting_master: bool = False
    """RocketMQ 5's; no slave acts for a master here. The Rust client reads no route without it."""


class QueueData(msgspec.Struct, rename="camel"):
    """A topic's queues on the brokers of one name."""

    broker_name: str
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0


class TopicRouteData(msgspec.Struct, rename="camel", omit_defaults=True):
    """All queues of a topic and the addresses of the brokers that hold them."""

    queue_datas: list[QueueData]
    broker_datas: list[BrokerData]
    filter_server_table: dict[str, list[str]] | None = None
    order_topic_conf: str | None = None


class ClusterInfo(msgspec.Struct, rename="camel"):
    """Every broker by name, and every cluster's broker names."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class BrokerMemberGroup(msgspec.Struct, rename="camel"):
    """The brokers that share one name, as brokers ask for them."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = {}


class _MemberGroupBody(msgspec.Struct, rename="camel"):
    broker_member_group: BrokerMemberGroup | None = None


class _RouteBody(msgspec.Struct, rename="camel"):
    """What is read of a route: Java leaves empty parts out."""

    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    order_topic_conf: str | None = None


_route: Final = msgspec.json.Decoder(_RouteBody, strict=False)
_cluster: Final = msgspec.json.Decoder(ClusterInfo, strict=False)
_member_group: Final = msgspec.json.Decoder(_MemberGroupBody, strict=False)


def encode_topic_route(route: TopicRouteData) -> bytes:
    """Write a route; the filter server table is always there, as in Java."""
    if route.filter_server_table is None:
        route = msgspec.structs.replace(route, filter_server_table={})
    return encode_body(route)


def decode_topic_route(body: bytes) -> TopicRouteData:
    """Read a route.

    Raises:
        RemoteProtocolError: the body is not one.
    """
    fields = decode_body(body, _route)
    return TopicRouteData(
        fields.queue_datas, fields.broker_datas, order_topic_conf=fields.order_topic_conf
    )


def encode_cluster_info(cluster: ClusterInfo) -> bytes:
    """Write the brokers and clusters."""
    return encode_body(cluster)


def decode_cluster_info(body: bytes) -> ClusterInfo:
    """Read the brokers and clusters.

    Raises:
        RemoteProtocolError: the body is not a ClusterInfo.
    """
    return decode_body(body, _cluster)


def encode_member_group(group: BrokerMemberGroup | None) -> bytes:
    """Write the brokers of one name; None when nobody knows it."""
    return encode_body(_MemberGroupBody(group))


def decode_member_group(body: bytes) -> BrokerMemberGroup | None:
    """Read the brokers of one name.

    Raises:
        RemoteProtocolError: the body is not a BrokerMemberGroup.
    """
    return decode_body(body, _member_group).broker_member_group
