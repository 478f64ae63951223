"""The life of a group: round after round something happens to it under load, then it heals.

After each round, once all replicas are in sync again, everything is read and held against what
clients were told. A failure tells the seed and what happened; the same seed does the same again,
as far as the machine lets it.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

from daily import some_of
from load import LOOSE_TOPIC, TOPIC, Load
from networked_group import REPLICAS, NetworkedGroup
from person import Person
from promises import promised
from replica_processes import read_folder

from mailboat.testing.history import Crash, History, HistoryViolation, Outcome
from mailboat.testing.replica_history import check_logs

_LIVES: Final = int(os.environ.get("MAILBOAT_TEST_FAULT_LIVES", "0"))
ROUNDS: Final = int(os.environ.get("MAILBOAT_TEST_FAULT_ROUNDS", "6"))
"""How many things happen in a life."""

_SEED: Final = int(os.environ.get("MAILBOAT_TEST_FAULT_SEED", "0"))
# How long a fault lasts at most.
_LONGEST_S: Final = float(os.environ.get("MAILBOAT_TEST_FAULT_SECONDS", "4"))

_HEAL_S: Final = 60.0
_LOG_TAIL: Final = 6_000
_SETTLE_S: Final = 20.0
# What consumers committed so long before a fault, others know, and it is on the disk.
_COMMIT_WINDOW_S: Final = 1.5
# What ASYNC_MASTER acknowledged so long before a fault, its slaves have.
_LAG_S: Final = 1.0
_OPTIONS: Final = {
    # A cleaner that comes by while a volume is full would delete what all groups have read.
    "cleanFileForciblyEnable": "false",
    "flushConsumerOffsetInterval": 500,
    "transactionTimeOut": 500,
    "transactionCheckInterval": 500,
    "transactionCheckMax": 10_000,
}

Fault = Callable[["Life"], Awaitable[None]]


class Life:
    """A group, its clients, a person, and what has happened."""

    def __init__(self, group: NetworkedGroup, seed: int, *, is_lossy: bool) -> None:
        """Act on processes that run; `is_lossy` says that the group is one of ASYNC_MASTER."""
        self.group = group
        self.random = Random(seed)
        self.history = History()
        self.load = Load(group, self.history, Random(seed + 1))
        self.person = Person(
            group, Random(seed + 2), self.tell, self._take_leaders, accepts_loss=is_lossy
        )
        self.is_lossy = is_lossy
        self.leader = 0
        self.told: list[str] = [f"seed {seed}"]
        self.lost = self.loose_lost = self.doubles = 0
        self._began_s = time.monotonic()
        self._sent_at: list[tuple[float, int]] = []

    def _take_leaders(self, leaders: list[int]) -> None:
        self.load.leaders = leaders
        self._sent_at.append((time.monotonic(), len(self.history.sent)))

    def tell(self, text: str) -> None:
        """Note what happens, for whoever reads of a failure."""
        self.told.append(f"{time.monotonic() - self._began_s:7.2f} {text}")
        print(self.told[-1], flush=True)

    # -- what faults are made of ----------------------------------------------------------------

    @property
    def slaves(self) -> list[int]:
        """Who does not lead, in any order."""
        others = [ordinal for ordinal in self.group.ordinals if ordinal != self.leader]
        self.random.shuffle(others)
        return others

    def seconds(self, least: float = 0.1, most: float | None = None) -> float:
        """Return how long something is to last."""
        return self.random.uniform(least, _LONGEST_S if most is None else most)

    async def kill(self, *ordinals: int) -> None:
        """Kill replicas."""
        self.tell(f"killed: {', '.join(map(str, ordinals))}")
        await asyncio.to_thread(self.group.kill, *ordinals)

    async def start(self, ordinal: int) -> None:
        """Start a replica that was killed."""
        self.tell(f"started: {ordinal}")
        await asyncio.to_thread(self.group.start, ordinal)

    async def replace_leader(self) -> None:
        """Have another one lead, whatever the present one believes."""
        assert await self.person.replace(self.leader, _HEAL_S), "no other replica can be promoted"

    async def until_told(self, ordinal: int, words: str, within_s: float) -> bool:
        """Wait until a replica logs something from now on; tell whether it did."""
        path = self.group.root / f"replica-{ordinal}.log"
        begin = path.stat().st_size

        def has_told() -> bool:
            with path.open("rb") as file:
                file.seek(begin)
                return words.encode() in file.read()

        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            if has_told():
                return True
            await asyncio.sleep(0.002)
        return False

    async def until_in_sync(self) -> None:
        """Wait until the leader has all replicas in its set, whatever is being sent."""

        def are_in_sync() -> bool:
            found = self.person.statuses.get(self.leader)
            return found is not None and found["in_sync"] == list(self.group.ordinals)

        # What was looked at before is over.
        await self.person.look()
        await self._until(are_in_sync, "not all replicas are in sync")

    # -- rounds ---------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Wait until the group is whole, then let clients in."""
        self.person.leave_alone()
        self.person.start()
        await self._heal()
        self.person.care_again()
        self.load.start()

    async def round(self, fault: Fault) -> None:
        """Let one thing happen under load, heal, and check everything."""
        name = fault.__name__.replace("_", " ")
        self.load.go_on()
        before = self.load.acknowledged
        await self._until(lambda: self.load.acknowledged > before + 50, "nothing is acknowledged")
        await asyncio.sleep(self.random.uniform(0, 0.6))
        began_s = time.monotonic()
        if self.is_lossy:
            sent = [count for at_s, count in self._sent_at if at_s < began_s - _LAG_S]
            self.history.may_lose_from = sent[-1] if sent else 0
        self.tell(f"{name}; replica {self.leader} leads")
        await fault(self)
        await asyncio.sleep(self.random.uniform(0, 0.6))
        self._mend()
        self.tell("mended")
        await asyncio.wait_for(self.load.pause(), _HEAL_S)
        await self._heal()
        await self._check(began_s)
        self.history.may_lose_from = sys.maxsize

    def _mend(self) -> None:
        self.group.network.cut([])
        for ordinal in list(self.group.halted):
            self.group.go_on(ordinal)
        for ordinal in self.group.ordinals:
            self.group.shims[ordinal].set()
            self.group.free_disk(ordinal)
        self.person.care_again()

    async def _heal(self) -> None:
        await asyncio.to_thread(self.group.start_missing)
        await self._until(self._is_whole, "the group does not heal")
        self.leader = self.person.leaders[0]

    async def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        until_s = time.monotonic() + _HEAL_S
        while not holds():
            self.load.check_running()
            self.person.check_running()
            assert time.monotonic() < until_s, otherwise
            await asyncio.sleep(0.05)

    def _is_whole(self) -> bool:
        statuses: dict[int, dict[str, Any] | None] = self.person.statuses
        leaders = self.person.leaders
        if len(leaders) != 1 or None in statuses.values() or self.person.is_acting:
            return False
        leader = statuses[leaders[0]]
        assert leader is not None
        if leader["in_sync"] != list(self.group.ordinals) or leader["refusal"]:
            return False
        places = {(one["end"], one["confirmed_offset"]) for one in statuses.values() if one}
        return len(places) == 1

    async def _check(self, began_s: float) -> None:
        leader = self.leader
        if not self.is_lossy:
            await self.load.check_transactions(leader, _SETTLE_S)
            self.doubles += await self.load.check_delayed(leader, _SETTLE_S)
        await self.load.check_commits(leader, began_s - _COMMIT_WINDOW_S)
        acknowledged = [m for m in self.history.sent if m.outcome is Outcome.ACKNOWLEDGED]
        views = await self.load.views(leader)
        with promised(f"whoever leads has what was acknowledged, {self.told[0]}"):
            self.history.adopt(views, Crash.NONE)
        self.lost += sum(message.outcome is Outcome.LOST for message in acknowledged)
        self.loose_lost = sum(
            message.outcome is Outcome.LOST for message in self.load.loose_acknowledged
        )
        for ordinal in self.slaves[:1]:
            views = await self.load.views(ordinal)
            with promised(f"who follows has what was acknowledged, {self.told[0]}"):
                self.history.check(views, Crash.NONE)
        self.load.check_running()

    async def end(self) -> None:
        """End the group in order, and look at its files."""
        await self.load.stop()
        await self.person.stop()
        assert await asyncio.to_thread(self.group.end_replicas) == [0] * REPLICAS
        logs_of = {
            ordinal: self.group.on_volume(ordinal, _log_of, self.group.folder(ordinal))
            for ordinal in self.group.ordinals
        }
        with promised(f"all logs are equal, {self.told[0]}"):
            check_logs(logs_of)
        for ordinal in self.group.ordinals:
            folder = self.group.folder(ordinal)
            topics = {TOPIC, LOOSE_TOPIC}
            views = self.group.on_volume(ordinal, read_folder, folder, topics)
            with promised(f"each replica has what was acknowledged, {self.told[0]}"):
                self.history.check(views, Crash.NONE)
        logs = self.group.logs()
        defect = logs.find("Traceback")
        assert defect < 0, logs[max(defect - _LOG_TAIL, 0) : defect + _LOG_TAIL]

    def story(self) -> str:
        """Say what happened, and how everybody is."""
        lines = ["", *self.told, f"at the end: {self.person.statuses}"]
        lines.append(
            f"acknowledged {self.load.acknowledged}, refused {self.load.refused}, unknown "
            f"{self.load.unknown}; promoted {self.person.promotions}, refused to "
            f"{self.person.refusals}; lost {self.lost}, of those without waiting {self.loose_lost} "
            f"of {len(self.load.loose_acknowledged)}; delayed twice {self.doubles}"
        )
        for path in sorted(self.group.root.glob("*.log")):
            lines += [f"-- {path.name}", path.read_text()[-_LOG_TAIL:]]
        return "\n".join(lines)


@asynccontextmanager
async def life(
    root: Path, library: Path, seed: int, *, disk_bytes: int = 0, **options: object
) -> AsyncIterator[Life]:
    """Run a group, and end whatever is left of it."""
    group = NetworkedGroup(root, library, disk_bytes=disk_bytes, **{**_OPTIONS, **options})
    is_lossy = options.get("brokerRole") == "ASYNC_MASTER"
    one = Life(group, seed, is_lossy=is_lossy)
    try:
        await asyncio.to_thread(group.start_all)
        await one.begin()
        yield one
        await one.end()
    except (AssertionError, OSError, TimeoutError, HistoryViolation) as error:
        error.add_note(one.story())
        raise
    finally:
        await one.load.stop()
        await one.person.stop()
        await asyncio.to_thread(group.kill_all)


def seeds() -> Sequence[int]:
    """Return the seeds of the lives that a test runs: the lives asked for, or that of the day."""
    if _SEED or _LIVES:
        first = _SEED or 1
        return range(first, first + (_LIVES or 1))
    # Two lives go through all faults.
    return some_of((1, 2), 1)


def chosen(faults: Iterable[Fault], seed: int, rounds: int = ROUNDS) -> list[Fault]:
    """Return the faults of a life: lives that follow each other go through all of them."""
    every = list(faults)
    first = (seed - 1) * rounds
    picked = [every[number % len(every)] for number in range(first, first + rounds)]
    Random(seed).shuffle(picked)
    return picked


def _log_of(folder: Path) -> tuple[int, bytes]:
    paths = sorted((folder / "commitlog").iterdir())
    # A leader writes of delayed messages and transactions even while it ends.
    return int(paths[0].name), b"".join(path.read_bytes() for path in paths).rstrip(b"\0")
