"""Disks that fill while Java clients send and read: growth, expiry, refusal, and coming back."""

from __future__ import annotations

from typing import Any

import pytest
from e2e_api import read_objects
from e2e_kube import Manifest, Namespace, wait_until
from e2e_operator import operator_metric
from e2e_resources import (
    BROKER,
    NAME_SERVER,
    broker_api,
    broker_metric,
    broker_spec,
    claim_size,
    start_broker,
)
from e2e_traffic import TrafficPod, await_places, namesrv_of
from interop_client import JavaClient, JavaClientError
from promises import promised

MIB = 1024 * 1024
TOPIC = "fill"
BODY_KIB = 64
SERVICE_NOT_AVAILABLE = 14
_TAKES_S = 400
AUTO_GROW = {
    "enabled": True,
    "whenUsedPercent": 50,
    "whenFullWithin": "1m",
    "step": "128Mi",
    "cooldown": "0s",
}


def _storage(**changes: Any) -> Manifest:
    return {**broker_spec()["storage"], **changes}


def _class_exists(name: str) -> bool:
    return any(item["metadata"]["name"] == name for item in read_objects("", "storageclasses"))


def _needs_class(name: str) -> None:
    if not _class_exists(name):
        pytest.skip(f"the cluster has no storage class {name}")


def _can_default_class_grow() -> bool:
    mark = "storageclass.kubernetes.io/is-default-class"
    return any(
        item.get("allowVolumeExpansion")
        for item in read_objects("", "storageclasses")
        if item["metadata"].get("annotations", {}).get(mark) == "true"
    )


def _client(namespace: Namespace, traffic: TrafficPod) -> JavaClient:
    client = traffic.client(namesrv_of(namespace.name, NAME_SERVER))
    client.call("create_topic", topic=TOPIC, queues=4)
    return client


def _fill(client: JavaClient, traffic: TrafficPod, mib: int, name: str) -> Any:
    """Start sending so many MiB as fast as they are taken; each is sent until acknowledged."""
    return client.start(
        "produce",
        topic=TOPIC,
        group=f"p-{name}",
        prefix=f"kb{BODY_KIB}-{name}",
        count=mib * 1024 // BODY_KIB,
        window=16,
        file=traffic.path(f"out-{name}"),
        timeout=_TAKES_S,
    )


def _keys(traffic: TrafficPod, name: str) -> set[str]:
    return {row[0] for row in traffic.rows(name)}


def _refusal(client: JavaClient) -> JavaClientError | None:
    """Send a message, and return why it was refused, if it was."""
    try:
        client.call("send", topic=TOPIC, group="refused", count=1, keys="r", body="aGVsbG8=")
    except JavaClientError as error:
        return error
    return None


def _unconsumed_deleted(namespace: Namespace) -> int:
    rows = broker_api(namespace, 0, "/api/v1/retention")["unconsumed_deleted"]
    return sum(row["messages"] for row in rows)


def test_a_volume_grows_before_anything_unread_goes(
    namespace: Namespace, traffic: TrafficPod, installed: str
) -> None:
    """400 MiB for a group that reads nothing yet fit on 256Mi with autoGrow, within a minute.

    Events, metrics and status tell the same of it.
    """
    if not _can_default_class_grow():
        pytest.skip("the default storage class of the cluster cannot grow")
    grown_before = operator_metric(installed, "operator_autogrow_total", result="grown")
    start_broker(namespace, storage=_storage(autoGrow={**AUTO_GROW, "maxSize": "768Mi"}))
    pod = namespace.pod_uids(f"mailboat.dev/broker={BROKER}")
    client = _client(namespace, traffic)
    # The group has an offset, so its messages count as unread from here on.
    first = client.start("drain", topic=TOPIC, group="c", file=traffic.path("in-0"))
    first.wait_done()
    client.call("send", topic=TOPIC, group="p", count=8, keys="k{i}", body="aGVsbG8=")
    await_places(client, first, 8)
    client.call("stop", handle=first.number)

    _fill(client, traffic, 400, "a").wait_done(_TAKES_S + 10)
    # Less than that is more than half full.
    has = "768Mi"
    wait_until(f"a volume of {has}", lambda: claim_size(namespace) == (has, has), 60)
    assert namespace.pod_uids(f"mailboat.dev/broker={BROKER}") == pod, "grown without a restart"
    report = broker_api(namespace, 0, "/api/v1/retention")
    assert report["deleted"]["files"]["forced"] == 0
    with promised("nothing is deleted that was not consumed"):
        assert _unconsumed_deleted(namespace) == 0
    assert broker_metric(namespace, 0, "store_unconsumed_deleted_messages_total") == 0
    grown = namespace.events("VolumeGrowing")
    assert grown, "an event tells of the growth"
    counted = operator_metric(installed, "operator_autogrow_total", result="grown") - grown_before
    assert counted == len(grown)
    # What a file system keeps for itself is a few hundredths.
    wait_until(
        f"{has} in the broker's metrics",
        lambda: 0.9 * 768 * MIB < broker_metric(namespace, 0, "store_volume_capacity_bytes"),
        30,
    )
    assert any(has in text for text in grown)
    wait_until(
        "the size in the status",
        lambda: namespace.get("broker", BROKER)["status"]["storage"][0]["capacity"] == has,
        30,
    )

    second = client.start("drain", topic=TOPIC, group="c", file=traffic.path("in-1"), batch=32)
    second.wait_done()
    count = 400 * 1024 // BODY_KIB
    await_places(client, second, count)
    client.call("stop", handle=second.number)
    assert _keys(traffic, "out-a") <= _keys(traffic, "in-1")
    wait_until(
        "a StatefulSet of the new size",
        lambda: (
            namespace.get("statefulset", f"{BROKER}-g0")["spec"]["volumeClaimTemplates"][0]["spec"][
                "resources"
            ]["requests"]["storage"]
            == has
        ),
        60,
    )
    assert namespace.pod_uids(f"mailboat.dev/broker={BROKER}") == pod


def test_full_at_max_size_refuses_and_takes_again(
    namespace: Namespace, traffic: TrafficPod
) -> None:
    """Without room to grow read messages go first, then sends are refused, then they go on."""
    start_broker(namespace, retention={"hours": 72, "minHours": 0})
    client = _client(namespace, traffic)
    reader = client.start("drain", topic=TOPIC, group="c", file=traffic.path("in-0"), batch=32)
    reader.wait_done()
    # All of it is read at once, so it may go, and more than the volume holds can be sent.
    _fill(client, traffic, 320, "read").wait_done(_TAKES_S + 10)
    with promised("nothing is deleted that was not consumed"):
        assert _unconsumed_deleted(namespace) == 0
    client.call("stop", handle=reader.number)

    flood = _fill(client, traffic, 300, "unread")
    wait_until(
        "refusal of sends",
        lambda: broker_api(namespace, 0, "/api/v1/retention")["active"]["reject_writes"],
        120,
    )
    namespace.wait_condition(
        "broker", BROKER, "DiskPressure", status="True", reason="RejectingWrites", timeout_s=60
    )
    # It takes messages again for a moment whenever something that was read could still go.
    refused = wait_until("a refused send", lambda: _refusal(client), 60)
    assert refused.code == SERVICE_NOT_AVAILABLE
    wait_until(
        "the reason",
        lambda: "disk" in (broker_api(namespace, 0, "/api/v1/retention")["refusal"] or ""),
        60,
    )
    assert namespace.condition("broker", BROKER, "Ready")["status"] == "True"

    again = client.start("drain", topic=TOPIC, group="c", file=traffic.path("in-1"), batch=32)
    again.wait_done()
    flood.wait_done(400)
    count = 300 * 1024 // BODY_KIB
    await_places(client, again, count)
    client.call("stop", handle=again.number)
    with promised("nothing is deleted that was not consumed"):
        assert _unconsumed_deleted(namespace) == 0
    assert _keys(traffic, "out-unread") <= _keys(traffic, "in-1")


def test_a_class_that_grows_offline_restarts_the_pod_once(namespace: Namespace) -> None:
    """A larger size on such a class takes one restart, and then the room is there."""
    _needs_class("grows-offline")
    start_broker(namespace, storage=_storage(className="grows-offline"))
    before = namespace.pod_uids(f"mailboat.dev/broker={BROKER}")
    namespace.patch("broker", BROKER, {"spec": {"storage": {"size": "384Mi"}}})
    wait_until("384Mi", lambda: claim_size(namespace) == ("384Mi", "384Mi"), 120)
    namespace.wait_ready("broker", BROKER)
    after = namespace.pod_uids(f"mailboat.dev/broker={BROKER}")
    assert after.keys() == before.keys()
    assert after != before
    volume = broker_api(namespace, 0, "/api/v1/retention")["volume"]
    assert volume["capacity_bytes"] > 300 * MIB


def test_a_refused_growth_is_a_condition_and_the_rest_goes_on(namespace: Namespace) -> None:
    """Where the driver refuses a size, StorageReady says so and other changes are still made."""
    _needs_class("grows-to-256mi")
    storage = _storage(size="128Mi", className="grows-to-256mi")
    start_broker(namespace, storage=storage)
    change = {"storage": {"size": "512Mi"}, "retention": {"hours": 24}}
    namespace.patch("broker", BROKER, {"spec": change})

    def refused() -> bool:
        condition = namespace.condition("broker", BROKER, "StorageReady")
        return condition.get("status") == "False" and condition.get("reason") in {
            "ResizeInfeasible",
            "ResizeRefused",
        }

    wait_until("a refusal in StorageReady", refused, 120)
    wait_until(
        "the other change",
        lambda: broker_api(namespace, 0, "/api/v1/config")["values"]["fileReservedTime"] == "24",
        60,
    )
    assert namespace.condition("broker", BROKER, "Ready")["status"] == "True"


def test_a_class_that_never_grows_is_a_condition(namespace: Namespace) -> None:
    """The API refuses the growth; StorageReady names the class, the pods run on."""
    _needs_class("grows-never")
    start_broker(namespace, storage=_storage(className="grows-never"))
    namespace.patch("broker", BROKER, {"spec": {"storage": {"size": "512Mi"}}})
    condition = namespace.wait_condition(
        "broker", BROKER, "StorageReady", status="False", reason="ClassCannotGrow", timeout_s=60
    )
    assert "grows-never" in condition["message"]
    assert namespace.condition("broker", BROKER, "Ready")["status"] == "True"


def test_a_volume_grown_by_hand_is_adopted(namespace: Namespace) -> None:
    """A claim that a human made larger stays so, and the Broker stays Ready."""
    if not _can_default_class_grow():
        pytest.skip("the default storage class of the cluster cannot grow")
    start_broker(namespace)
    larger = {"spec": {"resources": {"requests": {"storage": "320Mi"}}}}
    namespace.patch("pvc", f"data-{BROKER}-g0-0", larger)
    wait_until("320Mi", lambda: claim_size(namespace) == ("320Mi", "320Mi"), 90)
    namespace.wait_condition(
        "broker", BROKER, "StorageReady", status="True", reason="LargerThanSpec", timeout_s=60
    )
    namespace.wait_ready("broker", BROKER)
