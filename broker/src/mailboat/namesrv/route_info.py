"""The route table: brokers that registered, the topics they serve, and when they were last heard.

Pure: time comes from the clock that is given, connections are opaque tokens, nothing is sent. Four
maps, always changed together:

    cluster name -> broker names
    broker name  -> addresses by broker id (0 is the master), queue data by topic
    topic        -> broker names
    cluster and address -> when last heard, data version, connection

A broker name without an address has no place in any of them, and a topic without a broker is no
topic. A broker may have very many topics, and go: then its name stays with them until `clean` has
come by, and is passed over meanwhile.

RocketMQ forgets a broker as soon as it unregisters or its connection ends. A client asks for its
routes every 30 s; one that asks while the broker restarts does not know it for the next 30 s. So a
broker may say, in `routeKeptMillis`, for how long its routes stay: it is *away* then, with its
address and its queues but without write permission, until it registers again or the time is over.

A broker may have listeners: further ports, for which it names addresses of their own. Who asks by
a listener of the name server is told the brokers' addresses of that name and of no other.

In RocketMQ the last of two brokers with one name and one id has the place, and takes it from the
other with each registration: clients of both send to either. Here the first one keeps it while it
lives (its connection is open, and it was heard within `HEARD_S`), unless the other one is the same
broker at another address, by the identity of its store, or has a newer state (a master that was
elected). Who was master under an older state is passed over as long as anybody of the group is
here, also at the address of the newer one: RocketMQ takes it then, and while the newer one is away.

Source: apache/rocketmq namesrv/routeinfo/RouteInfoManager.java @ rocketmq-all-5.3.3. Left out:
slaves that act as master, zones, and static topics.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Final

from mailboat.errors import BrokerError, PlaceTakenError
from mailboat.model.data_version import DataVersion
from mailboat.model.stored_configs import MAX_QUEUE_NUMS
from mailboat.namesrv.registrations import (
    MASTER_ID,
    BrokerAddress,
    BrokerGroup,
    LiveBroker,
    MasterOfGroup,
    Registration,
    fit_queue_data,
    queue_data_of,
)
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from mailboat.remoting.shares import Shares

HEARD_S: Final = 65.0
"""Who has not been heard for so long may be gone without a word: a broker registers every 60 s or
more often."""

MAX_BROKERS: Final = 100
"""Most brokers of one connection. One process is one broker, or a few with RocketMQ's container."""

MAX_BROKERS_IN_ALL: Final = 5_000
"""Most brokers of all connections: the answer about a cluster names all of them."""

MAX_ROUTE_BYTES: Final = 560 * 1024 * 1024
"""What the topics of all brokers may take: some 1,300,000, each counted for each of its brokers.
The share of one address has room for the most topics that a broker registers."""

ROUTE_BYTES: Final = 400
"""What a topic of one broker takes besides the text of its name."""

MAX_TOPIC_LENGTH: Final = 512
"""Longest name of a topic that gets a route; those of retries with group and topic have 390."""

_TOPICS_A_SLICE: Final = 500
_LOGGED_LEAVES: Final = 10

UNIT_FLAG: Final = 0x1
"""Bit of topic_sys_flag: the topic belongs to one deployment unit."""

UNIT_SUB_FLAG: Final = 0x2
"""Bit of topic_sys_flag: the topic is subscribed to from a unit."""

logger = logging.getLogger(__name__)


TopicsFound = Generator[None, None, list[str]]
"""Yields after each slice of work and returns topics."""


class RouteInfoManager:
    """The route table; not thread-safe, one event loop owns it."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        expired_timeout_s: float = 120.0,
        delete_unlisted_topics: bool = False,
    ) -> None:
        """Start empty.

        Args:
            clock: monotonic seconds, so that a step of the wall clock expires no broker.
            expired_timeout_s: silence after which a broker is dropped.
            delete_unlisted_topics: whether a master's registration also ends the routes of the
                topics that it leaves out.
        """
        self._clock = clock
        self._expired_timeout_s = expired_timeout_s
        self.delete_unlisted_topics = delete_unlisted_topics
        self._clusters: dict[str, dict[str, None]] = {}
        self._groups: dict[str, BrokerGroup] = {}
        self._topics: dict[str, dict[str, None]] = {}
        self._left: deque[tuple[str, Iterator[str]]] = deque()
        self._live: dict[BrokerAddress, LiveBroker] = {}
        self._places = Shares(MAX_BROKERS_IN_ALL)
        self._route_shares = Shares(MAX_ROUTE_BYTES)
        self.on_left: Callable[[], None] = lambda: None
        """Called when `clean` has something to do."""

    def register(self, registration: Registration, connection: object) -> MasterOfGroup:
        """Take a broker's word on its topics and note that it lives.

        Raises:
            BrokerError: SYSTEM_ERROR, the registration cannot be taken; nothing changed.
                SYSTEM_BUSY, there is no room for all of its topics; those before are taken over.
        """
        answers = [*self.register_in_steps(registration, connection)]
        return answers[-1] if answers else MasterOfGroup()

    def register_in_steps(
        self, registration: Registration, connection: object
    ) -> Iterator[MasterOfGroup]:
        """Do what `register` does, a millisecond or so at a time; each step yields its answer.

        Routes change topic by topic. It ends early where the broker leaves or registers anew
        meanwhile. Only at the end its version counts as known.

        Raises:
            BrokerError: as `register`; SYSTEM_ERROR at the first step.
        """
        former, group = None, self._groups.get(registration.broker_name)
        if group is not None and group.cluster_name != registration.cluster_name:
            self._refuse_name_of_others(registration, group, connection)
            former, group = group, None
        if group is None:
            group = BrokerGroup(registration.cluster_name, host=registration.host)
        is_back = self._is_away(registration, group)
        is_new = is_back or registration.broker_id not in group.addresses
        self._refuse_rival(registration, group, connection)
        self._refuse_doubtful(registration, group, is_new=is_new)
        self._refuse_many(registration, connection)
        if former is not None:
            self._end_group(registration.broker_name, former)
        if self._is_outdated(registration, group):
            logger.warning("registration ignored, a newer one is known %s", registration.key)
            if group.addresses.get(registration.broker_id) != registration.address:
                # Under another id it would stay in routes, and nobody would notice its end.
                self.unregister(registration.key, registration.broker_name)
            return
        changed = is_new or self.is_changed(registration.key, registration.data_version)
        self._end_other_name(registration)
        self._join(registration, group)
        live = self._note_live(registration, connection)
        master = self._master_for(registration, group)
        if registration.broker_id == MASTER_ID:
            # What a broker that is back no longer has it may have lost while nobody could say so.
            only_listed = is_back or self.delete_unlisted_topics
            for _ in self._update_topics(
                registration, group, changed=changed, only_listed=only_listed
            ):
                yield master
                if self._live.get(registration.key) is not live or live.is_away:
                    return
                if self._groups.get(registration.broker_name) is not group:
                    return  # Another one has taken its place, and left.
        live.data_version = registration.data_version
        if is_new:
            logger.info("broker registered name=%s %s", registration.broker_name, registration.key)
        yield master

    def unregister(
        self, key: BrokerAddress, broker_name: str, *, route_kept_s: float = 0.0
    ) -> None:
        """Forget a broker process, at once or after `route_kept_s`; an unknown one is fine."""
        if route_kept_s > 0 and self._leave_for(key, route_kept_s):
            return
        live = self._drop_live(key)
        for name in {broker_name, live.broker_name if live is not None else broker_name}:
            self._leave(name, key)

    def connection_closed(self, connection: object) -> None:
        """Forget every broker that registered through this connection, at once or after a while."""
        gone = [
            (key, live)
            for key, live in self._live.items()
            if live.connection is connection and not live.is_away
        ]
        for key, live in gone[:_LOGGED_LEAVES]:
            logger.warning("broker's connection closed, route_kept_s=%g %s", live.route_kept_s, key)
        if len(gone) > _LOGGED_LEAVES:
            logger.warning("and of %d more brokers", len(gone) - _LOGGED_LEAVES)
        for key, live in gone:
            self.unregister(key, live.broker_name, route_kept_s=live.route_kept_s)

    def drop_silent(self) -> list[object]:
        """Forget every broker that was silent or away too long.

        Returns the connections of the silent ones, to be closed.
        """
        now = self._clock()
        gone = [(key, live) for key, live in self._live.items() if now > live.dropped_after_s]
        for key, live in gone:
            silent_s = now - live.last_update_s
            logger.warning("broker dropped silent_s=%.0f away=%s %s", silent_s, live.is_away, key)
            self.unregister(key, live.broker_name)
        return [live.connection for _, live in gone if not live.is_away]

    def refresh(self, key: BrokerAddress) -> None:
        """Note that a registered broker was heard."""
        live = self._live.get(key)
        if live is not None:
            live.last_update_s = self._clock()

    def data_version(self, key: BrokerAddress) -> DataVersion | None:
        """Return the version of the topics that a broker last registered; None if it is away, or
        is registering now."""
        live = self._live.get(key)
        return None if live is None or live.is_away else live.data_version

    def is_changed(self, key: BrokerAddress, data_version: DataVersion) -> bool:
        """Whether a broker's topics are of another version than what it last registered."""
        return self.data_version(key) != data_version

    def route(self, topic: str, listener: str = "") -> TopicRouteData | None:
        """Return the brokers and queues of a topic, or None when no broker serves it.

        Who asks by a listener is told its addresses, and of no broker that has none there.
        """
        brokers = []
        queues = []
        for queue in self._queue_datas(topic):
            broker = self._broker_data(queue.broker_name, listener)
            if broker.broker_addrs:
                brokers.append(broker)
                queues.append(queue)
        return TopicRouteData(broker_datas=brokers, queue_datas=queues) if queues else None

    def cluster_info(self, listener: str = "") -> ClusterInfo:
        """Return all brokers and the clusters they form, as far as a listener leads to them."""
        brokers = {name: self._broker_data(name, listener) for name in self._groups}
        found = {name: broker for name, broker in brokers.items() if broker.broker_addrs}
        clusters = {
            cluster: [name for name in names if name in found]
            for cluster, names in self._clusters.items()
        }
        return ClusterInfo(
            broker_addr_table=found,
            cluster_addr_table={cluster: names for cluster, names in clusters.items() if names},
        )

    def broker_addresses(self, broker_name: str, listener: str = "") -> dict[int, str]:
        """Return the addresses of a broker name by broker id; empty when it is not known."""
        group = self._groups.get(broker_name)
        if group is None:
            return {}
        if not listener:
            return dict(group.addresses)
        found = {
            broker_id: self._live[BrokerAddress(group.cluster_name, address)].listeners
            for broker_id, address in group.addresses.items()
            if BrokerAddress(group.cluster_name, address) in self._live
        }
        return {
            broker_id: listeners[listener]
            for broker_id, listeners in found.items()
            if listener in listeners
        }

    def any_broker_address(self, listener: str = "") -> str:
        """Return the address of some broker, or an empty text."""
        if not listener:
            return next((live_key.address for live_key in self._live), "")
        found = (live.listeners.get(listener) for live in self._live.values())
        return next(filter(None, found), "")

    def broker_count(self) -> int:
        """Return how many broker processes are registered and not away."""
        return sum(not live.is_away for live in self._live.values())

    def topics(self) -> TopicsFound:
        """Find all topics that have a route; yields after each slice of work."""
        return self._find(self._has_route)

    def topic_count(self) -> int:
        """Return how many topics have a route, or had until a moment ago."""
        return len(self._topics)

    def topics_of_cluster(self, cluster_name: str) -> TopicsFound:
        """Find the topics that a cluster's brokers serve; yields after each slice of work."""

        def is_served(topic: str) -> bool:
            brokers = self._clusters.get(cluster_name, {})
            names = self._topics.get(topic, ())
            return any(name in brokers and self._has_topic(name, topic) for name in names)

        return self._find(is_served)

    def topics_by_unit_flags(self, *, mask: int, value: int) -> TopicsFound:
        """Find the topics whose first queue data has `topic_sys_flag & mask == value`; yields after
        each slice of work."""

        def has_flags(topic: str) -> bool:
            names = self._topics.get(topic, ())
            name = next((name for name in names if self._has_topic(name, topic)), None)
            return (
                name is not None and self._groups[name].topics[topic].topic_sys_flag & mask == value
            )

        return self._find(has_flags)

    def system_topics(self) -> list[str]:
        """Return the topics that exist by convention: one named as each cluster and each broker."""
        return [topic for cluster, names in self._clusters.items() for topic in (cluster, *names)]

    def delete_topic(self, topic: str, cluster_name: str | None = None) -> None:
        """Drop the route of a topic, in one cluster or everywhere."""
        names: Iterable[str] = self._topics.get(topic, {})
        if cluster_name is not None:
            names = self._clusters.get(cluster_name, {})
        for name in list(names):
            self._remove_topic(topic, name)

    def add_topic(self, topic: str, queue_datas: Iterable[QueueData]) -> None:
        """Set the queues of a topic on brokers that are known; others are passed over, and so is a
        topic whose name is too long.

        Raises:
            BrokerError: SYSTEM_BUSY, there is no room for another topic.
        """
        for queue_data in queue_datas:
            group = self._groups.get(queue_data.broker_name)
            if group is not None and len(topic) <= MAX_TOPIC_LENGTH:
                fit_queue_data(queue_data)
                self._put_topic(topic, group, queue_data)

    def set_write_permission(self, broker_name: str, *, writable: bool) -> int:
        """Take or give back WRITE on all topics of a broker; return how many topics that were.

        Lasts until the broker registers topics of another version.
        """
        group = self._groups.get(broker_name)
        if group is None:
            return 0
        group.writable = writable
        return len(group.topics)

    def clean(self) -> Iterator[None]:
        """Take the names of brokers that left out of their topics; yields after each slice."""
        while self._left:
            name, topics = self._left[0]
            some = list(islice(topics, _TOPICS_A_SLICE))
            for topic in some:
                if not self._has_topic(name, topic):
                    self._forget_name(topic, name)
            if len(some) < _TOPICS_A_SLICE:
                self._left.popleft()
            yield

    def _refuse_name_of_others(
        self, registration: Registration, group: BrokerGroup, connection: object
    ) -> None:
        """Refuse a broker whose name another cluster has, while somebody of that lives.

        Raises:
            PlaceTakenError: somebody does; the text says who and what to do.
        """
        for address in group.addresses.values():
            key = BrokerAddress(group.cluster_name, address)
            if self._keeps_place(key, registration, connection):
                raise PlaceTakenError(
                    ResponseCode.SYSTEM_ERROR,
                    f"broker name {registration.broker_name} is taken by cluster "
                    f"{group.cluster_name}, of which {address} lives; choose another one",
                    address,
                )

    def _end_group(self, broker_name: str, group: BrokerGroup) -> None:
        """Forget all brokers of a name: another cluster has it now."""
        logger.warning(
            "broker name %s is of another cluster now, no more of %s",
            broker_name,
            group.cluster_name,
        )
        for address in list(group.addresses.values()):
            self.unregister(BrokerAddress(group.cluster_name, address), broker_name)

    def _refuse_rival(
        self, registration: Registration, group: BrokerGroup, connection: object
    ) -> None:
        """Refuse a broker whose place another one has that lives.

        Raises:
            PlaceTakenError: it does; the text says who and what to do.
        """
        name, broker_id = registration.broker_name, registration.broker_id
        address = group.addresses.get(broker_id)
        if address is None or registration.is_newer_master(group):
            return
        if address == registration.address:
            return
        key = BrokerAddress(registration.cluster_name, address)
        if not self._keeps_place(key, registration, connection):
            return
        if group.refused.get(broker_id) != registration.address:
            group.refused[broker_id] = registration.address
            logger.warning(
                "registration refused, the place is held name=%s id=%d by=%s %s",
                name,
                broker_id,
                address,
                registration.key,
            )
        raise PlaceTakenError(
            ResponseCode.SYSTEM_ERROR,
            f"broker {name} (cluster {group.cluster_name}, id {broker_id}) is registered at"
            f" {address}, which lives: give this broker another brokerName, or end the other one",
            address,
        )

    def _keeps_place(
        self, key: BrokerAddress, registration: Registration, connection: object
    ) -> bool:
        """Return whether another broker keeps its place from who registers now."""
        holder = self._live.get(key)
        if holder is None or holder.is_away or holder.connection is connection:
            return False
        if holder.identity and holder.identity == registration.identity:
            return False
        known = holder.data_version
        is_elected = (
            known is not None and known.state_version != registration.data_version.state_version
        )
        if is_elected and key.cluster_name == registration.cluster_name:
            return False  # An election has decided; who lost it is passed over below.
        heard_s = min(HEARD_S, holder.expired_timeout_s)
        return self._clock() - holder.last_update_s <= heard_s

    def _refuse_doubtful(
        self, registration: Registration, group: BrokerGroup, *, is_new: bool
    ) -> None:
        name = registration.broker_name
        if is_new and len(registration.topics) == 1:
            # A broker that made one topic registers that one alone. Taken as the first word, it
            # would pass for all of its topics, and the broker would skip the full registration.
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {name} must register all of its topics before a single one",
            )

    def _refuse_many(self, registration: Registration, connection: object) -> None:
        """Refuse what is no broker: one connection that registers ever more of them.

        Raises:
            BrokerError: it has `MAX_BROKERS` already, or its address has its share of
                `MAX_BROKERS_IN_ALL`, or there are so many.
        """
        if registration.key in self._live:
            return
        if sum(live.connection is connection for live in self._live.values()) >= MAX_BROKERS:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"{MAX_BROKERS} brokers are registered through this connection already; use "
                "another one",
            )
        excess = self._places.excess(registration.host, 1)
        if excess is not None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"so many brokers are registered here already that another one would exceed the "
                f"limit, {excess}; end some, or use another name server",
            )

    def _is_outdated(self, registration: Registration, group: BrokerGroup) -> bool:
        """Whether another process holds the same place with a newer state, or held it last."""
        state_version = registration.data_version.state_version
        if registration.broker_id == MASTER_ID and 0 < state_version < group.state_version:
            return True
        address = group.addresses.get(registration.broker_id)
        if address is None or address == registration.address:
            return False
        known = self.data_version(BrokerAddress(registration.cluster_name, address))
        return known is not None and known.state_version > state_version

    def _end_other_name(self, registration: Registration) -> None:
        """End the place that the same address has under another name: it has a new one."""
        known = self._live.get(registration.key)
        if known is not None and known.broker_name != registration.broker_name:
            logger.warning(
                "broker has another name, was=%s name=%s %s",
                known.broker_name,
                registration.broker_name,
                registration.key,
            )
            self._leave(known.broker_name, registration.key)

    def _join(self, registration: Registration, group: BrokerGroup) -> None:
        self._groups[registration.broker_name] = group
        cluster = self._clusters.setdefault(registration.cluster_name, {})
        cluster[registration.broker_name] = None
        for broker_id, address in list(group.addresses.items()):
            # A slave that became master keeps its address and leaves its old number.
            if address == registration.address and broker_id != registration.broker_id:
                del group.addresses[broker_id]
        group.addresses[registration.broker_id] = registration.address
        if registration.broker_id == MASTER_ID:
            state_version = registration.data_version.state_version
            group.state_version = max(group.state_version, state_version)
            if group.host != registration.host:
                # Its topics are counted where it is now.
                self._route_shares.give(group.host, group.route_bytes)
                self._route_shares.take(registration.host, group.route_bytes)
                group.host = registration.host
        group.refused.pop(registration.broker_id, None)

    def _update_topics(
        self, registration: Registration, group: BrokerGroup, *, changed: bool, only_listed: bool
    ) -> Iterator[None]:
        """Take over a master's topics; yields after each slice of them."""
        name = registration.broker_name
        if only_listed:
            yield from self._remove_unlisted(registration, group)
        if changed:
            group.writable = None
        odd = 0
        for number, (topic, config) in enumerate(registration.topics.items(), 1):
            if len(topic) > MAX_TOPIC_LENGTH:
                odd += 1
            elif changed or topic not in group.topics:
                queue_data = queue_data_of(name, config)
                odd += not fit_queue_data(queue_data)
                self._put_topic(topic, group, queue_data)
            if number % _TOPICS_A_SLICE == 0:
                yield
        if odd:
            logger.warning(
                "%d topics have names of more than %d characters, which get no route, or other "
                "numbers than 0 to %d queues, of which clients are told the nearest %s",
                odd,
                MAX_TOPIC_LENGTH,
                MAX_QUEUE_NUMS,
                registration.key,
            )

    def _remove_unlisted(self, registration: Registration, group: BrokerGroup) -> Iterator[None]:
        """End the routes of topics that a master no longer has; yields after each slice."""
        for number, topic in enumerate(list(group.topics), 1):
            if topic not in registration.topics:
                self._remove_topic(topic, registration.broker_name)
            if number % _TOPICS_A_SLICE == 0:
                yield

    def _is_away(self, registration: Registration, group: BrokerGroup) -> bool:
        """Whether the one that has the place of who registers now is away."""
        address = group.addresses.get(registration.broker_id, "")
        live = self._live.get(BrokerAddress(registration.cluster_name, address))
        return live is not None and live.is_away

    def _leave_for(self, key: BrokerAddress, seconds: float) -> bool:
        """Note that a broker is away; False where there is no route to keep."""
        live = self._live.get(key)
        if live is None:
            return False
        if self.broker_addresses(live.broker_name).get(live.broker_id) != key.address:
            return False
        live.away_until_s = self._clock() + seconds
        if live.broker_id == MASTER_ID:
            self.set_write_permission(live.broker_name, writable=False)
        return True

    def _note_live(self, registration: Registration, connection: object) -> LiveBroker:
        """Note that a broker was heard; which topics it has is not known before the end."""
        timeout_s = registration.expired_timeout_s
        self._drop_live(registration.key)
        self._places.take(registration.host, 1)
        live = self._live[registration.key] = LiveBroker(
            broker_name=registration.broker_name,
            broker_id=registration.broker_id,
            connection=connection,
            last_update_s=self._clock(),
            expired_timeout_s=self._expired_timeout_s if timeout_s is None else timeout_s,
            data_version=None,
            ha_server_address=registration.ha_server_address,
            route_kept_s=registration.route_kept_s,
            host=registration.host,
            identity=registration.identity,
            listeners=registration.listeners,
        )
        return live

    def _drop_live(self, key: BrokerAddress) -> LiveBroker | None:
        """Forget that a broker was heard, and free its place."""
        live = self._live.pop(key, None)
        if live is not None:
            self._places.give(live.host, 1)
        return live

    def _master_for(self, registration: Registration, group: BrokerGroup) -> MasterOfGroup:
        address = group.addresses.get(MASTER_ID)
        if registration.broker_id == MASTER_ID or address is None:
            return MasterOfGroup()
        live = self._live.get(BrokerAddress(registration.cluster_name, address))
        return MasterOfGroup() if live is None else MasterOfGroup(address, live.ha_server_address)

    def _leave(self, broker_name: str, key: BrokerAddress) -> None:
        group = self._groups.get(broker_name)
        if group is None or group.cluster_name != key.cluster_name:
            return
        for broker_id, address in list(group.addresses.items()):
            if address == key.address:
                del group.addresses[broker_id]
        if group.addresses:
            return
        del self._groups[broker_name]
        names = self._clusters[key.cluster_name]
        del names[broker_name]
        if not names:
            del self._clusters[key.cluster_name]
        self._route_shares.give(group.host, group.route_bytes)
        self._left.append((broker_name, iter(tuple(group.topics))))
        # Many brokers may go together, each with a slice of topics.
        self.on_left()

    def _put_topic(self, topic: str, group: BrokerGroup, queue_data: QueueData) -> None:
        if topic not in group.topics:
            size_bytes = _route_bytes(topic)
            excess = self._route_shares.excess(group.host, size_bytes)
            if excess is not None:
                raise BrokerError(
                    ResponseCode.SYSTEM_BUSY,
                    f"the topics of all brokers take {self._route_shares.taken} bytes here, and "
                    f"more would exceed the limit, {excess}: not all topics of broker "
                    f"{queue_data.broker_name} have a route; delete topics, or use other name "
                    "servers for some of the brokers",
                )
            self._route_shares.take(group.host, size_bytes)
            group.route_bytes += size_bytes
        group.topics[topic] = queue_data
        self._topics.setdefault(topic, {})[queue_data.broker_name] = None

    def _remove_topic(self, topic: str, broker_name: str) -> None:
        group = self._groups.get(broker_name)
        if group is not None and group.topics.pop(topic, None) is not None:
            self._route_shares.give(group.host, _route_bytes(topic))
            group.route_bytes -= _route_bytes(topic)
        self._forget_name(topic, broker_name)

    def _forget_name(self, topic: str, broker_name: str) -> None:
        names = self._topics.get(topic, {})
        names.pop(broker_name, None)
        if not names:
            self._topics.pop(topic, None)

    def _has_topic(self, broker_name: str, topic: str) -> bool:
        group = self._groups.get(broker_name)
        return group is not None and topic in group.topics

    def _has_route(self, topic: str) -> bool:
        return any(self._has_topic(name, topic) for name in self._topics.get(topic, ()))

    def _find(self, is_wanted: Callable[[str], bool]) -> TopicsFound:
        found = []
        for number, topic in enumerate(list(self._topics), 1):
            if is_wanted(topic):
                found.append(topic)
            if number % _TOPICS_A_SLICE == 0:
                yield
        return found

    def _queue_datas(self, topic: str) -> list[QueueData]:
        groups = map(self._groups.get, self._topics.get(topic, ()))
        found = (group.queue_data(topic) for group in groups if group is not None)
        return [queue_data for queue_data in found if queue_data is not None]

    def _broker_data(self, broker_name: str, listener: str) -> BrokerData:
        return BrokerData(
            cluster=self._groups[broker_name].cluster_name,
            broker_name=broker_name,
            broker_addrs=self.broker_addresses(broker_name, listener),
        )


def _route_bytes(topic: str) -> int:
    return ROUTE_BYTES + len(topic) * (1 if topic.isascii() else 4)
