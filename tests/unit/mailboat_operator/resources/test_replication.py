"""What is made for a group with replicas."""

import json
from typing import Any

import pytest
from kubernetes_validate import validate
from operator_samples import sample_broker

from mailboat_operator.resources.config_map import broker_settings, user_config
from mailboat_operator.resources.labels import group_labels, selector_of
from mailboat_operator.resources.replication import (
    first_lease,
    leader_slice,
    replicas_role,
    replicas_role_binding,
    replication_secret,
)
from mailboat_operator.resources.services import BROKER_PORTS, REPLICA_PORTS, broker_nodes_service
from mailboat_operator.resources.services import group_service as service_of
from mailboat_operator.resources.stateful_set import broker_stateful_set

THREE: dict[str, Any] = {"replicas": 3}


def stateful_set(**spec: Any) -> dict[str, Any]:
    """Return the StatefulSet of a group of three."""
    broker = sample_broker(**(THREE | spec))
    settings = broker_settings(broker, 0, address="10.96.0.1", name_servers=("a:1",), replicas=3)
    return broker_stateful_set(
        broker,
        0,
        settings=settings,
        volume_bytes=8 << 30,
        default_image="mailboat:1",
        replicas=3,
    )


def objects(**spec: Any) -> list[dict[str, Any]]:
    """Return all that is different for a group of three."""
    broker = sample_broker(**(THREE | spec))
    return [
        stateful_set(**spec),
        service_of(broker, 0, "10.96.0.1", has_replicas=True),
        broker_nodes_service(broker, REPLICA_PORTS),
        first_lease(broker, 0, 0, "a1"),
        leader_slice(broker, 0, BROKER_PORTS, address="10.96.0.1", pod_ip="10.0.0.7"),
        leader_slice(broker, 0, BROKER_PORTS, address="fd00::1", pod_ip=None),
        replicas_role(broker, ["orders-g0"]),
        replicas_role_binding(broker),
        replication_secret(broker),
    ]


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_every_object_is_legal_for_the_oldest_and_the_newest_kubernetes(version):
    """The strict schemas of Kubernetes know every field, and two builds are the same."""
    for manifest in objects():
        validate(manifest, version, strict=True)
        assert manifest["metadata"]["ownerReferences"][0]["uid"] == "uid-of-orders"
        assert manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "mailboat-operator"
    assert json.dumps(objects()) == json.dumps(objects())


def test_a_replica_knows_itself_by_its_pod():
    """What is different in each of them comes from the downward API, beside the user's own."""
    found = stateful_set(podTemplate={"env": [{"name": "TZ", "value": "CET"}]})
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert {
        item["name"]: item["valueFrom"]["fieldRef"]["fieldPath"]
        for item in container["env"]
        if "valueFrom" in item
    } == {
        "MAILBOAT_BROKER_ID": "metadata.labels['apps.kubernetes.io/pod-index']",
        "MAILBOAT_BROKER_IP2": "status.podIP",
        "MAILBOAT_POD_NAME": "metadata.name",
        "MAILBOAT_POD_UID": "metadata.uid",
    }
    assert {"name": "TZ", "value": "CET"} in container["env"]
    assert {"name": "ha", "containerPort": 10_912, "protocol": "TCP"} in container["ports"]


def test_a_replica_reads_its_secret_and_a_token_of_its_own():
    """Both are mounted to be read; the account's own token still is not."""
    pod = stateful_set()["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    mounts = {item["mountPath"]: item for item in container["volumeMounts"]}
    assert mounts["/etc/mailboat-secrets/replication"] == {
        "name": "replication",
        "mountPath": "/etc/mailboat-secrets/replication",
        "readOnly": True,
    }
    assert mounts["/var/run/secrets/mailboat/kube-api"]["readOnly"] is True
    volumes = {item["name"]: item for item in pod["volumes"]}
    assert volumes["replication"]["secret"] == {"secretName": "orders-replication"}
    token, authority, namespace = volumes["kube-api"]["projected"]["sources"]
    assert token["serviceAccountToken"] == {"path": "token", "expirationSeconds": 3600}
    assert authority["configMap"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    assert namespace["downwardAPI"]["items"][0]["path"] == "namespace"


def test_replicas_are_kept_apart_where_that_is_possible():
    """By node and by zone within the group; the user's wishes take their place."""
    pod = stateful_set()["spec"]["template"]["spec"]
    group = {"matchLabels": selector_of(group_labels("orders", 0))}
    (term,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"] == {
        "labelSelector": group,
        "topologyKey": "kubernetes.io/hostname",
    }
    nodes, zones = pod["topologySpreadConstraints"]
    assert nodes["topologyKey"] == "kubernetes.io/hostname"
    assert zones["topologyKey"] == "topology.kubernetes.io/zone"
    assert zones["labelSelector"] == group
    assert zones["whenUnsatisfiable"] == "ScheduleAnyway"
    mine = {"affinity": {"nodeAffinity": {}}, "topologySpreadConstraints": [{"maxSkew": 2}]}
    pod = stateful_set(podTemplate=mine)["spec"]["template"]["spec"]
    assert pod["affinity"] == {"nodeAffinity": {}}
    assert pod["topologySpreadConstraints"] == [{"maxSkew": 2}]


def test_the_service_of_a_group_with_replicas_selects_no_pod():
    """Its EndpointSlice, which bears its name, says where it leads to."""
    manifests = objects()
    service, endpoints, sixth = manifests[1], manifests[4], manifests[5]
    assert "selector" not in service["spec"]
    assert service["spec"]["clusterIP"] == "10.96.0.1"
    assert endpoints["metadata"]["name"] == "orders-g0-leader"
    assert endpoints["metadata"]["labels"]["kubernetes.io/service-name"] == "orders-g0"
    manager = endpoints["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"]
    assert manager == "mailboat.dev"
    assert endpoints["metadata"]["annotations"] == {"mailboat.dev/epoch": "0"}
    assert endpoints["endpoints"][0]["addresses"] == ["10.0.0.7"]
    assert [port["port"] for port in endpoints["ports"]] == [10_911, 10_909, 8_080]
    assert (endpoints["addressType"], sixth["addressType"]) == ("IPv4", "IPv6")
    assert sixth["endpoints"] == []


@pytest.mark.parametrize(
    ("spec", "minimum"),
    [({}, "2"), ({"replication": {"mode": "Async"}}, "1"), ({"replicas": 1}, "1")],
)
def test_the_first_lease_lets_one_replica_lead(spec, minimum):
    """Nobody has led; the one with all messages may. How many have to be in sync, the spec says."""
    broker = sample_broker(**(THREE | spec))
    lease = first_lease(broker, 1, 2, "c3")
    assert lease["metadata"]["name"] == "orders-g1"
    assert lease["metadata"]["annotations"] == {
        "mailboat.dev/epoch": "0",
        "mailboat.dev/in-sync": "2:c3",
        "mailboat.dev/min-in-sync": minimum,
        "mailboat.dev/renewals": "0",
        "mailboat.dev/sole": "true",
    }
    assert lease["spec"]["holderIdentity"] == ""


def test_the_file_is_the_same_for_all_replicas():
    """It has what they share, and where each of them is found."""
    broker = sample_broker(
        replicas=3,
        replication={"mode": "Async", "leaseSeconds": 12, "catchUpBytesPerSecond": 1_000_000},
    )
    settings = broker_settings(broker, 1, address="10.96.0.1", name_servers=("a:1",), replicas=3)
    alone = broker_settings(broker, 1, address="10.96.0.1", name_servers=("a:1",))
    nodes = "orders-brokers.shop.svc:10912"
    assert {key: settings[key] for key in settings.keys() - alone.keys()} == {
        "brokerRole": "ASYNC_MASTER",
        "haListenPort": "10912",
        "haMasterAddress": f"orders-g1-0.{nodes};orders-g1-1.{nodes};orders-g1-2.{nodes}",
        "haSecretFile": "/etc/mailboat-secrets/replication/secret",
        "inSyncReplicas": "1",
        "leaderListenPort": "10913",
        "leaseName": "orders-g1",
        "leaseSeconds": "12",
        "maxHaTransferByteInSecond": "1000000",
        "totalReplicas": "3",
    }


def test_settings_of_replicas_are_the_users_only_where_there_are_some():
    """What the operator decides stays its own; what is left has an effect with replicas."""
    config = {"slaveTimeout": "1000", "totalReplicas": "9", "brokerRole": "SYNC_MASTER"}
    user = user_config(sample_broker(replicas=3, config=config).spec)
    assert user.accepted == {"slaveTimeout": "1000", "brokerRole": "SYNC_MASTER"}
    assert user.without_effect == ("totalReplicas",)
    user = user_config(sample_broker(config=config).spec)
    assert user.accepted == {}
    assert user.without_effect == ("slaveTimeout", "totalReplicas")
    assert [item.key for item in user.problems] == ["brokerRole"]


def test_the_secret_is_made_without_what_it_holds():
    """A plan depends on nothing but what it sees, and chance is put in when it is carried out."""
    secret = objects()[-1]
    assert secret["metadata"]["name"] == "orders-replication"
    assert not {"data", "stringData"} & set(secret)
