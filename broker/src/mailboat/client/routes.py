"""What the client knows of topics, their queues and the brokers' addresses.

Routes are asked for once, polled every 30 s, and asked again when a broker turns out to be gone. A
producer that names an unknown topic gets the route of the default topic `TBW102`, whose brokers
create topics on the first send; it is replaced as soon as the name server knows the real one.

The address of a broker is the one of the newest answer that names it, whatever topic that was for.
The route of a topic that no name server knows any more stays, since a name server may have lost it
for a moment, but says nothing new: after two minutes its brokers get no heartbeats for its sake.

Source: apache/rocketmq client/impl/factory/MQClientInstance.java
(updateTopicRouteInfoFromNameServer, topicRouteData2TopicPublishInfo,
topicRouteData2TopicSubscribeInfo).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mailboat.client.name_servers import NameServers
from mailboat.client.refusals import is_denied
from mailboat.errors import (
    BrokerError,
    MailboatError,
    NoWritableQueueError,
    RemoteProtocolError,
    RouteNotFoundError,
)
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import AUTO_CREATE_TOPIC
from mailboat.model.order_config import decode_order
from mailboat.model.topic import Perm
from mailboat.protocol.route import BrokerData, TopicRouteData

logger = logging.getLogger(__name__)

DEFAULT_TOPIC_QUEUE_NUMS: Final = 4
MAX_ROUTE_QUEUES: Final = 100_000
"""Most queues of one topic that a client makes room for, whatever it is told."""

MASTER_ID: Final = 0
# A route that cannot last is checked again this soon: a borrowed one, as the first send has created
# the topic meanwhile, and one without a master, as another replica leads any moment.
_MAKESHIFT_TTL_S: Final = 1.0
# As long as name servers and brokers keep a peer of which they hear nothing.
GONE_AFTER_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """A topic's queues; `is_borrowed` marks the default topic's route under another name."""

    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    brokers: tuple[BrokerData, ...]
    is_borrowed: bool = False


class RouteCache:
    """Routes by topic and broker addresses by name, shared by everything of one client."""

    __slots__ = (
        "_addresses",
        "_asked_at",
        "_locks",
        "_name_servers",
        "_routes",
        "_told_at",
        "_unknown_since",
        "on_change",
    )

    def __init__(self, name_servers: NameServers) -> None:
        """Begin empty; routes come from `name_servers`."""
        self._name_servers = name_servers
        self._routes: dict[str, TopicRoute] = {}
        self._addresses: dict[str, dict[int, str]] = {}
        # When the question was asked whose answer named these addresses, by broker name.
        self._told_at: dict[str, float] = {}
        # Since when the name servers have not known a topic that they knew before.
        self._unknown_since: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self.on_change: list[Callable[[str], None]] = []
        """Called with the name of each topic whose queues or brokers changed."""

    async def write_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that take messages of a topic, in Java's order.

        Raises:
            RouteNotFoundError: neither the topic nor the default topic has a route.
            NoWritableQueueError: the topic is there, and none of its queues takes messages.
            RemotingError: no name server answers.
        """
        route = self._route_to_send(topic) or await self._fetch(topic, may_borrow=True)
        if not route.write_queues:
            raise NoWritableQueueError(
                f"topic {topic} has no queue that takes messages; look at its permission, "
                "and whether a master broker is up"
            )
        return route.write_queues

    def known_write_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that take messages as far as nobody has to be asked, else none."""
        route = self._route_to_send(topic)
        return () if route is None else route.write_queues

    async def read_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic that can be pulled.

        Raises:
            RouteNotFoundError: no broker has registered the topic.
            RemotingError: no name server answers.
        """
        route = self._routes.get(topic)
        if route is None or route.is_borrowed:
            route = await self._fetch(topic, may_borrow=False)
        return route.read_queues

    def known_read_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """Return a topic's queues as last heard, or None before the first answer."""
        route = self._routes.get(topic)
        return None if route is None or route.is_borrowed else route.read_queues

    async def master_address(self, queue: MessageQueue) -> str:
        """Return the address of the broker that takes writes and offsets for `queue`.

        Raises:
            RouteNotFoundError: the route does not name a master.
        """
        address = self.known_master_address(queue)
        if address is None:
            await self.refresh(queue.topic)
            address = self.known_master_address(queue)
        if address is None:
            raise RouteNotFoundError(f"broker {queue.broker_name} of {queue} has no master")
        return address

    async def offsets_address(self, queue: MessageQueue) -> str:
        """Return the address of the broker that has offsets of `queue`: the master, else a slave.

        Raises:
            RouteNotFoundError: the route names no address.
        """
        if self.known_master_address(queue) is None:
            await self.refresh(queue.topic)
        return await self.read_address(queue, MASTER_ID)

    def known_master_address(self, queue: MessageQueue) -> str | None:
        """Return the address of the broker that takes writes, if nobody has to be asked for it."""
        return self._addresses.get(queue.broker_name, {}).get(MASTER_ID)

    async def read_address(self, queue: MessageQueue, broker_id: int) -> str:
        """Return an address to pull `queue` from: of the id asked for, else the master's, else any.

        Raises:
            RouteNotFoundError: the route names no address.
        """
        if queue.broker_name not in self._addresses:
            await self.refresh(queue.topic)
        addresses = self._addresses.get(queue.broker_name)
        if not addresses:
            raise RouteNotFoundError(f"broker {queue.broker_name} of {queue} is not known")
        return (
            addresses.get(broker_id) or addresses.get(MASTER_ID) or next(iter(addresses.values()))
        )

    def broker_addresses(self, *, masters_only: bool) -> list[str]:
        """Return the addresses of every broker of the topics that are there."""
        long_ago = time.monotonic() - GONE_AFTER_S
        names = {
            broker.broker_name: None
            for topic, route in self._routes.items()
            if self._unknown_since.get(topic, long_ago) >= long_ago
            for broker in route.brokers
        }
        return [
            address
            for name in names
            for broker_id, address in self._addresses.get(name, {}).items()
            if broker_id == MASTER_ID or not masters_only
        ]

    def topic_addresses(self, topic: str) -> list[str]:
        """Return one address, the master's where there is one, for each broker of a known topic."""
        route = self._routes.get(topic)
        brokers = () if route is None else route.brokers
        known = [self._addresses.get(broker.broker_name) for broker in brokers]
        return [
            addresses.get(MASTER_ID) or next(iter(addresses.values()))
            for addresses in known
            if addresses
        ]

    async def refresh(self, topic: str) -> None:
        """Ask the name server for a topic again.

        Raises:
            RouteNotFoundError: no broker has registered the topic (any more); the old route stays.
            RemotingError: no name server answers.
        """
        old = self._routes.get(topic)
        await self._fetch(topic, may_borrow=old is None or old.is_borrowed)

    async def refresh_all(self) -> None:
        """Ask for every known topic again; what cannot be answered keeps its old route."""
        for topic in list(self._routes):
            try:
                await self.refresh(topic)
            except RouteNotFoundError as error:
                logger.debug("route refresh topic=%s: %s", topic, error)
            except MailboatError as error:
                logger.warning("route refresh topic=%s: %s", topic, error)

    def _route_to_send(self, topic: str) -> TopicRoute | None:
        route = self._routes.get(topic)
        if route is None:
            return None
        is_makeshift = route.is_borrowed or not route.write_queues
        return None if is_makeshift and self._is_stale(topic) else route

    def _is_stale(self, topic: str) -> bool:
        return time.monotonic() - self._asked_at[topic] > _MAKESHIFT_TTL_S

    async def _fetch(self, topic: str, *, may_borrow: bool) -> TopicRoute:
        asked_at = time.monotonic()
        async with self._locks.setdefault(topic, asyncio.Lock()):
            route = self._routes.get(topic)
            # Somebody else may have asked while this caller waited for the lock.
            if route is not None and self._asked_at[topic] >= asked_at:
                if may_borrow or not route.is_borrowed:
                    return route
            asked_at = time.monotonic()
            try:
                data = await self._name_servers.topic_route(topic)
                new = build_route(topic, data)
            except RouteNotFoundError:
                if route is not None and not route.is_borrowed:
                    self._unknown_since.setdefault(topic, time.monotonic())
                if not may_borrow:
                    raise
                new = await self._borrow(topic)
            self._asked_at[topic] = time.monotonic()
            self._unknown_since.pop(topic, None)
            self._store(topic, new, asked_at)
            return new

    async def _borrow(self, topic: str) -> TopicRoute:
        try:
            data = await self._name_servers.topic_route(AUTO_CREATE_TOPIC)
        except RouteNotFoundError:
            raise RouteNotFoundError(
                f"no route for topic {topic}; create it, or let a broker create topics "
                "(autoCreateTopicEnable)"
            ) from None
        except BrokerError as error:
            if not is_denied(error):
                raise
            remark = (
                f"there is no topic {topic}, and this user may not have a send create it: "
                f"{error.remark.rstrip('.')}; have the topic created first"
            )
            raise BrokerError(error.code, remark) from error
        for queue_data in data.queue_datas:
            nums = min(DEFAULT_TOPIC_QUEUE_NUMS, queue_data.read_queue_nums)
            queue_data.read_queue_nums = queue_data.write_queue_nums = nums
        route = build_route(topic, data)
        return TopicRoute(route.write_queues, (), route.brokers, is_borrowed=True)

    def _store(self, topic: str, route: TopicRoute, asked_at: float) -> None:
        """Keep an answer to what was asked then, and tell the listeners if it says something new.

        Also where the topic's own route is the same: its brokers may have been told to be elsewhere
        by another topic's older answer.
        """
        is_new = self._routes.get(topic) != route
        self._routes[topic] = route
        for broker in route.brokers:
            name, addresses = broker.broker_name, broker.broker_addrs
            if asked_at >= self._told_at.get(name, asked_at):
                is_new = is_new or self._addresses.get(name) != addresses
                self._addresses[name] = addresses
                self._told_at[name] = asked_at
        named = {broker.broker_name for known in self._routes.values() for broker in known.brokers}
        for name in self._addresses.keys() - named:
            del self._addresses[name], self._told_at[name]
        if is_new:
            for listener in self.on_change:
                listener(topic)


def build_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """Turn a name server's answer into queues, sorted by broker name and queue id.

    Queues take messages where the broker has a master and the topic the WRITE permission; an order
    configuration (`broker-a:4;broker-b:4`) names exactly the queues that producers use.

    Raises:
        RemoteProtocolError: they are more than `MAX_ROUTE_QUEUES`.
    """
    masters = {
        broker.broker_name for broker in data.broker_datas if MASTER_ID in broker.broker_addrs
    }
    read_nums: dict[str, int] = {}
    write_nums: dict[str, int] = {}
    for queue_data in data.queue_datas:
        name = queue_data.broker_name
        if queue_data.perm & Perm.READ:
            read_nums[name] = queue_data.read_queue_nums
        if queue_data.perm & Perm.WRITE and name in masters:
            write_nums[name] = queue_data.write_queue_nums
    if data.order_topic_conf:
        write_nums = decode_order(data.order_topic_conf)
    return TopicRoute(
        _queues(topic, write_nums), _queues(topic, read_nums), tuple(data.broker_datas)
    )


def _queues(topic: str, nums: Mapping[str, int]) -> tuple[MessageQueue, ...]:
    """Return the queues of a topic, of which each broker has so many."""
    count = sum(max(each, 0) for each in nums.values())
    if count > MAX_ROUTE_QUEUES:
        raise RemoteProtocolError(
            f"the route of topic {topic} names {count} queues, a client takes {MAX_ROUTE_QUEUES}: "
            "look at the topic's numbers of queues on its brokers, and at its order configuration"
        )
    return tuple(
        sorted(MessageQueue(topic, name, each) for name in nums for each in range(nums[name]))
    )
