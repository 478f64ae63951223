"""Changes of the pods while Java clients send: one pod at a time, nothing acknowledged lost."""

from __future__ import annotations

import os

import pytest
from e2e_kube import Namespace, wait_until
from e2e_resources import BROKER, NAME_SERVER, REPLICAS, start_broker
from e2e_traffic import TrafficPod, await_places, namesrv_of
from interop_client import JavaClient, JavaClientError
from promises import promised

GROUPS = 2
PODS = GROUPS * REPLICAS
MOST_GAP_MS = 10_000


def _ready_pods(namespace: Namespace) -> int:
    ready = 0
    for pod in namespace.list("pods", f"mailboat.dev/broker={BROKER}"):
        conditions = pod.get("status", {}).get("conditions", [])
        ready += any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready


def _stored(client: JavaClient, topic: str) -> int:
    """Return how many messages a topic has, 0 while a Service does not lead to its new pod yet."""
    try:
        return sum(event["maxOffset"] for event in client.call("offsets", topic=topic))
    except JavaClientError as error:
        if error.kind != "RemotingConnectException":
            raise
        return 0


@pytest.mark.alone  # Its clients keep the machine busy.
def test_a_roll_under_traffic_loses_nothing(namespace: Namespace, traffic: TrafficPod) -> None:
    """Two groups roll one after the other; each refuses sends for less than 10 s, and no look at
    the routes, however bad its moment, makes a client forget a group."""
    start_broker(namespace, groups=GROUPS)
    before = namespace.pod_uids(f"mailboat.dev/broker={BROKER}")
    client = traffic.client(namesrv_of(namespace.name, NAME_SERVER))
    for topic in ("roll", "look"):
        client.call("create_topic", topic=topic, queues=4)
    consumer = client.start("drain", topic="roll", group="c", file=traffic.path("in"), batch=32)
    consumer.wait_done()
    steady = client.start("steady", topic="roll", group="p", file=traffic.path("out"))
    steady.wait_done()
    looking = client.start("steady", topic="look", group="q", file=traffic.path("look"))
    looking.wait_done()

    namespace.patch(
        "broker", BROKER, {"spec": {"podTemplate": {"annotations": {"rolled": "once"}}}}
    )
    fewest = PODS

    def rolled() -> bool:
        nonlocal fewest
        fewest = min(fewest, _ready_pods(namespace))
        client.call("steady_look", handle=looking.number)
        now = namespace.pod_uids(f"mailboat.dev/broker={BROKER}")
        done = namespace.condition("broker", BROKER, "Progressing").get("reason") == "Settled"
        return done and len(now) == PODS and not set(now.values()) & set(before.values())

    wait_until("rolled pods", rolled, 180 * REPLICAS)
    namespace.wait_ready("broker", BROKER)
    told = client.call("steady_stop", handle=steady.number)
    looked = client.call("steady_stop", handle=looking.number)
    acknowledged = {row[0] for row in traffic.rows("out")}
    # With all that is stored, also what was not acknowledged: then nothing is on its way.
    stored = wait_until("a way to each group", lambda: _stored(client, "roll"), 60)
    await_places(client, consumer, stored)
    client.call("stop", handle=consumer.number)
    received = {row[0] for row in traffic.rows("in")}

    assert fewest >= PODS - 1, "two pods were down at once"
    assert {event["broker"] for event in told} == {f"{BROKER}-g{i}" for i in range(GROUPS)}
    for event in told:
        assert event["sent"] > 100, event
        assert event["longestGapMs"] < MOST_GAP_MS, event
    for event in looked:
        assert "not exist" not in event["failures"], event
    with promised("nothing acknowledged is lost"):
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
    assert len(set(before.values()) & set(now.values())) == PODS - 1
    namespace.patch("broker", BROKER, {"spec": {"image": os.environ["MAILBOAT_IMAGE"]}})
    namespace.wait_condition(
        "broker", BROKER, "Progressing", status="False", reason="Settled", timeout_s=120 * REPLICAS
    )
    namespace.wait_ready("broker", BROKER)
    assert _ready_pods(namespace) == PODS
