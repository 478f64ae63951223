"""Days in seconds: a model of a broker on a volume, driven by plan_volumes and by other policies.

The model broker writes, is read, and deletes by the order that docs/retention.md gives: what has
expired (in the nightly window or above expire), then what every group has read and is older than
readFileReservedTime (above expire), then anything that is read (above forceClean); above
rejectWrites it refuses. RocketMQ's own rule, for comparison, deletes the oldest segment above
forceClean whether it was read or not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from volume_world import GIB, HOUR_S, MIB, START_S, World

from mailboat_operator.planner.snapshot import Observation, UseSample

TICK_S = 15
DAY_S = 24 * HOUR_S
SEGMENT_BYTES = GIB
HOURS = 24
MIN_HOURS = 2
EXPIRE, FORCE_CLEAN, REJECT, HYSTERESIS = 75, 85, 90, 3
GROWTH_TAKES_S = 60
OUTAGE_S = (8 * HOUR_S, 20 * HOUR_S)


@dataclass
class Policy:
    """How a store treats a volume that fills."""

    name: str
    deletes_read: bool = False
    deletes_unread: bool = False
    grows: bool = False
    is_planned: bool = False


STOCK = Policy("stock", deletes_unread=True)
GROW_ONLY = Policy("grow-only", grows=True)
BLOCK_ONLY = Policy("block-only")
OURS = Policy("ours", deletes_read=True, grows=True, is_planned=True)


@dataclass
class Outcome:
    """What a policy cost."""

    unread_lost: int = 0
    refused_s: int = 0
    gib_hours: float = 0.0
    read_deleted_s: int | None = None
    refused_first_s: int | None = None
    refused_last_s: int | None = None
    shortest_hours: int = HOURS
    sizes: list[int] = field(default_factory=list)


class ModelBroker:
    """One broker: a log of segments, one group that reads it, and what it does at each level."""

    def __init__(self, policy: Policy, size_bytes: int) -> None:
        """Begin empty."""
        self.policy = policy
        self.size_bytes = size_bytes
        self.segments: list[tuple[int, float]] = []
        self.start = 0
        self.written = 0
        self.read = 0
        self.read_hours = HOURS
        self.levels = dict.fromkeys((EXPIRE, FORCE_CLEAN, REJECT), False)
        self.outcome = Outcome(sizes=[size_bytes])

    @property
    def used_bytes(self) -> int:
        """What the log takes."""
        return self.written - self.start

    def tick(self, elapsed_s: int, ingest: float, consume: float) -> None:
        """Live for a while."""
        self._look()
        if self.levels[REJECT]:
            self.outcome.refused_s += TICK_S
            self.outcome.refused_last_s = elapsed_s
            if self.outcome.refused_first_s is None:
                self.outcome.refused_first_s = elapsed_s
        else:
            self._write(elapsed_s, int(ingest * TICK_S))
        self.read = min(self.written, max(self.read, self.start) + int(consume * TICK_S))
        while self._delete_oldest(elapsed_s):
            self._look()
        self.outcome.gib_hours += self.size_bytes / GIB * TICK_S / HOUR_S

    def segments_told(self) -> list[dict[str, object]]:
        """Return the segments as GET /api/v1/retention has them."""
        told: list[dict[str, object]] = []
        end = self.start
        for size_bytes, newest_s in self.segments:
            end += size_bytes
            told.append(
                {
                    "size_bytes": size_bytes,
                    "last_timestamp_ms": int((START_S + newest_s) * 1000),
                    "is_read": end <= self.read,
                }
            )
        return told

    def _write(self, elapsed_s: int, size_bytes: int) -> None:
        self.written += size_bytes
        while size_bytes:
            if not self.segments or self.segments[-1][0] >= SEGMENT_BYTES:
                self.segments.append((0, elapsed_s))
            part = min(size_bytes, SEGMENT_BYTES - self.segments[-1][0])
            self.segments[-1] = (self.segments[-1][0] + part, elapsed_s)
            size_bytes -= part

    def _look(self) -> None:
        percent = -(-100 * self.used_bytes // self.size_bytes)
        for level, was in self.levels.items():
            self.levels[level] = percent > (level - HYSTERESIS if was else level)

    def _delete_oldest(self, elapsed_s: int) -> bool:
        if len(self.segments) < 2:
            return False
        size_bytes, newest_s = self.segments[0]
        age_h = (elapsed_s - newest_s) / HOUR_S
        is_read = self.start + size_bytes <= self.read
        in_window = 4 <= elapsed_s % DAY_S / HOUR_S < 5
        is_expired = age_h >= HOURS and (in_window or self.levels[EXPIRE])
        policy = self.policy
        by_age = is_read and policy.deletes_read and age_h >= self.read_hours
        forced = policy.deletes_unread or (policy.deletes_read and is_read)
        early = (self.levels[EXPIRE] and by_age) or (self.levels[FORCE_CLEAN] and forced)
        if not is_expired and not early:
            return False
        if not is_expired and is_read and self.outcome.read_deleted_s is None:
            self.outcome.read_deleted_s = elapsed_s
        lost = self.start + size_bytes - self.read
        self.outcome.unread_lost += max(0, lost)
        self.start += size_bytes
        self.read = max(self.read, self.start)
        del self.segments[0]
        return True


def ingest_at(elapsed_s: int) -> float:
    """Half a MiB per second, and six hours of 3 MiB per second in the morning of the first day."""
    return 3.0 * MIB if 10 * HOUR_S <= elapsed_s < 16 * HOUR_S else 0.5 * MIB


def consume_at(elapsed_s: int) -> float:
    """Twenty MiB per second at most, nothing during the outage."""
    return 0.0 if OUTAGE_S[0] <= elapsed_s < OUTAGE_S[1] else 20.0 * MIB


def simulate(
    policy: Policy, *, days: float, max_gib: int, ingest: Callable[[int], float] = ingest_at
) -> Outcome:
    """Let a policy live through the trace on a volume that begins with 60 GiB."""
    broker = ModelBroker(policy, 60 * GIB)
    grow = _planned(broker, max_gib) if policy.is_planned else _by_threshold(broker, max_gib)
    for elapsed_s in range(0, int(days * DAY_S), TICK_S):
        broker.tick(elapsed_s, ingest(elapsed_s), consume_at(elapsed_s))
        if policy.grows:
            grow(elapsed_s)
    broker.outcome.sizes.append(broker.size_bytes)
    return broker.outcome


def _by_threshold(broker: ModelBroker, max_gib: int) -> Callable[[int], None]:
    """Grow a fifth from 80 % on, every six hours at most: blind to what may be deleted."""
    last_s = -DAY_S

    def grow(elapsed_s: int) -> None:
        nonlocal last_s
        is_full = broker.used_bytes >= 0.8 * broker.size_bytes
        if is_full and elapsed_s - last_s >= 6 * HOUR_S and broker.size_bytes < max_gib * GIB:
            broker.size_bytes = min(max_gib * GIB, broker.size_bytes * 6 // 5)
            last_s = elapsed_s

    return grow


def _planned(broker: ModelBroker, max_gib: int) -> Callable[[int], None]:
    """Let plan_volumes decide, every 15 s while something is going on."""
    world = World(
        size="60Gi",
        autoGrow={"enabled": True, "maxSize": f"{max_gib}Gi"},
    )
    world.spec["retention"] = {"hours": HOURS, "minHours": MIN_HOURS}
    world.set_request("60Gi")
    world.finish_growth()
    samples: list[UseSample] = []
    next_s, asked_s = 0.0, None

    def plan(elapsed_s: int) -> None:
        nonlocal next_s, asked_s
        world.clock.advance(elapsed_s - (world.now_s - START_S))
        if elapsed_s % 60 == 0:
            samples.append(UseSample(world.monotonic_s, broker.used_bytes, broker.written))
            del samples[:-61]
        if asked_s is not None and elapsed_s - asked_s >= GROWTH_TAKES_S:
            world.finish_growth()
            broker.size_bytes = world.request()
            asked_s = None
        if elapsed_s < next_s:
            return
        world.observations["orders-g0-0"] = _observe(world, broker, tuple(samples))
        count = len(world.resizes)
        found = world.turn()
        next_s = elapsed_s + found.again_after_s
        if len(world.resizes) > count:
            asked_s = elapsed_s
            assert world.request() <= max_gib * GIB
        for action in world.configured:
            hours = int(action.values["readFileReservedTime"])
            broker.read_hours = HOURS if hours < 0 else hours
            assert MIN_HOURS <= broker.read_hours <= HOURS
            broker.outcome.shortest_hours = min(broker.outcome.shortest_hours, broker.read_hours)
        world.configured.clear()

    return plan


def _observe(world: World, broker: ModelBroker, samples: tuple[UseSample, ...]) -> Observation:
    used = broker.used_bytes
    return Observation(
        pod_uid="uid",
        seen_monotonic_s=world.monotonic_s,
        error=None,
        broker=None,
        config=world.observations["orders-g0-0"].config,
        retention={
            "volume": {
                "capacity_bytes": broker.size_bytes,
                "used_bytes": used,
                "available_bytes": broker.size_bytes - used,
            },
            "active": {
                "expire": broker.levels[EXPIRE],
                "force_clean": broker.levels[FORCE_CLEAN],
                "reject_writes": broker.levels[REJECT],
            },
            "refusal": "full" if broker.levels[REJECT] else None,
            "segments": broker.segments_told(),
        },
        kubelet=None,
        samples=samples,
    )


def table(title: str, outcomes: dict[str, Outcome]) -> str:
    """Spell the outcomes as a table."""
    lines = [title, f"{'policy':<12}{'unread lost GiB':>16}{'refused s':>11}{'GiB-hours':>11}"
             f"{'size GiB':>10}{'shortest h':>12}"]  # fmt: skip
    for name, outcome in outcomes.items():
        lines.append(
            f"{name:<12}{outcome.unread_lost / GIB:>16.1f}{outcome.refused_s:>11}"
            f"{outcome.gib_hours:>11.0f}{outcome.sizes[-1] / GIB:>10.0f}"
            f"{outcome.shortest_hours:>12}"
        )
    return "\n".join(lines)


def run_all(title: str, *, days: float, max_gib: int) -> dict[str, Outcome]:
    """Run and print the four policies."""
    policies = (STOCK, GROW_ONLY, BLOCK_ONLY, OURS)
    outcomes = {p.name: simulate(p, days=days, max_gib=max_gib) for p in policies}
    print(f"\n{table(title, outcomes)}")
    return outcomes


def ranking(outcomes: dict[str, Outcome]) -> list[str]:
    """Order the policies by what is worst: lost messages, then refused writes."""
    return sorted(outcomes, key=lambda name: (outcomes[name].unread_lost, outcomes[name].refused_s))


def test_room_can_be_bought() -> None:
    """Below maxSize nothing unread is deleted and no write is refused; the others do either."""
    found = run_all("volume 60 GiB, maxSize 200 GiB", days=1.0, max_gib=200)
    ours = found["ours"]
    assert (ours.unread_lost, ours.refused_s) == (0, 0)
    assert 60 * GIB < ours.sizes[-1] < 200 * GIB
    assert ranking(found) == ["ours", "grow-only", "block-only", "stock"]
    assert found["stock"].unread_lost > 0
    assert found["grow-only"].refused_s > 0


def test_room_cannot_be_bought() -> None:
    """At maxSize read messages go first, then writes are refused, then they are taken again."""
    found = run_all("volume 60 GiB, maxSize 72 GiB", days=1.0, max_gib=72)
    ours = found["ours"]
    assert ours.unread_lost == 0
    assert ours.sizes[-1] == 72 * GIB
    assert MIN_HOURS <= ours.shortest_hours < HOURS
    assert ours.read_deleted_s is not None
    assert ours.refused_first_s is not None
    assert ours.refused_last_s is not None
    assert ours.read_deleted_s < ours.refused_first_s
    # The consumers come back, and with what they have read there is room again.
    assert OUTAGE_S[1] <= ours.refused_last_s < OUTAGE_S[1] + HOUR_S
    assert ranking(found) == ["ours", "grow-only", "block-only", "stock"]
    assert ours.refused_s < found["grow-only"].refused_s / 2
