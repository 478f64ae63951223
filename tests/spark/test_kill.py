"""Exactly once over kill -9: the job is killed in the middle of its work and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pyarrow.parquet
import pytest
from live_cluster import numbered

from mailboat.cli.demo_tally import committed_files

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(400)]

QUEUES = 3
PER_QUEUE = 8000


def start_job(cluster, topic, folder, work_dir):
    """Start the demo's job in a process group of its own, so that Java dies with it."""
    command = [sys.executable, "-m", "mailboat_spark.demo_job", "--namesrv", cluster.namesrv]
    command += ["--topic", topic, "--output", str(folder / "out"), "--work-dir", str(work_dir)]
    command += ["--max-offsets-per-trigger", "1500", "--group", f"{topic}-group"]
    roots = [path for path in sys.path if path.endswith("src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    with (folder / "job.log").open("ab") as log:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True
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


def test_a_killed_job_loses_and_doubles_nothing(cluster, topic, tmp_path, short_dir):
    """After a kill between two batches' first and last byte, the output has each message once."""
    queues = cluster.create_topic(topic, QUEUES)
    for queue in queues:
        cluster.send(queue, numbered(queue, 0, PER_QUEUE))
    first = start_job(cluster, topic, tmp_path, short_dir)
    try:
        rows = first_progress(first, tmp_path / "job.log")
    finally:
        kill_group(first)
    committed = sum(
        pyarrow.parquet.read_metadata(path).num_rows for path in committed_files(tmp_path / "out")
    )
    assert 0 < rows <= committed < QUEUES * PER_QUEUE, "the kill came too late to show anything"
    second = start_job(cluster, topic, tmp_path, short_dir)
    try:
        last = list(events(second))[-1]
        assert second.wait(60) == 0, (tmp_path / "job.log").read_text()[-3000:]
    finally:
        second.kill()
        second.wait()
        second.stdout.close()
    assert last["event"] == "finished"
    columns = ["queue_id", "queue_offset", "value"]
    found = []
    for path in committed_files(tmp_path / "out"):
        table = pyarrow.parquet.read_table(path, columns=columns)
        found += [tuple(row.values()) for row in table.to_pylist()]
    found.sort()
    assert found == [
        (queue_id, number, b"%d-%d" % (queue_id, number))
        for queue_id in range(QUEUES)
        for number in range(PER_QUEUE)
    ]
    assert [cluster.group_offset(f"{topic}-group", queue) for queue in queues] == [
        PER_QUEUE
    ] * QUEUES
