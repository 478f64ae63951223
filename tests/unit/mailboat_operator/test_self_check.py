"""Tests of the check that `helm test` runs."""

from typing import Any

import pytest
from aiohttp import web
from fake_kubernetes import FakeKubernetes

from mailboat_operator.kube_api import KubeApi
from mailboat_operator.self_check import problems
from mailboat_operator.settings import OperatorSettings


@pytest.fixture
async def refusing(kubernetes: FakeKubernetes) -> set[str]:
    """The resources on which the API server says that there is no right."""
    without: set[str] = set()

    async def review(request: web.Request) -> web.Response | None:
        if not request.path.endswith("/selfsubjectaccessreviews"):
            return None
        asked = (await request.json())["spec"]["resourceAttributes"]
        name = "/".join(part for part in (asked["resource"], asked["subresource"]) if part)
        return web.json_response({"status": {"allowed": name not in without}}, status=201)

    kubernetes.faults = [review]
    metadata = {"namespace": "system", "name": "mailboat-operator"}
    lease = {"metadata": metadata, "spec": {"holderIdentity": "p"}}
    await kubernetes.put("leases", lease)
    return without


async def _found(api: KubeApi, **settings: Any) -> list[str]:
    chosen = OperatorSettings(image="i", pod_name="p", pod_namespace="system", **settings)
    return [problem async for problem in problems(api, chosen)]


async def test_each_missing_right_is_named(kube_api: KubeApi, refusing: set[str]) -> None:
    """With every right there is nothing to say; without one it is named with its purpose."""
    assert await _found(kube_api) == []
    refusing.add("services")
    found = await _found(kube_api, namespaces=("shop",))
    assert len(found) == 6
    assert found[0] == "no right to get services in namespace shop, needed for: addresses"


async def test_the_right_on_kubelets_is_needed_only_if_they_are_asked(
    kube_api: KubeApi, refusing: set[str]
) -> None:
    """`kubelet_stats: false` does without; so does a list of namespaces, which never had it."""
    refusing.add("nodes/stats")
    assert len(await _found(kube_api)) == 1
    assert await _found(kube_api, kubelet_stats=False) == []
    assert await _found(kube_api, namespaces=("shop",)) == []


async def test_secrets_are_needed_only_where_they_may_be_read(
    kube_api: KubeApi, kubernetes: FakeKubernetes, refusing: set[str]
) -> None:
    """Elsewhere the right to make one is enough, and nobody asks for more."""
    assert await _found(kube_api, secret_namespaces=("shop",)) == []
    asked = [
        (attributes["namespace"], attributes["verb"])
        for call in kubernetes.calls
        if (attributes := (call.body or {}).get("spec", {}).get("resourceAttributes"))
        and attributes["resource"] == "secrets"
    ]
    assert sorted(asked) == [("", "create"), ("shop", "create"), ("shop", "get"), ("shop", "patch")]
