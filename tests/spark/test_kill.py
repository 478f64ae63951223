"""Exactly once over kill -9: the job is killed in the middle of its work and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pyarrow.parquet
import pytest

from mailboat.cli.demo_tally import committed_files
from mailboat_spark.demo_job import parse_arguments, run

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(400)]

QUEUES = 3
PER_QUEUE = 8000


def job_arguments(cluster, topic, folder, work_dir, *, rows_per_batch):
    """Return the arguments of the demo's job."""
    return [
        "--namesrv", cluster.namesrv, "--topic", topic, "--output", str(folder / "out"),
        "--work-dir", str(work_dir), "--group", f"{topic}-group",
        "--max-offsets-per-trigger", str(rows_per_batch),
    ]  # fmt: skip


def start_job(arguments, log):
    """Start the demo's job in a process group of its own, so that Java dies with it."""
    roots = [path for path in sys.path if path.endswith("src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    with log.open("ab") as log_file:
        return subprocess.Popen(
            [sys.executable, "-m", "mailboat_spark.demo_job", *arguments],
            stdout=subprocess.PIPE,
            stderr=log_file,
            env=environment,
            start_new_session=True,
        )


def kill_group(process):
    """Kill the job and its Java without any warning."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def events(process):
    """Yield what the job tells."""
    for line in process.stdout:
        if line.startswith(b'{"event"'):
            yield json.loads(line)


def first_progress(process, log):
    """Return how many rows the job had written when it told of its first batch."""
    for event in events(process):
        if event["event"] == "progress":
            return event["rows"]
    pytest.fail(f"the job ended early: {log.read_text()[-3000:]}")


def test_a_killed_job_loses_and_doubles_nothing(cluster, spark, topic, tmp_path, short_dir, capsys):
    """A job killed at work goes on from its checkpoint: the output has each message once."""
    queues = cluster.fill(topic, QUEUES, PER_QUEUE)
    # Small batches, so that many are still to come when the kill does.
    arguments = job_arguments(cluster, topic, tmp_path, short_dir, rows_per_batch=200)
    job = start_job(arguments, tmp_path / "job.log")
    try:
        rows = first_progress(job, tmp_path / "job.log")
    finally:
        kill_group(job)
    committed = sum(
        pyarrow.parquet.read_metadata(path).num_rows for path in committed_files(tmp_path / "out")
    )
    assert 0 < rows <= committed < QUEUES * PER_QUEUE, "the kill came too late to show anything"
    arguments = job_arguments(cluster, topic, tmp_path, short_dir, rows_per_batch=20_000)
    assert run(spark, parse_arguments(arguments)) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["event"] == "finished"
    found = []
    for path in committed_files(tmp_path / "out"):
        table = pyarrow.parquet.read_table(path, columns=["queue_id", "queue_offset", "value"])
        found += [tuple(row.values()) for row in table.to_pylist()]
    assert sorted(found) == [
        (queue_id, number, b"%d-%d" % (queue_id, number))
        for queue_id in range(QUEUES)
        for number in range(PER_QUEUE)
    ]
    stored = [cluster.group_offset(f"{topic}-group", queue) for queue in queues]
    assert stored == [PER_QUEUE] * QUEUES
