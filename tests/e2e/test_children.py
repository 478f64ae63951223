"""What the operator made comes back when somebody takes it away; data and volumes stay."""

from __future__ import annotations

import pytest
from e2e_kube import Namespace, kubectl, wait_until
from e2e_resources import BROKER, NAME_SERVER, REPLICAS, broker_spec, start_broker
from e2e_traffic import TrafficPod, namesrv_of

SELECTOR = f"mailboat.dev/broker={BROKER}"
KINDS = (
    "statefulsets",
    "services",
    "configmaps",
    "poddisruptionbudgets",
    "networkpolicies",
    "serviceaccounts",
)
BACK_S = 60.0


def _uids(namespace: Namespace) -> dict[tuple[str, str], str]:
    return {
        (kind, item["metadata"]["name"]): item["metadata"]["uid"]
        for kind in KINDS
        for item in namespace.list(kind, SELECTOR)
    }


def test_deleted_and_edited_children_come_back_with_all_data(
    namespace: Namespace, traffic: TrafficPod
) -> None:
    """Every child deleted by hand is there again, an edited one is put right."""
    start_broker(namespace)
    client = traffic.client(namesrv_of(namespace.name, NAME_SERVER))
    client.call("create_topic", topic="kept", queues=1)
    sent = client.call("send", topic="kept", group="p", count=20, keys="k{i}", body="aGVsbG8=")
    before = _uids(namespace)
    assert {kind for kind, _ in before} == set(KINDS)
    for kind, name in before:
        namespace.kubectl("delete", kind, name, "--wait=false")

    def back() -> bool:
        now = _uids(namespace)
        return now.keys() == before.keys() and not set(now.values()) & set(before.values())

    wait_until("all children with new uids", back, BACK_S)
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


def test_a_network_policy_that_is_not_wanted_goes(namespace: Namespace) -> None:
    """It goes and comes back with the spec, and no pod is replaced for it."""
    start_broker(namespace)
    policy, pods = f"mailboat-broker-{BROKER}", namespace.pod_uids()
    assert namespace.find("networkpolicy", policy) is not None
    for enabled in (False, True):
        namespace.patch("broker", BROKER, {"spec": {"networkPolicy": {"enabled": enabled}}})
        wait_until(
            f"networkPolicy.enabled: {enabled}",
            lambda: (namespace.find("networkpolicy", policy) is not None) == enabled,  # noqa: B023
            60,
        )
    assert namespace.pod_uids() == pods


def test_a_broker_made_again_finds_its_data(namespace: Namespace, traffic: TrafficPod) -> None:
    """The Broker deleted and applied again runs on the same volumes, with the same messages."""
    start_broker(namespace)
    client = traffic.client(namesrv_of(namespace.name, NAME_SERVER))
    client.call("create_topic", topic="kept", queues=1)
    sent = client.call("send", topic="kept", group="p", count=20, keys="k{i}", body="aGVsbG8=")
    claim = namespace.get("pvc", f"data-{BROKER}-g0-0")["metadata"]["uid"]
    namespace.kubectl("delete", "broker", BROKER, "--timeout=180s")
    wait_until("no pods", lambda: not namespace.list("pods", SELECTOR), 60)
    namespace.create("Broker", BROKER, broker_spec())
    namespace.wait_ready("broker", BROKER)
    assert namespace.get("pvc", f"data-{BROKER}-g0-0")["metadata"]["uid"] == claim
    consumer = client.start("push", topic="kept", group="c")
    received = consumer.wait_messages(20)
    assert {event["msgId"] for event in received} == {event["msgId"] for event in sent}


def test_an_edit_that_apply_cannot_undo_is_undone(namespace: Namespace) -> None:
    """Settings that exclude each other: the other's is taken away, and the pod stays."""
    start_broker(namespace)
    pods = namespace.pod_uids()
    budget = namespace.list("poddisruptionbudgets", SELECTOR)[0]["metadata"]["name"]
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    namespace.patch("statefulset", f"{BROKER}-g0", {"spec": {"updateStrategy": rolling}})
    namespace.patch(
        "poddisruptionbudget", budget, {"spec": {"maxUnavailable": None, "minAvailable": 0}}
    )

    def is_undone() -> bool:
        stateful_set = namespace.find("statefulset", f"{BROKER}-g0")
        spec = namespace.get("poddisruptionbudget", budget)["spec"]
        return (
            stateful_set is not None
            and stateful_set["spec"]["updateStrategy"] == {"type": "OnDelete"}
            and "minAvailable" not in spec
            and "maxUnavailable" in spec
        )

    wait_until("both as they were", is_undone, BACK_S)
    namespace.wait_ready("broker", BROKER)
    assert namespace.pod_uids() == pods


def test_volumes_go_with_the_broker_and_with_nothing_else(namespace: Namespace) -> None:
    """`whenDeleted: Delete`: the Broker's end costs the volume, a StatefulSet's does not."""
    start_broker(namespace, pvcRetention={"whenDeleted": "Delete"})
    claim = f"data-{BROKER}-g0-0"

    def owner() -> str | None:
        owners = namespace.get("pvc", claim)["metadata"].get("ownerReferences") or [{}]
        return owners[0].get("kind")

    wait_until("the Broker owns the claim", lambda: owner() == "Broker", BACK_S)
    uid = namespace.get("pvc", claim)["metadata"]["uid"]
    namespace.kubectl("delete", "statefulset", f"{BROKER}-g0", "--wait=true", "--timeout=180s")
    wait_until("the StatefulSet", lambda: namespace.find("statefulset", f"{BROKER}-g0"), 40)
    namespace.wait_ready("broker", BROKER)
    assert namespace.get("pvc", claim)["metadata"]["uid"] == uid
    namespace.kubectl("delete", "broker", BROKER, "--timeout=180s")
    wait_until("no volume", lambda: namespace.find("pvc", claim) is None, 60)


def test_a_pod_whose_claim_is_being_deleted_is_not_restarted(namespace: Namespace) -> None:
    """Its end would take the messages: a roll waits, and the Broker says what to do."""
    start_broker(namespace)
    pods = namespace.pod_uids(SELECTOR)
    namespace.kubectl("delete", "pvc", f"data-{BROKER}-g0-0", "--wait=false")
    namespace.wait_condition(
        "broker", BROKER, "StorageReady", status="False", reason="ClaimDeleted", timeout_s=30
    )
    namespace.patch("broker", BROKER, {"spec": {"podTemplate": {"labels": {"team": "mail"}}}})
    wait_until(
        "the roll waits",
        lambda: (
            "is being deleted" in namespace.condition("broker", BROKER, "Progressing")["message"]
        ),
        30 + 60 * (REPLICAS - 1),  # Where there are several, others are rolled before it.
    )
    pod = f"{BROKER}-g0-0"
    assert namespace.pod_uids(SELECTOR)[pod] == pods[pod]


def test_what_the_api_server_refuses_is_told(namespace: Namespace) -> None:
    """A label that is none is told in the server's words; once it is mended, the change goes on."""
    start_broker(namespace)
    wrong = {"spec": {"podTemplate": {"labels": {"team": "two words"}}}}
    namespace.patch("broker", BROKER, wrong)
    wait_until(
        "the server's words",
        lambda: (
            "two words" in namespace.condition("broker", BROKER, "Progressing")["message"]
            and namespace.condition("broker", BROKER, "Progressing")["reason"] == "ApplyRefused"
        ),
        30,
    )
    namespace.patch("broker", BROKER, {"spec": {"podTemplate": {"labels": {"team": "words"}}}})
    wait_until(
        "the new label",
        lambda: [
            pod
            for pod in namespace.list("pods", SELECTOR)
            if pod["metadata"]["labels"].get("team") == "words"
        ],
        120,
    )
    namespace.wait_ready("broker", BROKER)


def test_a_namespace_goes(namespace: Namespace) -> None:
    """Nothing that the operator made holds the deletion of its namespace."""
    start_broker(namespace)
    namespace.delete(wait_s=120)


@pytest.mark.alone  # It scales the operator down.
def test_a_namespace_goes_without_operator(namespace: Namespace, installed: str) -> None:
    """The same while no operator runs."""
    start_broker(namespace)
    kubectl("--namespace", installed, "scale", "deployment/mailboat", "--replicas=0")
    try:
        namespace.delete(wait_s=120)
    finally:
        kubectl("--namespace", installed, "scale", "deployment/mailboat", "--replicas=2")
        kubectl(
            "--namespace", installed, "rollout", "status", "deployment/mailboat", "--timeout=90s"
        )
