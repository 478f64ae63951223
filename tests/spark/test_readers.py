"""The two readers against a real broker, without Java: Spark's calls are made by the test."""

from __future__ import annotations

import json
import threading
import time

import pytest
from live_cluster import LiveCluster, numbered
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructField, StructType

from mailboat.client import Message, MessageQueue
from mailboat.errors import ConfigError, MailboatError
from mailboat_spark.broker_client import DataLossError
from mailboat_spark.client_thread import close_shared_clients
from mailboat_spark.schema import COLUMNS
from mailboat_spark.source import MailboatDataSource

ALL = ReadAllAvailable()
ROW_SCHEMA = StructType(
    [StructField(name, COLUMNS[name].spark_type) for name in ("queue_id", "queue_offset", "value")]
)


def source(cluster, topic, **options):
    """Return the source with the options every test gives."""
    given = {"namesrv": cluster.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    return MailboatDataSource({**given, "retryTimeoutMs": "15000", **options})


def stream(cluster, topic, **options):
    """Return a stream reader that asks brokers every time."""
    options = {"offsetFetchIntervalMs": "0", **options}
    return source(cluster, topic, **options).streamReader(ROW_SCHEMA)


def read(reader, start, end):
    """Read what lies between two offsets; return rows as (queue, offset, value), sorted."""
    rows = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    return sorted(rows)


def expected(queues, first, end):
    """Return the rows of `numbered` messages."""
    return [(q, n, b"%d-%d" % (q, n)) for q in range(queues) for n in range(first, end)]


def test_everything_is_read_once_and_in_form(cluster, topic):
    """A new query from the earliest offset gives every message of every queue, once."""
    cluster.fill(topic, queues=3, per_queue=333)
    reader = stream(cluster, topic)
    start = reader.initialOffset()
    assert start == {"_v": 1, topic: {"broker-a:0": 0, "broker-a:1": 0, "broker-a:2": 0}}
    end = reader.latestOffset(start, ALL)
    assert end == {"_v": 1, topic: {"broker-a:0": 333, "broker-a:1": 333, "broker-a:2": 333}}
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
    assert json.dumps(again) == json.dumps(start) == json.dumps(reader.reportLatestOffset())


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
    assert reader.latestOffset(start, ALL) == {"_v": 1, topic: {"broker-a:0": 10}}


def test_a_new_queue_is_read_from_its_first_message(cluster, topic):
    """A queue added to a running query loses nothing, also where the query began at the end."""
    cluster.fill(topic, queues=1, per_queue=10)
    reader = stream(cluster, topic, startingOffsets="latest")
    start = reader.initialOffset()
    _, added = cluster.create_topic(topic, 2)
    cluster.send(added, numbered(added, 0, 5))
    end = reader.latestOffset(start, ALL)
    assert end == {"_v": 1, topic: {"broker-a:0": 10, "broker-a:1": 5}}
    assert read(reader, start, end) == [(1, n, b"1-%d" % n) for n in range(5)]


def test_group_offsets_follow_finished_batches(cluster, topic):
    """The group gets the next offset to read, from latestOffset too, and first where it begins."""
    [queue] = cluster.fill(topic, queues=1, per_queue=10)
    group = f"{topic}-group"
    reader = stream(
        cluster, topic, groupId=group, startingOffsets=f'{{"{topic}":{{"broker-a:0":3}}}}'
    )
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert len(read(reader, start, end)) == 7
    assert cluster.group_offset(group, queue) == 3
    reader.latestOffset(end, ALL)
    assert cluster.group_offset(group, queue) == 10
    cluster.send(queue, numbered(queue, 10, 12))
    reader.commit(reader.latestOffset(end, ALL))
    assert cluster.group_offset(group, queue) == 12
    restarted = stream(cluster, topic, groupId=group, startingOffsets="group")
    assert restarted.initialOffset() == {"_v": 1, topic: {"broker-a:0": 12}}


def test_a_new_query_does_not_move_its_group_back(cluster, topic):
    """Where a query starts is not the end of a batch: the group keeps what it has until then."""
    [queue] = cluster.fill(topic, queues=1, per_queue=10)
    group = f"{topic}-group"
    earlier = stream(cluster, topic, groupId=group)
    position = {"_v": 1, topic: {"broker-a:0": 7}}
    read(earlier, earlier.initialOffset(), position)
    earlier.commit(position)
    again = stream(cluster, topic, groupId=group)
    again.latestOffset(again.initialOffset(), ALL)
    assert cluster.group_offset(group, queue) == 7


def test_a_queue_new_to_a_query_is_its_groups_before_the_batch_ends(cluster, topic):
    """Brokers count a group as a reader of what it has offsets in, so a queue gets one at once."""
    cluster.fill(topic, queues=1, per_queue=10)
    group = f"{topic}-group"
    reader = stream(cluster, topic, groupId=group)
    start = reader.initialOffset()
    _, added = cluster.create_topic(topic, 2)
    cluster.send(added, numbered(added, 0, 5))
    end = reader.latestOffset(start, ALL)
    assert cluster.group_offset(group, added) == 0
    reader.latestOffset(end, ALL)
    assert cluster.group_offset(group, added) == 5
    # A plan that is made again, as after a crash, finds what is stored and leaves it.
    stream(cluster, topic, groupId=group).latestOffset(start, ALL)
    assert cluster.group_offset(group, added) == 5


def test_without_a_group_nothing_is_stored(cluster, topic):
    """A query without groupId leaves no offsets behind."""
    [queue] = cluster.fill(topic, queues=1, per_queue=3)
    reader = stream(cluster, topic)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.latestOffset(end, ALL)
    reader.commit(end)
    assert cluster.group_offset("mailboat-spark", queue) is None


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


def test_a_topic_made_anew_is_data_loss(cluster, topic):
    """A checkpoint that is ahead of its queue must not be followed silently."""
    cluster.fill(topic, queues=1, per_queue=10)
    start = {"_v": 1, topic: {"broker-a:0": 10}}
    cluster.delete_topic(topic)
    [queue] = cluster.fill(topic, queues=1, per_queue=4)
    with pytest.raises(DataLossError, match="goes on at 10"):
        stream(cluster, topic).latestOffset(start, ALL)
    lenient = stream(cluster, topic, failOnDataLoss="false")
    end = lenient.latestOffset(start, ALL)
    assert read(lenient, start, end) == []
    cluster.send(queue, numbered(queue, 4, 6))
    assert read(lenient, end, lenient.latestOffset(end, ALL)) == expected(1, 4, 6)


def test_a_planned_end_that_is_gone_is_data_loss(cluster, topic):
    """A batch that was logged before a crash is never read as less than it was."""
    cluster.fill(topic, queues=1, per_queue=10)
    start, end = {"_v": 1, topic: {"broker-a:0": 0}}, {"_v": 1, topic: {"broker-a:0": 12}}
    with pytest.raises(DataLossError, match="ends at 10, before the planned offset 12"):
        read(stream(cluster, topic, retryTimeoutMs="300"), start, end)
    lenient = stream(cluster, topic, retryTimeoutMs="300", failOnDataLoss="false")
    assert read(lenient, start, end) == expected(1, 0, 10)


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


def test_queues_of_a_broker_that_is_away_keep_their_place(tmp_path, topic):
    """A broker that left the route takes nothing with it: its queues go on when it is back."""
    with LiveCluster(tmp_path, brokers=2) as own:
        own.create_topic(topic, 1)
        for name in ("broker-a", "broker-b"):
            queue = MessageQueue(topic, name, 0)
            own.send(queue, numbered(queue, 0, 5))
        reader = stream(own, topic, retryTimeoutMs="300")
        end = reader.latestOffset(reader.initialOffset(), ALL)
        assert end == {"_v": 1, topic: {"broker-a:0": 5, "broker-b:0": 5}}
        own.stop_broker()
        assert reader.latestOffset(end, ALL) == end
        close_shared_clients()


def test_expired_messages_are_data_loss(tmp_path, topic):
    """Messages that were deleted before they were read end the query, or are passed over."""
    with LiveCluster(tmp_path) as own:
        [queue] = own.create_topic(topic, 1)
        for number in range(3):
            # Each is more than half a segment of 4 MiB, so each begins another one.
            own.send_one(queue, Message(topic, bytes([number]) + _noise(2_500_000)))
        own.stop_broker()
        own.start_broker()
        start, end = {"_v": 1, topic: {"broker-a:0": 0}}, {"_v": 1, topic: {"broker-a:0": 3}}
        strict = stream(own, topic)
        lenient = stream(own, topic, failOnDataLoss="false")
        assert len(read(strict, start, end)) == 3
        own.expire_all_but_newest()
        with pytest.raises(DataLossError, match="holds offsets 2 to 3"):
            strict.latestOffset(start, ALL)
        with pytest.raises(DataLossError, match=r"messages 0 to 1 .* are gone"):
            read(strict, start, end)
        assert [row[1] for row in read(lenient, start, end)] == [2]
        batch = source(own, topic).reader(ROW_SCHEMA)
        assert [row[1] for row in _read_all(batch)] == [2]
        close_shared_clients()


def test_a_batch_query_reads_between_offsets(cluster, topic):
    """spark.read gives everything by default, or what lies between the offsets named."""
    cluster.fill(topic, queues=2, per_queue=50)
    assert _read_all(source(cluster, topic).reader(ROW_SCHEMA)) == expected(2, 0, 50)
    named = source(
        cluster,
        topic,
        startingOffsets=json.dumps({topic: {"broker-a:0": 48}}),
        endingOffsets=json.dumps({topic: {"broker-a:1": 2}}),
    )
    wanted = [*expected(1, 48, 50), (1, 0, b"1-0"), (1, 1, b"1-1")]
    assert _read_all(named.reader(ROW_SCHEMA)) == wanted


def test_a_batch_query_refuses_offsets_that_are_not_there(cluster, topic):
    """An end that the queue does not have is an error, not fewer rows."""
    cluster.fill(topic, queues=1, per_queue=5)
    asked = json.dumps({topic: {"broker-a:0": 6}})
    with pytest.raises(DataLossError, match="it holds 0 to 5"):
        source(cluster, topic, endingOffsets=asked).reader(ROW_SCHEMA).partitions()


def _read_all(reader):
    rows = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    return sorted(rows)


def _noise(size):
    """Return bytes that compression does not shrink."""
    state, out = 1, bytearray()
    while len(out) < size:
        state = state * 6364136223846793005 + 1442695040888963407 & (1 << 4096) - 1
        out += state.to_bytes(512, "big")
    return bytes(out[:size])
