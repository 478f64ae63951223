"""Registrations for the tests of the route table, and what they look at."""

from dataclasses import replace

from mailboat.model.data_version import DataVersion
from mailboat.model.topic import TopicConfig
from mailboat.namesrv.registrations import Registration
from mailboat.namesrv.route_info import RouteInfoManager, TopicsFound
from mailboat.protocol.route import QueueData

MASTER = Registration(
    cluster_name="c",
    broker_name="a",
    broker_id=0,
    address="10.0.0.1:10911",
    ha_server_address="10.0.0.1:10912",
    data_version=DataVersion(1, 1000),
    topics={"T": TopicConfig("T", 4, 3), "U": TopicConfig("U", 1, 1)},
)
SLAVE = replace(MASTER, broker_id=1, address="10.0.0.2:10911", ha_server_address="10.0.0.2:10912")
OTHER = replace(MASTER, broker_name="b", address="10.0.0.3:10911")
FOREIGN = replace(MASTER, cluster_name="d", broker_name="x", address="10.0.0.4:10911")


def found(work: TopicsFound) -> list[str]:
    """Return what a search in steps finds."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            topics: list[str] = done.value
            return topics


def queue(routes: RouteInfoManager, topic: str, broker_name: str = "a") -> QueueData:
    """Return the queues of a topic on one broker."""
    route = routes.route(topic)
    assert route is not None
    return next(item for item in route.queue_datas if item.broker_name == broker_name)
