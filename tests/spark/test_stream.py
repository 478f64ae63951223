"""Whole Spark queries against a real broker; one Spark session serves them all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from live_cluster import numbered
from pyspark.errors import PySparkException

from mailboat.client import Message

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


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
    cluster.fill(topic, queues=1, per_queue=50)
    frame = reader(spark, cluster, topic, maxOffsetsPerTrigger="30").load()
    query = run_to_parquet(frame, tmp_path)
    source = query.recentProgress[0]["sources"][0]
    assert json.loads(source["endOffset"]) == {"_v": 1, topic: {"broker-a:0": 30}}
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

    def run():
        frame = reader(spark, cluster, topic, **{option: value}).load()
        frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination(60)

    with pytest.raises(PySparkException) as caught:
        run()
    assert sentence in str(caught.value)
