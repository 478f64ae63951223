"""Tests of turns in which something is refused or fails: what status, events and next plan say."""

import pytest
from aiohttp import web
from fake_kubernetes import FakeKubernetes
from reconciler_rig import _TOPIC_KEY, Manifest, Rig, _apply, _child, _stored

from mailboat_operator.planner.actions import Evict, Plan, PutTopic, ResizeClaim, Step
from mailboat_operator.planner.snapshot import EvictionRefusal
from mailboat_operator.reconciler import StepsFailedError

_BY_NAME = 'admission webhook "names.example" denied the request: no such name'


class _Refusal:
    """The API server's answer to calls of one path's end; none while `status` is 0."""

    def __init__(self, kubernetes: FakeKubernetes, end: str, status: int, words: str) -> None:
        self.end, self.status, self.words = end, status, words
        kubernetes.faults = [self._answer]

    async def _answer(self, request: web.Request) -> web.Response | None:
        if self.status == 0 or request.method == "GET" or not request.path.endswith(self.end):
            return None
        return web.json_response({"kind": "Status", "message": self.words}, status=self.status)


def _status(generation: int, *, ready: bool = True) -> Manifest:
    """What a planner says of pods that serve, whatever became of the objects."""
    told = {"message": "", "lastTransitionTime": "2001-01-01T00:00:00Z"}
    return {
        "observedGeneration": generation,
        "conditions": [
            {"type": "Ready", "status": str(ready), "reason": "AllGroupsServing", **told},
            {"type": "Progressing", "status": "True", "reason": "Updating", **told},
            {"type": "StorageReady", "status": "True", "reason": "VolumesReady", **told},
        ],
    }


def _conditions(kubernetes: FakeKubernetes) -> dict[str, tuple[str, str, str]]:
    broker = kubernetes.find("brokers", "shop", "orders")
    assert broker is not None
    return {
        item["type"]: (item["status"], item["reason"], item["message"])
        for item in (broker.get("status") or {}).get("conditions") or ()
    }


def _events(kubernetes: FakeKubernetes) -> list[tuple[str, str, str]]:
    found = [body for key, body in kubernetes.objects.items() if key[0] == "events"]
    return [(event["type"], event["reason"], event["note"]) for event in found]


@pytest.mark.parametrize("status", [400, 403, 422])
async def test_what_is_refused_is_told(kubernetes: FakeKubernetes, rig: Rig, status: int) -> None:
    """Neither Ready nor Progressing hides that an object was refused; the words are told once.

    Once the object is taken the status is the planner's own again.
    """
    await _stored(kubernetes, rig)
    refusal = _Refusal(kubernetes, "/configmaps/a", status, _BY_NAME)
    rig.planner.plan = Plan(steps=(Step("config", (_apply("a"),)),), status=_status(1))
    for _ in range(3):
        with pytest.raises(StepsFailedError):
            await rig.turn()
        rig.clock.advance(700)
    words = f"apply /api/v1/namespaces/shop/configmaps/a: {_BY_NAME} (HTTP {status})"
    assert _conditions(kubernetes) == {
        "Ready": ("False", "ApplyRefused", words),
        "Progressing": ("False", "ApplyRefused", words),
        "StorageReady": ("True", "VolumesReady", ""),
    }
    assert _events(kubernetes) == [("Warning", "ApplyRefused", words)]
    written = [call for call in kubernetes.writes() if call.path.endswith("/orders/status")]
    assert len(written) == 1
    refusal.status = 0
    await rig.turn()
    assert _conditions(kubernetes)["Ready"] == ("True", "AllGroupsServing", "")
    assert _conditions(kubernetes)["Progressing"] == ("True", "Updating", "")


async def test_other_words_are_told_anew(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A refusal for another reason is another event and another message."""
    await _stored(kubernetes, rig)
    refusal = _Refusal(kubernetes, "/configmaps/a", 403, "exceeded quota: a")
    rig.planner.plan = Plan(steps=(Step("config", (_apply("a"),)),), status=_status(1))
    for words in ("exceeded quota: a", "exceeded quota: b"):
        refusal.words = words
        with pytest.raises(StepsFailedError):
            await rig.turn()
        assert words in _conditions(kubernetes)["Ready"][2]
    assert len(_events(kubernetes)) == 2


async def test_a_refusal_ends_with_its_step(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A spec that no longer asks for what was refused is not held back by it."""
    await _stored(kubernetes, rig)
    _Refusal(kubernetes, "/configmaps/a", 422, "invalid")
    rig.planner.plan = Plan(steps=(Step("config", (_apply("a"),)),), status=_status(1))
    with pytest.raises(StepsFailedError):
        await rig.turn()
    rig.planner.plan = Plan(steps=(), status=_status(1))
    await rig.turn()
    assert _conditions(kubernetes)["Ready"][:2] == ("True", "AllGroupsServing")


async def test_a_taken_name_stays_the_reason(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """What the planner found to mend first is not painted over."""
    await _stored(kubernetes, rig)
    _Refusal(kubernetes, "/configmaps/a", 422, "invalid")
    status = _status(1, ready=False)
    status["conditions"][0]["reason"] = "NameTaken"
    rig.planner.plan = Plan(steps=(Step("config", (_apply("a"),)),), status=status)
    with pytest.raises(StepsFailedError):
        await rig.turn()
    found = _conditions(kubernetes)
    assert (found["Ready"][1], found["Progressing"][1]) == ("NameTaken", "ApplyRefused")


@pytest.mark.parametrize(("step", "reason"), [("budget", "Rolling"), ("rollout", "ApplyRefused")])
async def test_a_roll_goes_on_beside_a_refusal(
    kubernetes: FakeKubernetes, rig: Rig, step: str, reason: str
) -> None:
    """Only a refusal of the roll itself ends it; Ready tells of any."""
    await _stored(kubernetes, rig)
    _Refusal(kubernetes, "/configmaps/a", 403, _BY_NAME)
    status = _status(1)
    status["conditions"][1]["reason"] = "Rolling"
    rig.planner.plan = Plan(steps=(Step(step, (_apply("a"),)),), status=status)
    with pytest.raises(StepsFailedError):
        await rig.turn()
    found = _conditions(kubernetes)
    assert (found["Ready"][1], found["Progressing"][1]) == ("ApplyRefused", reason)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (500, 'failed calling webhook "names.example": connection refused'),
        (409, "the object has been modified"),
        (403, "unable to create new content in namespace shop because it is being terminated"),
    ],
)
async def test_what_may_pass_is_shown_only_when_it_lasts(
    kubernetes: FakeKubernetes, rig: Rig, status: int, words: str
) -> None:
    """For a minute nothing is claimed of the new spec, neither Ready nor a refusal; then it is."""
    await _stored(kubernetes, rig)
    _Refusal(kubernetes, "/configmaps/a", status, words)
    rig.planner.plan = Plan(steps=(Step("config", (_apply("a"),)),), status=_status(1))
    for passed_s in (0, 59):
        rig.clock.advance(passed_s)
        with pytest.raises(StepsFailedError):
            await rig.turn()
        assert _conditions(kubernetes) == {}
        assert _events(kubernetes) == []
    rig.clock.advance(1)
    with pytest.raises(StepsFailedError):
        await rig.turn()
    assert _conditions(kubernetes)["Ready"][:2] == ("False", "ApplyRefused")
    assert words in _conditions(kubernetes)["Ready"][2]
    assert len(_events(kubernetes)) == 1


async def test_a_passing_failure_of_a_known_spec_changes_nothing(
    kubernetes: FakeKubernetes, rig: Rig
) -> None:
    """A child that is put back and fails once neither takes Ready away nor stops the status."""
    await _stored(kubernetes, rig, status=_status(1))
    _Refusal(kubernetes, "/configmaps/a", 500, "busy")
    status = _status(1)
    status["conditions"][2]["reason"] = "Resizing"
    rig.planner.plan = Plan(steps=(Step("config", (_apply("a"),)),), status=status)
    with pytest.raises(StepsFailedError):
        await rig.turn()
    assert _conditions(kubernetes)["Ready"][0] == "True"
    assert _conditions(kubernetes)["StorageReady"][1] == "Resizing"


async def test_a_refused_eviction_is_the_planners_to_tell(
    kubernetes: FakeKubernetes, rig: Rig
) -> None:
    """The next plan has the words, for as long as it asks; it is no refusal of what the spec wants,
    however long it lasts."""

    async def refuse(request: web.Request) -> web.Response | None:
        if not request.path.endswith("/eviction"):
            return None
        return web.json_response({"message": "not with this budget"}, status=429)

    kubernetes.faults = [refuse]
    await _stored(kubernetes, rig)
    await kubernetes.put("pods", _child("Pod", "orders-g0-0"))
    conditions = [
        {"type": "Ready", "status": "True", "reason": "AllGroupsServing"},
        {"type": "Progressing", "status": "True", "reason": "Rolling"},
    ]
    evict = Evict("orders-g0-0", "uid-orders-g0-0", "its template has changed")
    rig.planner.plan = Plan((Step("rollout", (evict,)),), {"conditions": conditions})
    for _ in range(2):
        with pytest.raises(StepsFailedError):
            await rig.turn()
        rig.clock.advance(300)
    seen = [snapshot.refused_evictions for snapshot in rig.planner.snapshots]
    assert seen == [{}, {"orders-g0-0": EvictionRefusal("not with this budget")}]
    broker = kubernetes.find("brokers", "shop", "orders")
    assert broker is not None
    assert broker["status"]["conditions"] == conditions
    kubernetes.faults = []
    await rig.turn()
    await rig.turn()
    assert rig.planner.snapshots[-1].refused_evictions == {}


async def test_a_refused_size_is_the_volumes_own_matter(
    kubernetes: FakeKubernetes, rig: Rig
) -> None:
    """The brokers serve: the planner gets the words, for StorageReady and an event of its own.

    They stay while the plan has no step for it, and go when the size is taken.
    """
    await _stored(kubernetes, rig)
    claim = _child("PersistentVolumeClaim", "data-orders-g0-0", spec={})
    rig.cache.update(await kubernetes.put("persistentvolumeclaims", claim))
    live = kubernetes.find("persistentvolumeclaims", "shop", "data-orders-g0-0")
    assert live is not None
    refusal = _Refusal(kubernetes, "/data-orders-g0-0", 403, "exceeded quota: storage")
    version = live["metadata"]["resourceVersion"]
    resize = ResizeClaim("data-orders-g0-0", live["metadata"]["uid"], version, 1 << 30)
    asking = Plan(steps=(Step("volumes", (resize,)),), status=_status(1))
    rig.planner.plan = asking
    with pytest.raises(StepsFailedError):
        await rig.turn()
    assert _conditions(kubernetes)["Ready"][:2] == ("True", "AllGroupsServing")
    assert _conditions(kubernetes)["Progressing"][1] == "Updating"
    assert _events(kubernetes) == []
    rig.planner.plan = Plan(steps=(), status=_status(1))
    await rig.turn()
    await rig.turn()
    refusal.status, rig.planner.plan = 0, asking
    await rig.turn()
    rig.planner.plan = Plan(steps=(), status=_status(1))
    await rig.turn()
    seen = [snapshot.refused_sizes for snapshot in rig.planner.snapshots]
    words = (
        "patch /api/v1/namespaces/shop/persistentvolumeclaims/data-orders-g0-0:"
        " exceeded quota: storage (HTTP 403)"
    )
    assert seen == [{}, *[{"data-orders-g0-0": words}] * 3, {}]


async def test_a_topic_tells_what_a_broker_refuses(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A broker's refusal of a topic is final like the API server's, and has its words."""

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "too many queues"}}, status=400)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    topic = {
        "apiVersion": "mailboat.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"namespace": "shop", "name": "t1"},
        "spec": {"brokerRef": "orders"},
    }
    rig.cache.update(await kubernetes.put("topics", topic))
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    put = PutTopic(url, "t1", read_queue_nums=9999, write_queue_nums=9999, perm=6)
    rig.planner.plan = Plan(steps=(Step("topic", (put,)),), status=_status(1, ready=False))
    try:
        with pytest.raises(StepsFailedError):
            await rig.turn(_TOPIC_KEY)
    finally:
        await runner.cleanup()
    stored = kubernetes.find("topics", "shop", "t1")
    assert stored is not None
    ready = stored["status"]["conditions"][0]
    assert (ready["type"], ready["reason"]) == ("Ready", "ApplyRefused")
    assert "too many queues" in ready["message"]


async def test_failing_steps_do_not_hide_what_is_due(kubernetes: FakeKubernetes, rig: Rig) -> None:
    """A turn that fails in one step still says when the others want the next one."""
    await _stored(kubernetes, rig)
    _Refusal(kubernetes, "/configmaps/a", 422, "invalid")
    rig.planner.plan = Plan(
        steps=(Step("config", (_apply("a"),)),), status=_status(1), again_after_s=5.0
    )
    with pytest.raises(StepsFailedError) as caught:
        await rig.turn()
    assert caught.value.again_after_s == 5.0
