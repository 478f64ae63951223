"""What happens to volumes, machines and clocks; each function is what one round does."""

import asyncio
import errno
from typing import Final

from rounds import Life

# A broker that refuses its volume has ended by then.
_END_S: Final = 30.0


async def disk_full(one: Life) -> None:
    """There is no room on one volume for a while; nobody starts anything anew."""
    victim = one.random.choice([one.leader, one.slaves[0]])
    one.tell(f"the disk of {victim} is full")
    await asyncio.to_thread(one.group.fill_disk, victim)
    await asyncio.sleep(one.seconds())


async def writes_fail(one: Life) -> None:
    """A disk takes nothing; a person starts the broker anew once it does."""
    await _break_disk(one, write_errno=errno.EIO)


async def flushes_fail(one: Life) -> None:
    """A disk says that it does not have what it took."""
    await _break_disk(one, sync_errno=errno.EIO)


async def _break_disk(one: Life, **faults: int) -> None:
    victim = one.random.choice([one.leader, one.slaves[0]])
    shim = one.group.shims[victim]
    before = shim.failures()
    one.tell(f"the disk of {victim} fails")
    shim.set(**faults)
    await asyncio.sleep(one.seconds())
    one.tell(f"{shim.failures() - before} calls have failed")
    shim.set()
    await one.kill(victim)
    await asyncio.sleep(one.seconds(0, 0.5))
    await one.start(victim)


async def slow_flushes(one: Life) -> None:
    """A disk takes its time."""
    victim = one.random.choice([one.leader, one.slaves[0]])
    one.group.shims[victim].set(sync_delay_s=one.seconds(0.1, 1))
    await asyncio.sleep(one.seconds())


async def slave_wiped(one: Life) -> None:
    """Its volume is lost, and it gets a full copy on another one."""
    victim = one.slaves[0]
    await one.kill(victim)
    await asyncio.to_thread(one.group.wipe, victim)
    await asyncio.sleep(one.seconds(most=1))
    await one.start(victim)
    await asyncio.sleep(one.seconds(most=1))


async def leader_wiped(one: Life) -> None:
    """It comes back empty, and may be replaced meanwhile."""
    victim = one.leader
    await one.kill(victim)
    await asyncio.to_thread(one.group.wipe, victim)
    if one.random.random() < 0.5:
        await one.replace_leader()
    await one.start(victim)
    await asyncio.sleep(one.seconds(most=1))


async def killed_while_copying(one: Life) -> None:
    """An empty replica dies with a part of the log."""
    victim = one.slaves[0]
    await one.kill(victim)
    await asyncio.to_thread(one.group.wipe, victim)
    for _ in range(one.random.randrange(1, 4)):
        await one.start(victim)
        copying = asyncio.create_task(one.until_told(victim, "linked replica=", 5))
        await copying
        await asyncio.sleep(one.seconds(0, 0.7))
        await one.kill(victim)


async def volumes_swapped(one: Life) -> None:
    """Two replicas get each other's volume: they do not start, and it is put right."""
    pair = one.random.sample([0, 1, 2], 2)
    await one.kill(*pair)
    await asyncio.to_thread(one.group.swap_volumes, *pair)
    for ordinal in pair:
        one.tell(f"launched: {ordinal}")
        await asyncio.to_thread(one.group.launch, ordinal)
    async with asyncio.timeout(_END_S):
        while any(one.group.is_running(ordinal) for ordinal in pair):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await one.kill(*pair)
    await asyncio.to_thread(one.group.swap_volumes, *pair)


async def slave_set_back(one: Life) -> None:
    """An older state of its volume is put back, while all others are there."""
    victim = one.slaves[0]
    await _keep_snapshot(one, victim)
    await one.kill(victim)
    await asyncio.to_thread(one.group.put_snapshot_back, victim)
    await one.start(victim)
    await asyncio.sleep(one.seconds(most=1))


async def leader_set_back(one: Life) -> None:
    """An older state of its volume is put back, while all others are there."""
    victim = one.leader
    await _keep_snapshot(one, victim)
    await one.kill(victim)
    await asyncio.to_thread(one.group.put_snapshot_back, victim)
    await one.start(victim)
    await asyncio.sleep(one.seconds(most=2))


async def _keep_snapshot(one: Life, victim: int) -> None:
    one.group.halt(victim)
    await asyncio.to_thread(one.group.keep_snapshot, victim)
    one.group.go_on(victim)
    # Whoever is set back was in sync again after that, and so was everybody else.
    await one.until_in_sync()
    await asyncio.sleep(one.seconds(0.5, 1.5))


async def clocks_jump(one: Life) -> None:
    """Wall clocks go an hour forth or back, each as it likes."""
    for ordinal in one.group.ordinals:
        one.group.shims[ordinal].set(wall_shift_s=one.random.choice([-3600, 0, 3600, 40]))
    await asyncio.sleep(one.seconds())


async def machine_starts_anew(one: Life) -> None:
    """It may have lost what was not flushed, and so must not lead by itself."""
    victim = one.random.choice([one.leader, one.slaves[0]])
    await one.kill(victim)
    await asyncio.to_thread(one.group.reboot, victim)
    await asyncio.sleep(one.seconds(most=1))
    await one.start(victim)


FAULTS: Final = (
    disk_full,
    leader_wiped,
    writes_fail,
    machine_starts_anew,
    killed_while_copying,
    leader_set_back,
    clocks_jump,
    flushes_fail,
    volumes_swapped,
    slave_set_back,
    slow_flushes,
    slave_wiped,
)
