"""The chart, rendered by the real Helm engine: names, texts, probes and who may connect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart

from mailboat_operator.settings import load_settings
from mailboat_spark.job.options import parse_duration_s

CHART = Path(__file__).parents[3] / "charts" / "mailboat"
NAMESPACE = "mail"
JOB: dict[str, Any] = {
    "name": "orders",
    "nameServers": ["ns:9876"],
    "topics": ["orders", "paid"],
    "group": "g",
}
ON_PODS = {**JOB, "mode": "kubernetes"}
PROMETHEUS = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}
LONG_RELEASE = "production-eu-west-1-analytics-mailboat"


def render(
    values: dict[str, Any], *, name: str = "r", namespace: str = NAMESPACE
) -> list[dict[str, Any]]:
    """Return the objects of a release."""
    files = Chart.load(CHART).render(values, name=name, namespace=namespace)
    return [
        document
        for file, text in sorted(files.items())
        if file.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind by name; each name stands once."""
    found = [item for item in objects if item["kind"] == kind]
    by_name = {item["metadata"]["name"]: item for item in found}
    assert len(by_name) == len(found)
    return by_name


def pods_of(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the pod of each object that has one, with a name for it."""
    for item in objects:
        spec = item.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        pod = spec.get("template", {}).get("spec", spec)
        if "containers" in pod:
            yield f"{item['kind']} {item['metadata']['name']}", pod


def test_jobs_of_a_release_with_a_long_name_have_names_of_their_own() -> None:
    """A name that is cut ends with a digest of the whole; one that is not stays as it is."""
    names = ["orders-parquet-eu", "orders-parquet-us"]
    objects = render({"sparkJobs": [{**JOB, "name": name} for name in names]}, name=LONG_RELEASE)
    deployments = set(of_kind(objects, "Deployment")) - {LONG_RELEASE}
    assert len(deployments) == 2
    assert all(len(name) <= 50 for name in deployments)
    assert len(of_kind(objects, "PersistentVolumeClaim")) == 2
    assert "r-orders" in of_kind(render({"sparkJobs": [JOB]}), "Deployment")


TEXTS = ["123", "007", "1e3", "0x1f", "true", "no", "null", "1.0"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("r", {"fullnameOverride": f"{'a' * 38}--bc"}),
        ("r", {"nameOverride": f"{'a' * 38}--bc"}),
        (f"{'a' * 39}.b", {}),
        (f"{'a' * 39}.mailboat", {}),
        ("123", {}),
        ("1.2", {}),
        ("mail.boat", {}),
    ],
)
def test_names_that_are_cut_or_odd_are_names_still(name: str, values: dict[str, Any]) -> None:
    """What a release may be called, its objects may not always be called as well."""
    objects = render({"sparkJobs": [{**ON_PODS, "name": "orders-and-more"}], **values}, name=name)
    for item in objects:
        made = item["metadata"]["name"]
        part = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
        is_service = item["kind"] == "Service"
        pattern = "[a-z]([-a-z0-9]*[a-z0-9])?" if is_service else rf"{part}(\.{part})*"
        assert re.fullmatch(pattern, made), (item["kind"], made)
        for label in item["metadata"]["labels"].values():
            assert re.fullmatch(r"[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?", label), label


@pytest.mark.parametrize("seconds", [10, 0.5, 0.00002, 2_592_000, 1_000_000.5])
def test_seconds_are_spelled_as_people_do(seconds: float) -> None:
    """A number of YAML that is large or small is not told in powers of ten, which nobody reads."""
    monitor = {"metrics": {"podMonitor": {"enabled": True, "intervalSeconds": 2_592_000}}}
    objects = render({"sparkJobs": [{**JOB, "triggerSeconds": seconds}], "operator": monitor})
    (option,) = [
        argument.removeprefix("--trigger=")
        for _, pod in pods_of(objects)
        for argument in pod["containers"][0].get("args", [])
        if argument.startswith("--trigger=")
    ]
    assert parse_duration_s(option) == seconds
    (found,) = of_kind(objects, "PodMonitor").values()
    assert found["spec"]["podMetricsEndpoints"][0]["interval"] == "2592000s"


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_arrives_as_the_text_that_it_is(text: str) -> None:
    """What looks like a number, a truth or nothing to YAML is a text wherever texts belong."""
    values = {
        "image": {"repository": text.lower(), "tag": text, "pullPolicy": "Always"},
        "commonLabels": {"team": text},
        "operator": {
            "serviceAccount": {"name": text, "annotations": {"a": text}},
            "podLabels": {"b": text},
            "podAnnotations": {"c": text},
            "nodeSelector": {"d": text},
            "priorityClassName": text,
            "kubelet": {"caConfigMap": text},
            "extraEnv": [{"name": "E", "value": text}],
            "watch": {"scope": "namespaces", "namespaces": [text]},
        },
        "sparkJobs": [
            {
                **ON_PODS,
                "name": "j" if "." in text else text,
                "group": text,
                "output": {"className": text, "size": "1"},
                "podLabels": {"f": text},
                "schedule": "1 2 3 4 5",
            }
        ],
    }
    objects = render(values, name="123", namespace="456")
    for item in objects:
        metadata = item["metadata"]
        assert isinstance(metadata["name"], str)
        assert metadata["namespace"] in ("456", text)
        assert all(isinstance(value, str) for value in metadata["labels"].values())
    (account,) = {
        item["serviceAccountName"] for name, item in pods_of(objects) if "Job" not in name
    }
    assert account == text
    deployment = of_kind(objects, "Deployment")["123-mailboat"]
    pod = deployment["spec"]["template"]
    assert pod["metadata"]["labels"]["b"] == pod["metadata"]["annotations"]["c"] == text
    assert pod["spec"]["nodeSelector"]["d"] == pod["spec"]["priorityClassName"] == text
    assert pod["spec"]["containers"][0]["image"] == f"{text.lower()}:{text}"
    (claim,) = of_kind(objects, "PersistentVolumeClaim").values()
    assert claim["spec"]["storageClassName"] == text
    assert claim["spec"]["resources"]["requests"]["storage"] == "1"


@pytest.mark.parametrize("values", [{}, {"sparkJobs": [JOB]}, {"sparkJobs": [ON_PODS]}])
def test_no_pod_is_best_effort(values: dict[str, Any]) -> None:
    """Each asks for processor and memory, and has a limit of memory."""
    for name, pod in pods_of(render(values)):
        for container in pod["containers"]:
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert "memory" in container["resources"]["limits"], name


def test_a_scheduled_job_that_hangs_is_ended() -> None:
    """By its liveness as any other, and after its deadline with all its tries."""
    scheduled = {**JOB, "schedule": "0 * * * *"}
    (cron,) = of_kind(render({"sparkJobs": [scheduled]}), "CronJob").values()
    job = cron["spec"]["jobTemplate"]["spec"]
    assert job["activeDeadlineSeconds"] == 6 * 3600
    container = job["template"]["spec"]["containers"][0]
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}
    assert container["startupProbe"]["httpGet"]["path"] == "/livez"
    # Nobody is led to a run that ends by itself.
    assert "readinessProbe" not in container
    (endless,) = of_kind(
        render({"sparkJobs": [{**scheduled, "activeDeadlineSeconds": 0}]}), "CronJob"
    ).values()
    assert "activeDeadlineSeconds" not in endless["spec"]["jobTemplate"]["spec"]


def test_helm_test_is_a_job_that_removes_itself() -> None:
    """Helm deletes nothing of it that has passed, so that it waits for nothing but the result."""
    objects = render({})
    job = of_kind(objects, "Job")["r-mailboat-test"]
    annotations = job["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "test"
    assert set(annotations["helm.sh/hook-delete-policy"].split(",")) == {"hook-failed"}
    assert job["spec"]["ttlSecondsAfterFinished"] <= 10
    assert job["spec"]["backoffLimit"] == 0


def test_the_operator_is_reached_by_prometheus_alone() -> None:
    """Its one port, by its own labels; probes need no rule."""
    objects = render({})
    spec = of_kind(objects, "NetworkPolicy")["r-mailboat"]["spec"]
    pod = of_kind(objects, "Deployment")["r-mailboat"]["spec"]["template"]
    assert spec["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [{"from": [PROMETHEUS], "ports": [{"port": port, "protocol": "TCP"}]}]


def test_the_operator_is_told_who_may_reach_brokers() -> None:
    """Itself by its own labels, Prometheus, and whoever is listed."""
    gateway = {"podSelector": {"matchLabels": {"app": "gateway"}}}
    for values, listed in (({}, []), ({"networkPolicy": {"httpFrom": [gateway]}}, [gateway])):
        deployment = of_kind(render(values), "Deployment")["r-mailboat"]
        template = deployment["spec"]["template"]
        environment = {
            entry["name"]: entry.get("value", "system")
            for entry in template["spec"]["containers"][0]["env"]
        }
        peers = load_settings(environment).all_http_peers()
        assert peers is not None
        own, *others = peers
        assert own["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert own["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "system"}
        assert others == [PROMETHEUS, *listed]


def test_a_driver_is_reached_by_its_executors_and_prometheus() -> None:
    """Spark's ports are for executors of the same job, its metrics for Prometheus; executors hear
    their driver and each other."""
    objects = render({"sparkJobs": [ON_PODS, {**JOB, "name": "paid"}]})
    policies = of_kind(objects, "NetworkPolicy")
    driver, executors = (policies[name]["spec"] for name in ("r-orders", "r-orders-executors"))
    pod = of_kind(objects, "Deployment")["r-orders"]["spec"]["template"]
    assert driver["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    from_executors, from_prometheus = driver["ingress"]
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    ruled = [port["port"] for port in from_executors["ports"]]
    assert ruled == [ports["driver"], ports["blocks"]]
    assert from_executors["from"] == [{"podSelector": executors["podSelector"]}]
    assert from_prometheus["from"] == [PROMETHEUS]
    assert [port["port"] for port in from_prometheus["ports"]] == [ports["metrics"]]
    assert executors["ingress"] == [
        {
            "from": [
                {"podSelector": driver["podSelector"]},
                {"podSelector": executors["podSelector"]},
            ]
        }
    ]
    # What Spark gives the executors (`executors.py`) and the template together have the labels.
    template = yaml.safe_load(of_kind(objects, "ConfigMap")["r-orders"]["data"]["executor.yaml"])
    given = {"mailboat.dev/spark-job": "orders", "app.kubernetes.io/instance": "r"}
    labels = template["metadata"]["labels"] | given
    assert executors["podSelector"]["matchLabels"].items() <= labels.items()
    # A job in one pod has no Spark ports for anybody.
    (local,) = policies["r-paid"]["spec"]["ingress"]
    assert local["from"] == [PROMETHEUS]


def test_network_policies_can_be_left_out() -> None:
    """For networks that others rule; an empty list of peers lets nobody in, not everybody."""
    jobs = [ON_PODS]
    off = render({"networkPolicy": {"enabled": False}, "sparkJobs": jobs})
    assert not of_kind(off, "NetworkPolicy")
    objects = render(
        {"networkPolicy": {"prometheus": []}, "sparkJobs": [*jobs, {**JOB, "name": "x"}]}
    )
    policies = of_kind(objects, "NetworkPolicy")
    assert "ingress" not in policies["r-mailboat"]["spec"]
    assert "ingress" not in policies["r-x"]["spec"]
    assert len(policies["r-orders"]["spec"]["ingress"]) == 1
