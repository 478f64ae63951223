"""What brokers are told of a query's group, without Java: Spark's calls are made by the test."""

from __future__ import annotations

import pytest
from live_cluster import LiveCluster, numbered
from reader_calls import ALL, read, stream

from mailboat.client import MessageQueue
from mailboat_spark import group_offsets
from mailboat_spark.client_thread import close_shared_clients, shared_client
from mailboat_spark.group_offsets import GroupOffsets
from mailboat_spark.options import parse_options


@pytest.fixture
def no_pause(monkeypatch):
    """Repeat at once what failed."""
    monkeypatch.setattr(group_offsets, "PAUSE_S", 0)


def group_of(cluster, topic):
    """Return the offsets of the topic's group."""
    given = {"namesrv": cluster.namesrv, "subscribe": topic, "groupId": f"{topic}-group"}
    return GroupOffsets(parse_options(given, "stream"))


def warnings(caplog):
    """Return the warnings so far, and forget them."""
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    caplog.clear()
    return found


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


def test_a_broker_that_was_away_at_the_start_is_read_from_where_its_group_is(tmp_path, topic):
    """A query that begins where its group is neither repeats what that has nor moves it back."""
    with LiveCluster(tmp_path, brokers=2) as own:
        own.create_topic(topic, 1)
        here, away = (MessageQueue(topic, name, 0) for name in ("broker-b", "broker-a"))
        for queue in (here, away):
            own.send(queue, numbered(queue, 0, 10))
        group = f"{topic}-group"
        own.create_group(group)
        client = shared_client(own.namesrv)
        client.run(client.client.commit(group, {here: 4, away: 7}))
        own.stop_broker()
        reader = stream(own, topic, groupId=group, startingOffsets="group", retryTimeoutMs="300")
        start = reader.initialOffset()
        assert start == {"_v": 1, topic: {"broker-b:0": 4}}
        first = reader.latestOffset(start, ALL)
        own.start_broker()
        second = reader.latestOffset(first, ALL)
        assert second["_from"] == {topic: {"broker-a:0": 7}}
        assert read(reader, first, second) == [(0, n, b"0-%d" % n) for n in (7, 8, 9)]
        assert own.group_offset(group, away) == 7
        close_shared_clients()


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


def test_a_group_that_brokers_do_not_know_is_made(tmp_path, topic, caplog):
    """Offsets of unknown groups are refused; each broker learns of the group, nothing is read."""
    with LiveCluster(tmp_path, brokers=2) as own:
        own.create_topic(topic, 1)
        queues = [MessageQueue(topic, name, 0) for name in ("broker-a", "broker-b")]
        for queue in queues:
            own.send(queue, numbered(queue, 0, 5))
        stream(own, topic, groupId=f"{topic}-group").initialOffset()
        assert own.group_offset(f"{topic}-group", queues[0]) == 0
        client = shared_client(own.namesrv)
        assert set(client.run(client.client.commit("another", dict.fromkeys(queues, 3)))) == {
            *queues
        }
        assert own.group_offset("another", queues[0]) == 3
        assert warnings(caplog) == []
        close_shared_clients()


def test_a_group_that_must_not_be_made_does_not_stop_the_query(tmp_path, topic, caplog, no_pause):
    """A broker that makes no groups refuses every commit: one warning, and the query goes on."""
    with LiveCluster(tmp_path, options={"autoCreateSubscriptionGroup": "false"}) as own:
        own.fill(topic, queues=2, per_queue=5)
        reader = stream(own, topic, groupId=f"{topic}-group")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        reader.latestOffset(end, ALL)
        assert end[topic] == {"broker-a:0": 5, "broker-a:1": 5}
        [text] = warnings(caplog)
        assert f"commit group={topic}-group failed for 2 of 2 queues" in text
        assert "CODE: 26" in text
        close_shared_clients()


def test_one_refused_queue_does_not_hold_up_the_others(tmp_path, topic, caplog, no_pause):
    """What is stored is not sent again; what fails is told of once, and stored when it can be."""
    with LiveCluster(tmp_path, brokers=2) as own:
        own.create_topic(topic, 1)
        away, there = (MessageQueue(topic, name, 0) for name in ("broker-a", "broker-b"))
        client = shared_client(own.namesrv)
        group = group_of(own, topic)
        for queue in (away, there):
            own.send(queue, numbered(queue, 0, 5))
        own.stop_broker()
        ends = {away: 5, there: 5}
        group.store(ends)
        [text] = warnings(caplog)
        assert f"failed for 1 of 2 queues, repeated later; {away}" in text
        # Another hand moves the group: what is stored is not sent again.
        assert set(client.run(client.client.commit(f"{topic}-group", {there: 2}))) == {there}
        group.store(ends)
        assert warnings(caplog) == []
        own.start_broker()
        group.store(ends)
        stored = client.run(client.client.committed(f"{topic}-group", ends, 0))
        assert stored == {away: 5, there: 2}
        close_shared_clients()


def test_what_failed_is_not_sent_at_every_plan(tmp_path, topic, caplog):
    """An idle query plans a hundred times a second; a refused commit is not sent each time."""
    with LiveCluster(tmp_path, options={"autoCreateSubscriptionGroup": "false"}) as own:
        [queue] = own.fill(topic, queues=1, per_queue=1)
        group = group_of(own, topic)
        group.store({queue: 0})
        own.create_group(f"{topic}-group")
        group.store({queue: 0})
        assert own.group_offset(f"{topic}-group", queue) is None
        # Another offset is another matter.
        group.store({queue: 1})
        assert own.group_offset(f"{topic}-group", queue) == 1
        close_shared_clients()


def test_a_beginning_is_stored_when_brokers_can_tell(
    tmp_path, topic, caplog, no_pause, monkeypatch
):
    """Whether a group has offsets may be unknown at first: no error, no move back, stored later."""
    monkeypatch.setattr(group_offsets, "_ASK_S", 0.3)
    with LiveCluster(tmp_path) as own:
        new, known = own.fill(topic, queues=2, per_queue=9)
        client = shared_client(own.namesrv)
        client.run(client.client.commit(f"{topic}-group", {known: 7}))
        group = group_of(own, topic)
        own.stop_broker()
        group.begin({new: 3, known: 3})
        group.store({new: 3, known: 3})
        [text] = warnings(caplog)
        assert f"whether group {topic}-group has offsets is unknown" in text
        own.start_broker()
        group.store({new: 3, known: 3})
        assert own.group_offset(f"{topic}-group", new) == 3
        assert own.group_offset(f"{topic}-group", known) == 7
        group.store({new: 9, known: 9})
        assert own.group_offset(f"{topic}-group", known) == 9
        close_shared_clients()
