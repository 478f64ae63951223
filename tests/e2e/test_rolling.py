"""Changes of the pods while Java clients send: one pod at a time, nothing acknowledged lost."""

from __future__ import annotations

import os

from e2e_kube import Namespace, wait_until
from e2e_resources import BROKER, NAME_SERVER, start_broker
from e2e_traffic import TrafficPod, namesrv_of

GROUPS = 2
MOST_GAP_MS = 10_000


def _ready_pods(namespace: Namespace) -> int:
    ready = 0
    for pod in namespace.list("pods", f"mailboat.dev/broker={BROKER}"):
        conditions = pod.get("status", {}).get("conditions", [])
        ready += any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready


def test_a_roll_under_traffic_loses_nothing(namespace: Namespace, traffic: TrafficPod) -> None:
    """Two groups roll one after the other; each refuses sends for less than 10 s."""
    start_broker(namespace, groups=GROUPS)
    before = namespace.pod_uids(f"mailboat.dev/broker={BROKER}")
    client = traffic.client(namesrv_of(namespace.name, NAME_SERVER))
    client.call("create_topic", topic="roll", queues=4)
    consumer = client.start("drain", topic="roll", group="c", file=traffic.path("in"), batch=32)
    consumer.wait_done()
    steady = client.start("steady", topic="roll", group="p", file=traffic.path("out"))
    steady.wait_done()

    namespace.patch(
        "broker", BROKER, {"spec": {"podTemplate": {"annotations": {"rolled": "once"}}}}
    )
    fewest = last = GROUPS

    def rolled() -> bool:
        nonlocal fewest, last
        ready = _ready_pods(namespace)
        if ready < last:
            # The client looks at its routes every 30 s: once, and just now, is the worst moment.
            client.call("steady_look", handle=steady.number)
        fewest, last = min(fewest, ready), ready
        now = namespace.pod_uids(f"mailboat.dev/broker={BROKER}")
        done = namespace.condition("broker", BROKER, "Progressing").get("reason") == "Settled"
        return done and len(now) == GROUPS and not set(now.values()) & set(before.values())

    wait_until("rolled pods", rolled, 180)
    namespace.wait_ready("broker", BROKER)
    told = client.call("steady_stop", handle=steady.number)
    acknowledged = {row[0] for row in traffic.rows("out")}
    client.start(
        "await_places", handle=consumer.number, count=len(acknowledged), timeout=60
    ).wait_done(70)
    client.call("stop", handle=consumer.number)
    received = {row[0] for row in traffic.rows("in")}

    assert fewest >= GROUPS - 1, "two pods were down at once"
    assert {event["broker"] for event in told} == {f"{BROKER}-g{i}" for i in range(GROUPS)}
    for event in told:
        assert event["sent"] > 100, event
        assert event["longestGapMs"] < MOST_GAP_MS, event
    assert acknowledged <= received, f"{len(acknowledged - received)} acknowledged are lost"


def test_a_broken_image_takes_one_pod_down_and_its_fix_needs_no_human(
    namespace: Namespace,
) -> None:
    """With an image that does not exist one pod fails, the other runs on; the right one heals."""
    start_broker(namespace, groups=GROUPS)
    before = namespace.pod_uids(f"mailboat.dev/broker={BROKER}")
    namespace.patch("broker", BROKER, {"spec": {"image": "localhost/no-such-image:1"}})
    condition = namespace.wait_condition(
        "broker", BROKER, "Progressing", status="False", reason="RollBlocked", timeout_s=90
    )
    assert f"{BROKER}-g" in condition["message"]
    now = namespace.pod_uids(f"mailboat.dev/broker={BROKER}")
    assert len(set(before.values()) & set(now.values())) == GROUPS - 1
    namespace.patch("broker", BROKER, {"spec": {"image": os.environ["MAILBOAT_IMAGE"]}})
    namespace.wait_condition(
        "broker", BROKER, "Progressing", status="False", reason="Settled", timeout_s=120
    )
    namespace.wait_ready("broker", BROKER)
    assert _ready_pods(namespace) == GROUPS
