"""The whole operator process against a small API server with watch streams."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import fake_kubernetes
import pytest
from aiohttp import web
from fake_kubernetes import FakeKubernetes

# They wait for the Lease of real operators.
pytestmark = pytest.mark.slow

Manifest = dict[str, Any]
StartOperator = Callable[..., Awaitable[Any]]


def _broker(name: str = "orders", namespace: str = "shop") -> Manifest:
    return {
        "apiVersion": "mailboat.dev/v1alpha1",
        "kind": "Broker",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nameServers": {"addresses": ["ns.shop.svc:9876"]},
            "storage": {"size": "8Gi"},
        },
    }


def _lease_holder(kubernetes: FakeKubernetes) -> str:
    lease = kubernetes.find("leases", "system", "mailboat-operator")
    return lease["spec"]["holderIdentity"] if lease else ""


async def test_creates_children_and_rests(
    kubernetes: FakeKubernetes, start_operator: StartOperator
) -> None:
    """A Broker gets children and a status, a deleted child comes back, and then all is quiet."""
    operator = await start_operator()
    await operator.wait_for_probe("/readyz", lambda _, text: text == "leader\n", 20)
    await kubernetes.put("brokers", _broker())
    await kubernetes.wait_until(lambda: kubernetes.find("statefulsets", "shop", "orders-g0"))
    await kubernetes.wait_until(
        lambda: (kubernetes.find("brokers", "shop", "orders") or {}).get("status")
    )

    await kubernetes.remove("services", "shop", "orders-brokers")
    await kubernetes.wait_until(lambda: kubernetes.find("services", "shop", "orders-brokers"))

    await asyncio.sleep(1.0)
    before = len(kubernetes.writes())
    await asyncio.sleep(2.0)
    assert kubernetes.writes()[before:] == []
    _, text = await operator.probe("/metrics")
    assert 'operator_reconcile_total{kind="Broker",result="done"}' in text
    assert "operator_leader 1.0" in text


async def _leading(operator: Any) -> None:
    await operator.wait_for_probe("/readyz", lambda _, text: text == "leader\n", 20)


async def _exit_code(operator: Any, timeout_s: float = 10) -> int:
    async with asyncio.timeout(timeout_s):
        return int(await operator.process.wait())


async def test_sigterm_hands_over(
    kubernetes: FakeKubernetes, start_operator: StartOperator
) -> None:
    """On SIGTERM each exits with 0; the leader frees the Lease, and a standby serves at once."""
    first = await start_operator("operator-0")
    await _leading(first)
    second = await start_operator("operator-1")
    assert await second.probe("/readyz") == (200, "standby\n")
    assert await second.probe("/livez") == (200, "ok\n")
    third = await start_operator("operator-2")
    third.process.send_signal(signal.SIGTERM)
    assert await _exit_code(third) == 0
    assert _lease_holder(kubernetes).startswith("operator-0_")

    began_s = time.monotonic()
    first.process.send_signal(signal.SIGTERM)
    assert await _exit_code(first) == 0
    await _leading(second)
    assert time.monotonic() - began_s < 10
    assert _lease_holder(kubernetes).startswith("operator-1_")
    await kubernetes.put("brokers", _broker())
    await kubernetes.wait_until(lambda: kubernetes.find("services", "shop", "orders-g0"))

    second.process.send_signal(signal.SIGTERM)
    assert await _exit_code(second) == 0
    assert _lease_holder(kubernetes) == ""


async def test_killed_leader_is_replaced(
    kubernetes: FakeKubernetes, start_operator: StartOperator
) -> None:
    """A leader that is killed is replaced within 20 s, and what happened meanwhile is caught up."""
    first = await start_operator("operator-0")
    await _leading(first)
    second = await start_operator("operator-1")
    first.process.kill()
    killed_s = time.monotonic()
    await kubernetes.put("brokers", _broker())
    await kubernetes.wait_until(lambda: kubernetes.find("services", "shop", "orders-g0"), 25)
    assert time.monotonic() - killed_s < 20
    assert (await second.probe("/readyz"))[1] == "leader\n"


async def test_a_lost_lease_ends_the_process(
    kubernetes: FakeKubernetes, start_operator: StartOperator
) -> None:
    """A leader whose Lease carries another name exits with 1 and takes it from nobody."""
    operator = await start_operator()
    await _leading(operator)
    lease = kubernetes.find("leases", "system", "mailboat-operator")
    assert lease is not None
    await kubernetes.put("leases", {**lease, "spec": {**lease["spec"], "holderIdentity": "other"}})
    assert await _exit_code(operator, 15) == 1
    assert _lease_holder(kubernetes) == "other"


async def test_a_lease_that_is_deleted_ends_the_process(
    kubernetes: FakeKubernetes, start_operator: StartOperator
) -> None:
    """Whoever deletes the Lease of a leader has it start anew; meanwhile nobody else leads."""
    first = await start_operator("operator-0")
    await _leading(first)
    second = await start_operator("operator-1")
    await kubernetes.wait_until(lambda: len([c for c in kubernetes.calls if c.verb == "PUT"]) > 1)
    await kubernetes.remove("leases", "system", "mailboat-operator")
    assert await _exit_code(first, 8) == 1
    assert (await second.probe("/readyz"))[1] == "standby\n"
    await _leading(second)


async def test_deaf_watches_fail_the_liveness_probe(
    kubernetes: FakeKubernetes, start_operator: StartOperator
) -> None:
    """When watches bring nothing and cannot be begun anew, /livez says which ones."""
    operator = await start_operator(watch_seconds="1", deaf_seconds="12")
    await _leading(operator)
    assert await operator.probe("/livez") == (200, "ok\n")
    kubernetes.hearing.clear()
    # One watch after the other is found deaf, each twelve seconds after it last brought something.
    text = await operator.wait_for_probe(
        "/livez", lambda status, text: status == 503 and "the watch of Broker is deaf" in text, 30
    )
    assert "about the Lease" not in text


async def test_a_dead_stream_is_replaced(
    kubernetes: FakeKubernetes, start_operator: StartOperator
) -> None:
    """Streams that fall silent are given up; what was missed, deletions too, is made good."""
    await kubernetes.put("brokers", _broker())
    operator = await start_operator(watch_seconds="1")
    await _leading(operator)
    await kubernetes.wait_until(lambda: kubernetes.find("services", "shop", "orders-g0"))
    kubernetes.hearing.clear()
    await asyncio.sleep(1.5)
    # Nobody is told of this, and the history that could tell it later is gone: 410.
    await kubernetes.remove("services", "shop", "orders-g0", is_told=False)
    await kubernetes.remove("services", "shop", "orders-brokers", is_told=False)
    kubernetes.compacted = kubernetes.version
    kubernetes.hearing.set()
    await kubernetes.wait_until(lambda: kubernetes.find("services", "shop", "orders-g0"), 15)
    await kubernetes.wait_until(lambda: kubernetes.find("services", "shop", "orders-brokers"))
    assert (await operator.probe("/livez"))[0] == 200


async def test_a_bad_api_server_is_outlived(
    kubernetes: FakeKubernetes, start_operator: StartOperator
) -> None:
    """Errors and 429s cost no restart and no work; a call that hangs does not hold up SIGTERM, and
    as it may still come about, the Lease is not given back but runs out."""
    operator = await start_operator(watch_seconds="1")
    await _leading(operator)
    answers = [500, 429, 503]

    async def fail(request: web.Request) -> web.Response | None:
        if "/leases" in request.path:
            return None
        answers.append(answers.pop(0))
        return web.json_response({"message": "not now"}, status=answers[0])

    kubernetes.faults = [fail]
    await kubernetes.put("brokers", _broker())
    await asyncio.sleep(4)
    kubernetes.faults = []
    await kubernetes.wait_until(lambda: kubernetes.find("services", "shop", "orders-g0"), 20)
    assert operator.process.returncode is None

    async def hang(request: web.Request) -> None:
        if request.method == "PATCH":
            await asyncio.Event().wait()

    kubernetes.faults = [hang]  # type: ignore[list-item]
    before = len(kubernetes.writes())
    await kubernetes.put("brokers", _broker("bills"))
    await kubernetes.wait_until(lambda: len(kubernetes.writes()) > before)
    operator.process.send_signal(signal.SIGTERM)
    assert await _exit_code(operator) == 0
    assert _lease_holder(kubernetes).startswith("operator-0_")


async def test_waits_for_its_definitions(
    kubernetes: FakeKubernetes, start_operator: StartOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the custom resources' definitions the operator waits, alive but not ready."""
    monkeypatch.delitem(fake_kubernetes.RESOURCES, ("mailboat.dev", "v1alpha1"))
    operator = await start_operator()
    path = "/apis/mailboat.dev/v1alpha1"
    await kubernetes.wait_until(lambda: path in [call.path for call in kubernetes.calls])
    text = await operator.wait_for_probe("/readyz", lambda _, text: "waits" in text, 10)
    assert text == "waits for the custom resources' definitions\n"
    assert (await operator.probe("/livez"))[0] == 200
    operator.process.send_signal(signal.SIGTERM)
    assert await _exit_code(operator) == 0


async def test_one_namespace_needs_no_rights_elsewhere(
    kubernetes: FakeKubernetes, start_operator: StartOperator
) -> None:
    """Told its namespaces, the operator asks for nothing outside of them, and serves them all."""
    operator = await start_operator(namespaces="shop,bank")
    await _leading(operator)
    for namespace in ("shop", "bank", "other"):
        await kubernetes.put("brokers", _broker(namespace=namespace))
    for namespace in ("shop", "bank"):
        await kubernetes.wait_until(
            lambda namespace=namespace: kubernetes.find("services", namespace, "orders-g0")
        )
    assert kubernetes.find("services", "other", "orders-g0") is None
    whole = [
        call.path
        for call in kubernetes.calls
        if "/namespaces/" not in call.path and "resourceVersion" in str(call.query)
    ]
    listed = [call.path for call in kubernetes.calls if call.path.endswith("/brokers")]
    assert whole == []
    assert set(listed) == {
        f"/apis/mailboat.dev/v1alpha1/namespaces/{namespace}/brokers"
        for namespace in ("shop", "bank")
    }
    assert not any("storageclasses" in call.path for call in kubernetes.calls)


async def test_wrong_settings_are_one_sentence(start_operator: StartOperator) -> None:
    """A setting that does not exist ends the process with the code for configuration errors."""
    with pytest.raises(AssertionError, match="did you mean MAILBOAT_OPERATOR_WORKERS"):
        await start_operator(worker="3")
