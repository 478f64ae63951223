"""Spark jobs of the chart in a namespace, and what has come of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import yaml
from e2e_kube import RESTRICTED, Manifest, Namespace, helm, image_values, wait_until
from e2e_nodes import any_node

RELEASE: Final = "jobs"
_CHART: Final = Path(__file__).parents[2] / "charts" / "mailboat"

# Runs in the image of the jobs: counts what the table has, by the files that belong to it.
_COUNT: Final = """
import json, sys
from pathlib import Path
import pyarrow.compute as pc
import pyarrow.dataset as ds
from mailboat_spark.job.table import committed_files
output = Path("/data/tables")
files = sorted(committed_files(output))
columns = ["broker_name", "queue_id", "queue_offset", "keys"]
table = ds.dataset([str(f) for f in files], format="parquet").to_table(columns=columns)
places = table.group_by(columns[:3]).aggregate([]).num_rows
print(json.dumps({
    "rows": table.num_rows, "places": places,
    "keys": pc.count_distinct(table["keys"]).as_py(),
}))
"""


def install_job(namespace: Namespace, job: Manifest, folder: Path) -> None:
    """Install a job, called `lines`, as a release of its own."""
    values = folder / "values.yaml"
    values.write_text(yaml.safe_dump({"operator": {"enabled": False}, "sparkJobs": [job]}))
    helm(
        "upgrade",
        "--install",
        RELEASE,
        str(_CHART),
        f"--namespace={namespace.name}",
        f"--values={values}",
        *image_values("sparkImage", "MAILBOAT_SPARK_IMAGE"),
    )


def uninstall_job(namespace: Namespace) -> None:
    """Remove the release, if there is one."""
    helm("uninstall", RELEASE, f"--namespace={namespace.name}", "--ignore-not-found")


def count_rows(namespace: Namespace) -> dict[str, int]:
    """Count the table in a pod that mounts the job's volume."""
    claim = f"{RELEASE}-lines"
    container = {
        "name": "count",
        "image": os.environ["MAILBOAT_SPARK_IMAGE"],
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", _COUNT],
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    }
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "count", "namespace": namespace.name},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": any_node()},
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "containers": [container],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            },
        }
    )

    def ended() -> str:
        phase = namespace.get("pod", "count")["status"].get("phase")
        return phase if phase in {"Succeeded", "Failed"} else ""

    phase = wait_until("count of the table", ended, 120)
    text = namespace.kubectl("logs", "count")
    assert phase == "Succeeded", text
    counts: dict[str, int] = json.loads(text.strip().splitlines()[-1])
    return counts
