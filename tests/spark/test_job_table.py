"""The job's table and group, with one Spark session for all queries."""

from __future__ import annotations

import random
import shutil
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow.parquet
import pytest
from live_cluster import LiveCluster, numbered

from mailboat.client import Message
from mailboat.errors import ConfigError
from mailboat_spark.client_thread import close_shared_clients
from mailboat_spark.job import checkpoint, table
from mailboat_spark.job.fence import CheckpointBusyError, hold
from mailboat_spark.job.metrics import JobMetrics
from mailboat_spark.job.options import JobOptions, check_options
from mailboat_spark.job.progress import JobState, ended_tasks
from mailboat_spark.job.runner import JobFailedError, run_query

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def options_of(cluster, topic, folder, **changes):
    """Return the options of an AvailableNow job."""
    given = {
        "namesrv": cluster.namesrv,
        "topics": topic,
        "output": folder / "table",
        "name": "test-job",
        "group": f"{topic}-group",
        "mode": "available-now",
        "lock_timeout_s": 0.0,
    }
    options = JobOptions(**{**given, **changes})
    check_options(options)
    return options


def run_to_end(spark, options, work_dir):
    """Run the job's query until it ends by itself; return what it counted."""
    metrics = JobMetrics(options.name, options.group_name, "test")
    state = JobState(metrics, liveness_timeout_s=60)
    run_query(spark, options, state, threading.Event(), work_dir)
    return state


def rows_of(spark, output):
    """Return the table's rows as Spark sees them, by their place in the topic."""
    columns = ["broker_name", "queue_id", "queue_offset", "value"]
    rows = spark.read.parquet(str(output)).select(*columns).collect()
    return sorted((row[0], row[1], row[2], bytes(row[3])) for row in rows)


def expected(queues, end):
    """Return the rows of `numbered` messages."""
    return sorted(
        (queue.broker_name, queue.queue_id, n, b"%d-%d" % (queue.queue_id, n))
        for queue in queues
        for n in range(end)
    )


def assert_in_step(options):
    """Check that the table lists exactly the finished batches."""
    finished = checkpoint.last_finished_batch(options.checkpoint_dir)
    assert table.newest_batch(options.output) == finished
    assert checkpoint.last_planned_batch(options.checkpoint_dir) == finished


def test_a_topic_becomes_a_table_and_grows(spark, cluster, topic, tmp_path):
    """Each run adds what came since, once, in folders by topic and day; the group follows."""
    queues = cluster.fill(topic, queues=2, per_queue=120)
    options = options_of(cluster, topic, tmp_path, max_offsets_per_trigger=100)
    first = run_to_end(spark, options, tmp_path)
    assert (first.rows, first.batches) == (240, 3)
    assert rows_of(spark, options.output) == expected(queues, 120)
    day = datetime.now(UTC).date().isoformat()
    assert {path.name for path in (options.output / f"topic={topic}").iterdir()} == {f"date={day}"}
    assert [cluster.group_offset(options.group, queue) for queue in queues] == [120, 120]
    for queue in queues:
        cluster.send(queue, numbered(queue, 120, 150))
    second = run_to_end(spark, options, tmp_path)
    assert second.rows == 60
    assert rows_of(spark, options.output) == expected(queues, 150)
    third = run_to_end(spark, options, tmp_path)
    assert third.rows == 0
    assert [cluster.group_offset(options.group, queue) for queue in queues] == [150, 150]
    text = second.metrics.text().decode()
    assert "mailboat_job_rows_total 60.0" in text
    place = f'{{broker="broker-a",queue="1",topic="{topic}"}}'
    assert f"mailboat_job_next_queue_offset{place} 150.0" in text


def test_columns_are_the_documented_ones(spark, cluster, topic, tmp_path):
    """Key, tag, properties and times arrive in their columns; hour and queue may be folders."""
    [queue] = cluster.create_topic(topic, 1)
    message = Message(topic, b"body", tags="red", keys="k1", properties={"colour": "dark"})
    sent = cluster.send_one(queue, message)
    options = options_of(
        cluster, topic, tmp_path, partition_by=("date", "hour", "queue_id"), compression="snappy"
    )
    run_to_end(spark, options, tmp_path)
    [row] = spark.read.parquet(str(options.output)).collect()
    assert (row.topic, row.broker_name, row.queue_offset) == (topic, "broker-a", 0)
    assert (row.keys, row.tags, bytes(row.value)) == ("k1", "red", b"body")
    assert row.message_id == sent.message_id
    assert row.properties["colour"] == "dark"
    assert row.reconsume_times == 0
    assert abs((row.store_timestamp - datetime.now()).total_seconds()) < 24 * 3600
    [file] = table.committed_files(options.output)
    assert file.parent.name == "queue_id=0"
    assert file.parent.parent.name.startswith("hour=")
    metadata = pyarrow.parquet.read_metadata(file)
    assert metadata.row_group(0).column(0).compression == "SNAPPY"


def test_leftovers_of_a_kill_go_at_the_next_start(spark, cluster, topic, tmp_path):
    """Readers that take every file see each message once again after the job has started."""
    queues = cluster.fill(topic, queues=1, per_queue=30)
    options = options_of(cluster, topic, tmp_path)
    run_to_end(spark, options, tmp_path)
    [file] = table.committed_files(options.output)
    torn = file.with_name("part-00000-01234567-89ab-cdef-0123-456789abcdef.c000.zstd.parquet")
    torn.write_bytes(b"")
    doubled = file.with_name("part-00001-01234567-89ab-cdef-0123-456789abcdef.c000.zstd.parquet")
    doubled.write_bytes(file.read_bytes())
    mine = options.output / "my-notes.parquet"
    mine.write_bytes(file.read_bytes())
    run_to_end(spark, options, tmp_path)
    assert sorted(options.output.rglob("*.parquet")) == sorted([file, mine])
    assert rows_of(spark, options.output) == expected(queues, 30)


def test_a_new_checkpoint_refuses_a_table(spark, cluster, topic, tmp_path):
    """Spark would pass over the batches that the table already has the numbers of."""
    cluster.fill(topic, queues=1, per_queue=5)
    options = options_of(cluster, topic, tmp_path)
    run_to_end(spark, options, tmp_path)
    other = options_of(cluster, topic, tmp_path, name="other-job")
    with pytest.raises(table.ForeignTableError, match="the checkpoint has not written"):
        run_to_end(spark, other, tmp_path)
    assert len(rows_of(spark, options.output)) == 5


def test_batches_without_rows_are_listed_too(spark, cluster, topic, tmp_path):
    """What tags leave out still makes batches, and each start finds table and checkpoint equal."""
    [queue] = cluster.create_topic(topic, 1)
    options = options_of(cluster, topic, tmp_path, tags="red", max_offsets_per_trigger=4)
    # Enough for the first compaction of the sink's list, at batch 9.
    for first in range(0, 36, 12):
        run_to_end(spark, options, tmp_path)
        assert_in_step(options)
        cluster.send(queue, numbered(queue, first, first + 12, tag="blue"))
    cluster.send(queue, numbered(queue, 36, 37, tag="red"))
    assert run_to_end(spark, options, tmp_path).rows == 1
    assert_in_step(options)
    assert table.newest_batch(options.output) >= 9
    assert [row[2] for row in rows_of(spark, options.output)] == [36]


def test_a_table_below_the_table_survives_a_start(spark, cluster, topic, tmp_path):
    """Two jobs write to `tables` and `tables/inner`; neither removes what is the other's."""
    queues = cluster.fill(topic, queues=1, per_queue=20)
    outer = options_of(cluster, topic, tmp_path, output=tmp_path / "tables")
    inner = options_of(cluster, topic, tmp_path, output=tmp_path / "tables/inner", name="inner")
    for _ in range(2):
        for options in (outer, inner):
            run_to_end(spark, options, tmp_path)
    # Spark reads a folder in a table as part of it, so the outer one is asked by its list.
    assert all(path.is_file() for path in table.committed_files(outer.output))
    assert rows_of(spark, inner.output) == expected(queues, 20)


def test_a_checkpoint_stays_with_its_table(spark, cluster, topic, tmp_path):
    """Another output, other columns or an older table are refused, and nothing is removed."""
    queues = cluster.fill(topic, queues=1, per_queue=10)
    options = options_of(cluster, topic, tmp_path, checkpoint=tmp_path / "checkpoint")
    run_to_end(spark, options, tmp_path)
    foreign = tmp_path / "foreign"
    spark.read.parquet(str(options.output)).write.partitionBy("topic", "date").parquet(str(foreign))
    before = rows_of(spark, foreign)
    refused = [
        ({"output": foreign}, table.ForeignTableError, "holds .*, which the checkpoint has not"),
        ({"output": tmp_path / "new"}, table.ForeignTableError, "holds no batch, but"),
        ({"partition_by": ("topic",)}, ConfigError, "which is topic,date; give that"),
    ]
    for changes, kind, words in refused:
        with pytest.raises(kind, match=words):
            run_to_end(spark, replace(options, **changes), tmp_path)
    assert rows_of(spark, foreign) == before == expected(queues, 10)
    cluster.send(queues[0], numbered(queues[0], 10, 15))
    shutil.copytree(options.output, tmp_path / "backup")
    run_to_end(spark, options, tmp_path)
    with pytest.raises(table.ForeignTableError, match=r"ends with batch 0, but .* batch 1"):
        run_to_end(spark, replace(options, output=tmp_path / "backup"), tmp_path)
    assert rows_of(spark, options.output) == expected(queues, 15)


def test_tasks_that_end_are_seen_while_a_stage_runs(spark, tmp_path):
    """Spark tells of single tasks before their stage is done: they are the job's sign of life."""
    gate = tmp_path / "gate"

    def wait_for_gate(number):
        while number == 2 and not gate.exists():
            time.sleep(0.05)

    tracker = spark.sparkContext.statusTracker()
    assert ended_tasks(tracker) == {}
    numbers = spark.sparkContext.parallelize(range(3), 3)
    work = threading.Thread(target=numbers.foreach, args=(wait_for_gate,))
    work.start()
    try:
        deadline_s = time.monotonic() + 120
        while list(ended_tasks(tracker).values()) != [2]:
            assert time.monotonic() < deadline_s, ended_tasks(tracker)
            work.join(0.1)
        assert work.is_alive()
    finally:
        gate.touch()
        work.join()


def test_retention_that_overtakes_the_job_is_told(spark, topic, tmp_path):
    """Expired messages end the job with one sentence, or are passed over where that is wanted."""
    with LiveCluster(tmp_path / "cluster") as own:
        [queue] = own.create_topic(topic, 1)
        own.send_one(queue, Message(topic, b"first"))
        options = options_of(own, topic, tmp_path)
        run_to_end(spark, options, tmp_path)
        for number in range(3):
            # Each is more than half a segment of 4 MiB, also compressed.
            own.send_one(queue, Message(topic, random.Random(number).randbytes(2_500_000)))
        own.stop_broker()
        own.start_broker()
        own.expire_all_but_newest()
        minimum = own.minimum_offset(queue)
        assert minimum > 1
        with pytest.raises(JobFailedError) as caught:
            run_to_end(spark, options, tmp_path)
        assert str(caught.value).startswith(f"{queue} holds offsets {minimum} to 4, and the query")
        assert str(caught.value).endswith("set failOnDataLoss to false to go on without them")
        assert "\n" not in str(caught.value)
        lenient = options_of(own, topic, tmp_path, fail_on_data_loss=False)
        assert run_to_end(spark, lenient, tmp_path).rows == 4 - minimum
        offsets = [row[2] for row in rows_of(spark, options.output)]
        assert offsets == [0, *range(minimum, 4)]
        close_shared_clients()


def test_a_held_folder_is_refused(spark, tmp_path):
    """Two holders are never there at once, and the folder is free when the first one ends."""
    with hold(spark, tmp_path, 0):
        with pytest.raises(CheckpointBusyError, match="is in use by process"):
            hold(spark, tmp_path, 0).__enter__()
    with hold(spark, tmp_path, 0):
        pass
