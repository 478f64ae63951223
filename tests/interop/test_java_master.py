"""A slave of ours below a real master of RocketMQ: the whole history, and what comes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from interop_wire import (
    ask,
    brokers_of,
    group_offsets,
    log_end,
    records,
    topic_names,
    wait_until,
)
from java_pair import FOLLOWS_S, LINES, NAME, QUEUES, SEGMENT_BYTES, TOPIC
from promises import promised

from mailboat.protocol.delay_offsets import decode_delay_offsets
from mailboat.protocol.group_table import decode_group_table
from mailboat.protocol.topic_table import decode_topic_table

if TYPE_CHECKING:
    from java_pair import JavaPair

pytestmark = [
    pytest.mark.interop,
    pytest.mark.one_line_a_day,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("line", LINES),
]

_TOPICS, _DELAY, _GROUPS = 21, 45, 201
FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}


def test_our_slave_gets_the_whole_history(line: str, java_pair: JavaPair) -> None:
    """From the first byte on, over several segments; then what Java clients send meanwhile."""
    pair = java_pair
    with pair.running(line):
        pair.send(900)
        pair.start_slave()
        both = {0: pair.address, 1: pair.slave_address}
        wait_until(lambda: brokers_of(pair.namesrv, NAME) == both, FOLLOWS_S, "both registered")
        end = pair.wait_equal()
        assert end > 2 * SEGMENT_BYTES
        pair.send(400, mode="async")
        pair.send(20, mode="batch")
        pair.send(3, b"large " * 60_000, exact="true")
        pair.wait_equal()
        pair.check_queues(1323)


def test_our_slave_and_its_java_master_restart(line: str, java_pair: JavaPair) -> None:
    """Either side is killed, or ended in order, and the log goes on where it was."""
    pair = java_pair
    with pair.running(line):
        slave = pair.start_slave()
        pair.send(50)
        pair.wait_equal()
        slave.kill()
        pair.send(400)
        slave.start()
        end = pair.wait_equal()
        wait_until(lambda: TOPIC in topic_names(pair.slave_address), FOLLOWS_S, "the topic")
        slave.terminate()
        slave.start()
        # What was shown before is shown at once, before the master is asked.
        pair.check_queues(450)
        with promised("a restart or a foreign log changes nothing"):
            assert log_end(pair.slave_address) == end
        pair.master.kill()
        pair.start_master()
        pair.send(400)
        pair.wait_equal()
        pair.check_queues(850)


def test_a_java_sync_master_counts_our_slave(line: str, java_pair: JavaPair) -> None:
    """It answers SEND_OK once our slave has flushed, and at once."""
    pair = java_pair
    with pair.running(line, brokerRole="SYNC_MASTER", inSyncReplicas=2):
        pair.start_slave(flushDiskType="SYNC_FLUSH")
        # The first ones find no slave: it begins once there is a log.
        pair.send(1)
        pair.wait_equal()
        begin_s = time.monotonic()
        sent = pair.send(50)
        assert [event["status"] for event in sent] == ["SEND_OK"] * 50
        assert time.monotonic() - begin_s < 20
        pair.wait_equal()


def test_a_diverged_log_is_left_alone(line: str, java_pair: JavaPair) -> None:
    """A master with another log, shorter or longer, is not followed, and nothing is overwritten."""
    pair = java_pair
    with pair.running(line):
        slave = pair.start_slave()
        pair.send(50)
        end = pair.wait_equal()
        kept = records(pair.root / "slave", end)
        pair.master.stop()

        pair.start_master("other")
        pair.client.call("create_topic", topic=TOPIC, queues=QUEUES)
        pair.send(10)
        wait_until(lambda: "have diverged" in slave.log_tail(), FOLLOWS_S, "it is noticed")
        assert "ends at" in slave.log_tail()
        pair.send(200)
        assert log_end(pair.address) > end
        wait_until(lambda: "another log" in slave.log_tail(), FOLLOWS_S, "it is noticed again")
        with promised("a restart or a foreign log changes nothing"):
            assert log_end(pair.slave_address) == end
        with promised("a diverged log is left alone"):
            assert records(pair.root / "slave", end) == kept


def test_our_slave_gets_the_tables(line: str, java_pair: JavaPair) -> None:
    """Topics, groups, offsets and delay progress are the master's, also after a restart of ours."""
    pair = java_pair
    with pair.running(line):
        pair.client.call("create_group", group="readers")
        pair.send(30, queue=1)
        pair.send(2, level=1)
        reader = pair.client.start("push", topic=TOPIC, group="readers", **FIRST)
        reader.wait_messages(32)
        slave = pair.start_slave()
        pair.wait_equal()
        pair.client.call("stop", handle=reader.number)
        theirs = decode_topic_table(ask(pair.address, _TOPICS).body).topic_config_table
        wait_until(
            lambda: topic_names(pair.slave_address) >= theirs.keys(), FOLLOWS_S, "all topics"
        )
        ours = decode_topic_table(ask(pair.slave_address, _TOPICS).body).topic_config_table
        for name in (TOPIC, "%RETRY%readers"):
            assert ours[name] == theirs[name]
        read = group_offsets(pair.address, TOPIC, "readers")
        assert read[1] >= 30
        wait_until(
            lambda: group_offsets(pair.slave_address, TOPIC, "readers") == read, 20, "offsets"
        )
        groups = [
            decode_group_table(ask(address, _GROUPS).body).subscription_group_table
            for address in (pair.address, pair.slave_address)
        ]
        assert groups[0]["readers"] == groups[1]["readers"]
        # A slave delivers nothing; what its master has delivered counts once it is promoted.
        path = pair.root / "slave" / "config" / "delayOffset.json"
        wait_until(lambda: _delivered(path.read_bytes()) == 2, 20, "delay progress")
        slave.terminate()
        slave.start()
        assert topic_names(pair.slave_address) >= theirs.keys()
        assert _delivered(ask(pair.slave_address, _DELAY).body) == 2


def _delivered(table: bytes) -> int:
    """Return how many delayed messages of level 1 are delivered."""
    return decode_delay_offsets(table).offset_table.get(1, 0)
