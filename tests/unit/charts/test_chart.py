"""The chart, rendered by the real Helm engine: valid objects, exact rights, no surprises."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cel_expr_python import cel
from helm_python import Chart, HelmError, lint

from mailboat_operator import rbac
from mailboat_operator.settings import load_settings
from mailboat_spark.job.command import read_options
from mailboat_spark.rbac import role_rules

CHART = Path(__file__).parents[3] / "charts" / "mailboat"
OLDEST, NEWEST = "1.29", "1.37"
NAMESPACE = "mail"

# The loader in C, which most wheels of PyYAML have, is ten times as fast.
_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

JOB = {"name": "orders", "nameServers": ["ns:9876"], "topics": ["orders", "paid"], "group": "g"}

VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "one namespace": {"operator": {"watch": {"scope": "namespaces"}}},
    "two namespaces": {
        "operator": {"watch": {"scope": "namespaces", "namespaces": ["a", "b"]}},
    },
    "one replica": {"operator": {"replicas": 1}},
    "no operator": {"operator": {"enabled": False}},
    "no rbac": {"operator": {"rbac": {"create": False}}},
    "own account": {"operator": {"serviceAccount": {"create": False, "name": "mine"}}},
    "digest": {"image": {"digest": "sha256:" + "ab" * 32, "repository": "registry.example/mail"}},
    "pull secret": {"imagePullSecrets": ["one", "two"], "sparkJobs": [JOB]},
    "labels": {"commonLabels": {"team": "mail"}, "operator": {"podLabels": {"a": "b"}}},
    "own labels": {
        "commonLabels": {"app.kubernetes.io/name": "mine", "team": "mail"},
        "operator": {"podLabels": {"app.kubernetes.io/component": "mine", "team": "other"}},
        "sparkJobs": [{**JOB, "podLabels": {"app.kubernetes.io/instance": "mine"}}],
    },
    "other names": {"nameOverride": "boat", "sparkJobs": [JOB]},
    "full name": {"fullnameOverride": "boat"},
    "secrets of some namespaces": {"operator": {"rbac": {"secretNamespaces": ["a", "b"]}}},
    "no kubelets": {"operator": {"rbac": {"kubeletStats": False}}},
    "own kubelets": {
        "operator": {"kubelet": {"caConfigMap": "kubelet-ca", "insecureSkipTLSVerify": True}}
    },
    "environment": {
        "operator": {"logFormat": "json", "extraEnv": [{"name": "TZ", "value": "UTC"}]},
    },
    "placing": {
        "operator": {
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "only", "operator": "Exists"}],
            "priorityClassName": "high",
            "affinity": {"nodeAffinity": {}},
            "podAnnotations": {"a": "b"},
        }
    },
    "pod monitor": {"operator": {"metrics": {"podMonitor": {"enabled": True}}}},
    "sample": {"sample": {"enabled": True, "brokerSpec": {"groups": 2}}},
    "sample of a private registry": {
        "image": {"repository": "registry.example/mail", "pullPolicy": "Never"},
        "imagePullSecrets": ["123"],
        "sample": {"enabled": True, "nameServerSpec": {"replicas": 3}},
        "operator": {"watch": {"scope": "namespaces", "namespaces": ["a", "b"]}},
    },
    "local job": {"sparkJobs": [JOB]},
    "cron job": {"sparkJobs": [{**JOB, "schedule": "0 * * * *", "suspend": True}]},
    "job on pods": {
        "sparkJobs": [{**JOB, "mode": "kubernetes", "sparkConf": {"spark.ui.port": "1"}}]
    },
    "signed job by TLS": {
        "sparkJobs": [
            {
                **JOB,
                "mode": "kubernetes",
                "userSecretName": "billing-mailboat-user",
                "tls": {"enabled": True, "caSecretName": "orders-tls"},
            }
        ]
    },
    "awkward texts": {
        "sparkJobs": [
            {
                **JOB,
                "mode": "kubernetes",
                "tags": "a || b",
                "partitionBy": ["date", "hour"],
                "compression": "none",
                "livenessTimeoutSeconds": 86400,
                "maxOffsetsPerTrigger": 20000000,
                "priorityClassName": "123",
                "affinity": {"nodeAffinity": {}},
                "sparkConf": {"spark.a": "y: z", "spark.driver.extraJavaOptions": "-Da=b #c"},
            }
        ]
    },
    "two jobs": {
        "sparkJobs": [
            JOB,
            {
                **JOB,
                "name": "paid",
                "mode": "kubernetes",
                "schedule": "5 4 * * *",
                "output": {"claimName": "shared", "path": "a/b"},
                "nodeSelector": {"disk": "ssd"},
                "tolerations": [{"operator": "Exists"}],
            },
        ]
    },
}


def render_files(values: dict[str, Any]) -> dict[str, str]:
    """Return the files of a release `r` with these values over the chart's own."""
    files: dict[str, str] = Chart.load(CHART).render(values, name="r", namespace=NAMESPACE)
    return files


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of a release `r` with these values over the chart's own."""
    return [
        document
        for name, text in sorted(render_files(values).items())
        if name.endswith(".yaml")
        for document in yaml.load_all(text, _YAML_LOADER)
        if document
    ]


def one(objects: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    """Return the only object of a kind, or the one with the name."""
    found = [
        item
        for item in objects
        if item["kind"] == kind and (name is None or item["metadata"]["name"] == name)
    ]
    assert len(found) == 1, f"{len(found)} objects of kind {kind}"
    return found[0]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_valid(values: dict[str, Any], version: str) -> None:
    """Objects of Kubernetes itself keep its strict schemas, oldest and newest version."""
    objects = render(values)
    assert objects or not values.get("operator", {}).get("enabled", True)
    for item in objects:
        if "mailboat.dev" in item["apiVersion"] or "coreos.com" in item["apiVersion"]:
            continue
        _validate(json.dumps(item), version)


@functools.cache
def _validate(text: str, version: str) -> None:
    """Validate one object; most values leave most objects as they are."""
    kubernetes_validate.validate(json.loads(text), version, strict=True)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_two_renders_are_identical(values: dict[str, Any]) -> None:
    """Nothing in the chart is random or depends on the time, so that GitOps sees no changes."""
    assert render_files(values) == render_files(values)


def test_lint_has_no_complaint() -> None:
    """`helm lint --strict` finds no error and no warning."""
    report = lint(CHART, {}, strict=True)
    assert not report["errors"]
    assert [m for m in report["messages"] if m["severity"] >= 2] == []


def _described(schema: dict[str, Any], path: str = "") -> list[str]:
    missing = [] if schema.get("description") or path in ("", "[]") else [path]
    for name, part in schema.get("properties", {}).items():
        missing += _described(part, f"{path}.{name}")
    if isinstance(schema.get("items"), dict) and "properties" in schema["items"]:
        missing += _described(schema["items"], f"{path}[]")
    return missing


def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return schema


def test_every_value_is_described() -> None:
    """Each value has a text in the schema."""
    assert [path for path in _described(_schema()) if not path.endswith("[]")] == []


def _names(values: Any, schema: dict[str, Any], path: str = "") -> list[str]:
    """Return the values that the schema does not know, and known ones that have no default."""
    if not isinstance(values, dict) or "properties" not in schema:
        return []
    properties = schema["properties"]
    wrong = [f"{path}.{name}" for name in values.keys() ^ properties.keys()]
    for name in values.keys() & properties.keys():
        wrong += _names(values[name], properties[name], f"{path}.{name}")
    return wrong


def test_schema_and_defaults_name_the_same_values() -> None:
    """values.yaml has a default for each value, and for nothing else."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    wrong = _names(defaults, _schema())
    assert sorted(wrong) == [".global", ".operator.resources.claims"]
    job = _schema()["properties"]["sparkJobs"]["items"]
    defaults = yaml.safe_load((CHART / "files" / "spark-job-defaults.yaml").read_text())
    required = {f".{name}" for name in job["required"]}
    assert set(_names(defaults, job)) == required | {".driver.resources.claims"}


@pytest.mark.parametrize(
    "values",
    [
        {"imag": {}},
        {"operator": {"replica": 2}},
        {"operator": {"watch": {"scope": "some"}}},
        {"image": {"digest": "latest"}},
        {"sparkJobs": [{"name": "x"}]},
        {"sparkJobs": [{**JOB, "mode": "cluster"}]},
        {"sparkJobs": [{**JOB, "executors": {"memory": "lots"}}]},
        {"sparkJobs": [{**JOB, "output": {"path": "/absolute"}}]},
        {"sparkJobs": [{**JOB, "driver": {"memory": "300m"}}]},
        {"sample": {"name": "1st"}},
        {"image": {"repository": "mail boat"}},
        {"image": {"repository": "registry.example/mailboat:1"}},
        {"image": {"repository": "registry.example/Mailboat"}},
        {"image": {"tag": "1 # y"}},
        {"sparkImage": {"repository": "https://registry.example/mailboat"}},
        {"networkPolicy": {"httpFrom": [{}]}},
        {"networkPolicy": {"prometheus": [{"pods": {}}]}},
        {"operator": {"extraEnv": [{"name": "A", "value": 1}]}},
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    """A value that is unknown or of the wrong shape does not render."""
    with pytest.raises(HelmError):
        render(values)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"operator": {"watch": {"namespaces": ["a"]}}}, "set operator.watch.scope=namespaces"),
        ({"operator": {"serviceAccount": {"create": False}}}, "must name an account"),
        (
            {"security": {"locked": True}, "networkPolicy": {"enabled": False}},
            "security.locked needs networkPolicy.enabled",
        ),
        ({"sparkJobs": [JOB, {**JOB, "group": "h"}]}, "two jobs of the name orders"),
        (
            {
                "sparkJobs": [
                    {**JOB, "mode": "kubernetes", "output": {"accessMode": "ReadWriteOncePod"}}
                ]
            },
            "use ReadWriteMany",
        ),
        ({"sparkJobs": [{**JOB, "name": "mailboat"}]}, "as one of the operator is"),
        (
            {"sparkJobs": [{**JOB, "name": "mailboat-leader", "mode": "kubernetes"}]},
            "as one of the operator is",
        ),
        (
            {"sparkJobs": [JOB, {**JOB, "name": "orders-executors"}]},
            "as one of orders is: rename the job",
        ),
    ],
)
def test_values_that_do_not_go_together_are_named(values: dict[str, Any], sentence: str) -> None:
    """Each fits the schema by itself; one sentence says what is wrong and what to do."""
    with pytest.raises(HelmError, match=sentence):
        render(values)


def test_values_of_an_earlier_chart_are_enough() -> None:
    """`helm upgrade --reuse-values` has no value that came later: each is as by default."""
    later = {
        "commonLabels": None,
        "operator": {
            "logFormat": None,
            "rbac": {"kubeletStats": None, "aggregate": None, "secretNamespaces": None},
            "kubelet": None,
        },
        "networkPolicy": None,
        "security": None,
        "sample": {"enabled": True, "nameServerSpec": None},
    }
    assert render(later) == render({"sample": {"enabled": True}})


def test_the_charts_own_labels_win() -> None:
    """Pods are found by them, so no other label of the same key takes their place."""
    objects = render(VALUES["own labels"])
    for deployment in (item for item in objects if item["kind"] == "Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        selector = deployment["spec"]["selector"]["matchLabels"]
        assert selector.items() <= labels.items()
        assert selector["app.kubernetes.io/name"] == "mailboat"
        assert selector["app.kubernetes.io/instance"] == "r"
    operator = one(objects, "Deployment", "r-mailboat")["spec"]["template"]["metadata"]["labels"]
    assert operator["team"] == "other"


def test_without_the_kubelets_count_there_is_no_right_on_nodes() -> None:
    """`kubeletStats: false` takes away the one right on nodes, and tells the operator."""
    objects = render(VALUES["no kubelets"])
    rules = one(objects, "ClusterRole", f"{NAMESPACE}-r-mailboat")["rules"]
    assert not [rule for rule in rules for name in rule["resources"] if name.startswith("nodes")]
    assert len(rules) == len(rbac.NAMESPACED_RULES + rbac.CLUSTER_RULES) - 1
    container = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    environment = {entry["name"]: entry.get("value", "from-the-pod") for entry in container["env"]}
    assert load_settings(environment).kubelet_stats is False


def test_no_right_of_the_operator_reaches_into_containers() -> None:
    """Neither the whole of a kubelet nor the subresources of pods that run or read something; a
    Secret is read by its name alone."""
    risky = {"nodes/proxy", "pods/exec", "pods/attach", "pods/portforward", "secrets", "*"}
    for rule in one(render({}), "ClusterRole", f"{NAMESPACE}-r-mailboat")["rules"]:
        assert not risky & set(rule["resources"]) or (rule["resources"], rule["verbs"]) == (
            ["secrets"],
            ["get", "create", "patch"],
        )


def test_the_operator_trusts_the_kubelets_that_it_is_told_to() -> None:
    """The authority is mounted where the operator looks for it."""
    pod = one(render(VALUES["own kubelets"]), "Deployment")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    environment = {entry["name"]: entry.get("value", "from-the-pod") for entry in container["env"]}
    settings = load_settings(environment)
    (mount,) = [item for item in container["volumeMounts"] if item["name"] == "kubelet-ca"]
    assert settings.kubelet_ca == f"{mount['mountPath']}/ca.crt"
    assert settings.kubelet_verify is False
    assert {"name": "kubelet-ca", "configMap": {"name": "kubelet-ca"}} in pod["volumes"]
    default = one(render({}), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert load_settings(
        {entry["name"]: entry.get("value", "x") for entry in default["env"]}
    ).kubelet_verify


def test_the_sample_lives_where_the_operator_looks_and_can_be_pulled() -> None:
    """A watched namespace, and the chart's pull policy and secrets for both its objects."""
    objects = render(VALUES["sample of a private registry"])
    for kind in ("Broker", "NameServer"):
        sample = one(objects, kind)
        assert sample["metadata"]["namespace"] == "a"
        assert sample["spec"]["imagePullPolicy"] == "Never"
        assert sample["spec"]["podTemplate"]["imagePullSecrets"] == [{"name": "123"}]
    assert one(objects, "NameServer")["spec"]["replicas"] == 3


@pytest.mark.parametrize("name", ["default", "two namespaces"])
def test_the_first_broker_of_the_notes_can_be_pasted(name: str) -> None:
    """The commands work as printed: the here-document ends, and is applied where it is watched."""
    notes = Chart.load(CHART).render(VALUES[name], name="r", namespace=NAMESPACE)
    text = next(text for file, text in notes.items() if file.endswith("NOTES.txt"))
    lines = text.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.endswith("<<EOF"))
    end = lines.index("EOF", begin)
    documents = list(yaml.safe_load_all("\n".join(lines[begin + 1 : end])))
    assert [document["kind"] for document in documents] == ["NameServer", "Broker"]
    flag = " --namespace a" if name == "two namespaces" else ""
    assert lines[begin].startswith(f"kubectl{flag} apply ")
    assert lines[end + 1].startswith(f"kubectl{flag} wait ")


def _table(rules: tuple[rbac.Rule, ...]) -> list[dict[str, Any]]:
    return [
        {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
        for rule in rules
    ]


def test_the_rights_are_those_that_the_operator_uses() -> None:
    """ClusterRole and Roles have the rules of the operator's own table, no more and no less."""
    objects = render({})
    assert one(objects, "Role")["rules"] == _table(rbac.LEASE_RULES)
    everywhere = _table(rbac.NAMESPACED_RULES + rbac.CLUSTER_RULES)
    assert one(objects, "ClusterRole", f"{NAMESPACE}-r-mailboat")["rules"] == everywhere

    objects = render(VALUES["two namespaces"])
    assert not [item for item in objects if item["kind"].startswith("ClusterRole")]
    roles = {(r["metadata"]["namespace"]): r for r in objects if r["kind"] == "Role"}
    assert set(roles) == {NAMESPACE, "a", "b"}
    for namespace in "ab":
        assert roles[namespace]["rules"] == _table(rbac.NAMESPACED_RULES)


def test_secrets_can_be_those_of_some_namespaces_alone() -> None:
    """Elsewhere one can be made, for replicas, and none be read; nowhere are they listed."""
    objects = render(VALUES["secrets of some namespaces"])
    rules = one(objects, "ClusterRole", f"{NAMESPACE}-r-mailboat")["rules"]
    (everywhere,) = [rule for rule in rules if rule["resources"] == ["secrets"]]
    assert everywhere["verbs"] == ["create"]
    assert len(rules) == len(rbac.NAMESPACED_RULES + rbac.CLUSTER_RULES)
    roles = [
        item
        for item in objects
        if item["kind"] == "Role" and item["metadata"]["name"].endswith("-secrets")
    ]
    assert [item["metadata"]["namespace"] for item in roles] == ["a", "b"]
    (wanted,) = [item for item in _table(rbac.NAMESPACED_RULES) if item["resources"] == ["secrets"]]
    assert all(item["rules"] == [wanted] for item in roles)
    bindings = [item for item in objects if item["kind"] == "RoleBinding"]
    assert {item["roleRef"]["name"] for item in bindings} >= {roles[0]["metadata"]["name"]}


LOCKED = {"security": {"locked": True}, "sample": {"enabled": True}}


def _verdicts(objects: list[dict[str, Any]], manifest: dict[str, Any]) -> list[str]:
    """Return what the chart's admission policy says against an object."""
    policy = one(objects, "ValidatingAdmissionPolicy")["spec"]
    environment = cel.NewEnv(variables={"object": cel.Type.DYN})
    data = {"object": manifest}
    conditions = [item["expression"] for item in policy["matchConditions"]]
    if not all(environment.compile(text).eval(data=data).value() for text in conditions):
        return []
    return [
        item["message"]
        for item in policy["validations"]
        if not environment.compile(item["expression"]).eval(data=data).value()
    ]


def test_a_locked_installation_takes_what_is_locked_and_nothing_else() -> None:
    """The sample and the example pass; each part that is missing is named."""
    objects = render(LOCKED)
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        kubernetes_validate.validate(one(objects, kind), NEWEST, strict=True)
    text = (CHART.parents[1] / "examples" / "broker-locked.yaml").read_text(encoding="utf-8")
    good = [*objects, *yaml.safe_load_all(text)]
    good = [item for item in good if item["kind"] in ("Broker", "NameServer")]
    assert len(good) == 4
    for manifest in good:
        assert _verdicts(objects, manifest) == []
        listener = {"name": "outside", "port": 10920, "tls": "Enforcing"}
        further = {**manifest["spec"], "listeners": [listener]}
        assert _verdicts(objects, {**manifest, "spec": further}) == []
        for part in ("tls", "authentication", "authorization", "http"):
            spec = {key: value for key, value in manifest["spec"].items() if key != part}
            (said,) = _verdicts(objects, {**manifest, "spec": spec})
            assert f"spec.{part}" in said
        for part, value in (
            ("tls", {"mode": "Permissive"}),
            ("authentication", {"enabled": False}),
            ("authorization", {"enabled": False}),
            ("http", {"metrics": "Open"}),
            ("networkPolicy", {"enabled": False}),
            # Those of the API server's default, and of one that has none.
            ("listeners", [{"name": "outside", "port": 10920, "tls": "Disabled"}]),
            ("listeners", [{"name": "outside", "port": 10920}]),
            ("listeners", [listener, {**listener, "name": "b", "tls": "Permissive"}]),
        ):
            wrong = {**manifest, "spec": {**manifest["spec"], part: value}}
            assert len(_verdicts(objects, wrong)) == 1
            wrong["metadata"] = {
                **manifest["metadata"],
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            }
            assert _verdicts(objects, wrong) == []


def test_the_locked_sample_names_its_secrets() -> None:
    """By its own name, so that they can be made before."""
    for kind in ("Broker", "NameServer"):
        spec = one(render({**LOCKED, "sample": {"enabled": True, "name": "a"}}), kind)["spec"]
        assert spec["tls"] == {"mode": "Enforcing", "secretRef": {"name": "a-tls"}}
        assert spec["authentication"]["superUserSecretRef"] == {"name": "a-admin"}
        assert spec["http"] == {"tokenSecretRef": {"name": "a-http"}}


def test_a_lock_on_some_namespaces_leaves_the_others() -> None:
    """Only where the operator looks is anything refused; without the switch nothing is."""
    watch = {"scope": "namespaces", "namespaces": ["a", "b"]}
    objects = render({"security": {"locked": True}, "operator": {"watch": watch}})
    binding = one(objects, "ValidatingAdmissionPolicyBinding")["spec"]
    (expression,) = binding["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert expression["values"] == ["a", "b"]
    assert not [item for item in render({}) if "Admission" in item["kind"]]


def test_people_with_kubernetes_roles_may_use_the_resources() -> None:
    """View reads, edit and admin change; nobody's status; nothing where that is not wanted."""
    objects = render({})
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    found = {}
    for item in objects:
        for label in item["metadata"]["labels"]:
            if item["kind"] == "ClusterRole" and label.startswith(prefix):
                found[label.removeprefix(prefix)] = item["rules"]
    kinds = ["brokers", "nameservers", "topics", "brokers/scale", "nameservers/scale"]
    read = {"apiGroups": ["mailboat.dev"], "resources": kinds, "verbs": ["get", "list", "watch"]}
    assert found["view"] == [read]
    assert found["edit"] == found["admin"]
    (change,) = found["edit"]
    assert change["resources"] == kinds
    assert set(change["verbs"]) == {"create", "delete", "deletecollection", "patch", "update"}
    objects = render({"operator": {"rbac": {"aggregate": False}}})
    assert len([item for item in objects if item["kind"] == "ClusterRole"]) == 1


def test_the_drivers_rights_are_those_that_spark_uses() -> None:
    """Only a job with executors as pods has a Role, with the rules of the job's own table."""
    objects = render({"operator": {"enabled": False}, **VALUES["job on pods"]})
    assert one(objects, "Role")["rules"] == role_rules()
    assert one(objects, "Deployment")["spec"]["template"]["spec"]["automountServiceAccountToken"]
    objects = render({"operator": {"enabled": False}, **VALUES["local job"]})
    assert not [item for item in objects if item["kind"] == "Role"]
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", ["default", "one namespace", "two namespaces", "digest"])
def test_the_operator_understands_its_environment(name: str) -> None:
    """The settings that the Deployment gives are those that the operator reads."""
    deployment = one(render(VALUES[name]), "Deployment")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    environment = {entry["name"]: entry.get("value", "from-the-pod") for entry in container["env"]}
    settings = load_settings(environment)
    wanted = {
        "default": (),
        "digest": (),
        "one namespace": (NAMESPACE,),
        "two namespaces": ("a", "b"),
    }
    assert settings.namespaces == wanted[name]
    assert settings.image == container["image"]
    assert settings.http_port == container["ports"][0]["containerPort"]


@pytest.mark.parametrize(
    "name", ["local job", "job on pods", "cron job", "pull secret", "awkward texts"]
)
def test_the_job_understands_its_arguments(name: str) -> None:
    """The command line that the chart writes is one that the job takes."""
    kind = "CronJob" if name == "cron job" else "Deployment"
    objects = render({"operator": {"enabled": False}, **VALUES[name]})
    spec = one(objects, kind)["spec"]
    template = spec["jobTemplate"]["spec"]["template"] if kind == "CronJob" else spec["template"]
    arguments = template["spec"]["containers"][0]["args"]
    assert arguments[0] == "job"
    known = {"$(POD_NAMESPACE)": NAMESPACE, "$(POD_NAME)": "pod", "$(POD_IP)": "10.0.0.1"}
    for variable, value in known.items():
        arguments = [argument.replace(variable, value) for argument in arguments]
    options = read_options(arguments[1:])
    assert options.topics == "orders,paid"
    assert options.on_kubernetes == (name in {"job on pods", "awkward texts"})
    assert options.mode == ("available-now" if kind == "CronJob" else "streaming")
    assert options.kubernetes.instance == ("r" if options.on_kubernetes else "")


def test_a_jobs_texts_arrive_as_they_are() -> None:
    """Colons, hashes, bars and large numbers mean nothing to YAML on the way to the job."""
    deployment = one(render(VALUES["awkward texts"]), "Deployment", "r-orders")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    options = read_options([text.replace("$(POD_IP)", "10.0.0.1") for text in arguments[1:]])
    assert options.tags == "a || b"
    assert options.partition_by == ("date", "hour")
    assert (options.compression, options.liveness_timeout_s) == ("none", 86400)
    assert options.max_offsets_per_trigger == 20_000_000
    assert options.spark_settings == {
        "spark.a": "y: z",
        "spark.driver.extraJavaOptions": "-Da=b #c",
    }


def test_a_job_shows_who_it_is_from_secrets_alone() -> None:
    """Driver and executors read the same files; nobody reads the secret key in an object."""
    objects = render({"operator": {"enabled": False}, **VALUES["signed job by TLS"]})
    driver = one(objects, "Deployment")["spec"]["template"]["spec"]
    executor = yaml.safe_load(one(objects, "ConfigMap")["data"]["executor.yaml"])["spec"]
    arguments = driver["containers"][0]["args"][1:]
    options = read_options([text.replace("$(POD_IP)", "10.0.0.1") for text in arguments])
    assert options.access_key == "$(ACCESS_KEY)"
    assert options.tls is options.tls_check is True
    for pod in (driver, executor):
        secrets = {item["name"]: item["secret"] for item in pod["volumes"] if "secret" in item}
        mounts = {item["name"]: item for item in pod["containers"][0]["volumeMounts"]}
        paths = {
            f"{mounts[name]['mountPath']}/{item['path']}": (secret["secretName"], item["key"])
            for name, secret in secrets.items()
            for item in secret["items"]
        }
        assert paths == {
            options.secret_key_file: ("billing-mailboat-user", "secretKey"),
            options.tls_trust: ("orders-tls", "ca.crt"),
        }
        assert all(mounts[name]["readOnly"] for name in secrets)
    plain = render({"operator": {"enabled": False}, **VALUES["job on pods"]})
    pod = one(plain, "Deployment")["spec"]["template"]["spec"]
    assert not [item for item in pod["volumes"] if "secret" in item]
    assert not [text for text in pod["containers"][0]["args"] if "tls" in text or "key" in text]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_pods_keep_the_level_restricted(values: dict[str, Any]) -> None:
    """Every pod of the chart runs as an ordinary user, without privileges, on a read-only root."""
    for item in render(values):
        spec = item.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template", item)
        pod = template["spec"] if template.get("spec", {}).get("containers") else None
        if pod is None:
            continue
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
