"""TLS and users of brokers and name servers: what is mounted, what the files say, and how pods are
asked."""

from typing import Any

import pytest
from kubernetes_validate import validate
from model_cluster import BROKER_KEYS, ModelCluster, settle
from operator_samples import BROKER_SPEC, LOCKED, sample_broker, sample_name_server

from mailboat.config import load_settings
from mailboat.config.properties import parse_properties
from mailboat.config.security import SecurityConfig
from mailboat.security.client_security import Credentials
from mailboat.security.configured_users import inner_credentials
from mailboat_operator.planner.broker import plan_broker
from mailboat_operator.resources import name_server as ns
from mailboat_operator.resources.security import broker_security

TLS = {"secretRef": {"name": "orders-tls"}}
CLIENTS = {"clientAuth": "Required", "clientCA": {"secretRef": {"name": "people"}}}
TLS_FILES = "/etc/mailboat-secrets/tls"


def cluster_of(**spec: Any) -> ModelCluster:
    """Return a settled cluster."""
    cluster = ModelCluster(BROKER_SPEC | spec)
    settle(cluster, plan_broker)
    return cluster


def file_of(cluster: ModelCluster, name: str = "broker.conf") -> dict[str, str]:
    """Return what a file of the first group says."""
    text = cluster.objects["ConfigMap", "orders-g0"]["data"][name]
    return {item.key: item.value for item in parse_properties(text)}


def template_of(cluster: ModelCluster) -> dict[str, Any]:
    """Return the pod that the first group's StatefulSet makes."""
    return cluster.objects["StatefulSet", "orders-g0"]["spec"]["template"]["spec"]


def volumes_of(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the Secrets that are mounted, by path."""
    secrets = {item["name"]: item["secret"] for item in pod["volumes"] if "secret" in item}
    mounts = pod["containers"][0]["volumeMounts"]
    for mount in mounts:
        assert "subPath" not in mount
        assert mount["name"] not in secrets or mount["readOnly"] is True
    return {item["mountPath"]: secrets[item["name"]] for item in mounts if item["name"] in secrets}


def schemes(pod: dict[str, Any]) -> set[str | None]:
    """Return how the kubelet asks."""
    container = pod["containers"][0]
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    return {probe.get("scheme") for probe in probes}


def test_enforcing_brokers_speak_tls_on_every_port_and_to_each_other() -> None:
    """The files are those that are mounted, the kubelet asks by HTTPS."""
    cluster = cluster_of(tls=TLS)
    found = file_of(cluster)
    assert {key: found[key] for key in found if "tls" in key.lower()} == {
        "httpTlsMode": "enforcing",
        "tls.client.trustCertPath": f"{TLS_FILES}/ca.crt",
        "tls.enable": "true",
        "tls.server.certPath": f"{TLS_FILES}/tls.crt",
        "tls.server.keyPath": f"{TLS_FILES}/tls.key",
        "tls.server.mode": "enforcing",
        "tls.server.need.client.auth": "none",
    }
    pod = template_of(cluster)
    (secret,) = volumes_of(pod).values()
    assert volumes_of(pod).keys() == {TLS_FILES}
    assert (secret["secretName"], secret["defaultMode"]) == ("orders-tls", 0o440)
    assert [item["path"] for item in secret["items"]] == ["tls.crt", "tls.key", "ca.crt"]
    assert "optional" not in secret
    assert schemes(pod) == {"HTTPS"}
    for version in ("1.29", "1.37"):
        validate(cluster.applied["StatefulSet/orders-g0"], version, strict=True)


def test_permissive_brokers_take_both_and_are_asked_plainly() -> None:
    """HTTP and own connections stay as they were, so that a roll from plain to TLS has a middle."""
    cluster = cluster_of(tls={**TLS, "mode": "Permissive"})
    found = file_of(cluster)
    assert found["tls.server.mode"] == "permissive"
    assert found.keys() & {"httpTlsMode", "tls.enable", "tls.client.trustCertPath"} == set()
    assert schemes(template_of(cluster)) == {"HTTP"}


def test_certificates_of_clients_are_checked_against_their_own_authority() -> None:
    """Two Secrets: who signs the servers does not sign the clients; servers show theirs too."""
    cluster = cluster_of(tls={**TLS, **CLIENTS})
    found = file_of(cluster)
    assert found["tls.server.need.client.auth"] == "require"
    assert found["tls.server.trustCertPath"] == "/etc/mailboat-secrets/client-ca/ca.crt"
    assert found["tls.client.certPath"] == f"{TLS_FILES}/tls.crt"
    assert found["tls.client.keyPath"] == f"{TLS_FILES}/tls.key"
    mounted = volumes_of(template_of(cluster))
    assert mounted["/etc/mailboat-secrets/client-ca"]["secretName"] == "people"


@pytest.mark.parametrize("tls", [None, {"mode": "Disabled", **TLS}])
def test_without_tls_everything_is_as_before(tls) -> None:
    """Not one byte differs."""
    plain = cluster_of()
    other = cluster_of(**({"tls": tls} if tls else {}))
    assert other.applied == plain.applied
    assert "tls" not in str(plain.applied)


def test_replicas_have_both_what_they_need_and_tls() -> None:
    """The replicas' file says it, and so does the one that a pod of before may start with."""
    cluster = cluster_of(tls=TLS, replicas=3)
    for name in ("broker.conf", "replica.conf"):
        assert file_of(cluster, name)["tls.enable"] == "true"
    mounted = volumes_of(template_of(cluster))
    assert mounted.keys() == {TLS_FILES, "/etc/mailboat-secrets/replication"}


def test_switching_tls_on_rolls_the_pods_once() -> None:
    """Each pod is taken down one time, whatever the file went through."""
    cluster = cluster_of(groups=2)
    assert cluster.taken_down == []
    cluster.change(tls=TLS)
    settle(cluster, plan_broker)
    assert sorted(name for name, _ in cluster.taken_down) == ["orders-g0-0", "orders-g1-0"]
    assert file_of(cluster)["tls.server.mode"] == "enforcing"


def test_a_broker_that_knows_nothing_of_tls_is_told() -> None:
    """It would serve without, and nobody would know."""
    image = "mailboat:0"
    cluster = ModelCluster(BROKER_SPEC | {"image": image})
    cluster.keys_of_image[image] = frozenset(key for key in BROKER_KEYS if "tls" not in key.lower())
    settle(cluster, plan_broker)
    cluster.change(tls=TLS)
    settle(cluster, plan_broker)
    (applied,) = [item for item in cluster.status["conditions"] if item["type"] == "ConfigApplied"]
    assert (applied["status"], applied["reason"]) == ("False", "UnknownKey")
    assert "knows no tls.server.mode, so it serves without it" in applied["message"]


def test_brokers_connect_as_their_name_servers_ask_for_it() -> None:
    """By TLS where these take nothing else, with an own certificate where they want one."""
    plain = sample_broker(nameServers={"ref": "ns"})
    assert broker_security(plain, sample_name_server(tls=TLS)).settings == {"tls.enable": "true"}
    permissive = sample_name_server(tls={**TLS, "mode": "Permissive"})
    assert broker_security(plain, permissive).settings == {}
    secured = sample_broker(nameServers={"ref": "ns"}, tls=TLS)
    found = broker_security(secured, sample_name_server(tls={**TLS, **CLIENTS})).settings
    assert found["tls.client.certPath"] == f"{TLS_FILES}/tls.crt"


@pytest.mark.parametrize("listeners", [[], [{"name": "o", "port": 10920, "tls": "Enforcing"}]])
def test_brokers_whose_ports_are_plain_know_their_name_servers_too(listeners) -> None:
    """By the Secret that they have; without its authority none of them could register."""
    plain = sample_broker(
        nameServers={"ref": "ns"}, tls={**TLS, "mode": "Disabled"}, listeners=listeners
    )
    found = broker_security(plain, sample_name_server(tls={**TLS, **CLIENTS}))
    assert found.settings["tls.client.trustCertPath"] == f"{TLS_FILES}/ca.crt"
    assert found.settings["tls.client.certPath"] == f"{TLS_FILES}/tls.crt"
    assert found.volumes.keys() == {TLS_FILES}
    assert found.settings.get("tls.server.mode", "disabled") == "disabled"


def test_name_servers_speak_tls_as_brokers_do() -> None:
    """Settings, mount and probes."""
    resource = sample_name_server(tls={**TLS, **CLIENTS})
    config_map = ns.name_server_config_map(resource, has_volume=True)
    found = {item.key: item.value for item in parse_properties(config_map["data"]["namesrv.conf"])}
    assert (found["tls.server.mode"], found["httpTlsMode"]) == ("enforcing", "enforcing")
    made = ns.name_server_stateful_set(resource, "mailboat:1", has_volume=True)
    pod = made["spec"]["template"]["spec"]
    assert volumes_of(pod).keys() == {TLS_FILES, "/etc/mailboat-secrets/client-ca"}
    assert schemes(pod) == {"HTTPS"}
    hashes = {
        ns.name_server_stateful_set(one, "mailboat:1", has_volume=True)["spec"]["template"][
            "metadata"
        ]["annotations"]["mailboat.dev/config-hash"]
        for one in (resource, sample_name_server())
    }
    assert len(hashes) == 2


def env_of(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the environment: texts, and what names a Secret as `secret/key`."""
    found: dict[str, Any] = {}
    for item in pod["containers"][0].get("env", ()):
        reference = item.get("valueFrom", {}).get("secretKeyRef")
        found[item["name"]] = (
            f"{reference['name']}/{reference['key']}" if reference else item.get("value")
        )
    return found


def test_a_locked_broker_knows_users_from_secrets_alone() -> None:
    """Files and variables name Secrets; no value of one is in any object that is made."""
    cluster = cluster_of(**LOCKED)
    found = file_of(cluster)
    assert found["authenticationEnabled"] == found["authorizationEnabled"] == "true"
    assert found["authUsersPath"] == "/etc/mailboat-secrets/users"
    assert found["httpTokenFile"] == "/etc/mailboat-secrets/http/token"
    assert "httpMetricsOpen" not in found
    pod = template_of(cluster)
    mounted = volumes_of(pod)
    assert mounted["/etc/mailboat-secrets/users"] == {
        "secretName": "mailboat-broker-users-orders",
        "defaultMode": 0o440,
        "optional": True,
    }
    assert mounted["/etc/mailboat-secrets/http"]["secretName"] == "http"
    env = env_of(pod)
    assert env.pop("INNER_USERNAME") == "admin/username"
    assert env.pop("INNER_PASSWORD") == "admin/password"
    assert env == {
        "MAILBOAT_INNER_CLIENT_AUTHENTICATION_CREDENTIALS": (
            '{"accessKey":"$(INNER_USERNAME)","secretKey":"$(INNER_PASSWORD)"}'
        )
    }
    for version in ("1.29", "1.37"):
        validate(cluster.applied["StatefulSet/orders-g0"], version, strict=True)


@pytest.mark.parametrize("replicas", [1, 3])
def test_tokens_of_kubernetes_are_shown_to_the_api_server_by_the_pods_own_token(
    replicas: int,
) -> None:
    """Which is mounted for nothing else, and once where replicas have it anyway."""
    http = LOCKED["http"] | {"tokenReview": {"audience": "https://mq.example"}}
    cluster = cluster_of(**LOCKED | {"http": http}, replicas=replicas)
    found = file_of(cluster)
    assert found["httpTokenReview"] == "true"
    assert found["httpTokenReviewAudience"] == "https://mq.example"
    pod = template_of(cluster)
    assert pod["automountServiceAccountToken"] is False
    [volume] = [item for item in pod["volumes"] if "projected" in item]
    assert {name for source in volume["projected"]["sources"] for name in source} == {
        "serviceAccountToken",
        "configMap",
        "downwardAPI",
    }
    [mount] = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == volume["name"]]
    assert mount["mountPath"] == SecurityConfig().kube_api_folder
    without = template_of(cluster_of(**LOCKED))
    assert not [item for item in without["volumes"] if "projected" in item]


def test_the_settings_are_those_that_a_broker_starts_with(tmp_path) -> None:
    """What the operator writes, and what Kubernetes makes of the variables, is taken."""
    cluster = cluster_of(**LOCKED, tls={**TLS, **CLIENTS})
    (tmp_path / "broker.conf").write_text(
        cluster.objects["ConfigMap", "orders-g0"]["data"]["broker.conf"], encoding="ascii"
    )
    secret = {"INNER_USERNAME": "root", "INNER_PASSWORD": "s3cret of {all}"}
    environ = {}
    for name, text in env_of(template_of(cluster)).items():
        if name.startswith("MAILBOAT_"):
            for variable, value in secret.items():
                text = text.replace(f"$({variable})", value)
            environ[name] = text
    settings = load_settings("broker", file=tmp_path / "broker.conf", environ=environ)
    assert settings.warnings == ()
    assert (settings.tls.server_mode, settings.tls.http_mode) == ("enforcing", "enforcing")
    assert settings.security.is_guarded
    assert settings.security.needs_rules
    assert inner_credentials(settings.security) == Credentials("root", "s3cret of {all}")


def test_a_user_of_their_own_for_the_servers() -> None:
    """Then the one who may do everything is made where it is absent."""
    users = {"superUserSecretRef": {"name": "admin"}, "innerSecretRef": {"name": "inner"}}
    env = env_of(template_of(cluster_of(**{**LOCKED, "authentication": users})))
    assert env["INNER_USERNAME"] == "inner/username"
    assert env["SUPER_PASSWORD"] == "admin/password"
    assert env["MAILBOAT_INIT_AUTHENTICATION_USER"] == (
        '{"username":"$(SUPER_USERNAME)","password":"$(SUPER_PASSWORD)"}'
    )


def test_variables_of_replicas_stay_beside_those_of_users() -> None:
    """A replica has to know its number, locked or not."""
    env = env_of(template_of(cluster_of(**LOCKED, replicas=3)))
    assert "MAILBOAT_POD_NAME" in env
    assert "MAILBOAT_INNER_CLIENT_AUTHENTICATION_CREDENTIALS" in env


def test_metrics_can_stay_open() -> None:
    """Only where HTTP is locked is there anything to open."""
    token = {"tokenSecretRef": {"name": "http"}}
    assert file_of(cluster_of(http={**token, "metrics": "Open"}))["httpMetricsOpen"] == "true"
    assert "httpMetricsOpen" not in file_of(cluster_of(http={"metrics": "Open"}))


@pytest.mark.parametrize(
    "spec",
    [
        {"http": {}},
        {"authentication": {"enabled": False}, "authorization": {"enabled": False}},
    ],
)
def test_switched_off_is_as_never_asked_for(spec) -> None:
    """Not one byte differs."""
    assert cluster_of(**spec).applied == cluster_of().applied


def test_a_locked_name_server_has_the_same_users() -> None:
    """Its users are in a Secret of its own, its servers' user in the one that brokers name."""
    resource = sample_name_server(**LOCKED)
    made = ns.name_server_stateful_set(resource, "mailboat:1", has_volume=True)
    pod = made["spec"]["template"]["spec"]
    mounted = volumes_of(pod)
    users = mounted["/etc/mailboat-secrets/users"]
    assert users["secretName"] == "mailboat-name-server-users-ns"
    assert env_of(pod)["INNER_PASSWORD"] == "admin/password"
    text = ns.name_server_config_map(resource, has_volume=True)["data"]["namesrv.conf"]
    assert "authenticationEnabled=true\n" in text
    assert "authorizationEnabled=true\n" in text


def test_a_new_broker_is_locked_from_its_first_file_on() -> None:
    """Not only once a broker has said which settings it knows: until then it would be open."""
    cluster = ModelCluster(BROKER_SPEC | LOCKED | {"tls": TLS})
    seen = []

    def note(_: ModelCluster) -> None:
        if ("ConfigMap", "orders-g0") in cluster.objects:
            seen.append(file_of(cluster))

    settle(cluster, plan_broker, check=note)
    for found in seen:
        assert found["authenticationEnabled"] == found["authorizationEnabled"] == "true"
        assert found["tls.server.mode"] == "enforcing"
        assert found["httpTokenFile"]
    assert seen
