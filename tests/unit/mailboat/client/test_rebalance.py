import asyncio

import pytest

from mailboat.client import rebalance
from mailboat.client.allocation import allocate_averagely
from mailboat.client.instance import ClientInstance, ConsumerMembership
from mailboat.client.rebalance import Rebalancer
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.bodies import consumer_id_list_slices
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import ConsumerData, decode_heartbeat
from mailboat.protocol.route import QueueData, TopicRouteData

MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP


class Broker:
    """A broker's idea of a group."""

    def __init__(self, peer) -> None:
        """Answer heartbeats and questions for members."""
        self.peer = peer
        self.members: list[str] = []
        self.learns_from_heartbeats = True
        self.refusals: dict[int, tuple[int, str]] = {}
        peer.answer(RequestCode.HEART_BEAT, self._heartbeat)
        peer.answer(MEMBERS, self._list)
        peer.answer(RequestCode.UNREGISTER_CLIENT, lambda command: command.response(0))

    def _heartbeat(self, command: RemotingCommand) -> RemotingCommand:
        if command.code in self.refusals:
            return command.response(*self.refusals[command.code])
        client_id = decode_heartbeat(command.body).client_id
        if self.learns_from_heartbeats and client_id not in self.members:
            self.members.append(client_id)
        return command.response(0)

    def _list(self, command: RemotingCommand) -> RemotingCommand:
        if command.code in self.refusals:
            return command.response(*self.refusals[command.code])
        if not self.members:
            return command.response(1, "no consumer for this group")
        return command.response(0, body=b"".join(consumer_id_list_slices(self.members)))


@pytest.fixture
async def broker(make_peer, name_server):
    """Return a broker that holds topic T with 6 queues."""
    peer = await make_peer()
    name_server.set_route("T", {"a": peer.address}, queues=6)
    return Broker(peer)


class Member:
    """A member of group G and the queues it was given."""

    def __init__(self, name_server, strategy=allocate_averagely) -> None:
        """Prepare a member."""
        self.instance = ClientInstance(name_server.address)
        self.given: asyncio.Queue[tuple[str, list[int]]] = asyncio.Queue()
        self.rebalancer = Rebalancer(self.instance, "G", strategy=strategy, assign=self._assign)
        self.rebalancer.add_topic("T")

    async def _assign(self, topic: str, queues) -> None:
        self.given.put_nowait((topic, sorted(queue.queue_id for queue in queues)))

    async def start(self) -> None:
        """Join the group."""
        await self.instance.start()
        self.instance.join_as_consumer(
            "G", ConsumerMembership(lambda: ConsumerData("G"), self.rebalancer.wake)
        )

    async def until_given(self, queue_ids: list[int]) -> None:
        """Return once a rebalance gave exactly these queues."""
        while await self.next_given() != queue_ids:
            pass

    async def next_given(self) -> list[int]:
        """Return the queues of the next rebalance."""
        async with asyncio.timeout(5):
            return (await self.given.get())[1]


@pytest.fixture
async def member(name_server, broker):
    """Return a member that has joined."""
    member = Member(name_server)
    await member.start()
    yield member
    await member.instance.close()


async def test_only_member_gets_everything(member):
    """A broker that does not know the member yet is told, and then asked again."""
    await member.rebalancer.rebalance()
    assert await member.next_given() == [0, 1, 2, 3, 4, 5]


async def test_members_share(member, broker):
    """With another member in the group each gets half, in the order of the client ids."""
    broker.members.append("zzz@1")
    await member.rebalancer.rebalance()
    assert await member.next_given() == [0, 1, 2]


async def test_forgetful_broker_does_not_take_queues_away(member, broker):
    """A member that the broker does not list keeps what it has instead of dropping everything."""
    await member.rebalancer.rebalance()
    await member.next_given()
    broker.learns_from_heartbeats = False
    broker.members[:] = ["other@1"]
    await member.rebalancer.rebalance()
    assert member.given.empty()


DENIALS = [
    (16, "User:bob has no permission to access Group:G from 10.0.0.1, no matched policies."),
    (1, "org.apache.rocketmq.acl.common.AclException: No default permission for group:G, x.y(z)"),
]


@pytest.mark.parametrize("denial", DENIALS, ids=["ACL 2.0", "ACL 1.0"])
@pytest.mark.parametrize("refused", [MEMBERS, RequestCode.HEART_BEAT])
async def test_a_member_that_is_refused_is_not_a_group_without_members(
    member, broker, caplog, monkeypatch, denial, refused
):
    """It keeps its queues, says why, and does not ask again at once whether it is known now."""
    monkeypatch.setattr(rebalance, "UNROUTED_INTERVAL_S", 0.0)
    await member.rebalancer.rebalance()
    await member.next_given()
    broker.members[:] = ["other@1"]
    broker.refusals[refused] = denial
    before = len(broker.peer.asked(refused))
    member.rebalancer._wake.clear()  # The first look at the route was a change.
    for _ in range(3):
        await member.rebalancer.rebalance()
    assert member.given.empty()
    assert len(broker.peer.asked(refused)) - before == 3
    await asyncio.sleep(0)  # What is due at once had its turn.
    assert not member.rebalancer._wake.is_set()
    assert "rebalance topic=T group=G" in caplog.text
    # Each subject once: the heartbeat, and what comes of it.
    assert caplog.text.count(denial[1]) == (1 if refused == MEMBERS else 2)


async def test_broker_that_is_away_changes_nothing(member, broker):
    """Without an answer the queues stay as they are."""
    await member.rebalancer.rebalance()
    await member.next_given()
    await broker.peer.close()
    await member.rebalancer.rebalance()
    assert member.given.empty()


async def test_pushed_change_rebalances_at_once(member, broker):
    """Code 40 makes the member look again without waiting for the 20 s timer."""
    member.rebalancer.start()
    assert await member.next_given() == [0, 1, 2, 3, 4, 5]
    broker.members.append("zzz@1")
    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    broker.peer.push(RemotingCommand.request(code, {"consumerGroup": "other"}, oneway=True))
    broker.peer.push(RemotingCommand.request(code, {"consumerGroup": "G"}, oneway=True))
    await member.until_given([0, 1, 2])


async def test_new_queues_are_found_with_the_route(member, name_server, broker):
    """When a topic grows, the member gets its share of the new queues."""
    member.rebalancer.start()
    await member.next_given()
    name_server.set_route("T", {"a": broker.peer.address}, queues=8)
    await member.instance.routes.refresh_all()
    await member.until_given([0, 1, 2, 3, 4, 5, 6, 7])
    assert member.instance.first_looks.since_ms(MessageQueue("T", "a", 5)) is None
    assert member.instance.first_looks.since_ms(MessageQueue("T", "a", 6)) is not None


async def test_topic_that_appears_later_is_found(name_server, make_peer, monkeypatch):
    """A topic without a route does not stop anything and is taken up when it is there."""
    monkeypatch.setattr(rebalance, "UNROUTED_INTERVAL_S", 0.01)
    member = Member(name_server)
    await member.start()
    member.rebalancer.start()
    await name_server.wait_asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, 2)
    peer = await make_peer()
    Broker(peer)
    name_server.set_route("T", {"a": peer.address})
    await member.until_given([0, 1])
    assert member.instance.first_looks.since_ms(MessageQueue("T", "a", 0)) is not None
    await member.instance.close()


async def test_broadcasting_takes_all_queues_and_asks_nobody(name_server, broker):
    """Without a strategy every member reads every queue."""
    broker.members.append("zzz@1")
    member = Member(name_server, strategy=None)
    await member.start()
    await member.rebalancer.rebalance()
    assert await member.next_given() == [0, 1, 2, 3, 4, 5]
    assert broker.peer.asked(MEMBERS) == []
    await member.instance.close()


async def test_strategy_that_raises_is_asked_again(name_server, broker: Broker, caplog):
    """A strategy's error costs one round; one that gives foreign queues is not believed."""
    rounds = 0

    def strategy(client_id, queues, members):
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise IndexError("no member")
        if rounds == 2:
            raise asyncio.CancelledError
        if rounds == 3:
            return [MessageQueue("U", "a", 0)]
        return allocate_averagely(client_id, queues, members)

    member = Member(name_server, strategy)
    await member.start()
    member.rebalancer.start()
    try:
        for number in range(1, 4):
            async with asyncio.timeout(5):
                await broker.peer.wait_asked(MEMBERS, number)
            await asyncio.sleep(0.05)
            member.rebalancer.wake()
        await member.until_given(list(range(6)))
    finally:
        await member.instance.close()
    assert caplog.text.count("allocation strategy failed topic=T") == 2
    assert "allocation strategy gives what is no queue of topic=T" in caplog.text


async def test_topic_without_addresses_holds_up_no_other_one(name_server, broker: Broker, caplog):
    """A route may name queues and no broker's address."""
    name_server.routes["A"] = TopicRouteData([QueueData("gone", 2, 2, 6)], [])
    member = Member(name_server)
    member.rebalancer.add_topic("A")
    await member.start()
    member.rebalancer.start()
    try:
        await member.until_given(list(range(6)))
    finally:
        await member.instance.close()
    assert "Traceback" not in caplog.text


async def test_topic_that_cannot_be_taken_holds_up_no_other_one(name_server, broker: Broker):
    """An answer that is no route, of the topic that comes first."""
    name_server.damaged.add("A")
    member = Member(name_server)
    member.rebalancer.add_topic("A")
    await member.start()
    member.rebalancer.start()
    try:
        await member.until_given(list(range(6)))
    finally:
        await member.instance.close()
