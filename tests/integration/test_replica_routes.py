"""What name servers say of a group of replicas, and what its replicas learn from them."""

import logging
from pathlib import Path

import pytest
from replica_nodes import ReplicaNodes, same_log

from mailboat.broker import administration
from mailboat.client import Message, Producer
from mailboat.model.topic import TopicConfig


def _numbers(nodes: ReplicaNodes) -> dict[int, str]:
    return nodes.routes.broker_addresses("broker-a")


async def test_numbers_follow_the_master(tmp_path: Path) -> None:
    """Whoever leads is 0 as soon as it leads; the old master takes the number that is free."""
    async with ReplicaNodes(tmp_path, 3) as nodes:
        await nodes.in_sync()
        addresses = [nodes.broker(ordinal).address for ordinal in range(3)]
        await nodes.until(lambda: _numbers(nodes) == dict(enumerate(addresses)))
        nodes.group(0).hand_over(2)
        await nodes.until(lambda: nodes.group(2).is_leading)
        expected = {0: addresses[2], 1: addresses[1], 2: addresses[0]}
        await nodes.until(lambda: _numbers(nodes) == expected)
        await nodes.in_sync()
        nodes.group(2).hand_over(1)
        await nodes.until(lambda: nodes.group(1).is_leading)
        expected = {0: addresses[1], 1: addresses[0], 2: addresses[2]}
        await nodes.until(lambda: _numbers(nodes) == expected)


async def test_the_route_is_the_new_masters_while_the_old_one_says_nothing(tmp_path: Path) -> None:
    """A master that hangs without closing its connection keeps its place from nobody elected."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        old, new = nodes.broker(0), nodes.broker(1)
        await nodes.until(lambda: _numbers(nodes) == {0: old.address, 1: new.address})
        # It registers no more, and is not heard by its replica.
        old.registration.broker_id = lambda: -1
        nodes.group(0).end()
        await nodes.promote(1)
        assert _numbers(nodes)[0] == new.address
        # And back as it was, without a look at the others.
        old.registration.broker_id = lambda: 0
        await old.registration.register_now()
        assert _numbers(nodes)[0] == new.address


async def test_topics_are_the_masters(tmp_path: Path) -> None:
    """What a slave registers changes no topic; what it leads with does, all of it."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        await administration.update_topic(nodes.broker(0), TopicConfig("made", 3, 3, perm=6))
        slave = nodes.broker(1)
        slave.topics.table["stale"] = TopicConfig("stale")
        slave.topics.data_version.advance(1)
        await slave.registration.register_now()
        assert nodes.routes.route("stale") is None
        assert nodes.routes.route("made") is not None
        del slave.topics.table["stale"]
        await nodes.switch(1)
        route = nodes.routes.route("made")
        assert route is not None
        assert route.broker_datas[0].broker_addrs == {0: slave.address}
        assert route.queue_datas[0].write_queue_nums == 3


async def test_a_slave_finds_its_master_by_the_name_server(tmp_path: Path) -> None:
    """Without haMasterAddress, and where it has never been before."""
    options = {"haMasterAddress": "", "registerNameServerPeriod": "10000"}
    async with ReplicaNodes(tmp_path, 2, options) as nodes:
        await nodes.in_sync()
        async with Producer("P", namesrv=nodes.namesrv) as producer:
            await producer.send(Message("T", b"x"))
        assert same_log(nodes.log_bytes(1), nodes.log_bytes(0))
        assert nodes.log_bytes(0) != b""


async def test_a_place_that_another_replica_still_holds_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A former master wants its own number back before whoever has it leads and gives it up."""
    caplog.set_level(logging.INFO)
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        addresses = [nodes.broker(ordinal).address for ordinal in range(2)]
        for leader, successor in ((0, 1), (1, 0)):
            former = nodes.broker(leader)
            assert nodes.has_begun(leader)
            nodes.group(leader).hand_over(successor)
            await nodes.until(lambda to=successor: nodes.group(to).is_leading)
            await nodes.until(lambda was=leader, it=former: nodes.has_begun_anew(was, it))
            expected = {0: addresses[successor], 1: addresses[leader]}
            await nodes.until(lambda wanted=expected: _numbers(nodes) == wanted)
            await nodes.in_sync()
    found = [record for record in caplog.records if record.name.endswith("broker.registration")]
    assert any("place still held" in record.getMessage() for record in found)
    assert [r.getMessage() for r in found if r.levelno >= logging.WARNING] == []
