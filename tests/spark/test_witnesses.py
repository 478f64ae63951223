"""Queues that became shorter and grew again: the offset fits, the messages are others."""

from __future__ import annotations

import json
import logging
import pickle
import zlib

import pytest
from live_cluster import LiveCluster, numbered
from pyspark.sql.pandas.types import to_arrow_schema
from reader_calls import ALL, ROW_SCHEMA, expected, noise, read, stream

from mailboat.broker.dispatcher import BrokerDispatcher
from mailboat.broker.processors import pull
from mailboat.client import Message, MessageQueue
from mailboat.client.pulling import PullRequest
from mailboat.model.subscription import build_subscription
from mailboat.remoting.dispatcher import Dispatcher
from mailboat_spark.broker_client import DataLossError, OtherQueueError
from mailboat_spark.client_thread import ClientThread, close_shared_clients, shared_client
from mailboat_spark.offsets import Witness, decode_offsets, decode_witnesses
from mailboat_spark.range_reader import read_ranges


def made_anew(cluster, topic, count):
    """Delete a topic and fill it again: what a lost end of the log looks like to a reader."""
    cluster.delete_topic(topic)
    [queue] = cluster.create_topic(topic, 1)
    cluster.send(queue, [Message(topic, b"new-%d" % number) for number in range(count)])


def stored_record(cluster, queue, queue_offset):
    """Return a record as the broker gives it."""
    thread = shared_client(cluster.namesrv)
    request = PullRequest(
        group="other",
        queue=queue,
        queue_offset=queue_offset,
        subscription=build_subscription(queue.topic, None),
        max_messages=1,
    )
    return thread.run(thread.client._pull_once(request)).body


def test_a_witness_is_the_last_record_of_a_batch(cluster, topic):
    """Its store time, where RocketMQ's format has it, and the checksum of all its bytes."""
    [queue] = cluster.fill(topic, queues=1, per_queue=10)
    reader = stream(cluster, topic)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    record = stored_record(cluster, queue, 9)
    wanted = Witness(int.from_bytes(record[56:64], "big"), zlib.crc32(record))
    assert decode_witnesses(json.loads(json.dumps(end))) == {queue: wanted}
    # A queue that stands still keeps its witness, and its text.
    assert json.dumps(reader.latestOffset(json.loads(json.dumps(end)), ALL)) == json.dumps(end)


def test_a_topic_that_was_made_anew_and_grew_past_the_place(cluster, topic):
    """As many messages as before, or more, do not hide that they are others."""
    cluster.fill(topic, queues=1, per_queue=10)
    reader = stream(cluster, topic)
    place = reader.latestOffset(reader.initialOffset(), ALL)
    made_anew(cluster, topic, 25)
    with pytest.raises(DataLossError, match=r"another message at 9 .* messages before 10 may be"):
        reader.latestOffset(place, ALL)
    # So it is in a process that begins with the checkpoint.
    with pytest.raises(DataLossError, match="another message at 9"):
        stream(cluster, topic).latestOffset(json.loads(json.dumps(place)), ALL)


def test_a_reset_of_the_group_hides_nothing(cluster, topic):
    """A reset is told to the group's next pull, which may be the one that compares."""
    group = f"{topic}-group"
    cluster.fill(topic, queues=1, per_queue=10)
    reader = stream(cluster, topic, groupId=group)
    place = reader.latestOffset(reader.initialOffset(), ALL)
    made_anew(cluster, topic, 25)
    cluster.reset_group(group, topic)
    with pytest.raises(DataLossError, match="another message at 9"):
        stream(cluster, topic, groupId=group).partitions({"_v": 1}, place)


def test_without_fail_on_data_loss_it_is_told_once(cluster, topic, caplog):
    """The query goes on from its place, and has seen the new messages then."""
    [queue] = cluster.fill(topic, queues=1, per_queue=10)
    lenient = stream(cluster, topic, failOnDataLoss="false")
    place = lenient.latestOffset(lenient.initialOffset(), ALL)
    made_anew(cluster, topic, 12)
    with caplog.at_level(logging.WARNING):
        end = lenient.latestOffset(place, ALL)
        assert read(lenient, place, end) == [(0, 10, b"new-10"), (0, 11, b"new-11")]
        cluster.send(queue, numbered(queue, 12, 13))
        lenient.latestOffset(end, ALL)
    assert caplog.text.count("holds another message at 9") == 1
    assert caplog.text.count("holds another message") == 1


@pytest.mark.parametrize("tags", ["*", "a"], ids=["all", "a"])
def test_what_becomes_another_queue_after_the_plan_is_not_read_for_it(cluster, topic, caplog, tags):
    """The messages at the planned numbers are others: no batch may end with them unnoticed."""
    [queue] = cluster.create_topic(topic, 1)
    cluster.send(queue, numbered(queue, 0, 10, tag="a"))
    reader = stream(cluster, topic, tags=tags)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    [partition] = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    made_anew(cluster, topic, 25)
    with pytest.raises(DataLossError, match="another message at 9 than when the batch was planned"):
        list(reader.read(partition))
    going_on = stream(cluster, topic, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert sum(batch.num_rows for batch in going_on.read(partition)) == 10
    assert "another message at 9" in caplog.text


@pytest.mark.parametrize("pieces", ["1", "4"])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_broker_that_does_not_say_who_it_is_is_told_by_its_messages(
    tmp_path, topic, monkeypatch, pieces, fails
):
    """RocketMQ's ignore the name in a request: at a swapped address they give messages, too."""
    monkeypatch.setattr(pull, "require_own_name", lambda broker, name: None)
    monkeypatch.setattr(BrokerDispatcher, "process", Dispatcher.process)
    with LiveCluster(tmp_path, brokers=2) as own:
        own.create_topic(topic, 1)
        names = ("broker-a", "broker-b")
        for name in names:
            queue = MessageQueue(topic, name, 0)
            own.send(queue, [Message(topic, b"%s-%d" % (name.encode(), n)) for n in range(9)])
        reader = stream(own, topic, minPartitions=pieces, failOnDataLoss=fails)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        partitions = reader.partitions(start, end)
        schema = to_arrow_schema(ROW_SCHEMA, timezone="UTC")

        def rows(partition):
            batches = read_ranges(
                worker, reader._options, partition.value, schema, partition.witnesses
            )
            return [row["value"] for batch in batches for row in batch.to_pylist()]

        worker = ClientThread(own.namesrv)
        worker.run(worker.client.bounds([topic], 0))
        own.swap_addresses()
        with pytest.raises(OtherQueueError, match="was read where another broker is by now"):
            rows(partitions[0])
        # The next try.
        found = sorted(value for partition in partitions for value in rows(partition))
        assert found == sorted(b"%s-%d" % (name.encode(), n) for name in names for n in range(9))
        worker.close()
        close_shared_clients()


def test_a_logged_batch_is_not_repeated_with_other_messages(cluster, topic):
    """Spark plans nothing before it repeats a batch, so its start and end are looked at then."""
    [queue] = cluster.fill(topic, queues=1, per_queue=10)
    reader = stream(cluster, topic)
    first = reader.latestOffset(reader.initialOffset(), ALL)
    cluster.send(queue, numbered(queue, 10, 20))
    second = reader.latestOffset(first, ALL)
    assert read(stream(cluster, topic), first, second) == expected(1, 10, 20)
    made_anew(cluster, topic, 25)
    with pytest.raises(DataLossError, match="another message at 9"):
        stream(cluster, topic).partitions(first, second)
    with pytest.raises(DataLossError, match="another message at 19"):
        stream(cluster, topic).partitions({"_v": 1, topic: {"broker-a:0": 10}}, second)


def test_a_checkpoint_of_an_earlier_release_goes_on(cluster, topic):
    """It holds no witness, so nothing is compared; the next end holds one."""
    [queue] = cluster.fill(topic, queues=1, per_queue=10)
    reader = stream(cluster, topic)
    start = {"_v": 1, topic: {"broker-a:0": 4}}
    end = reader.latestOffset(start, ALL)
    assert decode_offsets(end) == {queue: 10}
    assert decode_witnesses(end).keys() == {queue}


def test_what_expired_is_not_compared(tmp_path, topic):
    """A query that has read everything loses nothing when its last message expires."""
    with LiveCluster(tmp_path) as own:
        [queue] = own.create_topic(topic, 1)
        for number in range(3):
            own.send_one(queue, Message(topic, bytes([number]) + noise(2_500_000)))
        reader = stream(own, topic)
        place = reader.latestOffset(reader.initialOffset(), ALL)
        for number in range(3):
            own.send_one(queue, Message(topic, bytes([number]) + noise(2_500_000)))
        own.stop_broker()
        own.start_broker()
        limited = {"_v": 1, "_last": place["_last"], topic: {"broker-a:0": 3}}
        own.expire_all_but_newest()
        minimum = own.minimum_offset(queue)
        assert minimum == 5
        start = {**limited, topic: {"broker-a:0": minimum}}
        assert decode_offsets(reader.latestOffset(start, ALL)) == {queue: 6}
        close_shared_clients()


def test_a_queue_hidden_when_a_query_began_at_the_end(tmp_path, topic):
    """What expired in it was older than the query, which never wanted it."""
    with LiveCluster(tmp_path) as own:
        _, hidden = own.create_topic(topic, 2)
        for number in range(3):
            own.send_one(hidden, Message(topic, bytes([number]) + noise(2_500_000)))
        own.create_topic(topic, 1)
        reader = stream(own, topic, startingOffsets="latest")
        start = reader.initialOffset()
        assert decode_offsets(start) == {MessageQueue(topic, "broker-a", 0): 0}
        own.stop_broker()
        own.start_broker()
        own.expire_all_but_newest()
        own.create_topic(topic, 2)
        end = reader.latestOffset(start, ALL)
        assert end["_from"][topic]["broker-a:1"] == own.minimum_offset(hidden) == 2
        assert end["_began_ms"] == start["_began_ms"]
        # A query that wanted everything, or that began before these messages, has lost some.
        for since in ({}, {"_began_ms": 1}):
            with pytest.raises(DataLossError, match="messages 0 to 1 are gone"):
                stream(own, topic).latestOffset({"_v": 1, **since, topic: {"broker-a:0": 0}}, ALL)
        close_shared_clients()


def test_memory_is_bounded_by_what_bodies_unpack_to(cluster, topic):
    """A megabyte of one letter is a thousandth on the wire; batches count what is in memory."""
    [queue] = cluster.create_topic(topic, 1)
    body = b"a" * 1_000_000
    for _ in range(60):
        cluster.send_one(queue, Message(topic, body))
    assert len(stored_record(cluster, queue, 0)) < 10_000
    reader = stream(cluster, topic, arrowBatchBytes="4000000")
    start = reader.initialOffset()
    [partition] = reader.partitions(start, reader.latestOffset(start, ALL))
    rows = []
    for batch in reader.read(partition):
        assert batch.nbytes < 4_000_000 + len(body) + 10_000
        rows += batch.column("queue_offset").to_pylist()
    assert rows == list(range(60))
