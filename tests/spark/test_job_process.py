"""The job as Kubernetes runs it: a process that is killed, fenced, probed and asked to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pyarrow.parquet
import pytest
from live_cluster import LiveCluster

from mailboat_spark.client_thread import close_shared_clients
from mailboat_spark.job.table import committed_files

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(400)]

QUEUES = 3
PER_QUEUE = 4000
WAIT_S = 240


class Job:
    """One `mailboat-job` process with its HTTP port and log."""

    def __init__(self, cluster, topic, folder, work_dir, **options):
        """Start the process in a session of its own."""
        self.log = folder / "job.log"
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        roots = [path for path in sys.path if path.endswith("src")]
        given = {
            "NAMESRV": cluster.namesrv,
            "TOPICS": topic,
            "GROUP": f"{topic}-group",
            "OUTPUT": str(folder / "table"),
            "WORK_DIR": str(work_dir),
            "METRICS_PORT": "0",
            "TRIGGER": "100ms",
            **options,
        }
        environment = {f"MAILBOAT_JOB_{name}": value for name, value in given.items()}
        # The quick compiler: a test never earns back what the good one costs at the start.
        environment["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mailboat_spark.entry_point", "job"],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(roots), **environment},
                start_new_session=True,
            )

    def text(self):
        """Return what this process has logged."""
        return self.log.read_bytes()[self._log_start :].decode()

    def get(self, path):
        """Return status and text of one of its endpoints."""
        port = self.wait(lambda: re.search(r"probes on port (\d+)", self.text()))[1]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode()

    def metric(self, name):
        """Return a metric's value, None while it is not there."""
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return None if found is None else float(found[1])

    def wait(self, condition):
        """Wait until `condition` gives something true and return that."""
        deadline_s = time.monotonic() + WAIT_S
        while not (found := condition()):
            assert self.process.poll() is None, self.text()[-4000:]
            assert time.monotonic() < deadline_s, self.text()[-4000:]
            time.sleep(0.05)
        return found

    def end(self):
        """Leave nothing behind."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def places_in(output):
    """Return (queue, offset) of every row of the table, sorted."""
    found = []
    for path in committed_files(output):
        rows = pyarrow.parquet.ParquetFile(path).read(columns=["queue_id", "queue_offset"])
        found += [(row["queue_id"], row["queue_offset"]) for row in rows.to_pylist()]
    return sorted(found)


def test_a_killed_job_is_fenced_goes_on_and_ends_in_order(tmp_path, topic, short_dir):
    """kill -9 of the driver at work, a second driver meanwhile, then SIGTERM: each message once."""
    with LiveCluster(tmp_path / "cluster", options={"httpPort": "0"}) as cluster:
        queues = cluster.fill(topic, QUEUES, PER_QUEUE)
        jobs = []
        try:
            jobs.append(Job(cluster, topic, tmp_path, short_dir, MAX_OFFSETS_PER_TRIGGER="200"))
            first = jobs[0]
            assert first.get("/livez")[0] == 200
            assert first.get("/readyz") == (503, "the job is starting\n")
            first.wait(lambda: (first.metric("mailboat_job_rows_total") or 0) > 0)
            assert first.get("/readyz")[0] == 200
            second = Job(cluster, topic, tmp_path, short_dir, LOCK_TIMEOUT="0s")
            jobs.append(second)
            assert second.process.wait(WAIT_S) == 1
            assert f"is in use by process {first.process.pid} on" in second.text()
            # Only Python is killed: its Java may write for a moment longer, and holds the lock.
            first.process.kill()
            first.process.wait()
            done = len(places_in(tmp_path / "table"))
            assert 0 < done < QUEUES * PER_QUEUE, "the kill came too late to show anything"
            third = Job(cluster, topic, tmp_path, short_dir, TRIGGER="1s")
            jobs.append(third)
            third.wait(lambda: third.metric(f'mailboat_job_lag_messages{{topic="{topic}"}}') == 0)
            assert (third.metric("mailboat_job_rows_total") or 0) <= QUEUES * PER_QUEUE - done + 200
            third.process.send_signal(signal.SIGTERM)
            assert third.process.wait(WAIT_S) == 0, third.text()[-4000:]
        finally:
            for job in jobs:
                job.end()
        expected = [(queue, n) for queue in range(QUEUES) for n in range(PER_QUEUE)]
        assert places_in(tmp_path / "table") == expected
        # Files that the table does not name are gone: other readers take every file.
        files = {path.name for path in (tmp_path / "table").rglob("*.parquet")}
        assert files == {path.name for path in committed_files(tmp_path / "table")}
        group = f"{topic}-group"
        assert [cluster.group_offset(group, queue) for queue in queues] == [PER_QUEUE] * QUEUES
        document = cluster.http_json(f"/api/v1/groups/{group}")
        assert document["lag"] == 0
        assert [queue["lag"] for queue in document["topics"][0]["queues"]] == [0] * QUEUES
        close_shared_clients()


def test_sigterm_ends_the_running_batch_first(tmp_path, topic, short_dir):
    """Asked to end in the middle of a backlog, the job stores exactly what it has written."""
    with LiveCluster(tmp_path / "cluster") as cluster:
        queues = cluster.fill(topic, QUEUES, PER_QUEUE)
        job = Job(cluster, topic, tmp_path, short_dir, MAX_OFFSETS_PER_TRIGGER="300")
        try:
            job.wait(lambda: (job.metric("mailboat_job_rows_total") or 0) > 0)
            job.process.send_signal(signal.SIGTERM)
            assert job.process.wait(WAIT_S) == 0, job.text()[-4000:]
            assert "interrupted" not in job.text()
        finally:
            job.end()
        places = places_in(tmp_path / "table")
        assert 0 < len(places) < QUEUES * PER_QUEUE
        assert len(places) % 300 == 0, "a batch was cut"
        files = {path.name for path in (tmp_path / "table").rglob("*.parquet")}
        assert files == {path.name for path in committed_files(tmp_path / "table")}
        stored = [cluster.group_offset(f"{topic}-group", queue) for queue in queues]
        assert stored == [sum(place[0] == queue.queue_id for place in places) for queue in queues]
        close_shared_clients()
