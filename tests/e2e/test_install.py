"""What a user sees first: helm, kubectl apply, explain, get, wait, scale, and the examples."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from e2e_kube import Namespace, helm, kubectl, wait_until
from e2e_resources import BROKER, NAME_SERVER, READY_S, broker_spec, start_broker
from e2e_traffic import TrafficPod, namesrv_of

EXAMPLES = [
    path
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
    # Values of a chart are no objects; the chart's tests look at them.
    if not path.stem.endswith("values")
]


@pytest.mark.alone  # It has a minute.
def test_a_broker_is_ready_within_a_minute_and_serves_java_clients(
    namespace: Namespace, traffic: TrafficPod
) -> None:
    """From apply to Ready in 60 s, and what a stock producer sends a stock consumer receives."""
    began = time.monotonic()
    start_broker(namespace)
    assert time.monotonic() - began < 60
    client = traffic.client(namesrv_of(namespace.name, NAME_SERVER))
    client.call("create_topic", topic="first", queues=4)
    sent = client.call("send", topic="first", group="p", count=50, keys="k{i}", body="aGVsbG8=")
    consumer = client.start("push", topic="first", group="c")
    received = consumer.wait_messages(50)
    assert {event["msgId"] for event in received} == {event["msgId"] for event in sent}


def test_kubectl_explains_every_kind_and_shows_its_columns(namespace: Namespace) -> None:
    """`kubectl explain` has a text for each field, `kubectl get` the columns of the docs."""
    for kind in ("broker", "nameserver", "topic", "user"):
        text = kubectl("explain", f"{kind}.spec", "--recursive=false")
        assert "DESCRIPTION" in text
        assert "<empty>" not in text
    start_broker(namespace)
    header = namespace.kubectl("get", "brokers").splitlines()[0].split()
    assert header == ["NAME", "READY", "GROUPS", "VERSION", "DISK", "RETENTION", "AGE"]
    assert BROKER in namespace.kubectl("get", "brk")


def test_scale_adds_and_removes_a_group_and_keeps_its_volume(namespace: Namespace) -> None:
    """`kubectl scale` makes a second group; scaled back, it takes no more messages, goes as it has
    none that are unread, and its claim stays."""
    start_broker(namespace)
    namespace.kubectl("scale", f"broker/{BROKER}", "--replicas=2")
    wait_until("second pod", lambda: f"{BROKER}-g1-0" in namespace.pod_uids(), 30)
    wait_until(
        "two groups serving",
        lambda: namespace.get("broker", BROKER)["status"].get("readyGroups") == 2,
        READY_S,
    )
    namespace.kubectl("scale", f"broker/{BROKER}", "--replicas=1")
    wait_until("one pod", lambda: f"{BROKER}-g1-0" not in namespace.pod_uids(), 120)
    assert namespace.find("pvc", f"data-{BROKER}-g1-0") is not None


def test_scale_takes_the_volume_where_that_is_said(namespace: Namespace) -> None:
    """`whenScaled: Delete`: the group that goes takes its claim along, and no other one."""
    policies = {"whenScaled": "Delete", "whenDeleted": "Delete"}
    start_broker(namespace, groups=2, pvcRetention=policies)
    namespace.kubectl("scale", f"broker/{BROKER}", "--replicas=1")
    wait_until(
        "nothing of the second group",
        lambda: all(
            namespace.find(kind, name) is None
            for kind, name in (
                ("pod", f"{BROKER}-g1-0"),
                ("pvc", f"data-{BROKER}-g1-0"),
                ("statefulset", f"{BROKER}-g1"),
                ("service", f"{BROKER}-g1"),
                ("configmap", f"{BROKER}-g1"),
            )
        ),
        120,
    )
    assert namespace.find("pvc", f"data-{BROKER}-g0-0") is not None
    assert f"{BROKER}-g0-0" in namespace.pod_uids()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_accepted(example: Path, namespace: Namespace) -> None:
    """The API server takes each example, with all its rules, unknown fields refused."""
    documents = [d for d in yaml.safe_load_all(example.read_text()) if d]
    assert documents
    text = yaml.safe_dump_all(documents)
    namespace.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "--filename", "-", text=text
    )


@pytest.mark.alone  # It has a minute.
def test_helm_test_passes(installed: str) -> None:
    """`helm test` finds the API group, the Lease and every right that the operator needs."""
    began_s = time.monotonic()
    shown = helm("test", "mailboat", f"--namespace={installed}", "--timeout=5m")
    assert "Succeeded" in shown
    assert time.monotonic() - began_s < 60, "helm waited for more than the test"


def test_a_topic_is_made_changed_and_deleted(namespace: Namespace, traffic: TrafficPod) -> None:
    """A Topic reaches every group, grows, and goes with reclaimPolicy Delete."""
    start_broker(namespace, groups=2)
    spec = {"brokerRef": BROKER, "queues": {"read": 4, "write": 4}, "reclaimPolicy": "Delete"}
    namespace.create("Topic", "paid", spec)
    namespace.wait_ready("topic", "paid", 60)
    client = traffic.client(namesrv_of(namespace.name, NAME_SERVER))
    route = client.call("route", topic="paid")
    assert {(event["brokerName"], event["writeQueueNums"]) for event in route} == {
        (f"{BROKER}-g0", 4),
        (f"{BROKER}-g1", 4),
    }
    namespace.patch("topic", "paid", {"spec": {"queues": {"read": 8, "write": 8}}})

    def grown() -> bool:
        return all(event["writeQueueNums"] == 8 for event in client.call("route", topic="paid"))

    wait_until("8 queues", grown, 60)
    namespace.kubectl("delete", "topic", "paid", "--timeout=180s")


def test_a_name_server_keeps_its_table(namespace: Namespace) -> None:
    """The queues of an ordered topic are known to the pod that comes after."""
    start_broker(namespace)
    pod, path = f"{NAME_SERVER}-0", "/var/lib/mailboat/namesrv/kvConfig.json"
    namespace.kubectl("exec", pod, "--", "mailboat", "topic", "create", "ordered", "--order")
    before = namespace.kubectl("exec", pod, "--", "cat", path)
    assert "ordered" in before
    uid = namespace.pod_uids()[pod]
    namespace.kubectl("delete", "pod", pod, "--timeout=180s")
    wait_until("another pod", lambda: namespace.pod_uids().get(pod) not in (None, uid), 60)
    namespace.wait_ready("nameserver", NAME_SERVER, READY_S)
    assert namespace.kubectl("exec", pod, "--", "cat", path) == before


def test_a_bad_spec_is_refused_with_its_rule(namespace: Namespace) -> None:
    """Each cross-field rule refuses with a text that names what is wrong."""
    wrong = {
        "expire": {"retention": {"thresholds": {"expire": {"percent": 95}}}},
        "maxSize": {
            "storage": {"size": "256Mi", "segmentSize": "16Mi", "autoGrow": {"enabled": True}}
        },
        "nameServers": {"nameServers": {"ref": "a", "addresses": ["b:9876"]}},
        "minHours": {"retention": {"hours": 5, "minHours": 6}},
        "segmentSize": {"storage": {"size": "256Mi", "segmentSize": "128Mi"}},
        "brokerName": {"config": {"brokerName": "other"}},
    }
    for word, change in wrong.items():
        with pytest.raises(AssertionError, match=word):
            namespace.create("Broker", BROKER, broker_spec(**change))
    namespace.create("Broker", BROKER, broker_spec())
    for change in ({"size": "128Mi"}, {"className": "other"}, {"segmentSize": "32Mi"}):
        with pytest.raises(AssertionError, match=next(iter(change))):
            namespace.patch("broker", BROKER, {"spec": {"storage": change}})
