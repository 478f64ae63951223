"""Whole Spark queries against a real broker, a kill -9 among them.

One module, because one Spark session serves all of it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
from live_cluster import numbered
from pyspark.errors import PySparkException

from mailboat.cli.demo_tally import committed_files
from mailboat.client import Message
from mailboat_spark.demo_job import parse_arguments, run
from mailboat_spark.offsets import decode_witnesses

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

QUEUES = 3
PER_QUEUE = 8000


def reader(spark, cluster, topic, **options):
    """Return a stream reader; the source is found by name, nothing was registered."""
    found = spark.readStream.format("mailboat").option("namesrv", cluster.namesrv)
    found = found.option("subscribe", topic).option("startingOffsets", "earliest")
    for name, value in options.items():
        found = found.option(name, value)
    return found


def run_to_parquet(frame, folder: Path):
    """Run a query until it has read what was there when it began."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return query


def rows_of(spark, folder: Path):
    """Return the output as (partition, offset, value), sorted."""
    rows = spark.read.parquet(str(folder / "out")).select("partition", "offset", "value").collect()
    return sorted((row.partition, row.offset, bytes(row.value)) for row in rows)


def expected(queue_ids, first, end):
    """Return the rows of `numbered` messages."""
    return [(q, n, b"%d-%d" % (q, n)) for q in queue_ids for n in range(first, end)]


def test_a_secret_is_nowhere_that_a_query_leaves_or_shows(spark, cluster, topic, tmp_path, caplog):
    """Neither plans nor checkpoint, output, progress or log hold it; workers sign with it."""
    cluster.fill(topic, queues=1, per_queue=10)
    secret = "s3cret-of-alice"
    access = {"accessKey": "alice", "secretKey": secret, "groupId": f"{topic}-group"}
    # At DEBUG py4j tells of every call that makes a query.
    with caplog.at_level(logging.INFO):
        frame = reader(spark, cluster, topic, **access).load()
        query = run_to_parquet(frame, tmp_path)
    batch = spark.read.format("mailboat").options(
        namesrv=cluster.namesrv, subscribe=topic, accessKey="alice", secretKey=secret
    )
    plans = [each._jdf.queryExecution().toString() for each in (frame, batch.load())]
    assert rows_of(spark, tmp_path) == expected([0], 0, 10)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("checkpoint" in str(path) for path in files)
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    shown = [*plans, str(query.recentProgress), str(query.lastProgress), caplog.text]
    assert [text for text in shown if secret in text] == []


def test_a_query_goes_on_where_it_stopped(spark, cluster, topic, tmp_path):
    """Batches are limited; a second run reads what came since, a new queue from its start, once."""
    queues = cluster.fill(topic, queues=2, per_queue=250)
    group = f"{topic}-group"
    frame = reader(
        spark, cluster, topic, maxOffsetsPerTrigger="100", groupId=group, includeHeaders="true"
    ).load()
    first = run_to_parquet(frame, tmp_path)
    batches = [progress["numInputRows"] for progress in first.recentProgress]
    assert [rows for rows in batches if rows] == [100] * 5
    assert rows_of(spark, tmp_path) == expected([0, 1], 0, 250)
    assert [cluster.group_offset(group, queue) for queue in queues] == [250, 250]
    cluster.send(queues[0], numbered(queues[0], 250, 260))
    _, _, added = cluster.create_topic(topic, 3)
    cluster.send(added, numbered(added, 0, 30))
    run_to_parquet(frame, tmp_path)
    wanted = expected([0], 0, 260) + expected([1], 0, 250) + expected([2], 0, 30)
    assert rows_of(spark, tmp_path) == wanted
    assert cluster.group_offset(group, added) == 30
    nothing_new = run_to_parquet(frame, tmp_path)
    assert sum(progress["numInputRows"] for progress in nothing_new.recentProgress) == 0


def test_progress_tells_the_lag(spark, cluster, topic, tmp_path):
    """Spark's progress report holds start, end and latest offsets in the documented form."""
    [queue] = cluster.fill(topic, queues=1, per_queue=50)
    frame = reader(spark, cluster, topic, maxOffsetsPerTrigger="30").load()
    query = run_to_parquet(frame, tmp_path)
    source = query.recentProgress[0]["sources"][0]
    end = json.loads(source["endOffset"])
    assert decode_witnesses(end).keys() == {queue}
    del end["_last"]
    assert end == {
        "_v": 1,
        "_from": {topic: {"broker-a:0": 0}},
        topic: {"broker-a:0": 30},
    }
    assert json.loads(source["latestOffset"]) == {"_v": 1, topic: {"broker-a:0": 50}}


def test_a_batch_query_with_chosen_columns_and_tags(spark, cluster, topic):
    """spark.read takes a subset of the columns and a tag filter, and keys and tags come along."""
    [queue] = cluster.create_topic(topic, 1)
    messages = [
        Message(topic, b"%d" % n, tags="even" if n % 2 == 0 else "odd", keys=f"k{n}")
        for n in range(100)
    ]
    cluster.send(queue, messages)
    frame = (
        spark.read.format("mailboat")
        .schema("value binary, tags string, keys string")
        .options(namesrv=cluster.namesrv, subscribe=topic, tags="odd || none")
        .load()
    )
    found = sorted((int(row.value), row.tags, row.keys) for row in frame.collect())
    assert found == [(n, "odd", f"k{n}") for n in range(1, 100, 2)]


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("maxOffsetPerTrigger", "10", "did you mean maxOffsetsPerTrigger?"),
        ("schemaMode", "pulsar", "is neither kafka nor rocketmq"),
    ],
)
def test_a_bad_option_fails_with_its_sentence(spark, cluster, topic, option, value, sentence):
    """What the user sees of Spark's long error holds our one sentence."""

    def run_query():
        frame = reader(spark, cluster, topic, **{option: value}).load()
        frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination(60)

    with pytest.raises(PySparkException) as caught:
        run_query()
    assert sentence in str(caught.value)


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


@pytest.mark.crash
@pytest.mark.timeout(400)
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
