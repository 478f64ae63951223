"""The whole operator process where a namespace's rights come and go."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from fake_kubernetes import FakeKubernetes

# They wait for the Lease of real operators.
pytestmark = pytest.mark.slow

StartOperator = Callable[..., Awaitable[Any]]


async def test_a_namespace_without_rights_costs_no_other(
    kubernetes: FakeKubernetes, start_operator: StartOperator
) -> None:
    """The others are served, no watch counts as deaf, and the right alone brings it back."""
    has_rights = False

    async def refuse(request: web.Request) -> web.Response | None:
        if has_rights or "/namespaces/bank/" not in request.path:
            return None
        status = {"kind": "Status", "reason": "Forbidden", "code": 403, "message": "forbidden"}
        return web.json_response(status, status=403)

    kubernetes.faults.append(refuse)
    for namespace in ("shop", "bank"):
        broker = {
            "apiVersion": "mailboat.dev/v1alpha1",
            "kind": "Broker",
            "metadata": {"name": "orders", "namespace": namespace},
            "spec": {
                "nameServers": {"addresses": ["ns.shop.svc:9876"]},
                "storage": {"size": "8Gi"},
            },
        }
        await kubernetes.put("brokers", broker)
    operator = await start_operator(namespaces="shop,bank", watch_seconds="1", deaf_seconds="12")
    await operator.wait_for_probe("/readyz", lambda _, text: text == "leader\n", 20)
    await kubernetes.wait_until(lambda: kubernetes.find("statefulsets", "shop", "orders-g0"))
    # A refusal that lasts for longer than a silence may.
    await asyncio.sleep(14.0)
    assert await operator.probe("/livez") == (200, "ok\n")
    _, text = await operator.probe("/metrics")
    assert 'operator_lists_refused{kind="Pod",namespace="bank"} 1.0' in text
    assert kubernetes.find("statefulsets", "bank", "orders-g0") is None
    has_rights = True
    await kubernetes.wait_until(lambda: kubernetes.find("statefulsets", "bank", "orders-g0"), 30)
