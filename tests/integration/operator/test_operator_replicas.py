"""The whole operator process with a Broker whose groups have replicas."""

from collections.abc import Awaitable, Callable
from typing import Any

from fake_kubernetes import FakeKubernetes

StartOperator = Callable[..., Awaitable[Any]]


async def test_what_replicas_need_is_made(
    kubernetes: FakeKubernetes, start_operator: StartOperator
) -> None:
    """Pods, rights, secret and the way to the leader; no Lease, as nobody has said what he has."""
    broker = {
        "apiVersion": "mailboat.dev/v1alpha1",
        "kind": "Broker",
        "metadata": {"name": "orders", "namespace": "shop"},
        "spec": {
            "replicas": 3,
            "nameServers": {"addresses": ["ns.shop.svc:9876"]},
            "storage": {"size": "8Gi"},
        },
    }
    await kubernetes.put("brokers", broker)
    operator = await start_operator()
    await operator.wait_for_probe("/readyz", lambda _, text: text == "leader\n", 20)
    for plural, name in (
        ("statefulsets", "orders-g0"),
        ("secrets", "orders-replication"),
        ("roles", "orders"),
        ("rolebindings", "orders"),
        ("poddisruptionbudgets", "orders-g0"),
        ("endpointslices", "orders-g0-leader"),
    ):
        await kubernetes.wait_until(lambda p=plural, n=name: kubernetes.find(p, "shop", n))
    stateful_set = kubernetes.find("statefulsets", "shop", "orders-g0")
    assert stateful_set is not None
    assert stateful_set["spec"]["replicas"] == 3
    service = kubernetes.find("services", "shop", "orders-g0")
    assert service is not None
    assert "selector" not in service["spec"]
    assert kubernetes.find("leases", "shop", "orders-g0") is None

    def says(reason: str) -> bool:
        live = kubernetes.find("brokers", "shop", "orders") or {}
        conditions = (live.get("status") or {}).get("conditions") or []
        return any(item.get("reason") == reason for item in conditions)

    await kubernetes.wait_until(lambda: says("WaitingForReplicas"))
    # Somebody takes the way to the leader away: it is made again, as the replicas cannot.
    await kubernetes.remove("endpointslices", "shop", "orders-g0-leader")
    await kubernetes.wait_until(
        lambda: kubernetes.find("endpointslices", "shop", "orders-g0-leader")
    )
