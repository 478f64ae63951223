"""Messages, queues, topics and brokers that are not there any more when a query wants them."""

from __future__ import annotations

import json
import logging

import pytest
from live_cluster import LiveCluster, numbered
from pyspark.sql.pandas.types import to_arrow_schema
from reader_calls import ALL, ROW_SCHEMA, expected, noise, read, read_all, source, stream

from mailboat.client import Message, MessageQueue
from mailboat.errors import MailboatError, RouteNotFoundError
from mailboat_spark.broker_client import DataLossError
from mailboat_spark.client_thread import ClientThread, close_shared_clients
from mailboat_spark.offsets import decode_offsets
from mailboat_spark.range_reader import read_ranges


def large(cluster, queue, count):
    """Send messages of more than half a segment of 4 MiB, so that each begins another one."""
    for number in range(count):
        cluster.send_one(queue, Message(queue.topic, bytes([number]) + noise(2_500_000)))
    # Only what a checkpoint covers expires, and a broker that ends writes one.
    cluster.stop_broker()
    cluster.start_broker()


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


def test_queues_of_a_broker_that_is_away_keep_their_place(tmp_path, topic):
    """A broker that left the route takes nothing with it: its queues go on when it is back."""
    with LiveCluster(tmp_path, brokers=2) as own:
        own.create_topic(topic, 1)
        for name in ("broker-a", "broker-b"):
            queue = MessageQueue(topic, name, 0)
            own.send(queue, numbered(queue, 0, 5))
        reader = stream(own, topic, retryTimeoutMs="300")
        end = reader.latestOffset(reader.initialOffset(), ALL)
        assert end[topic] == {"broker-a:0": 5, "broker-b:0": 5}
        own.stop_broker()
        assert reader.latestOffset(end, ALL) == end
        close_shared_clients()


def test_expired_messages_are_data_loss(tmp_path, topic):
    """Messages that were deleted before they were read end the query, or are passed over."""
    with LiveCluster(tmp_path) as own:
        [queue] = own.create_topic(topic, 1)
        large(own, queue, 3)
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
        assert [row[1] for row in read_all(batch)] == [2]
        close_shared_clients()


@pytest.mark.parametrize("worker", ["same-worker", "new-worker"])
def test_a_planned_batch_of_a_deleted_topic_ends(tmp_path, topic, caplog, worker):
    """The broker itself says that the topic is gone: data loss, not an endless wait."""
    # With topics made by themselves, clients know the broker by the route of those to be made.
    with LiveCluster(tmp_path, options={"autoCreateTopicEnable": "false"}) as own:
        own.fill(topic, queues=1, per_queue=10)
        strict = stream(own, topic, retryTimeoutMs="500")
        lenient = stream(own, topic, retryTimeoutMs="500", failOnDataLoss="false")
        start = strict.initialOffset()
        end = strict.latestOffset(start, ALL)
        own.delete_topic(topic)
        if worker == "new-worker":
            close_shared_clients()
        with pytest.raises(DataLossError, match=r"not exist any more, messages 0 to 9 .*are gone"):
            read(strict, start, end)
        with caplog.at_level(logging.WARNING):
            assert read(lenient, start, end) == []
        assert f"{topic}@broker-a:0 does not exist any more" in caplog.text
        close_shared_clients()


def test_a_planned_queue_that_is_gone_ends(cluster, topic):
    """A queue that the topic does not have any more is data loss as well."""
    cluster.fill(topic, queues=1, per_queue=10)
    planned = {"broker-a:0": 10, "broker-a:5": 2}
    start = {"_v": 1, topic: dict.fromkeys(planned, 0)}
    end = {"_v": 1, topic: planned}
    with pytest.raises(DataLossError, match=":5 does not exist any more, messages 0 to 1"):
        read(stream(cluster, topic, retryTimeoutMs="500"), start, end)
    lenient = stream(cluster, topic, retryTimeoutMs="500", failOnDataLoss="false")
    assert read(lenient, start, end) == expected(1, 0, 10)


def test_a_broker_that_is_away_is_not_passed_over(tmp_path, topic):
    """Without failOnDataLoss too, what may come back is waited for, and then an error."""
    with LiveCluster(tmp_path) as own:
        own.fill(topic, queues=1, per_queue=10)
        lenient = stream(own, topic, retryTimeoutMs="500", failOnDataLoss="false")
        start = lenient.initialOffset()
        end = lenient.latestOffset(start, ALL)
        partitions = lenient.partitions(start, end)
        own.stop_broker()
        for _ in ("with its address", "without"):
            with pytest.raises(MailboatError) as caught:
                list(lenient.read(partitions[0]))
            assert not isinstance(caught.value, DataLossError)
            close_shared_clients()


def test_another_broker_at_the_address_is_not_read_instead(tmp_path, topic):
    """A worker knows addresses of a while ago, and a queue of another broker looks the same."""
    with LiveCluster(tmp_path, brokers=2) as own:
        own.create_topic(topic, 1)
        queues = [MessageQueue(topic, name, 0) for name in ("broker-a", "broker-b")]

        def send(first, end):
            for queue in queues:
                name = queue.broker_name.encode()
                own.send(queue, [Message(topic, b"%s-%d" % (name, n)) for n in range(first, end)])

        def rows(start, end):
            [partition] = reader.partitions(start, end)
            schema = to_arrow_schema(ROW_SCHEMA, timezone="UTC")
            batches = read_ranges(worker, reader._options, partition.value, schema, {})
            found = (row for batch in batches for row in batch.to_pylist())
            return [(row["queue_offset"], row["value"]) for row in found]

        worker = ClientThread(own.namesrv)
        reader = stream(own, topic)
        send(0, 3)
        start = reader.initialOffset()
        middle = reader.latestOffset(start, ALL)
        assert len(rows(start, middle)) == 6
        send(3, 6)
        own.swap_addresses()
        end = reader.latestOffset(middle, ALL)
        names = (b"broker-a", b"broker-b")
        assert rows(middle, end) == [(n, b"%s-%d" % (name, n)) for name in names for n in (3, 4, 5)]
        worker.close()
        close_shared_clients()


def test_a_deleted_topic_does_not_stop_the_others(cluster, topic, caplog):
    """Without failOnDataLoss a topic that no broker has keeps its place; else it is an error."""
    names = [f"{topic}-{name}" for name in ("gone", "stays")]
    (gone,), (stays,) = (cluster.fill(name, queues=1, per_queue=4) for name in names)
    options = {"retryTimeoutMs": "500"}
    strict = stream(cluster, ",".join(names), **options)
    lenient = stream(cluster, ",".join(names), failOnDataLoss="false", **options)
    start = lenient.initialOffset()
    place = lenient.latestOffset(start, ALL)
    cluster.delete_topic(gone.topic)
    cluster.send(stays, numbered(stays, 4, 6))
    with pytest.raises(RouteNotFoundError, match=gone.topic):
        strict.latestOffset(place, ALL)
    with caplog.at_level(logging.WARNING):
        end = lenient.latestOffset(place, ALL)
        assert lenient.latestOffset(end, ALL) == end
    assert decode_offsets(end) == {gone: 4, stays: 6}
    assert caplog.text.count("what the query has read of it stays noted") == 1
    assert read(lenient, place, end) == expected(1, 4, 6)
    # Made again and longer than before, it is read on from its place.
    cluster.fill(gone.topic, queues=1, per_queue=7)
    assert lenient.latestOffset(end, ALL)[gone.topic] == {"broker-a:0": 7}


def test_a_topic_that_only_its_broker_knows_to_be_gone(cluster, topic):
    """Name servers hear of it later; until then there is no sudden end, but a wait."""
    cluster.fill(topic, queues=1, per_queue=4)
    options = {"retryTimeoutMs": "300"}
    lenient = stream(cluster, topic, failOnDataLoss="false", **options)
    place = lenient.latestOffset(lenient.initialOffset(), ALL)
    cluster.delete_topic_unheard(topic)
    assert lenient.latestOffset(place, ALL) == place
    with pytest.raises(RouteNotFoundError, match=f"{topic} has lost a queue: CODE: 17"):
        stream(cluster, topic, **options).latestOffset(place, ALL)


def test_a_new_query_needs_its_topics(cluster, topic):
    """Without failOnDataLoss too, a topic that was never there is a mistake."""
    cluster.fill(f"{topic}-there", queues=1, per_queue=1)
    topics = f"{topic}-there,{topic}-missing"
    with pytest.raises(RouteNotFoundError, match=f"{topic}-missing"):
        stream(cluster, topics, retryTimeoutMs="300", failOnDataLoss="false").initialOffset()


def test_queues_taken_from_readers_keep_their_place(cluster, topic):
    """Fewer read queues hide messages; they are read once there are as many queues again."""
    first, _ = cluster.fill(topic, queues=2, per_queue=5)
    reader = stream(cluster, topic)
    place = {"_v": 1, topic: {"broker-a:0": 5, "broker-a:1": 3}}
    cluster.create_topic(topic, 1)
    cluster.send(first, numbered(first, 5, 6))
    end = reader.latestOffset(place, ALL)
    assert end[topic] == {"broker-a:0": 6, "broker-a:1": 3}
    cluster.create_topic(topic, 2)
    assert read(reader, end, reader.latestOffset(end, ALL)) == [(1, 3, b"1-3"), (1, 4, b"1-4")]


def test_what_expired_in_a_queue_unknown_so_far_is_data_loss(tmp_path, topic, caplog):
    """A queue that the query has not seen begins at 0; it is told of what is missing there."""
    with LiveCluster(tmp_path) as own:
        _, added = own.create_topic(topic, 2)
        start = {"_v": 1, topic: {"broker-a:0": 0}}
        large(own, added, 3)
        planned = stream(own, topic).latestOffset(start, ALL)
        assert planned["_from"] == {topic: {"broker-a:1": 0}}
        own.expire_all_but_newest()
        with pytest.raises(DataLossError, match=r":1 is new .* messages 0 to 1 are gone"):
            stream(own, topic).latestOffset(start, ALL)
        # The batch was planned before: what it holds is what was planned, not what is left.
        with pytest.raises(DataLossError, match=r"messages 0 to 1 .* are gone"):
            read(stream(own, topic), start, planned)
        lenient = stream(own, topic, failOnDataLoss="false")
        with caplog.at_level(logging.WARNING):
            end = lenient.latestOffset(start, ALL)
        assert "messages 0 to 1 are gone" in caplog.text
        assert end["_from"] == {topic: {"broker-a:1": 2}}
        assert [row[1] for row in read(lenient, start, end)] == [2]
        # So does a broker that is new as a whole: it may have been away when the query began.
        other = {"_v": 1, topic: {"broker-b:0": 7}}
        strict_end = stream(own, topic).latestOffset(other, ALL)
        assert strict_end["_from"] == {topic: {"broker-a:0": 0, "broker-a:1": 2}}
        # A topic that is new as a whole begins at what is there.
        assert stream(own, topic).initialOffset()[topic]["broker-a:1"] == 2
        assert stream(own, topic).latestOffset({"_v": 1}, ALL)[topic]["broker-a:1"] == 3
        close_shared_clients()


def test_a_first_batch_is_repeated_from_where_it_began(cluster, topic):
    """Spark asks where a query starts when it repeats the first batch, and "latest" has moved."""
    [queue] = cluster.fill(topic, queues=1, per_queue=10)
    reader = stream(cluster, topic, startingOffsets="latest")
    start = reader.initialOffset()
    cluster.send(queue, numbered(queue, 10, 15))
    assert reader.initialOffset() == start
    end = reader.latestOffset(start, ALL)
    assert end["_from"] == {topic: {"broker-a:0": 10}}
    assert decode_offsets(end) == {queue: 15}
    cluster.send(queue, numbered(queue, 15, 20))
    again = stream(cluster, topic, startingOffsets="latest")
    assert read(again, again.initialOffset(), end) == expected(1, 10, 15)


def test_an_idle_query_sees_no_change(cluster, topic, tmp_path):
    """The end of a first batch is the same text until there is more to read, also when stopping."""
    cluster.fill(topic, queues=12, per_queue=1)
    reader = stream(cluster, topic, stopFile=str(tmp_path / "stop"))
    end = json.dumps(reader.latestOffset(reader.initialOffset(), ALL))
    assert "_from" in end
    assert json.dumps(reader.latestOffset(json.loads(end), ALL)) == end
    (tmp_path / "stop").touch()
    assert json.dumps(reader.latestOffset(json.loads(end), ALL)) == end
