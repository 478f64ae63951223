"""The condition CertificateExpiring: what brokers say that they show, and when it is news."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from model_cluster import ModelCluster, settle
from operator_samples import BROKER_SPEC, sample_name_server

from mailboat_operator.broker_answers import read_broker
from mailboat_operator.crds.broker import parse_broker
from mailboat_operator.planner.actions import Apply, Notify, Plan
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.planner.name_server import plan_name_server
from mailboat_operator.planner.snapshot import Children, LiveCertificate, NameServerSnapshot
from mailboat_operator.resources.certificate import broker_certificate

DAY_MS = 86_400_000
PODS = ("orders-g0-0", "orders-g1-0")
SECRETS: dict[str, Any] = {"tls": {"secretRef": {"name": "orders-tls"}}}


def shown(from_days: float, to_days: float, problem: str = "") -> dict[str, Any]:
    """Return what a broker says of a certificate; days count from now."""
    return {
        "valid_from_timestamp_ms": int(from_days * DAY_MS),
        "valid_until_timestamp_ms": int(to_days * DAY_MS),
        "problem": problem,
    }


def cluster_of(**spec: Any) -> ModelCluster:
    """Return a settled cluster of two groups."""
    cluster = ModelCluster(BROKER_SPEC | {"groups": 2, **spec})
    settle(cluster, plan_broker)
    return cluster


def plan_with(cluster: ModelCluster, *said: dict[str, Any] | None) -> Plan:
    """Plan where the brokers say this of what they show, days counted from the cluster's now."""
    snapshot = cluster.snapshot()
    observations = dict(snapshot.observations)
    for pod, tls in zip(PODS, said, strict=True):
        observation = observations[pod]
        assert observation.broker is not None
        moved = tls and {
            name: value if name == "problem" else value + int(snapshot.now_s * 1000)
            for name, value in tls.items()
        }
        observations[pod] = replace(observation, broker=observation.broker | {"tls": moved})
    plan = plan_broker(replace(snapshot, observations=observations))
    cluster.carry_out(plan)
    return plan


def condition(cluster: ModelCluster) -> dict[str, Any] | None:
    """Return the condition as it was written last."""
    found = {item["type"]: item for item in cluster.status["conditions"]}
    return found.get("CertificateExpiring")


def news(plan: Plan) -> list[str]:
    """Return the reasons of the events about certificates."""
    actions = [action for step in plan.steps for action in step.actions]
    reasons = [action.reason for action in actions if isinstance(action, Notify)]
    return [reason for reason in reasons if reason.startswith(("Cert", "Exp", "Not", "Files"))]


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [
        ((shown(-1, 89), shown(-1, 60)), "False", "CertificateValid"),
        ((shown(-1, 89), shown(-76, 13.9)), "True", "ExpiresSoon"),
        # Of one that lives for a day, the last fifth counts.
        ((shown(-0.5, 0.5), shown(-0.79, 0.21)), "False", "CertificateValid"),
        ((shown(-0.5, 0.5), shown(-0.81, 0.19)), "True", "ExpiresSoon"),
        # Of one that lives for years, the last two weeks.
        ((shown(-3000, 15), shown(-1, 89)), "False", "CertificateValid"),
        ((shown(-3000, 13), shown(-1, 89)), "True", "ExpiresSoon"),
        ((shown(-90, -0.001), shown(-1, 89)), "True", "CertificateExpired"),
        ((shown(0.5, 89), shown(0.5, 89)), "True", "NotValidYet"),
        ((shown(-1, 89), shown(-1, 89, "holds no key")), "True", "FilesRefused"),
        ((None, shown(-1, 89)), "False", "CertificateValid"),
        ((None, None), "Unknown", "NotSaid"),
    ],
)
def test_what_is_said_of_a_certificate(said: Any, status: str, reason: str) -> None:
    """By the one that ends first; an event says what is wrong, once."""
    cluster = cluster_of(**SECRETS)
    plans = [plan_with(cluster, *said) for _ in range(3)]
    found = condition(cluster)
    assert found is not None
    assert (found["status"], found["reason"]) == (status, reason)
    assert [news(plan) for plan in plans] == [[reason] * (status == "True"), [], []]


def test_the_message_names_secret_pod_and_date() -> None:
    """Whoever reads it knows what to do."""
    cluster = cluster_of(**SECRETS)
    cluster.clock.set_wall(1_800_000_000_000)
    plan_with(cluster, shown(-1, 89), shown(-86, 4))
    found = condition(cluster)
    assert found is not None
    assert found["message"] == (
        "the certificate of Secret orders-tls that orders-g1-0 shows is valid until"
        " 2027-01-19T08:00:00Z; put a new one in"
    )


def test_a_new_certificate_ends_it_and_another_end_is_news_again() -> None:
    """True, False, True: two events."""
    cluster = cluster_of(**SECRETS)
    told = []
    for said in (shown(-80, 10), shown(0, 90), shown(-80, 10), shown(-90, -1)):
        told += news(plan_with(cluster, said, said))
    assert told == ["ExpiresSoon", "ExpiresSoon", "CertificateExpired"]


@pytest.mark.parametrize("tls", [None, SECRETS["tls"] | {"mode": "Disabled"}])
def test_where_no_port_speaks_tls_there_is_no_condition(tls: dict[str, Any] | None) -> None:
    """Nobody is shown anything."""
    cluster = cluster_of(**({} if tls is None else {"tls": tls}))
    plan_with(cluster, shown(-90, -1), None)
    assert condition(cluster) is None


def test_a_listener_that_speaks_tls_shows_the_certificate_as_well() -> None:
    """Also where those inside speak plainly."""
    listener = {"name": "outside", "port": 10920, "type": "NodePort", "tls": "Enforcing"}
    cluster = cluster_of(tls=SECRETS["tls"] | {"mode": "Disabled"}, listeners=[listener])
    plan_with(cluster, shown(-90, -1), None)
    found = condition(cluster)
    assert found is not None
    assert found["reason"] == "CertificateExpired"


def test_what_a_broker_answers_is_read() -> None:
    """An older one says nothing of it, and something else than times is refused."""
    tls: dict[str, Any] = {
        "valid_from_timestamp_ms": 1,
        "valid_until_timestamp_ms": 2,
        "problem": "",
        "new": 1,
    }
    answer = read_broker(json.dumps({"phase": "serving", "tls": tls}).encode())
    assert answer["tls"]["valid_until_timestamp_ms"] == 2
    assert read_broker(b'{"phase":"serving"}').get("tls") is None
    assert read_broker(b'{"phase":"serving","tls":null}').get("tls") is None
    with pytest.raises(msgspec.ValidationError):
        read_broker(b'{"phase":"serving","tls":{"valid_until_timestamp_ms":"soon"}}')


ISSUED: dict[str, Any] = {
    "secretRef": {"name": "orders-tls"},
    "issuerRef": {"name": "company-ca", "kind": "ClusterIssuer"},
}


def planned(cluster: ModelCluster, live: LiveCertificate) -> Plan:
    """Plan where cert-manager is so."""
    plan = plan_broker(replace(cluster.snapshot(), certificate=live))
    cluster.status = plan.status
    return plan


def applied(plan: Plan) -> list[dict[str, Any]]:
    """Return the Certificates that a plan applies."""
    actions = [action for step in plan.steps for action in step.actions]
    manifests = [action.manifest for action in actions if isinstance(action, Apply)]
    return [manifest for manifest in manifests if manifest["kind"] == "Certificate"]


def test_cert_manager_is_asked_for_all_names_once() -> None:
    """Pods and Services, inside; it differs no more once it is there."""
    cluster = cluster_of(tls=ISSUED)
    [wanted] = applied(planned(cluster, LiveCertificate(True)))
    assert wanted["apiVersion"] == "cert-manager.io/v1"
    assert wanted["metadata"]["name"] == "mailboat-broker-orders"
    assert wanted["metadata"]["ownerReferences"][0]["name"] == "orders"
    inside = ["*.orders-brokers.shop.svc", "orders-g0.shop.svc", "orders-g1.shop.svc"]
    assert wanted["spec"] == {
        "secretName": "orders-tls",
        "issuerRef": {"name": "company-ca", "kind": "ClusterIssuer", "group": "cert-manager.io"},
        "dnsNames": inside + [f"{name}.cluster.local" for name in inside],
        "privateKey": {
            "algorithm": "ECDSA",
            "size": 256,
            "encoding": "PKCS8",
            "rotationPolicy": "Always",
        },
        "usages": ["digital signature", "server auth", "client auth"],
    }
    live = wanted | {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    live["metadata"] |= {"uid": "c", "resourceVersion": "7"}
    assert applied(planned(cluster, LiveCertificate(True, live))) == []
    changed = live | {"spec": live["spec"] | {"dnsNames": ["other"]}}
    assert applied(planned(cluster, LiveCertificate(True, changed))) != []


@pytest.mark.parametrize(
    ("host", "names", "addresses"),
    [
        ("{pod}.mail.example.com", ["*.mail.example.com"], None),
        ("mail.example.com", ["mail.example.com"], None),
        ("192.0.2.7", [], ["192.0.2.7"]),
        ("{nodeIP}", [], None),
        ("mail.{group}.example.com", [], None),
        ("{pod}", [], None),
    ],
)
def test_what_clients_outside_are_told_is_in_it(
    host: str, names: list[str], addresses: list[str] | None
) -> None:
    """As far as it is known before: a wildcard stands for one label, the first."""
    listener = {"name": "outside", "port": 10920, "tls": "Enforcing", "advertised": {"host": host}}
    plain = {"name": "plain", "port": 10921, "advertised": {"host": "plain.example.com"}}
    spec = BROKER_SPEC | {"tls": ISSUED, "listeners": [listener, plain]}
    metadata = {"name": "orders", "namespace": "shop", "uid": "u"}
    broker = parse_broker({"metadata": metadata, "spec": spec})
    assert broker.spec.tls is not None
    found = broker_certificate(broker, broker.spec.tls)["spec"]
    assert [name for name in found["dnsNames"] if ".shop.svc" not in name] == names
    assert found.get("ipAddresses") == addresses


def test_what_clients_are_told_inside_is_a_name_of_the_certificate() -> None:
    """Of every pod, at every listener that speaks TLS; and no name stands there twice."""
    listeners = [
        {"name": f"in-{number}", "port": 10920 + number, "type": kind, "tls": "Enforcing"}
        for number, kind in enumerate(("ClusterIP", "Internal"))
    ]
    host = {"advertised": {"host": "mail.example.com", "port": 443}}
    listeners += [
        {"name": f"out-{port}", "port": port, "tls": "Enforcing", **host} for port in (1930, 1931)
    ]
    cluster = cluster_of(listeners=listeners, tls=ISSUED, replicas=2)
    broker = cluster.broker()
    assert broker.spec.tls is not None
    names = broker_certificate(broker, broker.spec.tls)["spec"]["dnsNames"]
    assert len(set(names)) == len(names)
    told = [
        address.rpartition(":")[0]
        for pod, text in cluster.objects["ConfigMap", "orders-addresses"]["data"].items()
        for address in json.loads(text).values()
    ]
    assert len(told) == 16
    for name in told:
        assert name in names or f"*.{name.partition('.')[2]}" in names


def test_without_cert_manager_nothing_is_asked_for_and_it_is_said() -> None:
    """And looked for again: nobody tells that it has come."""
    cluster = cluster_of(tls=ISSUED)
    plans = [planned(cluster, LiveCertificate(False)) for _ in range(2)]
    assert [applied(plan) for plan in plans] == [[], []]
    assert all((plan.again_after_s or 99) <= 30 for plan in plans)
    found = condition(cluster)
    assert found is not None
    assert (found["status"], found["reason"]) == ("True", "CertManagerMissing")
    assert "install it" in found["message"]
    ready = next(item for item in cluster.status["conditions"] if item["type"] == "Ready")
    assert ready["status"] == "True"


def test_what_cert_manager_says_is_shown() -> None:
    """Where nothing has come of it yet."""
    cluster = cluster_of(tls=ISSUED)
    words = "the issuer company-ca is not there"
    status = {"conditions": [{"type": "Ready", "status": "False", "message": words}]}
    [wanted] = applied(planned(cluster, LiveCertificate(True)))
    planned(cluster, LiveCertificate(True, wanted | {"status": status}))
    found = condition(cluster)
    assert found is not None
    assert found["message"] == f"no broker says what it shows; cert-manager: {words}"


def test_one_of_somebody_else_is_left_alone() -> None:
    """And stands in the way, which the Broker says."""
    cluster = cluster_of(tls=ISSUED)
    [wanted] = applied(planned(cluster, LiveCertificate(True)))
    metadata = wanted["metadata"] | {"ownerReferences": [], "labels": {}}
    plan = planned(cluster, LiveCertificate(True, wanted | {"metadata": metadata}))
    assert applied(plan) == []
    assert any("was not made by the operator" in failure for failure in plan.failures)


def test_name_servers_have_one_of_their_own() -> None:
    """Their pods and their Service; without cert-manager they say so as well."""
    resource = sample_name_server(tls=ISSUED)

    def plan_with_live(live: LiveCertificate) -> Plan:
        return plan_name_server(
            NameServerSnapshot(resource, Children(), "image", 0.0, certificate=live)
        )

    [wanted] = applied(plan_with_live(LiveCertificate(True)))
    name, namespace = resource.name, resource.namespace
    assert wanted["metadata"]["name"] == f"mailboat-name-server-{name}"
    assert wanted["spec"]["dnsNames"][1] == f"{name}.{namespace}.svc"
    assert wanted["spec"]["dnsNames"][0].startswith("*.")
    plan = plan_with_live(LiveCertificate(False))
    assert applied(plan) == []
    reasons = {item["type"]: item["reason"] for item in plan.status["conditions"]}
    assert reasons["CertificateExpiring"] == "CertManagerMissing"
