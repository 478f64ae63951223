"""Tests of what /livez and /readyz say."""

import asyncio

from aiohttp import ClientSession

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
    """A health with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        api: LeaseApi = _NoLease()
        self.elector = LeaderElector(api, "me", monotonic=self.now)
        self.lag = LoopLag(monotonic=self.now)
        self.health = Health(self.elector, self.lag, deaf_s=90, monotonic=self.now)
        self.clock = WatchClock((BROKER,), (), monotonic=self.now)
        self.queue = WorkQueue(monotonic=self.now)

    def now(self) -> float:
        return self.now_s

    def alive(self) -> None:
        """Everything but what a test looks at is well."""
        self.elector.last_answer_s = self.now_s
        self.lag._due_s = self.now_s + 0.5
        self.clock.began(("Broker", None))


def test_standby_is_well_and_ready() -> None:
    """A standby watches nothing, so no silence is held against it."""
    rig = _Rig()
    rig.now_s += 3600
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
    rig.now_s += 90
    rig.elector.last_answer_s = rig.now_s
    rig.lag._due_s = rig.now_s
    assert rig.health.complaints() == []
    rig.now_s += 1
    assert rig.health.complaints() == ["the watch of Broker is deaf for 91 s"]
    rig.alive()
    assert rig.health.complaints() == []


async def test_a_stuck_turn_is_named() -> None:
    """A turn that lasts more than ten minutes is a reason to start anew."""
    rig = _Rig()
    rig.health.leads(rig.clock, rig.queue)
    rig.queue.add(ResourceKey("Broker", "shop", "orders"))
    key = await rig.queue.get()
    rig.now_s += 600
    rig.alive()
    assert rig.health.complaints() == []
    rig.now_s += 1
    rig.alive()
    assert rig.health.complaints() == ["the work on Broker/shop/orders has lasted 601 s"]
    rig.queue.done(key)
    assert rig.health.complaints() == []


def test_a_dead_task_and_a_silent_api_server_are_named() -> None:
    """An ended task, and a minute and a half without an answer about the Lease, are reasons."""
    rig = _Rig()
    rig.health.task_died("lease")
    rig.now_s += 91
    rig.lag._due_s = rig.now_s
    assert rig.health.complaints() == [
        "the task `lease` has ended",
        "the API server has not answered about the Lease for 91 s",
    ]


async def test_loop_lag_is_seen_during_and_after() -> None:
    """A loop that is late says so while it is stuck, remembers it for a while, and forgets it."""
    rig = _Rig()
    task = asyncio.create_task(rig.lag.run())
    await asyncio.sleep(0)
    assert rig.lag.seconds == 0
    rig.now_s += 6.5
    assert rig.lag.seconds == 6
    rig.elector.last_answer_s = rig.now_s
    assert rig.health.complaints() == ["the event loop is 6.0 s late"]
    await asyncio.sleep(0.6)
    assert rig.lag.seconds == 6
    rig.now_s += 16
    rig.lag._due_s = rig.now_s
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
