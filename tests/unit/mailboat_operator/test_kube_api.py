"""Tests of the API access, through the real client, against a small API server."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from fake_kubernetes import FakeKubernetes
from kubernetes.aio.client import ApiClient

from mailboat_operator import leader
from mailboat_operator.kinds import BROKER, CONFIG_MAP, POD
from mailboat_operator.kube_api import (
    ConflictError,
    ForbiddenError,
    KubeApi,
    KubeApiError,
    KubeUnreachableError,
    NotFoundError,
)
from mailboat_operator.leader import KubeLeaseApi, LeaderElector, NotLeaderError
from mailboat_operator.metrics import OperatorMetrics


def _config_map(**data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": "shop", "name": "orders-g0"},
        "data": data,
    }


async def test_apply_makes_and_changes(kubernetes: FakeKubernetes, kube_api: KubeApi) -> None:
    """Server-side apply goes out under our name, as a whole manifest, and returns what became."""
    made = await kube_api.apply(CONFIG_MAP, _config_map(a="1"), force=False)
    changed = await kube_api.apply(CONFIG_MAP, _config_map(a="2"), force=False)
    assert made["metadata"]["uid"] == changed["metadata"]["uid"]
    assert changed["data"] == {"a": "2"}
    call = kubernetes.calls[-1]
    assert (call.verb, call.path) == ("PATCH", "/api/v1/namespaces/shop/configmaps/orders-g0")
    assert call.query == {"fieldManager": "mailboat-operator", "force": "false"}


async def test_list_names_the_kind_of_members(
    kubernetes: FakeKubernetes, kube_api: KubeApi
) -> None:
    """Members of a list get the kind that the API server leaves out; the selector is sent."""
    for name, labels in (("a", {"app.kubernetes.io/managed-by": "mailboat-operator"}), ("b", {})):
        pod = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"namespace": "shop", "name": name, "labels": labels},
        }
        await kubernetes.put("pods", pod)
    found, version = await kube_api.list(
        POD, None, "app.kubernetes.io/managed-by=mailboat-operator"
    )
    assert [(pod["kind"], pod["apiVersion"], pod["metadata"]["name"]) for pod in found] == [
        ("Pod", "v1", "a")
    ]
    assert version == kubernetes.version


async def test_status_is_guarded_by_the_version(
    kubernetes: FakeKubernetes, kube_api: KubeApi
) -> None:
    """A status made for another version is refused; a right one replaces the old one whole."""
    stored = await kubernetes.put(
        "brokers",
        {
            "kind": "Broker",
            "apiVersion": "mailboat.dev/v1alpha1",
            "metadata": {"namespace": "shop", "name": "orders"},
            "spec": {"groups": 1},
            "status": {"old": 1},
        },
    )
    version = stored["metadata"]["resourceVersion"]
    changed = await kube_api.put_status(BROKER, "shop", "orders", {"new": 2}, version)
    assert changed["status"] == {"new": 2}
    assert changed["spec"] == {"groups": 1}
    with pytest.raises(ConflictError):
        await kube_api.put_status(BROKER, "shop", "orders", {"new": 3}, version)


async def test_errors_have_types_and_say_what(
    kubernetes: FakeKubernetes, kube_api: KubeApi
) -> None:
    """404, 409, 403 and the rest are told apart, with the server's own words."""
    with pytest.raises(NotFoundError, match=r"get /api/v1/namespaces/shop/pods/x: .* not found"):
        await kube_api.get(POD, "shop", "x")
    await kubernetes.put("configmaps", _config_map())
    with pytest.raises(ConflictError, match="already exists"):
        await kube_api.create(CONFIG_MAP, "shop", _config_map())

    async def forbidden(_: web.Request) -> web.Response:
        return web.json_response({"message": "pods is forbidden"}, status=403)

    async def broken(_: web.Request) -> web.Response:
        return web.Response(text="<html>", status=500)

    kubernetes.faults = [forbidden]
    with pytest.raises(ForbiddenError, match="pods is forbidden"):
        await kube_api.get(POD, "shop", "x")
    kubernetes.faults = [broken]
    with pytest.raises(KubeApiError, match=r"<html> \(HTTP 500"):
        await kube_api.get(POD, "shop", "x")


async def test_429_is_tried_again_after_the_time_it_names(
    kubernetes: FakeKubernetes, kube_api: KubeApi, metrics: OperatorMetrics
) -> None:
    """Retry-After is waited for; a server that never has time is an error in the end."""
    times: list[float] = []

    async def busy(_: web.Request) -> web.Response | None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 2:
            return None
        return web.Response(status=429, headers={"Retry-After": "0.2"})

    kubernetes.faults = [busy]
    await kube_api.apply(CONFIG_MAP, _config_map(), force=False)
    assert len(times) == 2
    assert times[1] - times[0] >= 0.2
    text = metrics.exposition().decode()
    assert 'operator_api_requests_total{code="429",verb="apply"} 1.0' in text
    assert 'operator_api_requests_total{code="201",verb="apply"} 1.0' in text
    times[:] = [0.0, 0.0]
    with pytest.raises(KubeApiError, match="429"):
        await kube_api.get(POD, "shop", "x")
    assert len(times) == 6


async def test_a_silent_server_is_given_up(
    kubernetes: FakeKubernetes, api_client: ApiClient, metrics: OperatorMetrics
) -> None:
    """A call that hangs ends after the timeout as 'outcome unknown', and is counted."""

    async def hang(_: web.Request) -> None:
        await asyncio.Event().wait()

    kubernetes.faults = [hang]
    with pytest.raises(KubeUnreachableError, match="no answer"):
        await KubeApi(api_client, metrics, timeout_s=0.2).get(POD, "shop", "x")
    assert 'operator_api_requests_total{code="0",verb="get"} 1.0' in metrics.exposition().decode()


@pytest.mark.parametrize("text", ['{"items": [{"meta', "<html>", "", "[1]", '{"a":' * 100_000])
async def test_a_success_that_is_no_object_tells_nothing(
    kubernetes: FakeKubernetes, kube_api: KubeApi, text: str
) -> None:
    """What was cut, or comes from a proxy, is no answer: the outcome is unknown."""

    async def other(_: web.Request) -> web.Response:
        return web.Response(text=text)

    kubernetes.faults = [other]
    with pytest.raises(KubeUnreachableError, match="no object of the API server"):
        await kube_api.list(POD, None, None)
    with pytest.raises(KubeUnreachableError, match="no object of the API server"):
        await kube_api.apply(CONFIG_MAP, _config_map(), force=False)


async def test_a_list_says_what_it_is_true_for(
    kubernetes: FakeKubernetes, kube_api: KubeApi
) -> None:
    """Without a version nothing could be taken as deleted."""

    async def other(_: web.Request) -> web.Response:
        return web.json_response({"message": "hello"})

    kubernetes.faults = [other]
    with pytest.raises(KubeUnreachableError, match="no list"):
        await kube_api.list(POD, None, None)


async def test_a_renewal_that_is_answered_with_something_else_is_no_renewal(
    kubernetes: FakeKubernetes, kube_api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder lives on and asks again; the Lease is not held longer for such an answer."""
    monkeypatch.setattr(leader, "RENEW_S", 0.05)
    monkeypatch.setattr(leader, "_RETRY_S", 0.05)
    elector = LeaderElector(KubeLeaseApi(kube_api, "shop", "operator"), "me")
    await elector.acquire()
    left_s = elector.check_may_write()
    answers = ["<html>", "{}", '{"spec": {"holderIdentity": "me"}, "metadata": {}}']
    rest = iter(answers)
    is_well = asyncio.Event()

    async def other(_: web.Request) -> web.Response | None:
        text = next(rest, None)
        if text is not None:
            assert elector.check_may_write() < left_s
            return web.Response(text=text)
        is_well.set()
        return None

    kubernetes.faults = [other]
    holding = asyncio.create_task(elector.hold())
    done, _ = await asyncio.wait(
        [holding, asyncio.create_task(is_well.wait())],
        timeout=5,
        return_when=asyncio.FIRST_COMPLETED,
    )
    assert holding not in done
    assert is_well.is_set()
    assert elector.is_leader
    holding.cancel()


async def test_nothing_is_sent_without_the_lease(
    kubernetes: FakeKubernetes, api_client: ApiClient, metrics: OperatorMetrics
) -> None:
    """Every write asks first whether it may; reads and the Lease's own calls do not."""

    def refuse() -> None:
        raise NotLeaderError("no")

    api = KubeApi(api_client, metrics, timeout_s=1.0, check_may_write=refuse)
    writes = (
        api.apply(CONFIG_MAP, _config_map(), force=False),
        api.merge_patch(CONFIG_MAP, "shop", "orders-g0", {}),
        api.put_status(BROKER, "shop", "orders", {}, "1"),
        api.delete(POD, "shop", "x", uid="u", resource_version=None, propagation="Orphan"),
        api.create(CONFIG_MAP, "shop", _config_map()),
        api.replace(CONFIG_MAP, "shop", _config_map()),
        api.evict("shop", "x", uid="u"),
    )
    for write in writes:
        with pytest.raises(NotLeaderError):
            await write
    assert kubernetes.calls == []
    await api.create(CONFIG_MAP, "shop", _config_map(), is_fenced=False)
    assert len(kubernetes.calls) == 1


async def test_a_write_waits_no_longer_than_the_lease_is_held(
    kubernetes: FakeKubernetes, api_client: ApiClient, metrics: OperatorMetrics
) -> None:
    """What is left of the hold time ends it; a read has its own time."""

    async def hang(_: web.Request) -> None:
        await asyncio.Event().wait()

    kubernetes.faults = [hang]
    api = KubeApi(api_client, metrics, timeout_s=30.0, check_may_write=lambda: 0.2)
    async with asyncio.timeout(5):
        with pytest.raises(KubeUnreachableError):
            await api.apply(CONFIG_MAP, _config_map(), force=False)
    reading = asyncio.create_task(api.get(POD, "shop", "x"))
    done, _ = await asyncio.wait([reading], timeout=0.5)
    assert not done
    reading.cancel()
