"""The two readers against a real broker, without Java: Spark's calls are made by the test."""

from __future__ import annotations

import json
import threading
import time

import pytest
from live_cluster import LiveCluster, numbered
from pyspark.sql.streaming.datasource import ReadMaxRows
from reader_calls import ALL, ROW_SCHEMA, expected, read, read_all, source, stream

from mailboat.client import Message
from mailboat.errors import ConfigError, MailboatError
from mailboat_spark.broker_client import DataLossError
from mailboat_spark.client_thread import close_shared_clients


def test_everything_is_read_once_and_in_form(cluster, topic):
    """A new query from the earliest offset gives every message of every queue, once."""
    cluster.fill(topic, queues=3, per_queue=333)
    reader = stream(cluster, topic)
    start = reader.initialOffset()
    assert start == {"_v": 1, topic: {"broker-a:0": 0, "broker-a:1": 0, "broker-a:2": 0}}
    end = reader.latestOffset(start, ALL)
    assert end[topic] == {"broker-a:0": 333, "broker-a:1": 333, "broker-a:2": 333}
    assert read(reader, start, end) == expected(3, 0, 333)


def test_batches_are_large_although_pulls_are_small(cluster, topic):
    """Brokers give 32 messages per pull; Spark gets them by the thousand."""
    cluster.fill(topic, queues=1, per_queue=2500)
    reader = stream(cluster, topic, arrowBatchRows="1000")
    [partition] = reader.partitions(reader.initialOffset(), reader.reportLatestOffset())
    sizes = [batch.num_rows for batch in reader.read(partition)]
    assert sum(sizes) == 2500
    assert min(sizes[:-1]) >= 1000


@pytest.mark.parametrize("in_flight", ["1", "7"])
def test_a_range_is_read_in_order(cluster, topic, in_flight):
    """Pulls overlap, rows do not: a queue's messages come in its order."""
    cluster.fill(topic, queues=1, per_queue=700)
    reader = stream(cluster, topic, pullsInFlight=in_flight, arrowBatchRows="50")
    [partition] = reader.partitions(
        {"_v": 1, topic: {"broker-a:0": 5}}, {"_v": 1, topic: {"broker-a:0": 695}}
    )
    offsets = [row["queue_offset"] for b in reader.read(partition) for row in b.to_pylist()]
    assert offsets == list(range(5, 695))


def test_equal_offsets_are_equal_text(cluster, topic):
    """Spark compares JSON text; an idle query must not see a change."""
    cluster.fill(topic, queues=12, per_queue=1)
    reader = stream(cluster, topic)
    start = reader.latestOffset(reader.initialOffset(), ALL)
    again = reader.latestOffset(json.loads(json.dumps(start)), ALL)
    assert json.dumps(again) == json.dumps(start)
    assert json.dumps(again[topic]) == json.dumps(reader.reportLatestOffset()[topic])


def test_latest_begins_behind_what_is_there(cluster, topic):
    """A query from the latest offset gives only what comes later."""
    [queue] = cluster.fill(topic, queues=1, per_queue=10)
    reader = stream(cluster, topic, startingOffsets="latest")
    start = reader.initialOffset()
    cluster.send(queue, numbered(queue, 10, 15))
    assert read(reader, start, reader.latestOffset(start, ALL)) == expected(1, 10, 15)


def test_named_offsets(cluster, topic):
    """JSON offsets begin exactly there; queues that are not named begin at their first message."""
    cluster.fill(topic, queues=3, per_queue=10)
    asked = json.dumps({topic: {"broker-a:0": 7, "broker-a:1": -1}})
    start = stream(cluster, topic, startingOffsets=asked).initialOffset()
    assert start == {"_v": 1, topic: {"broker-a:0": 7, "broker-a:1": 10, "broker-a:2": 0}}


def test_a_named_queue_must_exist(cluster, topic):
    """An offset for a queue that is not there is a mistake, not an empty stream."""
    cluster.fill(topic, queues=1, per_queue=1)
    asked = json.dumps({topic: {"broker-z:0": 7}})
    with pytest.raises(ConfigError, match="broker-z:0 does not exist"):
        stream(cluster, topic, startingOffsets=asked).initialOffset()


def test_a_batch_is_limited_and_shared_out(cluster, topic):
    """maxOffsetsPerTrigger bounds the sum; each queue's share is by backlog, at least one."""
    long, short = cluster.create_topic(topic, 2)
    cluster.send(long, numbered(long, 0, 900))
    cluster.send(short, numbered(short, 0, 3))
    reader = stream(cluster, topic, maxOffsetsPerTrigger="100")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(100)
    start = reader.initialOffset()
    end = reader.latestOffset(start, limit)[topic]
    assert sum(end.values()) == 100
    assert 1 <= end["broker-a:1"] <= 3
    # Trigger.Once asks for everything, whatever the option says.
    assert sum(reader.latestOffset(start, ALL)[topic].values()) == 903


def test_available_now_stops_where_it_began(cluster, topic):
    """Messages and queues that come while an AvailableNow query runs wait for the next run."""
    [queue] = cluster.fill(topic, queues=1, per_queue=10)
    reader = stream(cluster, topic)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    cluster.send(queue, numbered(queue, 10, 20))
    cluster.create_topic(topic, 2)
    assert reader.latestOffset(start, ALL)[topic] == {"broker-a:0": 10}


def test_a_new_queue_is_read_from_its_first_message(cluster, topic):
    """A queue added to a running query loses nothing, also where the query began at the end."""
    cluster.fill(topic, queues=1, per_queue=10)
    reader = stream(cluster, topic, startingOffsets="latest")
    start = reader.initialOffset()
    _, added = cluster.create_topic(topic, 2)
    cluster.send(added, numbered(added, 0, 5))
    end = reader.latestOffset(start, ALL)
    assert end[topic] == {"broker-a:0": 10, "broker-a:1": 5}
    assert read(reader, start, end) == [(1, n, b"1-%d" % n) for n in range(5)]


def test_tags_are_filtered_by_broker_and_source(cluster, topic):
    """Only the tags asked for come; tags with equal hashes (AaAa, BBBB) are told apart."""
    [queue] = cluster.create_topic(topic, 1)
    tags = ["AaAa", "BBBB", "other"]
    messages = [Message(topic, b"%d" % n, tags=tags[n % 3]) for n in range(300)]
    cluster.send(queue, messages)
    reader = stream(cluster, topic, tags="AaAa")
    start = reader.initialOffset()
    rows = read(reader, start, reader.latestOffset(start, ALL))
    assert [row[1] for row in rows] == list(range(0, 300, 3))


def test_compressed_and_large_bodies(cluster, topic):
    """Bodies above 4 KiB travel compressed, and one above 256 KiB fills a pull by itself."""
    [queue] = cluster.create_topic(topic, 1)
    bodies = [b"a" * 5000, bytes(range(256)) * 4000, b"small"]
    for body in bodies:
        cluster.send_one(queue, Message(topic, body))
    reader = stream(cluster, topic)
    start = reader.initialOffset()
    rows = read(reader, start, reader.latestOffset(start, ALL))
    assert [row[2] for row in rows] == bodies


def test_several_topics(cluster, topic):
    """One query may read several topics; offsets name each."""
    for name in ("one", "two"):
        cluster.fill(f"{topic}-{name}", queues=1, per_queue=4)
    reader = stream(cluster, f"{topic}-one,{topic}-two")
    start = reader.initialOffset()
    assert len(read(reader, start, reader.latestOffset(start, ALL))) == 8


def test_an_unknown_topic_is_named(cluster, topic):
    """A topic that nobody has made fails within the time given, with its name."""
    with pytest.raises(MailboatError, match=topic):
        stream(cluster, topic, retryTimeoutMs="300").initialOffset()


@pytest.mark.parametrize("moves", [False, True], ids=["same-address", "other-address"])
def test_a_restarted_broker_is_waited_for(tmp_path, topic, moves):
    """A broker that goes away in the middle of a batch and comes back costs time only."""
    with LiveCluster(tmp_path) as own:
        own.fill(topic, queues=1, per_queue=500)
        reader = stream(own, topic, arrowBatchRows="10", pullsInFlight="1")
        start = reader.initialOffset()
        [partition] = reader.partitions(start, reader.latestOffset(start, ALL))
        batches = reader.read(partition)
        rows = next(batches).num_rows
        own.stop_broker()
        back = threading.Timer(0.5, own.start_broker, kwargs={"at_other_address": moves})
        back.start()
        try:
            rows += sum(batch.num_rows for batch in batches)
            assert rows == 500
            assert reader.latestOffset(start, ALL)[topic] == {"broker-a:0": 500}
        finally:
            back.join()
            close_shared_clients()


def test_a_broker_that_stays_away_ends_the_read_in_time(cluster, topic):
    """The deadline is kept: an error with a sentence, not a task that hangs."""
    cluster.fill(topic, queues=1, per_queue=50)
    reader = stream(cluster, topic, retryTimeoutMs="400")
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, ALL))
    cluster.stop_broker()
    try:
        started_s = time.monotonic()
        with pytest.raises(MailboatError):
            list(reader.read(partitions[0]))
        assert time.monotonic() - started_s < 10
    finally:
        cluster.start_broker()


def test_a_batch_query_reads_between_offsets(cluster, topic):
    """spark.read gives everything by default, or what lies between the offsets named."""
    cluster.fill(topic, queues=2, per_queue=50)
    assert read_all(source(cluster, topic).reader(ROW_SCHEMA)) == expected(2, 0, 50)
    named = source(
        cluster,
        topic,
        startingOffsets=json.dumps({topic: {"broker-a:0": 48}}),
        endingOffsets=json.dumps({topic: {"broker-a:1": 2}}),
    )
    wanted = [*expected(1, 48, 50), (1, 0, b"1-0"), (1, 1, b"1-1")]
    assert read_all(named.reader(ROW_SCHEMA)) == wanted


def test_a_batch_query_refuses_offsets_that_are_not_there(cluster, topic):
    """An end that the queue does not have is an error, not fewer rows."""
    cluster.fill(topic, queues=1, per_queue=5)
    asked = json.dumps({topic: {"broker-a:0": 6}})
    with pytest.raises(DataLossError, match="it holds 0 to 5"):
        source(cluster, topic, endingOffsets=asked).reader(ROW_SCHEMA).partitions()
