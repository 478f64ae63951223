"""Clients outside of the cluster: they know a node and its ports, and no pod's address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from e2e_kube import Namespace, wait_until
from e2e_resources import BROKER, NAME_SERVER, READY_S, broker_spec, start_name_server
from e2e_traffic import LINE
from interop_client import JavaClient, JavaClientError

pytestmark = pytest.mark.timeout(900)

_TOPIC: Final = "letters"
_GROUP: Final = "outside"
_MESSAGES: Final = 200
_KUBELET_S: Final = 240.0
"""A kubelet brings a changed ConfigMap in a minute and a half, and clients look every 30 s."""


@pytest.fixture
def outside_client(namespace: Namespace, tmp_path: Path) -> Iterator[JavaClient]:
    """Start a Broker and a NameServer with node ports, and Java clients on this host."""
    start_name_server(namespace)
    listener = {"name": "outside", "type": "NodePort"}
    listeners = {"spec": {"listeners": [{**listener, "port": 9900}]}}
    namespace.patch("nameserver", NAME_SERVER, listeners)
    spec = broker_spec(groups=2, listeners=[{**listener, "port": 10920}])
    namespace.create("Broker", BROKER, spec)
    namespace.create("Topic", _TOPIC, {"brokerRef": BROKER, "queues": {"read": 4, "write": 4}})
    for kind, name in (("nameserver", NAME_SERVER), ("broker", BROKER)):
        namespace.wait_ready(kind, name, READY_S)
        namespace.wait_condition(
            kind, name, "Reachable", status="True", reason="AddressesKnown", timeout_s=READY_S
        )
    namespace.wait_ready("topic", _TOPIC, 60)
    client = JavaClient(LINE, _addresses(namespace, "nameserver", NAME_SERVER)[0], tmp_path)
    yield client
    client.close()


def _addresses(namespace: Namespace, kind: str, name: str) -> list[str]:
    """Return where the status says that clients outside find a resource."""

    def found() -> list[str]:
        listeners = namespace.get(kind, name).get("status", {}).get("listeners") or [{}]
        return list(listeners[0].get("addresses") or ())

    return wait_until(f"addresses of {kind} {name}", found, READY_S)


def _sends(client: JavaClient) -> bool:
    try:
        client.call("send", topic=_TOPIC, group="post", count=1, keys="k{i}", body="aGVsbG8=")
    except JavaClientError:
        return False
    return True


def _keys(path: Path) -> set[str]:
    """Return the keys in a file with a line for each message."""
    return {line.partition("\t")[0] for line in path.read_text().splitlines()}


def test_clients_outside_send_and_receive_through_a_roll(
    namespace: Namespace, outside_client: JavaClient, tmp_path: Path
) -> None:
    """By node ports alone; the pod that takes another's place is found at the same port."""
    sent, received = tmp_path / "sent", tmp_path / "received"
    wait_until("a route from outside", lambda: _sends(outside_client), _KUBELET_S)
    before = {address.rpartition(":")[2] for address in _addresses(namespace, "broker", BROKER)}
    pods = namespace.pod_uids(f"mailboat.dev/broker={BROKER}")
    sender = outside_client.start(
        "steady", topic=_TOPIC, group="post", file=str(sent), interval=20, insist="true"
    )
    sender.wait_done()
    consumer = outside_client.start("drain", topic=_TOPIC, group=_GROUP, file=str(received))
    consumer.wait_done()
    rolled = {"spec": {"podTemplate": {"annotations": {"rolled": "once"}}}}
    namespace.patch("broker", BROKER, rolled)

    def is_rolled() -> bool:
        now = namespace.pod_uids(f"mailboat.dev/broker={BROKER}")
        return len(now) == len(pods) and set(now.values()).isdisjoint(pods.values())

    wait_until("other pods", is_rolled, 2 * READY_S)
    namespace.wait_ready("broker", BROKER, READY_S)
    for broker in (f"{BROKER}-g0", f"{BROKER}-g1"):
        wait_until(
            f"messages of {broker} after the roll",
            lambda broker=broker: _is_sent_to(outside_client, broker),
            _KUBELET_S,
        )
    outside_client.call(
        "steady_await", handle=sender.number, count=_MESSAGES, timeout=60, broker=""
    )
    [told] = outside_client.call("steady_stop", handle=sender.number)
    print(f"from outside, through a roll: {told}")
    acknowledged = _keys(sent)
    assert len(acknowledged) >= _MESSAGES
    wait_until("every message", lambda: acknowledged <= _keys(received), 90)
    after = {address.rpartition(":")[2] for address in _addresses(namespace, "broker", BROKER)}
    assert len(before) == len(pods)
    assert after == before


def _is_sent_to(client: JavaClient, broker: str) -> bool:
    try:
        [sent] = client.call(
            "send", topic=_TOPIC, group="post", count=1, keys="after", body="aGVsbG8=",
            broker=broker, queue=0,
        )  # fmt: skip
    except JavaClientError:
        return False
    return bool(sent["brokerName"] == broker)
