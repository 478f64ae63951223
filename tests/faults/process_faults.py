"""What happens to processes of three brokers; each function is what one round does."""

import asyncio
from typing import Final

from namespaces import both_ways
from rounds import Life


async def one_halted(one: Life) -> None:
    """It wakes up and goes on, or finds another leader."""
    one.group.halt(one.random.choice([one.leader, one.slaves[0]]))
    await asyncio.sleep(one.seconds())


async def leader_halted_and_replaced(one: Life) -> None:
    """It wakes up with requests that it has not read yet."""
    one.group.halt(one.leader)
    await one.replace_leader()
    await asyncio.sleep(one.seconds(most=0.5))
    one.group.go_on(one.leader)
    await asyncio.sleep(one.seconds(most=1))


async def all_halted(one: Life) -> None:
    """As when the machine that they are all on is."""
    for ordinal in one.group.ordinals:
        one.group.halt(ordinal)
    await asyncio.sleep(one.seconds())


async def leader_killed(one: Life) -> None:
    """A person promotes another one, or it comes back and leads on."""
    await one.kill(one.leader)
    if one.random.random() < 0.7:
        await one.replace_leader()
    await asyncio.sleep(one.seconds(most=0.5))


async def slave_killed(one: Life) -> None:
    """It comes back."""
    await one.kill(one.slaves[0])
    await asyncio.sleep(one.seconds())


async def two_killed(one: Life) -> None:
    """The third one cannot lead alone."""
    await one.kill(*one.slaves[:1], one.random.choice([one.leader, one.slaves[1]]))
    await asyncio.sleep(one.seconds())


async def all_killed(one: Life) -> None:
    """At once, or one after the other."""
    for ordinal in one.random.sample([0, 1, 2], 3):
        await one.kill(ordinal)
        await asyncio.sleep(one.random.choice([0, 0, one.seconds(most=1)]))


async def killed_while_promoted(one: Life) -> None:
    """Who is to lead dies at any point of it, also with the new epoch on its disk."""
    old, (successor, _) = one.leader, one.slaves
    one.person.leave_alone()
    await one.kill(old)
    trying = asyncio.create_task(_promote_until_it_leads(one, successor))
    if one.random.random() < 0.5:
        await asyncio.sleep(one.seconds(2.5, 4.5))
    else:
        await one.until_told(successor, "leading epoch=", 6)
        await asyncio.sleep(one.random.choice([0, one.seconds(0, 0.05)]))
    await one.kill(successor)
    trying.cancel()
    await asyncio.gather(trying, return_exceptions=True)
    await one.start(old)


async def _promote_until_it_leads(one: Life, ordinal: int) -> None:
    while not await one.person.promote(ordinal):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def killed_while_handing_over(one: Life) -> None:
    """One of the two dies at any point of it."""
    old, to = one.leader, one.slaves[0]
    handing = asyncio.create_task(one.person.hand_over(old, to))
    if one.random.random() < 0.5:
        await asyncio.sleep(one.seconds(0, 0.3))
    else:
        await one.until_told(old, "leads no more", 3)
        await asyncio.sleep(one.seconds(0, 0.1))
    await one.kill(one.random.choice([old, to]))
    await handing


async def killed_while_cutting(one: Life) -> None:
    """A former leader dies while it cuts off what only it has."""
    old = one.leader
    one.group.network.cut(both_ways([old], one.slaves))
    await one.replace_leader()
    cutting = asyncio.create_task(one.until_told(old, "cutting the log at", 8))
    one.group.network.cut([])
    if await cutting:
        await asyncio.sleep(one.random.choice([0, one.seconds(0, 0.02)]))
    else:
        one.tell("nothing was cut")
    await one.kill(old)


async def handed_over(one: Life) -> None:
    """As before a planned restart."""
    await one.person.hand_over(one.leader, one.random.choice([None, *one.slaves]))


async def promoted_meanwhile(one: Life) -> None:
    """Somebody promotes replicas while one leads, which is refused, also two at once."""
    one.tell("two are promoted")
    await asyncio.gather(*(one.person.promote(ordinal) for ordinal in one.slaves))


FAULTS: Final = (
    leader_killed,
    leader_halted_and_replaced,
    killed_while_promoted,
    killed_while_cutting,
    killed_while_handing_over,
    all_killed,
    handed_over,
    slave_killed,
    one_halted,
    two_killed,
    promoted_meanwhile,
    all_halted,
)
