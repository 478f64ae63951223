"""Who is connected: members of consumer groups and of producer groups.

A member is a client id on a connection. One connection carries one client as a rule, but nothing
depends on it; several clients may share a client id (broadcast consumers on one host do). Members
come with a heartbeat and go by unregistering, by the end of their connection, or after
`channelExpiredTimeout` without a heartbeat. What they may take up is limited, see
`mailboat.broker.membership_limits`.

When a group's members or topics change, its members are told by NOTIFY_CONSUMER_IDS_CHANGED and
rebalance at once. Broadcast groups are not: their members share nothing.

Source: apache/rocketmq broker/client/ConsumerManager.java, ConsumerGroupInfo.java,
ProducerManager.java and DefaultConsumerIdsChangeListener.java @ rocketmq-all-5.3.3.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Final, TypeVar

from mailboat.broker.membership_limits import (
    GROUP_BYTES,
    MEMBER_BYTES,
    MembershipLimits,
    names_bytes,
    subscription_bytes,
)
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import BROADCASTING, ConsumerData
from mailboat.remoting.connection import Connection
from mailboat.remoting.turns import in_turns, sorted_steps

_log = logging.getLogger(__name__)

# When a thousand members come within a second, telling all of them about each one would be half a
# million pushes; changes within this time share one round.
_NOTIFY_DELAY_S: Final = 0.02
_NOTIFY_SLICE_S: Final = 0.005
# Of the members that leave together: a connection may carry thousands.
_LOGGED_LEAVES: Final = 10
_MEMBERS_A_STEP: Final = 200


_Key = TypeVar("_Key")


@dataclass(slots=True, eq=False)
class ClientInfo:
    """One client on one connection, as its last heartbeat described it."""

    connection: Connection
    client_id: str
    language: str
    version: int
    last_heartbeat: float = 0.0
    """Monotonic seconds."""


class MemberTable:
    """The clients of one group, by connection and client id."""

    __slots__ = ("_clients",)

    def __init__(self) -> None:
        """Start without members."""
        self._clients: dict[Connection, dict[str, ClientInfo]] = {}

    def __len__(self) -> int:
        """Return the number of members."""
        return sum(map(len, self._clients.values()))

    def __bool__(self) -> bool:
        """Tell whether there is a member."""
        return bool(self._clients)

    def __iter__(self) -> Iterator[ClientInfo]:
        """Iterate over the members."""
        for clients in self._clients.values():
            yield from clients.values()

    def steps(self) -> Iterator[list[ClientInfo]]:
        """Yield the members, some hundred at a time: whoever comes or goes between two steps may
        be among them or not."""
        some: list[ClientInfo] = []
        for connection in list(self._clients):
            for client in list(self._clients.get(connection, {}).values()):
                some.append(client)
                if len(some) >= _MEMBERS_A_STEP:
                    yield some
                    some = []
        yield some

    def __contains__(self, connection: Connection) -> bool:
        """Tell whether a connection carries a member."""
        return connection in self._clients

    @property
    def connections(self) -> list[Connection]:
        """The members' connections, each once."""
        return list(self._clients)

    def has(self, client: ClientInfo) -> bool:
        """Tell whether this client id is a member on this connection."""
        return client.client_id in self._clients.get(client.connection, ())

    def add(self, client: ClientInfo) -> bool:
        """Add or refresh a member; return whether it is new."""
        clients = self._clients.setdefault(client.connection, {})
        is_new = client.client_id not in clients
        clients[client.client_id] = client
        return is_new

    def remove(self, connection: Connection, client_id: str) -> list[ClientInfo]:
        """Remove a member; return it in a list, which is empty if there was none."""
        clients = self._clients.get(connection, {})
        client = clients.pop(client_id, None)
        if client is None:
            return []
        if not clients:
            del self._clients[connection]
        return [client]

    def remove_connection(self, connection: Connection) -> list[ClientInfo]:
        """Remove and return every member on a connection."""
        return list(self._clients.pop(connection, {}).values())

    def remove_silent(self, oldest_heartbeat: float) -> Iterator[list[ClientInfo]]:
        """Remove the members whose last heartbeat is older; yields those of each step."""
        for members in self.steps():
            # Some of them may have left, or sent a heartbeat, since the step before.
            silent = [
                client
                for client in members
                if client.last_heartbeat < oldest_heartbeat
                and self._clients.get(client.connection, {}).get(client.client_id) is client
            ]
            for client in silent:
                self.remove(client.connection, client.client_id)
            yield silent


@dataclass(slots=True, eq=False)
class ConsumerGroupInfo:
    """The members of one consumer group and what they subscribed to."""

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    holder: Connection
    """The member's that its texts are counted for: the one that made them grow, while it stays."""

    size_bytes: int = 0
    """What it takes in memory besides its members."""

    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    """By topic; where members disagree the newest version wins."""

    members: MemberTable = field(default_factory=MemberTable)

    @property
    def is_broadcasting(self) -> bool:
        """Every member gets every message."""
        return self.message_model == BROADCASTING

    def client_ids(self) -> Generator[None, None, list[str]]:
        """Return the members' ids, each once and in order; some hundred with each step.

        A double id, such as that of a client whose old connection lingers, would leave queues to a
        member that does not exist.
        """
        client_ids: set[str] = set()
        for members in self.members.steps():
            client_ids.update(member.client_id for member in members)
            yield
        return (yield from sorted_steps(client_ids))

    def listed_members(self) -> list[ClientInfo]:
        """Return one member for each id, by id: of several the one that sent a heartbeat last."""
        newest = {
            member.client_id: member
            for member in sorted(self.members, key=lambda member: member.last_heartbeat)
        }
        return [newest[client_id] for client_id in sorted(newest)]

    def find_member(self, client_id: str) -> ClientInfo | None:
        """Return the member with this id that sent a heartbeat last."""
        found = [member for member in self.members if member.client_id == client_id]
        return max(found, key=lambda member: member.last_heartbeat, default=None)

    def merged_bytes(self, consumer: ConsumerData) -> int:
        """Return what `size_bytes` is once a member's subscriptions are taken over."""
        size = GROUP_BYTES + names_bytes(
            consumer.consume_type, consumer.message_model, consumer.consume_from_where
        )
        for subscription in consumer.subscription_data_set:
            known = self.subscriptions.get(subscription.topic)
            if known is not None and subscription.sub_version <= known.sub_version:
                size += subscription_bytes(known)
            else:
                size += subscription_bytes(subscription)
        return size

    def merge_subscriptions(
        self, subscriptions: Iterable[SubscriptionData]
    ) -> tuple[list[str], Set[str]]:
        """Take over one member's subscriptions; return the topics that came and those that went."""
        came = []
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            known = self.subscriptions.get(subscription.topic)
            if known is None:
                came.append(subscription.topic)
            elif subscription.sub_version <= known.sub_version:
                continue
            elif _is_same(known, subscription):
                # Pulls that wait go by it, and need not know.
                known.sub_version = subscription.sub_version
                continue
            self.subscriptions[subscription.topic] = subscription
        went = self.subscriptions.keys() - topics
        for topic in went:
            _log.info("subscription ended group=%s topic=%s", self.group, topic)
            del self.subscriptions[topic]
        return came, went


def _is_same(one: SubscriptionData, other: SubscriptionData) -> bool:
    """Tell whether two subscriptions differ in their version alone."""
    return (one.sub_string, one.expression_type) == (other.sub_string, other.expression_type)


class ConsumerManager:
    """All consumer groups with members."""

    def __init__(
        self,
        limits: MembershipLimits | None = None,
        *,
        notify_enable: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Know nobody; with `notify_enable` members are told of changes."""
        self._limits = limits or MembershipLimits()
        self._notify_enable = notify_enable
        self._clock = clock
        self._by_connection: dict[Connection, set[str]] = {}
        self._on_topic: dict[str, set[str]] = {}
        self._to_notify: set[str] = set()
        self._pushes: Iterator[None] = iter(())
        self._notify_timer: asyncio.TimerHandle | None = None
        self.groups: dict[str, ConsumerGroupInfo] = {}
        """By name; only groups that have members."""

        self.changes = 0
        """Moves on whenever a group comes, goes, or has other topics or another model."""

        self.on_subscribed: Callable[[str], None] = lambda _: None
        """Called with a clustering group that may have more topics than before."""

    def register(self, client: ClientInfo, consumer: ConsumerData, *, notify: bool = True) -> bool:
        """Take note of a heartbeat; return whether members or topics of the group changed.

        `notify` is the group's own setting notifyConsumerIdsChangedEnable.

        Raises:
            BrokerError: members take up as much as they may; nothing changed.
        """
        info = self.groups.get(consumer.group_name)
        if info is None:
            info = ConsumerGroupInfo(
                consumer.group_name,
                consumer.consume_type,
                consumer.message_model,
                consumer.consume_from_where,
                client.connection,
            )
        self._count(info, client, consumer)
        self.groups[info.group] = info
        has_other_model = info.message_model != consumer.message_model
        info.consume_type = consumer.consume_type
        info.message_model = consumer.message_model
        info.consume_from_where = consumer.consume_from_where
        client.last_heartbeat = self._clock()
        is_new = info.members.add(client)
        if is_new:
            self._by_connection.setdefault(client.connection, set()).add(info.group)
            _log_member("consumer joined", info.group, client)
        came, went = info.merge_subscriptions(consumer.subscription_data_set)
        for topic in came:
            self._on_topic.setdefault(topic, set()).add(info.group)
        self._forget_topics(info.group, went)
        changed = is_new or bool(came) or bool(went)
        if changed or has_other_model:
            self.changes += 1
            if not info.is_broadcasting:
                self.on_subscribed(info.group)
        if changed and notify:
            self._notify_soon(info)
        return changed

    def unregister(
        self, group: str, connection: Connection, client_id: str, *, notify: bool = True
    ) -> None:
        """Let a client leave a group; unknown ones are no error."""
        info = self.groups.get(group)
        if info is not None:
            clients = info.members.remove(connection, client_id)
            self._left(info, clients, _LeaveLog("consumer left"), notify=notify)

    def connection_closed(self, connection: Connection) -> None:
        """Let every client of a connection leave its groups."""
        log = _LeaveLog("consumer left")
        for group in sorted(self._by_connection.get(connection, ())):
            info = self.groups[group]
            self._left(info, info.members.remove_connection(connection), log)
        log.close()

    def expire(self, timeout_s: float) -> Generator[None, None, set[Connection]]:
        """Let clients leave that were silent for too long, some hundred with each step.

        Returns:
            Their connections.
        """
        oldest = self._clock() - timeout_s
        expired: set[Connection] = set()
        log = _LeaveLog("consumer left")
        for info in list(self.groups.values()):
            for silent in info.members.remove_silent(oldest):
                expired.update([client.connection for client in silent])
                self._left(info, silent, log)
                yield
        log.close()
        return expired

    def is_member(self, connection: Connection) -> bool:
        """Tell whether a connection carries a member of any group."""
        return connection in self._by_connection

    def find_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return what the members of a group subscribed to in a topic."""
        info = self.groups.get(group)
        return None if info is None else info.subscriptions.get(topic)

    def groups_on_topic(self, topic: str) -> set[str]:
        """Return the groups with members that subscribed to a topic; the set is the caller's."""
        return set(self._on_topic.get(topic, ()))

    def clustering_groups(self) -> list[str]:
        """Return the groups with members but for broadcasting ones, whose members keep their
        offsets themselves."""
        return [group for group, info in self.groups.items() if not info.is_broadcasting]

    def clustering_topics(self, group: str) -> Set[str]:
        """Return what the members of a group subscribe to; nothing of a broadcasting one."""
        info = self.groups.get(group)
        return frozenset() if info is None or info.is_broadcasting else info.subscriptions.keys()

    def close(self) -> None:
        """Tell nobody any more."""
        if self._notify_timer is not None:
            self._notify_timer.cancel()
        self._to_notify.clear()

    def _count(self, info: ConsumerGroupInfo, client: ClientInfo, consumer: ConsumerData) -> None:
        """Count what a heartbeat adds to a group.

        Raises:
            BrokerError: it is too much; nothing changed.
        """
        connection = client.connection
        is_new = not info.members.has(client)
        member_bytes = _member_bytes(info.group, client) if is_new else 0
        size_bytes = info.merged_bytes(consumer)
        grows = size_bytes > info.size_bytes
        # Who makes a group grow that another one holds takes it over as a whole.
        held_bytes = info.size_bytes if info.holder is connection else 0
        more_bytes = member_bytes + (size_bytes - held_bytes if grows else 0)
        self._limits.check(connection, members=is_new, size_bytes=more_bytes)
        self._limits.add(connection, members=is_new, size_bytes=member_bytes)
        self._hold(info, connection if grows else info.holder, size_bytes)

    def _hold(self, info: ConsumerGroupInfo, holder: Connection, size_bytes: int) -> None:
        """Count a group's texts for a connection, and no longer for the one before."""
        self._limits.add(info.holder, members=0, size_bytes=-info.size_bytes)
        self._limits.add(holder, members=0, size_bytes=size_bytes)
        info.holder, info.size_bytes = holder, size_bytes

    def _left(
        self,
        info: ConsumerGroupInfo,
        clients: list[ClientInfo],
        log: "_LeaveLog",
        *,
        notify: bool = True,
    ) -> None:
        if not clients:
            return
        for client in clients:
            log.note(info.group, client)
            size_bytes = _member_bytes(info.group, client)
            self._limits.add(client.connection, members=-1, size_bytes=-size_bytes)
            if client.connection not in info.members:
                _discard(self._by_connection, client.connection, info.group)
        if not info.members:
            self._hold(info, info.holder, 0)
            del self.groups[info.group]
            self._forget_topics(info.group, info.subscriptions)
            self.changes += 1
            return
        if info.holder not in info.members:
            # Some of its texts may stay: whoever joined after it may have brought older ones.
            self._hold(info, next(iter(info.members)).connection, info.size_bytes)
        if notify:
            self._notify_soon(info)

    def _forget_topics(self, group: str, topics: Iterable[str]) -> None:
        for topic in topics:
            _discard(self._on_topic, topic, group)

    def _notify_soon(self, info: ConsumerGroupInfo) -> None:
        if not self._notify_enable or info.is_broadcasting:
            return
        self._to_notify.add(info.group)
        if self._notify_timer is None:
            self._arm(_NOTIFY_DELAY_S)

    def _arm(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._notify_timer = loop.call_later(delay_s, self._notify_groups)

    def _notify_groups(self) -> None:
        """Push for a slice of time, and again in the loop's next round if that is not enough."""
        self._notify_timer = None
        end_s = time.monotonic() + _NOTIFY_SLICE_S
        for _ in self._pushes:
            if time.monotonic() > end_s:
                self._arm(0)
                return
        if self._to_notify:
            groups, self._to_notify = self._to_notify, set()
            self._pushes = self._push(groups)
            self._arm(0)

    def _push(self, groups: Iterable[str]) -> Iterator[None]:
        """Tell the members of groups; yields after each push."""
        for group in groups:
            info = self.groups.get(group)
            for connection in () if info is None else info.members.connections:
                connection.send_oneway(
                    RemotingCommand.request(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                        {"consumerGroup": group},
                        oneway=True,
                    )
                )
                yield


class ProducerManager:
    """All producer groups with members."""

    def __init__(
        self,
        limits: MembershipLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Know nobody."""
        self._limits = limits or MembershipLimits()
        self._clock = clock
        self._by_connection: dict[Connection, set[str]] = {}
        self._by_client_id: dict[str, dict[tuple[str, Connection], ClientInfo]] = {}
        self.groups: dict[str, MemberTable] = {}
        """By name; only groups that have members."""

    def register(self, client: ClientInfo, group: str) -> None:
        """Take note of a heartbeat.

        Raises:
            BrokerError: members take up as much as they may; nothing changed.
        """
        members = self.groups.get(group)
        if members is None or not members.has(client):
            size_bytes = GROUP_BYTES + _member_bytes(group, client)
            self._limits.check(client.connection, members=1, size_bytes=size_bytes)
            self._limits.add(client.connection, members=1, size_bytes=size_bytes)
        client.last_heartbeat = self._clock()
        self._by_client_id.setdefault(client.client_id, {})[group, client.connection] = client
        if self.groups.setdefault(group, MemberTable()).add(client):
            self._by_connection.setdefault(client.connection, set()).add(group)
            _log_member("producer joined", group, client)

    def find_client(self, client_id: str) -> ClientInfo | None:
        """Return the producer with this id that sent a heartbeat last, whatever its groups."""
        found = self._by_client_id.get(client_id, {}).values()
        return max(found, key=lambda client: client.last_heartbeat, default=None)

    def unregister(self, group: str, connection: Connection, client_id: str) -> None:
        """Let a client leave a group; unknown ones are no error."""
        members = self.groups.get(group)
        if members is not None:
            clients = members.remove(connection, client_id)
            self._left(group, clients, _LeaveLog("producer left"))

    def connection_closed(self, connection: Connection) -> None:
        """Let every client of a connection leave its groups."""
        log = _LeaveLog("producer left")
        for group in sorted(self._by_connection.get(connection, ())):
            self._left(group, self.groups[group].remove_connection(connection), log)
        log.close()

    def expire(self, timeout_s: float) -> Generator[None, None, set[Connection]]:
        """Let clients leave that were silent for too long, some hundred with each step.

        Returns:
            Their connections.
        """
        oldest = self._clock() - timeout_s
        expired: set[Connection] = set()
        log = _LeaveLog("producer left")
        for group, members in list(self.groups.items()):
            for silent in members.remove_silent(oldest):
                # None of a group that has ended meanwhile.
                if silent:
                    expired.update([client.connection for client in silent])
                    self._left(group, silent, log)
                yield
        log.close()
        return expired

    def is_member(self, connection: Connection) -> bool:
        """Tell whether a connection carries a member of any group."""
        return connection in self._by_connection

    def _left(self, group: str, clients: list[ClientInfo], log: "_LeaveLog") -> None:
        members = self.groups[group]
        for client in clients:
            log.note(group, client)
            size_bytes = GROUP_BYTES + _member_bytes(group, client)
            self._limits.add(client.connection, members=-1, size_bytes=-size_bytes)
            same_id = self._by_client_id[client.client_id]
            del same_id[group, client.connection]
            if not same_id:
                del self._by_client_id[client.client_id]
            if client.connection not in members:
                _discard(self._by_connection, client.connection, group)
        if not members:
            del self.groups[group]


async def close_silent(
    consumers: ConsumerManager, producers: ProducerManager, timeout_s: float
) -> None:
    """Let clients leave that were silent for too long, and close the connections that carry nobody
    any more."""
    expired = await in_turns(consumers.expire(timeout_s))
    expired |= await in_turns(producers.expire(timeout_s))
    for connection in expired:
        if not (consumers.is_member(connection) or producers.is_member(connection)):
            _log.info("connection closed peer=%s: no heartbeat", connection.peer)
            connection.close()


def _member_bytes(group: str, client: ClientInfo) -> int:
    """Return what a member takes in memory; the same for each of its heartbeats."""
    return MEMBER_BYTES + names_bytes(group, client.client_id)


def _discard(groups_of: dict[_Key, set[str]], key: _Key, group: str) -> None:
    groups = groups_of.get(key, set())
    groups.discard(group)
    if not groups:
        groups_of.pop(key, None)


class _LeaveLog:
    """Says which members left together: the first ones, and how many more there were."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._count = 0

    def note(self, group: str, client: ClientInfo) -> None:
        """Say it of one more."""
        self._count += 1
        if self._count <= _LOGGED_LEAVES:
            _log_member(self._event, group, client)

    def close(self) -> None:
        """Say how many there were beyond those."""
        if self._count > _LOGGED_LEAVES:
            _log.info("%s, and %d more members", self._event, self._count - _LOGGED_LEAVES)


def _log_member(event: str, group: str, client: ClientInfo) -> None:
    peer = client.connection.peer
    _log.info("%s group=%s client=%s peer=%s", event, group, client.client_id, peer)
