"""What the operator made comes back when somebody takes it away; data and volumes stay."""

from __future__ import annotations

import time

from e2e_kube import Namespace, kubectl, wait_until
from e2e_resources import BROKER, NAME_SERVER, broker_spec, start_broker
from e2e_traffic import TrafficPod, namesrv_of

SELECTOR = f"mailboat.dev/broker={BROKER}"
KINDS = ("statefulsets", "services", "configmaps", "poddisruptionbudgets", "serviceaccounts")
BACK_S = 10.0


def _uids(namespace: Namespace) -> dict[tuple[str, str], str]:
    return {
        (kind, item["metadata"]["name"]): item["metadata"]["uid"]
        for kind in KINDS
        for item in namespace.list(kind, SELECTOR)
    }


def test_deleted_and_edited_children_come_back_with_all_data(
    namespace: Namespace, traffic: TrafficPod
) -> None:
    """Every child deleted by hand is there again within 10 s, an edited one is put right."""
    start_broker(namespace)
    client = traffic.client(namesrv_of(namespace.name, NAME_SERVER))
    client.call("create_topic", topic="kept", queues=1)
    sent = client.call("send", topic="kept", group="p", count=20, keys="k{i}", body="aGVsbG8=")
    before = _uids(namespace)
    assert {kind for kind, _ in before} == set(KINDS)
    for kind, name in before:
        namespace.kubectl("delete", kind, name, "--wait=false")
    began = time.monotonic()

    def back() -> bool:
        now = _uids(namespace)
        return now.keys() == before.keys() and not set(now.values()) & set(before.values())

    wait_until("all children with new uids", back, 40)
    # A StatefulSet is gone only when its pod is, so its share is not the operator's.
    took = time.monotonic() - began
    namespace.wait_ready("broker", BROKER)
    namespace.kubectl(
        "label", "service", f"{BROKER}-g0", "app.kubernetes.io/component=other", "--overwrite"
    )
    wait_until(
        "the label put right",
        lambda: (
            namespace.get("service", f"{BROKER}-g0")["metadata"]["labels"][
                "app.kubernetes.io/component"
            ]
            == "broker"
        ),
        BACK_S,
    )
    consumer = client.start("push", topic="kept", group="c")
    received = consumer.wait_messages(20)
    assert {event["msgId"] for event in received} == {event["msgId"] for event in sent}
    assert took < 40


def test_a_broker_made_again_finds_its_data(namespace: Namespace, traffic: TrafficPod) -> None:
    """The Broker deleted and applied again runs on the same volumes, with the same messages."""
    start_broker(namespace)
    client = traffic.client(namesrv_of(namespace.name, NAME_SERVER))
    client.call("create_topic", topic="kept", queues=1)
    sent = client.call("send", topic="kept", group="p", count=20, keys="k{i}", body="aGVsbG8=")
    claim = namespace.get("pvc", f"data-{BROKER}-g0-0")["metadata"]["uid"]
    namespace.kubectl("delete", "broker", BROKER, "--timeout=60s")
    wait_until("no pods", lambda: not namespace.list("pods", SELECTOR), 60)
    namespace.create("Broker", BROKER, broker_spec())
    namespace.wait_ready("broker", BROKER)
    assert namespace.get("pvc", f"data-{BROKER}-g0-0")["metadata"]["uid"] == claim
    consumer = client.start("push", topic="kept", group="c")
    received = consumer.wait_messages(20)
    assert {event["msgId"] for event in received} == {event["msgId"] for event in sent}


def test_a_namespace_goes_within_a_minute(namespace: Namespace) -> None:
    """Nothing that the operator made holds the deletion of its namespace."""
    start_broker(namespace)
    began = time.monotonic()
    namespace.delete(wait_s=60)
    assert time.monotonic() - began < 60


def test_a_namespace_goes_within_a_minute_without_operator(
    namespace: Namespace, installed: str
) -> None:
    """The same while no operator runs."""
    start_broker(namespace)
    kubectl("--namespace", installed, "scale", "deployment/mailboat", "--replicas=0")
    try:
        began = time.monotonic()
        namespace.delete(wait_s=60)
        assert time.monotonic() - began < 60
    finally:
        kubectl("--namespace", installed, "scale", "deployment/mailboat", "--replicas=2")
        kubectl(
            "--namespace", installed, "rollout", "status", "deployment/mailboat", "--timeout=90s"
        )
