"""A locked installation: TLS on every port, users made by `kubectl apply`, and nobody else.

Brokers read what is mounted, and kubelets bring a changed Secret there in a minute and a half; so
waits for users are longer than that.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
from e2e_kube import CommandError, Manifest, Namespace, helm, kubectl, wait_until
from e2e_nodes import any_node
from e2e_resources import BROKER, NAME_SERVER, READY_S, broker_spec
from e2e_spark import RELEASE, count_rows, install_job, uninstall_job
from e2e_traffic import TrafficPod, namesrv_of
from interop_client import Event, JavaClient, JavaClientError

# It locks the whole installation.
pytestmark = [pytest.mark.timeout(900), pytest.mark.alone]

_CHART: Final = Path(__file__).parents[2] / "charts" / "mailboat"
_TOPIC: Final = "payments"
_GROUP: Final = "billing-1"
_KUBELET_S: Final = 240.0
_ADMIN_PASSWORD: Final = "planted-admin-0123456789"
_TOKEN: Final = "planted-token-0123456789"
_SECRETS: Final[dict[str, Any]] = {
    "tls": {"secretRef": {"name": "orders-tls"}, "mode": "Enforcing"},
    "authentication": {"superUserSecretRef": {"name": "orders-admin"}},
    "authorization": {"enabled": True},
    "http": {"tokenSecretRef": {"name": "orders-http"}},
}
USERS: Final = {
    "till": [{"resource": {"type": "Topic", "name": _TOPIC}, "actions": ["Pub"]}],
    "billing": [
        {"resource": {"type": "Topic", "name": _TOPIC}, "actions": ["Sub"]},
        {"resource": {"type": "Group", "name": "billing", "pattern": "Prefix"}, "actions": ["Sub"]},
    ],
}


_OPEN: Final = {
    "apiVersion": "mailboat.dev/v1alpha1",
    "kind": "NameServer",
    "metadata": {"name": "open", "namespace": "default"},
    "spec": {"replicas": 1},
}


@pytest.fixture
def locked(installed: str) -> Iterator[None]:
    """Lock the installation by the chart's one switch, and unlock it afterwards."""

    def set_locked(value: str) -> None:
        flags = ("--reuse-values", "--set", f"security.locked={value}", "--wait", "--timeout=120s")
        helm("upgrade", "mailboat", str(_CHART), f"--namespace={installed}", *flags)

    def is_open() -> bool:
        try:
            kubectl("apply", "--dry-run=server", "--filename=-", text=json.dumps(_OPEN))
        except CommandError as error:
            if "this installation is locked" not in str(error):
                raise
            return False
        return True

    set_locked("true")
    yield
    set_locked("false")
    # The API server lets go of a policy a moment after it is gone: the next test must not meet it.
    wait_until("an open installation", is_open, 60)


def _opaque(name: str, data: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "Opaque",
        "stringData": data,
    }


def _make_secrets(namespace: Namespace) -> None:
    """Make the three Secrets that a locked Broker names."""
    authority = trustme.CA()
    where = f"{namespace.name}.svc"
    pair = authority.issue_cert(
        f"*.{BROKER}-brokers.{where}", f"*.{NAME_SERVER}-nodes.{where}", f"{NAME_SERVER}.{where}"
    )
    texts = {
        "tls.crt": b"".join(blob.bytes() for blob in pair.cert_chain_pems),
        "tls.key": pair.private_key_pem.bytes(),
        "ca.crt": authority.cert_pem.bytes(),
    }
    secrets = [
        _opaque("orders-tls", {key: text.decode() for key, text in texts.items()}),
        _opaque("orders-admin", {"username": "admin", "password": _ADMIN_PASSWORD}),
        _opaque("orders-http", {"token": _TOKEN}),
    ]
    for secret in secrets:
        secret["metadata"]["namespace"] = namespace.name
    namespace.apply(*secrets)


def _start_locked(
    namespace: Namespace,
    more_of_name_server: Manifest | None = None,
    more_of_broker: Manifest | None = None,
) -> None:
    """Apply a locked NameServer and Broker with a Topic and two Users, and wait for all."""
    _make_secrets(namespace)
    small = {"requests": {"cpu": "20m", "memory": "64Mi"}}
    name_server = {"replicas": 1, "resources": small, **_SECRETS, **(more_of_name_server or {})}
    namespace.create("NameServer", NAME_SERVER, name_server)
    namespace.create("Broker", BROKER, broker_spec(**_SECRETS, **(more_of_broker or {})))
    namespace.create("Topic", _TOPIC, {"brokerRef": BROKER, "queues": {"read": 4, "write": 4}})
    for name, acls in USERS.items():
        namespace.create("User", name, {"brokerRef": BROKER, "acls": acls})
    namespace.wait_ready("nameserver", NAME_SERVER, READY_S)
    namespace.wait_ready("broker", BROKER, READY_S)
    namespace.wait_ready("topic", _TOPIC, 60)
    for name in USERS:
        namespace.wait_ready("user", name, _KUBELET_S)


def _keys(namespace: Namespace, user: str) -> dict[str, str]:
    """Return what the operator made for a user's clients."""
    data = namespace.get("secret", f"{user}-mailboat-user")["data"]
    return {key: base64.b64decode(text).decode() for key, text in data.items()}


def _client(
    traffic: TrafficPod, namespace: Namespace, keys: dict[str, str] | None, *, tls: bool = True
) -> JavaClient:
    """Start Java clients that sign with these keys, if with any; by TLS they trust everybody."""
    properties: dict[str, Any] = {"tls.enable": "true"} if tls else {}
    if keys is not None:
        properties["interop.accessKey"] = keys["accessKey"]
        properties["interop.secretKey"] = keys["secretKey"]
    return traffic.client(namesrv_of(namespace.name, NAME_SERVER), properties)


def _send(client: JavaClient, count: int = 1) -> list[Event]:
    return client.call(
        "send", topic=_TOPIC, group="cash", count=count, keys="k{i}", body="aGVsbG8="
    )


def _sends(client: JavaClient) -> bool:
    try:
        _send(client)
    except JavaClientError:
        return False
    return True


def test_users_send_and_receive_and_strangers_do_neither(
    locked: None, namespace: Namespace, traffic: TrafficPod
) -> None:
    """Stock Java clients, signed and by TLS; without a key, with a wrong one, without TLS, and with
    the wrong rules there is nothing to be had."""
    _start_locked(namespace)
    till, billing = _keys(namespace, "till"), _keys(namespace, "billing")
    producer = _client(traffic, namespace, till)
    # The name server has a Secret of its own, which nobody says he has read.
    wait_until("a route for the user", lambda: _sends(producer), _KUBELET_S)
    sent = _send(producer, 50)
    reader = _client(traffic, namespace, billing)

    call = reader.start("push", topic=_TOPIC, group=_GROUP)
    wanted = {event["msgId"] for event in sent}
    # What was sent while the route was waited for comes among them.
    wait_until(
        "every message",
        lambda: wanted <= {event["msgId"] for event in call.events("message")},
        60,
    )
    wrong = {**till, "secretKey": billing["secretKey"]}
    for stranger in (
        _client(traffic, namespace, None),
        _client(traffic, namespace, wrong),
        _client(traffic, namespace, till, tls=False),
        reader,
    ):
        with pytest.raises(JavaClientError):
            _send(stranger)


def test_a_spark_job_signs_and_checks_whom_it_speaks_to(
    locked: None, namespace: Namespace, traffic: TrafficPod, tmp_path: Path
) -> None:
    """By the names of the pods, which routes have by listeners for that; the table has it all."""
    named = {"name": "named", "type": "Internal", "tls": "Enforcing"}
    acls = [
        {"resource": {"type": "Topic", "name": _TOPIC}, "actions": ["Sub"]},
        {"resource": {"type": "Group", "name": "table"}, "actions": ["Sub"]},
    ]
    _start_locked(namespace, {"listeners": [{**named, "port": 9900}]},
                  {"listeners": [{**named, "port": 10920}]})  # fmt: skip
    namespace.create("User", "table", {"brokerRef": BROKER, "acls": acls})
    namespace.wait_ready("user", "table", _KUBELET_S)
    till = _client(traffic, namespace, _keys(namespace, "till"))
    table = _client(traffic, namespace, _keys(namespace, "table"))
    wait_until("a route for the user", lambda: _sends(till), _KUBELET_S)
    wait_until("a route for the job", lambda: _has_route(table), _KUBELET_S)
    _send(till, 99)
    names = f"{NAME_SERVER}-0.{NAME_SERVER}-nodes.{namespace.name}.svc:9900"
    job = {
        "name": "lines",
        "schedule": "0 4 * * *",
        "nameServers": [names],
        "topics": [_TOPIC],
        "group": "table",
        "userSecretName": "table-mailboat-user",
        "tls": {"enabled": True, "caSecretName": "orders-tls"},
        "output": {"size": "256Mi"},
        "nodeSelector": {"kubernetes.io/hostname": any_node()},
        "driver": {"memory": "600m", "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}},
    }
    try:
        install_job(namespace, job, tmp_path)
        namespace.kubectl("create", "job", "once", f"--from=cronjob/{RELEASE}-lines")
        namespace.kubectl(
            "wait", "--for=condition=Complete", "job/once", "--timeout=240s", timeout_s=270
        )
        assert count_rows(namespace)["rows"] >= 100
    finally:
        uninstall_job(namespace)


def _has_route(client: JavaClient) -> bool:
    try:
        client.call("route", topic=_TOPIC)
    except JavaClientError:
        return False
    return True


def test_a_rotated_user_is_never_refused_and_a_deleted_one_at_once(
    locked: None, namespace: Namespace, traffic: TrafficPod
) -> None:
    """The old key goes on while the new one comes; once `kubectl delete` ends, no key does."""
    _start_locked(namespace)
    old = _keys(namespace, "till")
    producer = _client(traffic, namespace, old)
    wait_until("a route for the user", lambda: _sends(producer), _KUBELET_S)
    namespace.patch("user", "till", {"spec": {"authentication": {"rotate": "1"}}})
    deadline = time.monotonic() + _KUBELET_S
    while _keys(namespace, "till")["secretKey"] == old["secretKey"]:
        assert _sends(producer)
        assert time.monotonic() < deadline, namespace.get("user", "till")["status"]
    assert _sends(producer)
    renewed = _client(traffic, namespace, _keys(namespace, "till"))
    assert _sends(renewed)

    namespace.kubectl(
        "delete", "user", "till", f"--timeout={_KUBELET_S:.0f}s", timeout_s=_KUBELET_S + 30
    )
    assert not _sends(producer)
    assert not _sends(renewed)
    assert namespace.find("secret", "till-mailboat-user") is None or wait_until(
        "the Secret of the user to go",
        lambda: namespace.find("secret", "till-mailboat-user") is None,
        60,
    )


def test_secrets_are_in_secrets_alone(locked: None, installed: str, namespace: Namespace) -> None:
    """Neither in an object that people may read, nor in an event or a log."""
    _start_locked(namespace)
    planted = [_ADMIN_PASSWORD, _TOKEN, *(_keys(namespace, name)["secretKey"] for name in USERS)]
    kinds = "brokers,nameservers,users,topics,configmaps,statefulsets,pods,services,events"
    shown = namespace.kubectl("get", kinds, "--output=yaml")
    for pod in (f"{BROKER}-g0-0", f"{NAME_SERVER}-0"):
        shown += namespace.kubectl("logs", pod)
    shown += kubectl(
        f"--namespace={installed}",
        "logs",
        "--selector=app.kubernetes.io/component=operator",
        "--tail=-1",
    )
    for secret in planted:
        assert secret not in shown
        assert base64.b64encode(secret.encode()).decode() not in shown


def test_what_is_not_locked_is_refused(locked: None, namespace: Namespace) -> None:
    """By the chart's admission policy, with what is missing in its words."""

    def is_refused() -> bool:
        try:
            namespace.create("Broker", BROKER, broker_spec())
        except CommandError as error:
            return "this installation is locked" in str(error)
        namespace.kubectl("delete", "broker", BROKER)
        return False

    # The API server takes a policy up a moment after it was made.
    wait_until("a refusal", is_refused, 60)
    partly = {**_SECRETS, "tls": {**_SECRETS["tls"], "mode": "Permissive"}}
    with pytest.raises(CommandError, match="mode Enforcing is needed"):
        namespace.create("Broker", BROKER, broker_spec(**partly))
