"""What happens to packets between three brokers; each function is what one round does."""

import asyncio
from typing import Final

from namespaces import Cut, both_ways
from networked_group import CLIENTS
from rounds import Life


async def leader_cut_off_and_replaced(one: Life) -> None:
    """Nobody reaches the leader; a person has another one lead, and both live on."""
    one.group.network.cut(both_ways([one.leader], [*one.slaves, CLIENTS]))
    await one.replace_leader()
    await asyncio.sleep(one.seconds())


async def leader_cut_off_from_replicas_and_replaced(one: Life) -> None:
    """Clients reach the former leader still, and the new one."""
    one.group.network.cut(both_ways([one.leader], one.slaves))
    await one.replace_leader()
    await asyncio.sleep(one.seconds())


async def leader_cut_off(one: Life) -> None:
    """Nobody does anything: it leads on afterwards."""
    one.group.network.cut(both_ways([one.leader], one.slaves))
    await asyncio.sleep(one.seconds())


async def slave_cut_off(one: Life) -> None:
    """It leaves the set, and comes back."""
    one.group.network.cut(both_ways(one.slaves[:1], [one.leader, one.slaves[1], CLIENTS]))
    await asyncio.sleep(one.seconds())


async def leader_not_heard(one: Life) -> None:
    """What the leader sends to replicas is lost, what they send arrives."""
    one.group.network.cut(Cut(one.leader, slave) for slave in one.slaves)
    if one.random.random() < 0.5:
        await one.replace_leader()
    await asyncio.sleep(one.seconds())


async def slaves_not_heard(one: Life) -> None:
    """What replicas send to the leader is lost, what it sends arrives."""
    one.group.network.cut(Cut(slave, one.leader) for slave in one.slaves)
    if one.random.random() < 0.5:
        await one.replace_leader()
    await asyncio.sleep(one.seconds())


async def one_slave_not_heard(one: Life) -> None:
    """One direction of one link is dead."""
    pair = [one.leader, one.slaves[0]]
    one.random.shuffle(pair)
    one.group.network.cut([Cut(*pair)])
    await asyncio.sleep(one.seconds())


async def a_bridge(one: Life) -> None:
    """Two replicas do not see each other, the third one sees both."""
    ends = [0, 1, 2]
    one.random.shuffle(ends)
    one.group.network.cut(both_ways(ends[:1], ends[1:2]))
    if one.random.random() < 0.5:
        await one.person.promote(ends[2])
    await asyncio.sleep(one.seconds())


async def flapping(one: Life) -> None:
    """One replica comes and goes."""
    victim = one.random.randrange(3)
    others = [other for other in range(3) if other != victim]
    for _ in range(one.random.randrange(2, 6)):
        cuts = both_ways([victim], others)
        one.group.network.cut(one.random.choice([cuts, cuts[:2], cuts[2:]]))
        await asyncio.sleep(one.seconds() / 3)
        one.group.network.cut([])
        await asyncio.sleep(one.seconds() / 3)


async def random_loss(one: Life) -> None:
    """Some of the packets between all of them are lost."""
    percent = one.random.choice([5, 15, 30])
    one.group.network.cut(Cut(a, b, percent) for a in range(3) for b in range(3) if a != b)
    await asyncio.sleep(one.seconds())


async def clients_cut_off_from_leader(one: Life) -> None:
    """Only clients do not reach it."""
    one.group.network.cut(both_ways([one.leader], [CLIENTS]))
    await asyncio.sleep(one.seconds())


async def everybody_alone(one: Life) -> None:
    """No replica reaches another one."""
    one.group.network.cut([*both_ways([0], [1, 2]), *both_ways([1], [2])])
    if one.random.random() < 0.5:
        await one.person.promote(one.random.randrange(3))
    await asyncio.sleep(one.seconds())


FAULTS: Final = (
    leader_cut_off_and_replaced,
    flapping,
    leader_not_heard,
    a_bridge,
    random_loss,
    leader_cut_off_from_replicas_and_replaced,
    slaves_not_heard,
    slave_cut_off,
    everybody_alone,
    one_slave_not_heard,
    clients_cut_off_from_leader,
    leader_cut_off,
)
