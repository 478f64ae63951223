"""Tests of the collector, with a small broker and a small API server."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from fake_kubelet import Kubelet

from mailboat.testing.virtual_time import START_S, VirtualTime
from mailboat_operator.broker_api import BrokerApi
from mailboat_operator.cache import ObjectCache
from mailboat_operator.collector import Collector, kubelet_numbers
from mailboat_operator.kinds import ResourceKey
from mailboat_operator.kubelet_api import KubeletApi
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.snapshot import Observation, VolumeNumbers

Manifest = dict[str, Any]
_GI = 1 << 30


class Rig:
    """A broker whose numbers the test sets, and a collector that asks it."""

    def __init__(
        self, kubelets: KubeletApi, metrics: OperatorMetrics, every_s: float = 0.02
    ) -> None:
        """Nothing is asked yet."""
        self.used: int | None = _GI
        self.written, self.percent = 5 * _GI, 10
        self.phase, self.uptime = "running", 0
        self.is_down = False
        self.name, self.address = "orders-g0", "10.96.0.1:10911"
        self.start: dict[str, Any] | None = None
        self.name_servers: Any = []
        self.replica: Any = None
        self.ports: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.clock = VirtualTime()
        self.marked: list[str] = []
        self.asked = asyncio.Event()
        self.moved = asyncio.Event()
        self.cache = ObjectCache()
        self.brokers = BrokerApi(metrics, timeout_s=1.0)
        self.collector = Collector(
            kubelets,
            self.brokers,
            self.cache,
            self._mark,
            every_s=every_s,
            monotonic=self.clock.monotonic,
        )
        self.port = 0
        self.steps = asyncio.Semaphore(0)
        self.waits: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    def _mark(self, key: ResourceKey) -> None:
        self.marked.append(str(key))
        self.moved.set()

    async def answer(self, request: web.Request) -> web.Response:
        """The three documents."""
        if self.is_down:
            return web.Response(status=503)
        self.uptime += 1
        part = request.path.rpartition("/")[2]
        self.paths.append(part)
        if part == "retention":
            self.asked.set()
        if part == "replica" and self.replica is None:
            return web.Response(status=404)
        return web.json_response(
            {
                "broker": {
                    "broker_name": self.name,
                    "address": self.address,
                    "version": "1",
                    "phase": self.phase,
                    "uptime_seconds": self.uptime,
                    "name_servers": self.name_servers,
                },
                "config": {"values": {"fileReservedTime": "72"}},
                "retention": {
                    "volume": {
                        "capacity_bytes": 10 * _GI,
                        "used_bytes": self.used,
                        "available_bytes": 10 * _GI - self.used if self.used else None,
                        "used_percent": self.percent,
                    },
                    "pressure_percent": self.percent,
                    "max_physical_offset": self.written,
                },
                "replica": self.replica,
            }[part]
        )

    async def startup(self, _: web.Request) -> web.Response:
        """Say how far the start is."""
        self.asked.set()
        return web.json_response(self.start or {}, status=503 if self.start else 404)

    async def pressure(self, request: web.Request) -> web.Response:
        """Say that the disk has moved, once the test says so."""
        self.waits.put_nowait(dict(request.query))
        await self.steps.acquire()
        return web.json_response({"has_moved": True, "pressure_percent": self.percent})

    def pod(self, uid: str = "u1", version: str = "1") -> Manifest:
        """The broker's pod."""
        ports = [{"name": "http", "containerPort": self.port}, *self.ports]
        return {
            "kind": "Pod",
            "metadata": {
                "namespace": "shop",
                "name": "orders-g0-0",
                "uid": uid,
                "resourceVersion": version,
                "labels": {"mailboat.dev/broker": "orders"},
            },
            "spec": {"nodeName": "node-1", "containers": [{"ports": ports}]},
            "status": {"podIP": "127.0.0.1", "hostIP": "127.0.0.1"},
        }

    def show(self, uid: str = "u1", version: str = "1") -> None:
        """Let the collector see the pod."""
        pod = self.pod(uid, version)
        self.cache.update(pod)
        self.collector.pod_changed(pod)

    async def rounds(self, number: int) -> Observation:
        """Wait for some whole rounds; returns what is known then."""
        for _ in range(number):
            self.asked.clear()
            async with asyncio.timeout(5):
                await self.asked.wait()
        await asyncio.sleep(0.01)
        return self.known()

    def known(self) -> Observation:
        """What the pod last said."""
        return self.collector.observations("shop", {"orders-g0-0": {}, "other": {}})["orders-g0-0"]


@pytest.fixture
async def rig(
    kubelet: Kubelet, metrics: OperatorMetrics, request: pytest.FixtureRequest
) -> AsyncIterator[Rig]:
    """A broker and its collector."""
    made = Rig(kubelet.api(), metrics, *getattr(request, "param", ()))
    app = web.Application()
    app.router.add_get("/api/v1/retention/pressure", made.pressure)
    app.router.add_get("/startupz", made.startup)
    app.router.add_get("/api/v1/{part}", made.answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    await made.collector.close()
    await made.brokers.close()
    await runner.cleanup()


async def test_numbers_with_history(rig: Rig) -> None:
    """Each answer is kept with its time and becomes a point of the history."""
    rig.show()
    first = await rig.rounds(1)
    assert first.error is None
    assert first.broker is not None
    assert first.broker["phase"] == "running"
    assert first.config == {"fileReservedTime": "72"}
    rig.clock.advance(15)
    rig.used, rig.written = 2 * _GI, 6 * _GI
    last = (await rig.rounds(2)).samples[-1]
    assert (last.monotonic_s, last.used_bytes, last.written_bytes) == (
        START_S + 15,
        2 * _GI,
        6 * _GI,
    )


@pytest.mark.parametrize(("field", "value"), [("used", None), ("name_servers", [1])])
async def test_a_broker_that_answers_nonsense_is_asked_again(
    rig: Rig, field: str, value: Any
) -> None:
    """Its numbers are those of before until it answers as agreed; nobody starts the operator."""
    rig.show()
    await rig.rounds(1)
    good = getattr(rig, field)
    rig.moved.clear()
    setattr(rig, field, value)
    async with asyncio.timeout(5):
        await rig.moved.wait()
    bad = rig.known()
    assert "not as agreed" in str(bad.error)
    assert bad.retention is not None
    setattr(rig, field, good)
    assert (await rig.rounds(2)).error is None


@pytest.mark.parametrize("rig", [(600.0,)], indirect=True)
async def test_a_disk_that_fills_fast_is_asked_at_once(rig: Rig) -> None:
    """Minutes before its turn a broker is asked again when its disk has moved by 5 percent."""
    rig.phase = "serving"
    rig.show()
    async with asyncio.timeout(10):
        wanted = await rig.waits.get()
        assert (wanted["from_percent"], wanted["by_percent"]) == ("10", "5")
        # More than a broker lets anybody wait: it is asked again instead.
        assert wanted["timeout_seconds"] == "60"
        rig.used, rig.percent = 2 * _GI, 20
        rig.steps.release()
        wanted = await rig.waits.get()
    assert wanted["from_percent"] == "20"
    assert [sample.used_bytes for sample in rig.known().samples] == [_GI, 2 * _GI]


async def test_the_first_round_is_waited_for(rig: Rig) -> None:
    """A new leader has each broker's numbers before it plans; one without brokers waits not."""
    await rig.collector.first_round(5)
    rig.show()
    await rig.collector.first_round(5)
    assert rig.known().retention is not None


async def test_only_what_moved_marks_the_broker(rig: Rig) -> None:
    """An uptime that grows and a few bytes mark nothing; a per cent, a phase or a loss do."""
    rig.show()
    await rig.rounds(2)
    assert rig.marked == ["Broker/shop/orders"]
    rig.used += 1000
    await rig.rounds(3)
    assert len(rig.marked) == 1
    rig.used += _GI // 5
    await rig.rounds(2)
    assert len(rig.marked) == 2
    rig.phase = "closing"
    await rig.rounds(2)
    assert len(rig.marked) == 3


async def test_small_steps_add_up(rig: Rig) -> None:
    """A volume that fills slowly is told of once it has filled by a hundredth since the last."""
    rig.show()
    await rig.rounds(1)
    for _ in range(6):
        rig.used += _GI // 40
        await rig.rounds(2)
    assert len(rig.marked) == 2


async def test_a_silent_broker_keeps_its_last_numbers_and_time(rig: Rig, kubelet: Kubelet) -> None:
    """The old answer stays with its old time; the kubelet's count stands beside it."""
    kubelet.summary = {
        "pods": [
            {
                "podRef": {"namespace": "shop", "name": "orders-g0-0"},
                "volume": [
                    {"name": "tmp", "capacityBytes": 1, "usedBytes": 1, "availableBytes": 0},
                    {"name": "data", "capacityBytes": 100, "usedBytes": 60, "availableBytes": 40},
                ],
            }
        ]
    }
    rig.show()
    await rig.rounds(1)
    rig.is_down = True
    rig.clock.advance(99)
    rig.moved.clear()
    async with asyncio.timeout(5):
        await kubelet.asked.wait()
        await rig.moved.wait()
    known = rig.known()
    assert known.error is not None
    assert "503" in known.error
    assert known.seen_monotonic_s == START_S
    assert known.retention is not None
    assert known.kubelet == VolumeNumbers(100, 60, 40, "kubelet")
    assert len(rig.marked) == 2
    rig.is_down = False
    recovered = await rig.rounds(2)
    assert recovered.error is None
    assert recovered.kubelet is None


async def test_without_rights_the_kubelet_is_asked_seldom(rig: Rig, kubelet: Kubelet) -> None:
    """A 403 holds for five minutes: an API server that starts anew may have said it in passing."""
    kubelet.status = 403
    rig.is_down = True
    rig.show()
    await asyncio.sleep(0.3)
    assert len(kubelet.tokens) == 1
    assert rig.known().error is not None
    rig.clock.advance(299)
    await asyncio.sleep(0.1)
    assert len(kubelet.tokens) == 1
    kubelet.asked.clear()
    rig.clock.advance(1)
    async with asyncio.timeout(5):
        await kubelet.asked.wait()
    assert len(kubelet.tokens) == 2


async def test_a_new_pod_starts_anew_on_the_old_history(rig: Rig) -> None:
    """Another uid: nothing of its predecessor's answers, but the same volume's history."""
    rig.show()
    await rig.rounds(1)
    rig.is_down = True
    rig.show("u2", "2")
    known = rig.known()
    assert known.pod_uid == "u2"
    assert (known.broker, known.config, known.retention, known.seen_monotonic_s) == (None,) * 4
    assert len(known.samples) >= 1


async def test_another_volume_has_no_history(rig: Rig) -> None:
    """The log's end only grows; one that is smaller belongs to another volume."""
    rig.show()
    await rig.rounds(3)
    rig.written = 0
    assert len((await rig.rounds(1)).samples) == 1


async def test_history_is_an_hour_and_thin(rig: Rig) -> None:
    """An hour of points at 15 s is kept as ten fine minutes and a point a minute before."""
    from mailboat_operator.collector import _with_sample
    from mailboat_operator.planner.snapshot import UseSample

    samples: tuple[UseSample, ...] = ()
    for number in range(1000):
        samples = _with_sample(samples, UseSample(number * 15.0, number, number))
    times = [sample.monotonic_s for sample in samples]
    assert times[-1] == 999 * 15.0
    assert times[-1] - times[0] <= 3600
    assert times[-1] - times[0] > 3500
    assert len(times) <= 41 + 51
    fine = [b - a for a, b in itertools.pairwise(times) if times[-1] - a <= 600]
    assert set(fine) == {15.0}


async def test_a_changed_config_is_known_at_once(rig: Rig) -> None:
    """What a broker answered to a change is what the next plan sees."""
    rig.show()
    await rig.rounds(1)
    rig.collector.note_config("shop", "orders-g0-0", {"fileReservedTime": "48"})
    assert rig.known().config == {"fileReservedTime": "48"}


async def test_a_refusal_is_kept_until_the_pod_is_another_one(rig: Rig) -> None:
    """A later refusal of the same key takes the place of the earlier one; a new pod has none."""
    rig.show()
    await rig.rounds(1)
    for key, value in (("fileReservedTime", "0"), ("deleteWhen", "99"), ("fileReservedTime", "1")):
        rig.collector.note_refusal("shop", "orders-g0-0", {key: value}, f"{key}: no")
    await rig.rounds(1)
    kept = [(item.values, item.sentence) for item in rig.known().config_refusals]
    assert kept == [
        ({"deleteWhen": "99"}, "deleteWhen: no"),
        ({"fileReservedTime": "1"}, "fileReservedTime: no"),
    ]
    pod = rig.pod()
    pod["metadata"]["uid"] = "another"
    rig.collector.pod_changed(pod)
    assert rig.known().config_refusals == ()


def test_kubelet_numbers_of_another_pod() -> None:
    """A pod that the kubelet does not list has no numbers."""
    assert kubelet_numbers({"pods": []}, "shop", "x") is None
    assert kubelet_numbers({}, "shop", "x") is None


async def test_pods_of_others_are_not_asked(rig: Rig) -> None:
    """Only a broker's pods have an HTTP API to ask."""
    pod = rig.pod()
    pod["metadata"]["labels"] = {"mailboat.dev/name-server": "ns"}
    rig.collector.pod_changed(pod)
    assert rig.collector.observations("shop", {"orders-g0-0": pod}) == {}
    assert ResourceKey("Broker", "shop", "orders") not in rig.marked


async def test_the_answer_of_another_broker_is_not_taken(rig: Rig) -> None:
    """An address that another broker has by now: its numbers are nobody's here, and it is told."""
    rig.show()
    await rig.rounds(1)
    rig.name, rig.used = "bills-g0", 9 * _GI
    rig.moved.clear()
    async with asyncio.timeout(5):
        await rig.moved.wait()
    known = rig.known()
    assert known.stranger == "bills-g0"
    assert known.error == "broker bills-g0 answers where orders-g0 should be"
    assert [sample.used_bytes for sample in known.samples if sample.used_bytes > _GI] == []
    rig.name, rig.used = "orders-g0", _GI
    assert (await rig.rounds(2)).stranger is None


async def test_a_broker_of_the_same_name_is_told_by_what_it_announces(rig: Rig) -> None:
    """Brokers of one name in two namespaces: what the address of one's Service belongs to."""
    rig.cache.update(service("shop", "10.96.0.1"))
    rig.show()
    await rig.rounds(1)
    # A Service that was made anew: the broker announces the old address until it is restarted.
    rig.address = "10.96.0.9:10911"
    assert (await rig.rounds(2)).stranger is None
    rig.cache.update(service("tests", "10.96.0.9"))
    rig.moved.clear()
    async with asyncio.timeout(5):
        await rig.moved.wait()
    assert rig.known().stranger == "orders-g0 at 10.96.0.9:10911"


def service(namespace: str, address: str) -> Manifest:
    """Return the Service of a group."""
    labels = {"mailboat.dev/broker": "orders"}
    metadata = {"namespace": namespace, "name": "orders-g0", "labels": labels}
    return {
        "kind": "Service",
        "metadata": metadata | {"uid": namespace, "resourceVersion": "1"},
        "spec": {"clusterIP": address},
    }


async def test_a_start_that_gets_on_is_known(rig: Rig) -> None:
    """While the broker does not serve, how far its recovery is tells whether it hangs."""

    async def asked() -> float | None:
        for _ in range(2):
            rig.asked.clear()
            async with asyncio.timeout(5):
                await rig.asked.wait()
        await asyncio.sleep(0.01)
        return rig.known().start_moved_monotonic_s

    rig.is_down = True
    pod = rig.pod()
    pod["status"]["containerStatuses"] = [{"state": {"running": {}}, "started": False}]
    rig.cache.update(pod)
    rig.collector.pod_changed(pod)
    assert await asked() is None
    rig.start = {"phase": "recovering"}  # An older broker does not say how far it is.
    assert await asked() is None
    rig.clock.advance(100)
    rig.start = {"phase": "recovering", "recovered_physical_offset": 10}
    assert await asked() == START_S + 100
    rig.clock.advance(600)
    assert await asked() == START_S + 100
    rig.clock.advance(100)
    rig.start = {"phase": "recovering", "recovered_physical_offset": 20}
    assert await asked() == START_S + 800
    assert rig.known().silent_since_monotonic_s == START_S
    rig.is_down = False
    assert (await rig.rounds(2)).start_moved_monotonic_s is None
    assert rig.known().silent_since_monotonic_s is None


_REPLICA = {"ordinal": 0, "role": "slave", "end": 4711, "epoch": 3, "store_id": "a1", "alarm": ""}
_HA = [{"name": "ha", "containerPort": 10_912}]


async def test_only_a_replica_is_asked_for_its_group(rig: Rig) -> None:
    """Others know nothing of it; one of a version that does not say so answers all the same."""
    rig.show()
    assert (await rig.rounds(2)).replica is None
    assert "replica" not in rig.paths
    rig.ports = _HA
    rig.show("u2", "2")
    found = await rig.rounds(3)
    assert (found.error, found.replica) == (None, None)
    peers = [{"ordinal": 1, "lag_bytes": 5, "trouble": "x"}]
    rig.replica = _REPLICA | {"peers": peers, "refusal": "what nobody looks at"}
    found = await rig.rounds(2)
    assert found.replica is not None
    assert found.replica["store_id"] == "a1"
    assert found.replica["peers"] == [{"ordinal": 1, "lag_bytes": 5}]
    assert "refusal" not in found.replica


async def test_what_a_replica_says_is_worth_a_new_plan(rig: Rig) -> None:
    """Another role, epoch or alarm; not how far its log goes."""
    rig.ports, rig.replica = _HA, _REPLICA
    rig.show()
    await rig.rounds(3)
    rig.marked.clear()
    rig.replica = _REPLICA | {"end": 4712}
    await rig.rounds(3)
    assert rig.marked == []
    rig.replica = _REPLICA | {"diverged_bytes": 4096}
    await rig.rounds(3)
    assert rig.marked != []
    rig.marked.clear()
    rig.replica = _REPLICA | {"alarm": "all may have lost something"}
    await rig.rounds(3)
    assert rig.marked == ["Broker/shop/orders"]


@pytest.mark.parametrize("rig", [(600.0,)], indirect=True)
async def test_a_group_without_a_leader_is_asked_often(rig: Rig) -> None:
    """Its first Lease waits for what its replicas have; one that follows is asked in its turn."""
    rig.ports, rig.replica, rig.phase = _HA, _REPLICA | {"role": "joining"}, "serving"
    rig.show()
    await rig.rounds(2)
    assert rig.paths.count("replica") == 2
