"""Promises of mailboat.broker.membership."""

import asyncio
import logging
from collections.abc import Generator
from itertools import pairwise
from typing import TypeVar, cast

import pytest

from mailboat.broker import membership, membership_limits
from mailboat.broker.membership import ClientInfo, ConsumerManager, ProducerManager
from mailboat.broker.membership_limits import MembershipLimits
from mailboat.errors import BrokerError
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import BROADCASTING, ConsumerData
from mailboat.remoting.connection import Connection
from mailboat.testing.virtual_time import VirtualTime

_T = TypeVar("_T")


def _expired(members: ConsumerManager | ProducerManager) -> set[Connection]:
    """Let those leave that were silent for 120 s; return their connections."""
    return _all_of(members.expire(120.0))


def _all_of(work: Generator[object, None, _T]) -> _T:
    """Return what work that is done in steps returns."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return cast(_T, done.value)


class Peer:
    """The far end of a connection: it keeps what the broker pushed."""

    def __init__(self, name: str) -> None:
        """Begin without pushes."""
        self.peer = self.peer_address = name
        self.pushed: list[RemotingCommand] = []
        self.got_push = asyncio.Event()

    def send_oneway(self, command: RemotingCommand) -> None:
        """Take a push."""
        self.pushed.append(command)
        self.got_push.set()

    @property
    def connection(self) -> Connection:
        """Stand for the broker's end."""
        return cast(Connection, self)

    def client(self, client_id: str = "c1") -> ClientInfo:
        """Return a client on this connection."""
        return ClientInfo(self.connection, client_id, "JAVA", 479)

    async def next_groups(self) -> list[str]:
        """Return the groups of the pushes that come within the next moment."""
        self.pushed.clear()
        self.got_push.clear()
        await asyncio.wait_for(self.got_push.wait(), 5)
        assert {push.code for push in self.pushed} == {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
        return [push.ext_fields["consumerGroup"] for push in self.pushed]


def consumer(*topics: str, group: str = "G", version: int = 1) -> ConsumerData:
    """Return what a heartbeat says of a clustering consumer."""
    subscriptions = [SubscriptionData(topic, sub_version=version) for topic in topics]
    return ConsumerData(group, subscription_data_set=subscriptions)


async def silence() -> None:
    """Wait longer than a push may be delayed."""
    await asyncio.sleep(0.1)


async def test_members_are_listed() -> None:
    """A heartbeat makes its client a member, another one changes nothing."""
    consumers = ConsumerManager()
    first, second = Peer("a"), Peer("b")
    assert consumers.register(first.client("c1"), consumer("T"))
    assert consumers.register(second.client("c2"), consumer("T"))
    assert not consumers.register(second.client("c2"), consumer("T"))
    assert _all_of(consumers.groups["G"].client_ids()) == ["c1", "c2"]
    consumers.close()


async def test_two_clients_with_one_id_are_two_members() -> None:
    """Clients that share an id are told apart by their connections and listed once."""
    consumers = ConsumerManager()
    first, second = Peer("a"), Peer("b")
    consumers.register(first.client("same"), consumer("T"))
    consumers.register(second.client("same"), consumer("T"))
    assert len(consumers.groups["G"].members) == 2
    assert _all_of(consumers.groups["G"].client_ids()) == ["same"]
    consumers.connection_closed(first.connection)
    assert _all_of(consumers.groups["G"].client_ids()) == ["same"]
    consumers.close()


async def test_two_clients_on_one_connection_are_two_members() -> None:
    """Nothing depends on one client per connection; its end takes both along."""
    consumers = ConsumerManager()
    peer = Peer("a")
    consumers.register(peer.client("c1"), consumer("T"))
    consumers.register(peer.client("c2"), consumer("T"))
    assert _all_of(consumers.groups["G"].client_ids()) == ["c1", "c2"]
    consumers.unregister("G", peer.connection, "c1")
    assert _all_of(consumers.groups["G"].client_ids()) == ["c2"]
    assert consumers.is_member(peer.connection)
    consumers.connection_closed(peer.connection)
    assert consumers.groups == {}
    assert not consumers.is_member(peer.connection)
    consumers.close()


async def test_members_hear_of_a_new_one() -> None:
    """Everybody in the group, the new one too, is told to rebalance at once."""
    consumers = ConsumerManager()
    first, second = Peer("a"), Peer("b")
    consumers.register(first.client("c1"), consumer("T"))
    assert await first.next_groups() == ["G"]
    consumers.register(second.client("c2"), consumer("T"))
    waits = await asyncio.gather(first.next_groups(), second.next_groups())
    assert list(waits) == [["G"], ["G"]]
    assert first.pushed[0].is_oneway


@pytest.mark.parametrize("how", ["unregister", "close", "expire"])
async def test_members_hear_of_one_that_left(how: str) -> None:
    """However a member goes, the others take over its queues at once."""
    clock = VirtualTime()
    consumers = ConsumerManager(clock=clock.monotonic)
    stays, goes = Peer("a"), Peer("b")
    consumers.register(goes.client("c2"), consumer("T"))
    clock.advance(100)
    consumers.register(stays.client("c1"), consumer("T"))
    await stays.next_groups()
    if how == "unregister":
        consumers.unregister("G", goes.connection, "c2")
    elif how == "close":
        consumers.connection_closed(goes.connection)
    else:
        clock.advance(21)
        assert _expired(consumers) == {goes.connection}
    assert await stays.next_groups() == ["G"]
    assert _all_of(consumers.groups["G"].client_ids()) == ["c1"]


async def test_a_search_for_silent_members_is_made_group_by_group() -> None:
    """What changes between two steps is no error, and who comes meanwhile stays."""
    clock = VirtualTime()
    producers = ProducerManager(clock=clock.monotonic)
    old, new = Peer("a"), Peer("b")
    groups = [f"P{number}" for number in range(20)]
    for group in groups:
        producers.register(old.client("c"), group)
    clock.advance(121)
    steps = producers.expire(120.0)
    next(steps)
    assert list(producers.groups) == groups[1:]
    producers.connection_closed(old.connection)
    producers.register(new.client("c"), groups[5])
    assert len(list(steps)) == 19
    assert list(producers.groups) == [groups[5]]
    assert producers.is_member(new.connection)


async def test_many_changes_share_one_push() -> None:
    """A hundred members that come at once do not cost ten thousand pushes."""
    consumers = ConsumerManager()
    first = Peer("a")
    consumers.register(first.client("c0"), consumer("T"))
    for number in range(1, 100):
        consumers.register(Peer(str(number)).client(f"c{number}"), consumer("T"))
    assert await first.next_groups() == ["G"]


async def test_pushes_that_are_very_many_let_others_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with a thousand groups that many others share is news for all of them."""
    monkeypatch.setattr(membership, "_NOTIFY_SLICE_S", 0.0)
    consumers = ConsumerManager()
    peers = [Peer(str(number)) for number in range(10)]
    groups = {f"g{number}" for number in range(20)}
    for peer in peers:
        for group in groups:
            consumers.register(peer.client(peer.peer), consumer("T", group=group))
    pushed: list[int] = []
    async with asyncio.timeout(10):
        while not pushed or pushed[-1] < 200:
            pushed.append(sum(len(peer.pushed) for peer in peers))
            await asyncio.sleep(0)
    assert max(after - before for before, after in pairwise(pushed)) <= 2
    for peer in peers:
        assert {push.ext_fields["consumerGroup"] for push in peer.pushed} == groups
    consumers.close()


def test_a_connection_with_very_many_members_ends_quickly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not a line of the log for each of them."""
    caplog.set_level(logging.INFO)
    members = Members()
    peer = Peer("a")
    for number in range(1_000):
        members.consume(peer, group=f"g{number}")
        members.producers.register(peer.client("p"), f"g{number}")
    caplog.clear()
    members.consumers.connection_closed(peer.connection)
    members.producers.connection_closed(peer.connection)
    assert len(caplog.messages) == 22
    assert "consumer left, and 990 more members" in caplog.messages


async def test_broadcast_groups_are_not_told(driven_time: VirtualTime) -> None:
    """Members of a broadcast group share nothing, so nothing has to be rebalanced."""
    consumers = ConsumerManager()
    first, second = Peer("a"), Peer("b")
    data = consumer("T")
    data.message_model = BROADCASTING
    consumers.register(first.client("c1"), data)
    consumers.register(second.client("c2"), data)
    consumers.connection_closed(second.connection)
    await silence()
    assert first.pushed == []


async def test_a_group_can_refuse_to_be_told(driven_time: VirtualTime) -> None:
    """notifyConsumerIdsChangedEnable=false of the group or of the broker is respected."""
    peer = Peer("a")
    by_group = ConsumerManager()
    by_group.register(peer.client(), consumer("T"), notify=False)
    by_broker = ConsumerManager(notify_enable=False)
    by_broker.register(peer.client(), consumer("T"))
    await silence()
    assert peer.pushed == []


async def test_subscriptions_follow_the_newest_version() -> None:
    """An older version of a subscription does not overwrite a newer one."""
    consumers = ConsumerManager()
    peer = Peer("a")

    def heartbeat(expression: str, version: int) -> bool:
        subscription = SubscriptionData("T", expression, sub_version=version)
        return consumers.register(
            peer.client(), ConsumerData("G", subscription_data_set=[subscription])
        )

    heartbeat("a", 5)
    assert not heartbeat("b", 4)
    found = consumers.find_subscription("G", "T")
    assert found is not None
    assert found.sub_string == "a"
    assert not heartbeat("c", 6)
    found = consumers.find_subscription("G", "T")
    assert found is not None
    assert found.sub_string == "c"
    consumers.close()


async def test_a_change_of_topics_is_told() -> None:
    """A topic that comes or goes changes who reads what."""
    consumers = ConsumerManager()
    peer = Peer("a")
    consumers.register(peer.client(), consumer("T"))
    await peer.next_groups()
    assert consumers.register(peer.client(), consumer("T", "U", version=2))
    assert await peer.next_groups() == ["G"]
    assert consumers.register(peer.client(), consumer("U", version=2))
    assert await peer.next_groups() == ["G"]
    assert consumers.groups_on_topic("U") == {"G"}
    assert consumers.groups_on_topic("T") == set()
    assert consumers.find_subscription("G", "T") is None


async def test_a_heartbeat_keeps_a_member() -> None:
    """Only silence expires a member, and it does so after the timeout, not before."""
    clock = VirtualTime()
    consumers = ConsumerManager(clock=clock.monotonic)
    peer = Peer("a")
    consumers.register(peer.client(), consumer("T"))
    for _ in range(5):
        clock.advance(100)
        assert _expired(consumers) == set()
        consumers.register(peer.client(), consumer("T"))
    clock.advance(121)
    assert _expired(consumers) == {peer.connection}
    assert consumers.groups == {}
    consumers.close()


async def test_the_member_asked_for_is_the_one_that_spoke_last() -> None:
    """Where an old connection lingers, requests go to the living one."""
    clock = VirtualTime()
    consumers = ConsumerManager(clock=clock.monotonic)
    old, new = Peer("a"), Peer("b")
    consumers.register(old.client("c1"), consumer("T"))
    clock.advance(1)
    consumers.register(new.client("c1"), consumer("T"))
    found = consumers.groups["G"].find_member("c1")
    assert found is not None
    assert found.connection is new.connection
    assert consumers.groups["G"].find_member("c9") is None
    consumers.close()


async def test_leaving_a_group_one_is_not_in_is_no_error() -> None:
    """mqadmin unregisters from groups that it never joined."""
    consumers, producers = ConsumerManager(), ProducerManager()
    peer = Peer("a")
    consumers.unregister("G", peer.connection, "c1")
    consumers.connection_closed(peer.connection)
    producers.unregister("P", peer.connection, "c1")
    producers.connection_closed(peer.connection)
    assert consumers.groups == {}
    assert producers.groups == {}


async def test_producers_come_and_go() -> None:
    """Producers are members until they unregister, close or fall silent."""
    clock = VirtualTime()
    producers = ProducerManager(clock=clock.monotonic)
    peers = [Peer(name) for name in "abc"]
    for peer in peers:
        producers.register(peer.client(peer.peer), "P")
    producers.unregister("P", peers[0].connection, "a")
    producers.connection_closed(peers[1].connection)
    assert [member.client_id for member in producers.groups["P"]] == ["c"]
    clock.advance(121)
    assert _expired(producers) == {peers[2].connection}
    assert producers.groups == {}
    assert not any(producers.is_member(peer.connection) for peer in peers)


async def test_one_connection_in_many_groups() -> None:
    """A client in several groups leaves all of them with its connection."""
    consumers = ConsumerManager()
    peer, other = Peer("a"), Peer("b")
    for group in ("G", "H", "I"):
        consumers.register(peer.client(), consumer("T", group=group))
    consumers.register(other.client("c2"), consumer("T", group="H"))
    consumers.connection_closed(peer.connection)
    assert list(consumers.groups) == ["H"]
    assert consumers.groups_on_topic("T") == {"H"}
    consumers.connection_closed(other.connection)
    assert consumers.groups_on_topic("T") == set()
    consumers.close()


async def test_retention_is_told_which_groups_have_more_topics() -> None:
    """A new one, one with another topic, one that no longer broadcasts; whatever else changes what
    is read is counted."""
    consumers = ConsumerManager(notify_enable=False)
    told: list[str] = []
    consumers.on_subscribed = told.append
    peer = Peer("a")

    def told_of(data: ConsumerData) -> tuple[list[str], bool]:
        told.clear()
        before = consumers.changes
        consumers.register(peer.client(), data)
        return list(told), consumers.changes > before

    assert told_of(consumer("T")) == (["G"], True)
    assert told_of(consumer("T")) == ([], False)
    assert told_of(consumer("T", "U", version=2)) == (["G"], True)
    assert consumers.clustering_topics("G") == {"T", "U"}
    broadcasting = consumer("T", "U", version=2)
    broadcasting.message_model = BROADCASTING
    assert told_of(broadcasting) == ([], True)
    assert consumers.clustering_topics("G") == set()
    assert consumers.clustering_groups() == []
    assert told_of(consumer("T", "U", version=2)) == (["G"], True)
    assert consumers.clustering_groups() == ["G"]
    before = consumers.changes
    consumers.connection_closed(peer.connection)
    assert consumers.changes > before
    assert consumers.clustering_topics("G") == set()


async def test_many_members_are_gone_through_in_steps() -> None:
    """Who leaves or comes between two steps ends nothing, and is not let go by mistake."""
    clock = VirtualTime()
    limits = MembershipLimits()
    consumers = ConsumerManager(limits, notify_enable=False, clock=clock.monotonic)
    peers = [Peer(f"peer-{number}") for number in range(3)]
    for peer in peers:
        for number in range(2_000):
            consumers.register(peer.client(f"{peer.peer}-{number:04d}"), consumer("T"))
    info = consumers.groups["G"]
    listing = info.client_ids()
    next(listing)
    consumers.connection_closed(peers[1].connection)
    assert _all_of(listing) == sorted(
        f"{peer.peer}-{number:04d}" for peer in (peers[0], peers[2]) for number in range(2_000)
    )
    clock.advance(121)
    ending = consumers.expire(120.0)
    next(ending)
    consumers.register(peers[0].client("peer-0-1999"), consumer("T"))
    consumers.register(peers[2].client("peer-2-0007"), consumer("T"))
    consumers.unregister("G", peers[0].connection, "peer-0-1998")
    assert _all_of(ending) == {peers[0].connection, peers[2].connection}
    assert _all_of(info.client_ids()) == ["peer-0-1999", "peer-2-0007"]
    for peer in peers:
        consumers.connection_closed(peer.connection)
    assert not consumers.groups
    assert limits.size_bytes == 0


async def test_a_producer_is_found_by_its_id() -> None:
    """Whatever its groups; of several connections the one with the last heartbeat counts."""
    clock = VirtualTime()
    producers = ProducerManager(clock=clock.monotonic)
    old, new = Peer("a"), Peer("b")
    assert producers.find_client("c1") is None
    producers.register(old.client("c1"), "P")
    producers.register(old.client("c1"), "Q")
    clock.advance(1)
    producers.register(new.client("c1"), "Q")
    found = producers.find_client("c1")
    assert found is not None
    assert found.connection is new.connection
    producers.connection_closed(new.connection)
    producers.unregister("Q", old.connection, "c1")
    found = producers.find_client("c1")
    assert found is not None
    assert found.connection is old.connection
    producers.unregister("P", old.connection, "c1")
    assert producers.find_client("c1") is None


async def test_members_are_listed_once_by_id() -> None:
    """Of two connections with one id the one with the last heartbeat is asked."""
    clock = VirtualTime()
    consumers = ConsumerManager(clock=clock.monotonic)
    old, new = Peer("a"), Peer("b")
    consumers.register(old.client("c2"), consumer("T"))
    consumers.register(old.client("c1"), consumer("T"))
    clock.advance(1)
    consumers.register(new.client("c2"), consumer("T"))
    members = consumers.groups["G"].listed_members()
    assert [(member.client_id, member.connection) for member in members] == [
        ("c1", old.connection),
        ("c2", new.connection),
    ]
    consumers.close()


KIB = 1024
MIB = 1024 * KIB


class Members:
    """Consumers and producers that share their limits."""

    def __init__(self) -> None:
        """Know nobody."""
        self.clock = VirtualTime()
        self.limits = MembershipLimits()
        self.consumers = ConsumerManager(
            self.limits, notify_enable=False, clock=self.clock.monotonic
        )
        self.producers = ProducerManager(self.limits, clock=self.clock.monotonic)

    def consume(
        self, peer: Peer, *, client: str = "c", group: str = "G", size: int = 0, version: int = 1
    ) -> None:
        """Take a consumer's heartbeat with so many bytes of subscription."""
        subscription = SubscriptionData("T", "x" * size, sub_version=version)
        data = ConsumerData(group, subscription_data_set=[subscription])
        self.consumers.register(peer.client(client), data)

    def size_of(self, peer: Peer) -> int:
        """Return how many bytes are counted for a connection."""
        account = self.limits._accounts.get(peer.connection)
        return 0 if account is None else account.size_bytes


def test_a_connection_has_so_many_members() -> None:
    """Whatever their ids and groups are; those that it has go on, and others have their own."""
    members = Members()
    peer, other = Peer("a"), Peer("b")
    half = membership_limits.MAX_PER_CONNECTION // 2
    for number in range(half):
        members.consume(peer, client=f"c{number}", group=f"g{number}")
        members.producers.register(peer.client("p"), f"g{number}")
    for refused in (
        lambda: members.consume(peer, group="more"),
        lambda: members.producers.register(peer.client("p"), "more"),
    ):
        with pytest.raises(BrokerError, match="has 4000 members of groups, the limit is 4000"):
            refused()
    assert "more" not in members.consumers.groups
    assert "more" not in members.producers.groups
    members.consume(peer, client="c7", group="g7", version=2)
    members.producers.register(peer.client("p"), "g7")
    members.consume(other, group="more")
    members.producers.unregister("g7", peer.connection, "p")
    members.consume(peer, group="more")


def test_a_connection_has_so_many_bytes_of_subscriptions() -> None:
    """They are counted as they are kept: the newest of each group, until its members are gone."""
    members = Members()
    peer = Peer("a")
    for version in range(1, 1_000):
        members.consume(peer, size=250 * KIB, version=version)
    assert 250 * KIB <= members.size_of(peer) < 253 * KIB
    # 8 MiB hold 32 of these.
    for number in range(31):
        members.consume(peer, client=f"c{number}", group=f"g{number}", size=250 * KIB)
    with pytest.raises(BrokerError, match=r"of this connection would take \d+ bytes"):
        members.consume(peer, client="c31", group="g31", size=250 * KIB)
    assert "g31" not in members.consumers.groups
    members.consume(peer, size=0, version=1_000)
    members.consume(peer, group="more", size=250 * KIB)


@pytest.mark.parametrize("how", ["unregister", "close", "expire"])
def test_what_was_counted_is_free_once_members_are_gone(how: str) -> None:
    """However they go, also those with names that Python keeps twice once they were encoded."""
    members = Members()
    peers = [Peer(name) for name in "ab"]
    for peer in peers:
        for number in range(10):
            name = f"g\u00e4{number}"
            members.consume(peer, client=name, group=name, size=number * 1_000, version=number)
            members.producers.register(peer.client(name), name)
    assert members.limits.size_bytes == sum(map(members.size_of, peers)) > 45_000
    members.clock.advance(121)
    for peer in peers:
        if how == "close":
            members.consumers.connection_closed(peer.connection)
            members.producers.connection_closed(peer.connection)
        elif how == "expire":
            _expired(members.consumers)
            _expired(members.producers)
        else:
            for number in range(10):
                name = f"g\u00e4{number}"
                members.consumers.unregister(name, peer.connection, name)
                members.producers.unregister(name, peer.connection, name)
    assert members.limits.size_bytes == 0
    assert not members.limits._accounts
    assert not members.limits._by_address


def test_subscriptions_are_counted_as_long_as_a_group_keeps_them() -> None:
    """A member may go and leave a text that others do not replace: it counts for one of them."""
    members = Members()
    stays, comes = Peer("a"), Peer("b")
    members.consume(stays, version=0)
    before = members.size_of(stays)
    members.consume(comes, size=100 * KIB, version=7)
    assert members.size_of(comes) > 100 * KIB
    assert members.size_of(stays) < before
    members.consumers.connection_closed(comes.connection)
    assert members.size_of(comes) == 0
    assert 100 * KIB < members.size_of(stays) == members.limits.size_bytes
    members.consume(stays, version=8)
    assert members.size_of(stays) == before


def test_a_small_subscription_counts_for_what_it_takes() -> None:
    """Thousands of topics, tags or codes in 250 KB of JSON are megabytes of objects."""
    peer = Peer("a")
    names = [f"n{number}" for number in range(10_000)]
    for subscriptions, least in (
        ([SubscriptionData(name) for name in names[:6_000]], 4_500_000),
        ([SubscriptionData("T", tags_set=set(names))], 1_000_000),
        ([SubscriptionData("T", code_set=set(range(10_000)))], 600_000),
    ):
        members = Members()
        data = ConsumerData("G", subscription_data_set=subscriptions)
        members.consumers.register(peer.client(), data)
        assert least < members.limits.size_bytes < 2 * least


def test_the_clients_of_one_address_have_half_of_what_all_may_have() -> None:
    """Whoever comes from elsewhere finds room, until all of it is taken."""
    members = Members()

    def fill(address: str) -> int:
        for number in range(1_000):
            peer = Peer(address)
            try:
                for group in range(30):
                    name = f"{address}{number}-{group}"
                    members.consume(peer, group=name, size=250 * KIB)
            except BrokerError as error:
                assert "[OVERLOAD]groups and subscriptions of all clients take" in error.remark
                return members.limits.size_bytes
        raise AssertionError("there is no limit")

    assert 127 * MIB < fill("a") < 128 * MIB
    assert 255 * MIB < fill("b") < 256 * MIB
    assert 255 * MIB < fill("c") < 256 * MIB


def test_ordinary_applications_see_no_limit() -> None:
    """A client with a thousand groups of four topics, and five thousand clients of one address with
    twenty-five groups and a producer group each."""
    members = Members()
    topics = [f"a-topic-with-an-ordinary-name-{number}" for number in range(4)]

    def heartbeat(peer: Peer, client: str, count: int) -> None:
        for number in range(count):
            tags = {"TagA", "TagB"}
            subscriptions = [
                SubscriptionData(topic, "TagA || TagB", tags, {1, 2}) for topic in topics
            ]
            group = f"an-application-with-a-name-{number}"
            members.consumers.register(
                peer.client(client), ConsumerData(group, subscription_data_set=subscriptions)
            )

    heartbeat(Peer("a"), "10.0.0.1@1", 1_000)
    for number in range(5_000):
        peer = Peer("b")
        heartbeat(peer, f"10.0.0.1@{number}", 25)
        members.producers.register(peer.client("p"), "a-producer-with-a-name")
    assert len(members.consumers.groups) == 1_000
