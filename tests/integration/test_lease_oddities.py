"""An API server, or a person, that says what no group of replicas has come to."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from lease_nodes import GROUP, KEY, LEASE_S, LeaseNodes

from mailboat.broker.replicas import by_hand
from mailboat.broker.replicas.kubernetes.leader_endpoints import LOOK_EVERY_S
from mailboat.broker.supervisor import STALL_AFTER_S, TaskProgress
from mailboat.client import Message, Producer

pytestmark = pytest.mark.slow  # They wait for leases.

_SLICE = f"endpointslices/{GROUP}-leader"
_LARGEST = (1 << 53) - 1


def _make_slice(nodes: LeaseNodes, epoch: str = "0") -> None:
    metadata = {"name": f"{GROUP}-leader", "annotations": {"mailboat.dev/epoch": epoch}}
    ports = [{"name": "remoting", "port": 10911, "protocol": "TCP"}]
    nodes.kube.put(
        _SLICE,
        {"metadata": metadata, "addressType": "IPv4", "endpoints": [], "ports": ports},
    )


def _answer_with(
    nodes: LeaseNodes, monkeypatch: pytest.MonkeyPatch, key: str, body: bytes
) -> asyncio.Event:
    """Have the API server answer 200 with a body, whatever is asked; return when it has."""
    true, has_answered = nodes.kube._answer, asyncio.Event()

    async def answer(request: web.Request, token: str, asked: str) -> web.StreamResponse:
        if asked == key:
            has_answered.set()
            return web.Response(body=body, content_type="text/html")
        return await true(request, token, asked)

    monkeypatch.setattr(nodes.kube, "_answer", answer)
    return has_answered


async def _send(nodes: LeaseNodes, count: int = 3) -> None:
    async with Producer("group", namesrv=nodes.namesrv) as producer:
        for number in range(count):
            await producer.send(Message("topic", b"%d" % number))


@pytest.mark.parametrize(
    "body",
    [
        b"<html>log in</html>",
        b'{"metadata": {"name": "mq-g1-leader", "annotations": ["a"]}}',
        b'{"metadata": {"name": "mq-g1-leader"}, "endpoints": [1]}',
    ],
)
async def test_what_is_no_slice_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """A proxy on the way may say anything; the leader says what is wrong, and goes on."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        await nodes.begin()
        has_answered = _answer_with(nodes, monkeypatch, _SLICE, body)
        replicas = nodes.broker(0).replicas
        assert replicas is not None
        replicas.note_lead()
        await asyncio.wait_for(has_answered.wait(), 15)

        def is_told() -> bool:
            lease = replicas.report().lease
            return lease is not None and "is not the object" in lease.endpoints_trouble

        await nodes.until(is_told)
        assert not nodes.broker(0).supervisor.failure
        await _send(nodes)


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"metadata": {"name": "another"}}'])
async def test_what_is_no_lease_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """It counts as no answer: the leader leads on while all others are there."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        await nodes.begin()
        has_answered = _answer_with(nodes, monkeypatch, KEY, body)
        await asyncio.wait_for(has_answered.wait(), 15)

        def are_told() -> bool:
            reports = [nodes.broker(item).replicas for item in (0, 1)]
            leases = [found.report().lease for found in reports if found is not None]
            return all(lease is not None and lease.trouble for lease in leases)

        await nodes.until(are_told)
        assert nodes.leader() == 0
        assert [nodes.broker(item).supervisor.failure for item in (0, 1)] == [None, None]
        await _send(nodes)


@pytest.mark.parametrize("epoch", [_LARGEST - 1, 1 << 45])
async def test_an_epoch_from_nowhere_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """After the largest number there would be no other epoch, and nobody could ever lead."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        odd = copy.deepcopy(nodes.kube.objects[KEY])
        odd["metadata"]["annotations"]["mailboat.dev/epoch"] = str(epoch)
        nodes.kube.put(KEY, odd)
        await nodes.until(lambda: nodes.lease.epoch in (2, 3), 30)
        await nodes.in_sync()
        leader = nodes.leader()
        assert leader is not None
        await nodes.kill(leader)
        await nodes.until(lambda: nodes.leader() not in (None, leader), 30)
        await _send(nodes)
        assert nodes.lease.epoch < 10


async def test_renewals_from_nowhere_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader could not renew after them."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        await nodes.begin()
        odd = copy.deepcopy(nodes.kube.objects[KEY])
        odd["metadata"]["annotations"]["mailboat.dev/renewals"] = str(_LARGEST)
        nodes.kube.put(KEY, odd)
        await nodes.until(lambda: nodes.lease.renewals < 1 << 40)
        await _send(nodes)


async def test_a_lease_deleted_during_a_handover_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another epoch of the same leader begins, in which nobody is to take over."""
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        await _send(nodes)
        true, deleted = nodes.kube._replace, []

        def replace(key: str, manifest: dict[str, Any]) -> Any:
            holder = manifest.get("spec", {}).get("holderIdentity", "mq-g1-0/")
            if key == KEY and "mq-g1-0/" not in holder and not deleted:
                deleted.append(nodes.kube.objects.pop(KEY))
            return true(key, manifest)

        monkeypatch.setattr(nodes.kube, "_replace", replace)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        _, refusal = await by_hand.hand_over(nodes.group(0), None)
        assert deleted
        assert refusal
        assert loop.time() - began_s < 5
        await _send(nodes)


async def test_a_slow_api_server_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer may take its time, also of the EndpointSlice: nobody takes that for a stall."""
    allowed_s: dict[str, float] = {}
    beat = TaskProgress.beat

    def note(progress: TaskProgress, next_within_s: float = STALL_AFTER_S) -> None:
        allowed_s[progress.name] = next_within_s
        beat(progress, next_within_s)

    monkeypatch.setattr(TaskProgress, "beat", note)
    async with LeaseNodes(tmp_path, 2, monkeypatch, {"leaseSeconds": "60"}) as nodes:
        await nodes.begin()
        replicas = nodes.broker(0).replicas
        assert replicas is not None
        assert replicas._kube is not None
        timeout_s = replicas._kube.timeout_s
        # A handover, and what comes after it, have 7.5 s at the end of a process.
        assert 1 <= timeout_s <= 2.5
        await nodes.until(lambda: "endpoints of the leader" in allowed_s)
        assert allowed_s["endpoints of the leader"] > LOOK_EVERY_S + 2 * timeout_s


async def test_a_slice_of_a_later_epoch_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left alone, as a later leader may have written it; but not in silence."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        _make_slice(nodes, "9999")
        await nodes.begin()
        replicas = nodes.broker(0).replicas
        assert replicas is not None

        def is_told() -> bool:
            lease = replicas.report().lease
            return lease is not None and "is of epoch 9999, and 1 is" in lease.endpoints_trouble

        await nodes.until(is_told)


async def test_a_leader_without_rights_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose pod was deleted by force: it has 2 s, and its token counts no more.

    Without a word from it the others would wait until its lease is over, for two thirds of it at
    least.
    """
    async with LeaseNodes(tmp_path, 3, monkeypatch) as nodes:
        await nodes.begin()
        await _send(nodes)
        (Path(nodes.kube.pod("mq-g1-0")) / "token").write_text("of nobody")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        ending = asyncio.create_task(nodes.stop(0))
        async with Producer("group", namesrv=nodes.namesrv) as producer:
            took_s = await nodes.send_at_last(producer, b"later")
        await ending
        assert took_s < LEASE_S * 0.6
        assert loop.time() - began_s < LEASE_S


_FOREIGN = {"addresses": ["10.9.9.9"]}


@pytest.mark.parametrize("edit", ["entry", "unready entry", "address", "protocol"])
async def test_clients_are_led_to_the_leader_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str
) -> None:
    """Kubernetes leads clients to an endpoint too that says nothing of its conditions."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        _make_slice(nodes)
        await nodes.begin()
        replicas = nodes.broker(0).replicas
        assert replicas is not None
        await nodes.until(lambda: nodes.kube.objects[_SLICE]["endpoints"])
        right = copy.deepcopy(nodes.kube.objects[_SLICE])
        odd = copy.deepcopy(right)
        match edit:
            case "entry":
                odd["endpoints"].append(_FOREIGN)
            case "unready entry":
                odd["endpoints"].append(
                    _FOREIGN | {"conditions": {"ready": False, "serving": True}}
                )
            case "address":
                odd["endpoints"][0]["addresses"].append("10.9.9.9")
            case "protocol":
                odd["ports"][0]["protocol"] = "UDP"
        nodes.kube.put(_SLICE, odd)
        replicas.note_lead()

        def is_right() -> bool:
            found = nodes.kube.objects[_SLICE]
            return all(found[part] == right[part] for part in ("endpoints", "ports"))

        await nodes.until(is_right)
        puts = [item for item in nodes.kube.requests if item[1:] == ("PUT", _SLICE)]
        replicas.note_lead()
        await _send(nodes)
        assert [item for item in nodes.kube.requests if item[1:] == ("PUT", _SLICE)] == puts


async def test_an_epoch_that_nobody_leads_keeps_no_clients_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a group begins anew on new volumes: its leader writes its Lease all the while."""
    async with LeaseNodes(tmp_path, 2, monkeypatch) as nodes:
        _make_slice(nodes, "7")
        await nodes.begin()
        await nodes.until(lambda: nodes.kube.objects[_SLICE]["endpoints"])
        annotations = nodes.kube.objects[_SLICE]["metadata"]["annotations"]
        assert annotations["mailboat.dev/epoch"] == "1"
