"""Tests of what /livez and /readyz say."""

import asyncio

from aiohttp import ClientSession

from mailboat.testing.virtual_time import VirtualTime
from mailboat_operator.health import Health, LoopLag
from mailboat_operator.http_server import HttpServer
from mailboat_operator.kinds import BROKER, ResourceKey
from mailboat_operator.leader import LeaderElector, LeaseApi
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.watch import WatchClock
from mailboat_operator.work_queue import WorkQueue


class _NoLease:
    async def read(self) -> None:
        return None

    async def create(self, lease: dict[str, object]) -> dict[str, object]:
        return lease

    async def replace(self, lease: dict[str, object]) -> dict[str, object]:
        return lease


class _Rig:
    """A health in virtual time."""

    def __init__(self, time: VirtualTime | None = None) -> None:
        self.time = time or VirtualTime()
        api: LeaseApi = _NoLease()
        self.elector = LeaderElector(api, "me", monotonic=self.time.monotonic)
        self.lag = LoopLag(monotonic=self.time.monotonic)
        self.health = Health(self.elector, self.lag, deaf_s=90, monotonic=self.time.monotonic)
        self.clock = WatchClock((BROKER,), (), monotonic=self.time.monotonic)
        self.queue = WorkQueue(monotonic=self.time.monotonic)

    def alive(self) -> None:
        """Everything but what a test looks at is well."""
        self.elector.last_answer_s = self.time.monotonic()
        self.lag._due_s = self.time.monotonic() + 0.5
        self.clock.began(("Broker", None))


def test_standby_is_well_and_ready() -> None:
    """A standby watches nothing, so no silence is held against it."""
    rig = _Rig()
    rig.time.advance(3600)
    rig.alive()
    assert rig.health.complaints() == []
    assert rig.health.readiness() == (True, "standby")


def test_leader_is_ready_once_it_has_seen_everything() -> None:
    """A new leader is not ready before its first lists and watches."""
    rig = _Rig()
    rig.health.leads(rig.clock, rig.queue)
    assert not rig.health.readiness()[0]
    rig.health.synced()
    assert rig.health.readiness() == (True, "leader")


def test_a_deaf_watch_is_named() -> None:
    """More than 90 s without a sign of life of one watch is a reason to start anew."""
    rig = _Rig()
    rig.health.leads(rig.clock, rig.queue)
    rig.time.advance(90)
    rig.elector.last_answer_s = rig.time.monotonic()
    rig.lag._due_s = rig.time.monotonic()
    assert rig.health.complaints() == []
    rig.time.advance(1)
    assert rig.health.complaints() == ["the watch of Broker is deaf for 91 s"]
    rig.alive()
    assert rig.health.complaints() == []


async def test_a_stuck_turn_is_named() -> None:
    """A turn that lasts more than ten minutes is a reason to start anew."""
    rig = _Rig()
    rig.health.leads(rig.clock, rig.queue)
    rig.queue.add(ResourceKey("Broker", "shop", "orders"))
    key = await rig.queue.get()
    rig.time.advance(600)
    rig.alive()
    assert rig.health.complaints() == []
    rig.time.advance(1)
    rig.alive()
    assert rig.health.complaints() == ["the work on Broker/shop/orders has lasted 601 s"]
    rig.queue.done(key)
    assert rig.health.complaints() == []


def test_a_dead_task_and_a_silent_api_server_are_named() -> None:
    """An ended task, and a minute and a half without an answer about the Lease, are reasons."""
    rig = _Rig()
    rig.health.task_died("lease")
    rig.time.advance(91)
    rig.lag._due_s = rig.time.monotonic()
    assert rig.health.complaints() == [
        "the task `lease` has ended",
        "the API server has not answered about the Lease for 91 s",
    ]


async def test_loop_lag_is_seen_during_and_after(driven_time: VirtualTime) -> None:
    """A loop that is late says so while it is stuck, remembers it for a while, and forgets it."""
    rig = _Rig(driven_time)
    task = asyncio.create_task(rig.lag.run())
    await asyncio.sleep(0)
    assert rig.lag.seconds == 0
    rig.time.advance(6.5)
    assert rig.lag.seconds == 6
    rig.elector.last_answer_s = rig.time.monotonic()
    assert rig.health.complaints() == ["the event loop is 6.0 s late"]
    await asyncio.sleep(0.6)
    assert rig.lag.seconds == 6
    rig.time.advance(16)
    rig.lag._due_s = rig.time.monotonic()
    assert rig.lag.seconds == 0
    task.cancel()


async def test_http_answers() -> None:
    """The probes answer 200 or 503 with the reasons as text; the metrics are there."""
    rig = _Rig()
    metrics = OperatorMetrics()
    refreshed: list[int] = []
    server = HttpServer(rig.health, metrics, lambda: refreshed.append(1))
    await server.start("127.0.0.1", 0)
    try:
        async with ClientSession(f"http://127.0.0.1:{server.port}") as session:

            async def get(path: str) -> tuple[int, str]:
                async with session.get(path) as response:
                    return response.status, await response.text()

            assert await get("/livez") == (200, "ok\n")
            assert await get("/readyz") == (200, "standby\n")
            rig.health.task_died("kopf")
            rig.health.leads(rig.clock, rig.queue)
            assert await get("/livez") == (503, "the task `kopf` has ended\n")
            assert (await get("/readyz"))[0] == 503
            status, text = await get("/metrics")
    finally:
        await server.close()
    assert status == 200
    assert "# TYPE operator_leader gauge" in text
    assert refreshed == [1]
