"""The chart's Spark jobs: every message of a topic in the table once, whatever is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_kube import Namespace, wait_until
from e2e_nodes import any_node
from e2e_resources import NAME_SERVER, broker_api, broker_spec, start_broker
from e2e_spark import RELEASE, count_rows, install_job, uninstall_job
from e2e_traffic import TrafficPod, namesrv_of, stored_count

MESSAGES = 100_000
TOPIC = "lines"
GROUP = "to-parquet"
JOB_SELECTOR = "app.kubernetes.io/component=spark-job"
EXECUTOR_SELECTOR = "spark-role=executor"


@pytest.fixture
def job_release(namespace: Namespace) -> Iterator[Namespace]:
    """A namespace whose release of the chart is removed at the end of the test."""
    yield namespace
    uninstall_job(namespace)


def _pods(namespace: Namespace, selector: str) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in namespace.list("pods", selector)
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def _kill(namespace: Namespace, pod: str) -> None:
    namespace.kubectl("delete", "pod", pod, "--force", "--grace-period=0")


def _progress(namespace: Namespace) -> tuple[int, int]:
    """Return how many messages the group has read and how many it has not, as the broker sees it.

    The job makes its group a reader of the topic before its first batch: none read, none unread of
    a topic without messages.
    """
    topics = broker_api(namespace, 0, f"/api/v1/groups/{GROUP}")["topics"]
    queues = next((topic["queues"] for topic in topics if topic["topic"] == TOPIC), [])
    read = sum(queue["committed_offset"] or 0 for queue in queues)
    return read, sum(queue["lag"] for queue in queues)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["local", "kubernetes"])
def test_every_message_is_in_the_table_once(
    mode: str, job_release: Namespace, traffic: TrafficPod, tmp_path: Path
) -> None:
    """100,000 messages of a Java producer; driver and executor are killed meanwhile."""
    namespace = job_release
    start_broker(namespace, storage={**broker_spec()["storage"], "size": "1Gi"})
    client = traffic.client(namesrv_of(namespace.name, NAME_SERVER))
    client.call("create_topic", topic=TOPIC, queues=8)
    job = {
        "name": "lines",
        "mode": mode,
        # Its volume is one that a single node may mount, as most are.
        "nodeSelector": {"kubernetes.io/hostname": any_node()},
        "nameServers": [f"{NAME_SERVER}:9876"],
        "topics": [TOPIC],
        "group": GROUP,
        "triggerSeconds": 2,
        "maxOffsetsPerTrigger": 20_000,
        "output": {"size": "1Gi"},
        "graceSeconds": 20,
        "driver": {"memory": "600m", "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}},
        "executors": {"instances": 1, "requestCores": "100m", "memory": "512m"},
        "sparkConf": {"spark.ui.enabled": "false"},
    }
    install_job(namespace, job, tmp_path)
    flood = client.start(
        "produce",
        topic=TOPIC,
        group="p",
        count=MESSAGES,
        window=256,
        file=traffic.path("out"),
        timeout=400,
    )

    driver = wait_until("a driver", lambda: _pods(namespace, JOB_SELECTOR), 120)[0]
    wait_until("some of the topic read", lambda: _progress(namespace)[0] > 0, 240)
    if mode == "kubernetes":
        _kill(
            namespace, wait_until("an executor", lambda: _pods(namespace, EXECUTOR_SELECTOR), 60)[0]
        )
        wait_until("another executor", lambda: _pods(namespace, EXECUTOR_SELECTOR), 120)
    _kill(namespace, driver)
    produced = flood.wait_done(500)[-1]
    assert produced["acknowledged"] == MESSAGES
    stored = stored_count(client, TOPIC)
    wait_until("all read", lambda: _progress(namespace) == (stored, 0), 300)
    namespace.kubectl("scale", f"deployment/{RELEASE}-lines", "--replicas=0")
    wait_until("no driver", lambda: not _pods(namespace, JOB_SELECTOR), 90)
    wait_until("no executor", lambda: not _pods(namespace, EXECUTOR_SELECTOR), 60)
    counts = count_rows(namespace)
    assert counts == {"rows": stored, "places": stored, "keys": MESSAGES}


@pytest.mark.timeout(600)
def test_a_cron_job_takes_what_there_is_and_ends(
    job_release: Namespace, traffic: TrafficPod, tmp_path: Path
) -> None:
    """A run of a job with a schedule writes all messages and completes."""
    namespace = job_release
    start_broker(namespace)
    client = traffic.client(namesrv_of(namespace.name, NAME_SERVER))
    client.call("create_topic", topic=TOPIC, queues=2)
    client.call("send", topic=TOPIC, group="p", count=100, keys="k{i}", body="aGVsbG8=")
    job = {
        "name": "lines",
        "schedule": "0 4 * * *",
        "nameServers": [f"{NAME_SERVER}:9876"],
        "topics": [TOPIC],
        "group": GROUP,
        "output": {"size": "256Mi"},
        "driver": {"memory": "600m", "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}},
    }
    install_job(namespace, job, tmp_path)
    namespace.kubectl("create", "job", "once", f"--from=cronjob/{RELEASE}-lines")
    namespace.kubectl(
        "wait", "--for=condition=Complete", "job/once", "--timeout=240s", timeout_s=270
    )
    assert count_rows(namespace) == {"rows": 100, "places": 100, "keys": 100}
    assert _progress(namespace) == (100, 0)
