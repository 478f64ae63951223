"""The operator of one version and the broker of another, both as whole processes.

The version before is a commit of this repository: the last one whose broker lacks a setting that
the operator of today has. A release's tag takes its place once there is one.
"""

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import FakeKubernetes

ROOT = Path(__file__).parents[3]
BEFORE = "a323b96e962f20ea796f5554b64d8225681223ca"
FOLDERS = ("broker/src", "operator/src")
IMAGE = "registry.example/mailboat:other"

StartOperator = Callable[..., Awaitable[Any]]
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the version before."""
    found = subprocess.run(
        ["git", "-C", ROOT, "archive", BEFORE, *FOLDERS], capture_output=True, check=False
    )
    if found.returncode:
        pytest.skip(f"the history down to {BEFORE[:12]} is not here: clone the whole repository")
    tree = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(tree, filter="data")
    return tree


@asynccontextmanager
async def running_broker(tree: Path, conf: str, folder: Path) -> AsyncIterator[dict[str, Any]]:
    """Run the broker of a source tree on a file of the operator; yields its addresses."""
    file = folder / "broker.conf"
    file.write_text(conf)
    # What is the pod's alone: its volume, its address, and ports that others may have here.
    own = {
        "storePathRootDir": str(folder / "store"),
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "httpPort": "0",
        "mappedFileSizeCommitLog": "1048576",
        "shutdownDrainSeconds": "0",
    }
    words = [word for key, value in own.items() for word in ("-o", f"{key}={value}")]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("MAILBOAT_")},
        "PYTHONPATH": os.pathsep.join(str(tree / name) for name in FOLDERS),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mailboat.cli", "broker", "-c", str(file), "--ready-json", *words),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = await process.stdout.readline()
        if not line:
            _, said = await process.communicate()
            pytest.fail(f"the broker ended with {process.returncode}: {said.decode()}")
        yield json.loads(line)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


def conf_of(kubernetes: FakeKubernetes) -> str:
    """Return the broker.conf that the operator wrote last."""
    found = kubernetes.find("configmaps", "shop", "orders-g0")
    return "" if found is None else str(found["data"]["broker.conf"])


def pod_of(kubernetes: FakeKubernetes, uid: str, http_port: int) -> Manifest:
    """Return the pod that the StatefulSet would have, as it runs here."""
    stateful_set = kubernetes.find("statefulsets", "shop", "orders-g0")
    assert stateful_set is not None
    template = stateful_set["spec"]["template"]
    container = {**template["spec"]["containers"][0]}
    container["ports"] = [{"name": "http", "containerPort": http_port}]
    now = "2026-11-22T00:00:00Z"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template["metadata"],
            "name": "orders-g0-0",
            "namespace": "shop",
            "uid": uid,
            "creationTimestamp": now,
        },
        "spec": {**template["spec"], "containers": [container]},
        "status": {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
            "containerStatuses": [
                {"name": container["name"], "started": True, "state": {"running": {}}}
            ],
        },
    }


def shown(kubernetes: FakeKubernetes, field: str) -> Any:
    """Return a field of what the status says of the one broker."""
    status = (kubernetes.find("brokers", "shop", "orders") or {}).get("status") or {}
    return next(iter(status.get("brokers") or [{}])).get(field)


async def run_both(
    kubernetes: FakeKubernetes,
    start_operator: StartOperator,
    folder: Path,
    *,
    operator_tree: Path,
    broker_tree: Path,
    config: dict[str, str],
) -> list[str]:
    """Let a broker start twice as the operator has it; returns the files that it started with."""
    operator = await start_operator(tree=operator_tree, collect_seconds="0.5")
    await operator.wait_for_probe("/readyz", lambda _, text: text == "leader\n", 30)
    broker = {
        "apiVersion": "mailboat.dev/v1alpha1",
        "kind": "Broker",
        "metadata": {"name": "orders", "namespace": "shop"},
        "spec": {
            "nameServers": {"addresses": ["127.0.0.1:9"]},
            "storage": {"size": "8Gi"},
            "image": IMAGE,
            "config": config,
        },
    }
    await kubernetes.put("brokers", broker)
    await kubernetes.wait_until(lambda: kubernetes.find("statefulsets", "shop", "orders-g0"), 30)
    files = []
    for uid in ("first", "second"):
        files.append(conf_of(kubernetes))
        async with running_broker(broker_tree, files[-1], folder) as addresses:
            port = int(addresses["http"].rpartition(":")[2].rstrip("/"))
            await kubernetes.put("pods", pod_of(kubernetes, uid, port))
            await kubernetes.wait_until(lambda: shown(kubernetes, "version"), 30)
            if operator_tree == ROOT:  # What the broker listed is remembered in its file.
                await kubernetes.wait_until(lambda: f"# keys of {IMAGE};" in conf_of(kubernetes))
        await kubernetes.remove("pods", "shop", "orders-g0-0")
        await kubernetes.wait_until(lambda: not shown(kubernetes, "version"), 30)
    files.append(conf_of(kubernetes))
    return files


async def test_todays_operator_runs_the_broker_of_before(
    kubernetes: FakeKubernetes, start_operator: StartOperator, before: Path, tmp_path: Path
) -> None:
    """The broker starts and starts again, without the key that it does not know."""
    files = await run_both(
        kubernetes,
        start_operator,
        tmp_path,
        operator_tree=ROOT,
        broker_tree=before,
        config={"flushDiskType": "SYNC_FLUSH"},
    )
    for text in files:
        assert "flushDiskType=SYNC_FLUSH\n" in text
        assert "\nrouteKeptSeconds=" not in text


async def test_the_operator_of_before_runs_todays_broker(
    kubernetes: FakeKubernetes, start_operator: StartOperator, before: Path, tmp_path: Path
) -> None:
    """Today's broker takes the file of an older operator, and its answers are understood."""
    files = await run_both(
        kubernetes,
        start_operator,
        tmp_path,
        operator_tree=before,
        broker_tree=ROOT,
        config={"flushDiskType": "SYNC_FLUSH"},
    )
    assert all("flushDiskType=SYNC_FLUSH\n" in text for text in files)


async def test_todays_operator_passes_on_what_a_newer_broker_knows(
    kubernetes: FakeKubernetes, start_operator: StartOperator, before: Path, tmp_path: Path
) -> None:
    """A broker that the operator wrote the file of starts with a key that it does not know, and is
    not given it again."""
    files = await run_both(
        kubernetes,
        start_operator,
        tmp_path,
        operator_tree=ROOT,
        broker_tree=ROOT,
        config={"keyOfTomorrow": "7"},
    )
    assert "\nkeyOfTomorrow=7\n" in files[0]
    assert "\nkeyOfTomorrow=" not in files[1]
    assert files[1] == files[2]
