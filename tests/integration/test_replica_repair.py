"""Damage in the log of one replica is put back from another one: real brokers and files."""

import asyncio
import dataclasses
import json
import os
from pathlib import Path

import pytest
from promises import promised
from replica_nodes import ReplicaNodes, same_log

from mailboat.broker.replicas.link import Link
from mailboat.broker.replicas.log_repair import LogRepair
from mailboat.client import Message, Producer
from mailboat.replication.epochs import EpochStart
from mailboat.replication.frames import Fetch, Fetched
from mailboat.store.lookup import GetStatus
from mailboat.web.replica_metrics import replica_metrics

_SEGMENT_BYTES = 65_536
_OPTIONS = {"mappedFileSizeCommitLog": str(_SEGMENT_BYTES)}
_COUNT = 200
_Place = tuple[int, int]
"""Physical offset and size of a record."""


async def _fill(nodes: ReplicaNodes, count: int = _COUNT) -> None:
    """Send messages that fill more than two segments, and wait until all replicas show them."""
    async with Producer("group", namesrv=nodes.namesrv) as producer:
        for number in range(count):
            await producer.send(Message("topic", b"%d-" % number * 150, keys=[f"k{number}"]))


async def _are_equal(nodes: ReplicaNodes, count: int = _COUNT) -> None:
    """Wait until the replicas that run have and show the same."""
    running = nodes.running

    def shown(ordinal: int) -> int:
        store = nodes.broker(ordinal).store
        return sum(store.max_offset(*key) for key in store.queue_keys())

    await nodes.until(lambda: all(shown(ordinal) == count for ordinal in running))
    logs = {nodes.log_bytes(ordinal) for ordinal in running}
    with promised("replicas have the same log"):
        assert len(logs) == 1


def _places(nodes: ReplicaNodes, ordinal: int) -> list[_Place]:
    """Return where the messages lie in the log, in order."""
    store = nodes.broker(ordinal).store
    found = []
    for topic, queue_id in store.queue_keys():
        queue = store.queues.get(topic, queue_id)
        assert queue is not None
        for queue_offset in range(queue.min_offset, queue.max_offset):
            unit = queue.unit(queue_offset)
            assert unit is not None
            found.append((unit[0], unit[1]))
    return sorted(found)


def _flip(root: Path, ordinal: int, place: _Place, *, size_bytes: int = 4) -> None:
    """Damage a record on the disk of a replica, in its body."""
    start = place[0] // _SEGMENT_BYTES * _SEGMENT_BYTES
    path = root / f"replica-{ordinal}" / "commitlog" / f"{start:020d}"
    with path.open("r+b") as file:
        position = place[0] - start + 120
        data = os.pread(file.fileno(), size_bytes, position)
        os.pwrite(file.fileno(), bytes(byte ^ 0x10 for byte in data), position)


async def _fill_all(nodes: ReplicaNodes) -> tuple[bytes, list[tuple[int, int]]]:
    """Send messages; return the log that all have then, and where its records lie."""
    await nodes.in_sync()
    await _fill(nodes)
    await _are_equal(nodes)
    return nodes.log_bytes(0), _places(nodes, 0)


def _read_all(nodes: ReplicaNodes, ordinal: int) -> int:
    """Read every queue message by message; return how many are whole."""
    store = nodes.broker(ordinal).store
    whole = 0
    for topic, queue_id in store.queue_keys():
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        for queue_offset in range(low, high):
            found = store.get_message(topic, queue_id, queue_offset, 1, 1 << 20)
            whole += found.status == GetStatus.FOUND
    return whole


def _progress(root: Path, ordinal: int) -> Path:
    return root / f"replica-{ordinal}" / "mailboat" / "progress.json"


def _notes(root: Path, ordinal: int) -> list[Path]:
    return list((root / f"replica-{ordinal}" / "mailboat" / "quarantine").glob("*"))


async def test_damage_that_a_reader_finds_is_put_back(tmp_path: Path) -> None:
    """Bits that flip while the brokers run, in a closed and in the open segment, on either side."""
    async with ReplicaNodes(tmp_path, 2, _OPTIONS) as nodes:
        good, places = await _fill_all(nodes)
        assert len(nodes.broker(0).store.commit_log.segments) > 2
        for ordinal in (1, 0):
            for place in (places[3], places[4], places[-1]):
                _flip(tmp_path, ordinal, place)
            assert nodes.log_bytes(ordinal) != good
            assert _read_all(nodes, ordinal) == _COUNT - 3
            repair = nodes.group(ordinal).repair
            await nodes.until(lambda repair=repair: not repair.damaged_ranges)
            with promised("replicas have the same log"):
                assert nodes.log_bytes(ordinal) == good
            assert _read_all(nodes, ordinal) == _COUNT
            assert repair.repaired_bytes == sum(
                size for _, size in (places[3], places[4], places[-1])
            )
            replicas = nodes.broker(ordinal).replicas
            assert replicas is not None
            metrics = {metric.name: metric for metric in replica_metrics(replicas.report())}
            [repaired] = metrics["mailboat_replica_repaired_bytes"].samples
            assert repaired.name == "mailboat_replica_repaired_bytes_total"
            assert repaired.value == repair.repaired_bytes
            [damaged] = metrics["mailboat_replica_damaged_ranges"].samples
            assert damaged.value == 0
        assert nodes.group(0).repair.served_bytes > 0


async def test_damage_that_a_start_finds_is_put_back(tmp_path: Path) -> None:
    """A replica that finds damage when it starts has the records, their queues and keys again."""
    async with ReplicaNodes(tmp_path, 2, _OPTIONS) as nodes:
        good, places = await _fill_all(nodes)
        for ordinal in (1, 0):
            await nodes.stop(ordinal)
            for place in (places[0], places[20], places[21], places[-3]):
                _flip(tmp_path, ordinal, place)
            _progress(tmp_path, ordinal).unlink()
            await nodes.start(ordinal)
            assert len(nodes.broker(ordinal).store.recovery.damaged) == 3
            repair = nodes.group(ordinal).repair
            await nodes.until(lambda repair=repair: repair.repaired_bytes > 0)
            await nodes.until(lambda repair=repair: not repair.damaged_ranges)
            assert _notes(tmp_path, ordinal) == []
            await nodes.in_sync()
            with promised("replicas have the same log"):
                assert nodes.log_bytes(ordinal) == good
            assert _read_all(nodes, ordinal) == _COUNT
            store = nodes.broker(ordinal).store
            searched = store.query_message("topic", "k20", 4, 0, 1 << 60)
            assert len(searched.records) == 1
        await _fill(nodes, 3)
        await nodes.until(lambda: nodes.log_bytes(1) == nodes.log_bytes(0) != good)


async def test_damage_that_a_follower_meets_is_put_back(tmp_path: Path) -> None:
    """What the master cannot send to a new slave it gets from another one, and sends it then."""
    options = {**_OPTIONS, "inSyncReplicas": "2"}
    async with ReplicaNodes(tmp_path, 3, options) as nodes:
        await nodes.in_sync()
        await nodes.stop(2)
        good, places = await _fill_all(nodes)
        _flip(tmp_path, 0, places[30])
        await nodes.start(2)
        await nodes.until(lambda: nodes.group(0).repair.repaired_bytes == places[30][1])
        await nodes.until(lambda: nodes.log_bytes(2) == good)
        with promised("replicas have the same log"):
            assert nodes.log_bytes(0) == good


async def test_what_is_damaged_everywhere_stays_where_it_is(tmp_path: Path) -> None:
    """Damaged records of a peer are not taken over, and the rest is put back all the same."""
    async with ReplicaNodes(tmp_path, 2, _OPTIONS) as nodes:
        good, places = await _fill_all(nodes)
        for ordinal in (0, 1):
            _flip(tmp_path, ordinal, places[5], size_bytes=4 + ordinal)
        _flip(tmp_path, 1, places[9])
        bad = [nodes.log_bytes(ordinal) for ordinal in (0, 1)]
        assert _read_all(nodes, 1) == _COUNT - 2
        repair = nodes.group(1).repair
        await nodes.until(lambda: repair.repaired_bytes > 0)
        await nodes.until(lambda: _read_all(nodes, 1) == _COUNT - 1)
        at, size = places[5]
        for ordinal in (0, 1):
            log = nodes.log_bytes(ordinal)
            assert log[at : at + size] == bad[ordinal][at : at + size]
            assert log[at + size :] == good[at + size :]
        assert repair.repaired_bytes == places[9][1]


async def test_nothing_comes_from_a_log_of_other_epochs(tmp_path: Path) -> None:
    """A peer whose epochs do not agree there, or that belongs to another group, gives nothing."""
    async with ReplicaNodes(tmp_path, 2, _OPTIONS) as nodes:
        _, places = await _fill_all(nodes)
        replica = nodes.group(0).replica
        true = replica.durable
        for other in (
            true._replace(epochs=(EpochStart(true.epochs[-1].epoch + 800, 0),)),
            true._replace(epochs=(*true.epochs, EpochStart(1 << 20, places[1][0]))),
            true._replace(group="another"),
        ):
            replica.durable = other
            _flip(tmp_path, 1, places[7])
            bad = nodes.log_bytes(1)
            repair = nodes.group(1).repair
            tries, served_bytes = repair.tries_in_vain, nodes.group(0).repair.served_bytes
            _read_all(nodes, 1)
            assert repair.damaged_ranges == 1
            await nodes.until(lambda repair=repair, tries=tries: repair.tries_in_vain >= tries + 2)
            with promised("replicas have the same log"):
                assert nodes.log_bytes(1) == bad
            assert nodes.group(0).repair.served_bytes == served_bytes
            replica.durable = true
            await nodes.until(lambda repair=repair: not repair.damaged_ranges)
            assert same_log(nodes.log_bytes(1), nodes.log_bytes(0))


async def test_the_damaged_end_of_a_slave_is_put_back(tmp_path: Path) -> None:
    """A slave that cannot read its last record any more has it again, and goes on behind it."""
    async with ReplicaNodes(tmp_path, 2, _OPTIONS) as nodes:
        good, places = await _fill_all(nodes)
        await nodes.stop(1)
        _flip(tmp_path, 1, places[-1])
        _progress(tmp_path, 1).unlink()
        await nodes.start(1)
        assert len(nodes.broker(1).store.recovery.damaged) == 1
        await nodes.in_sync()
        await nodes.until(lambda: not nodes.group(1).repair.damaged_ranges)
        with promised("replicas have the same log"):
            assert nodes.log_bytes(1) == good
        await nodes.until(lambda: _read_all(nodes, 1) == _COUNT)
        await _fill(nodes, 30)
        await _are_equal(nodes, _COUNT + 30)
        assert _read_all(nodes, 1) == _COUNT + 30


async def test_a_master_without_its_end_does_not_lead(tmp_path: Path) -> None:
    """Who has lost what it had acknowledged counts for nothing before another one has led it."""
    async with ReplicaNodes(tmp_path, 3, _OPTIONS) as nodes:
        await nodes.in_sync()
        await nodes.stop(2)
        good, places = await _fill_all(nodes)
        for ordinal in (1, 0):
            await nodes.stop(ordinal)
        _flip(tmp_path, 0, places[-1])
        _progress(tmp_path, 0).unlink()
        # As it is where the last message was confirmed in the second before it died.
        file = tmp_path / "replica-0" / "mailboat" / "replica.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"confirmed": places[-1][0]}))
        await nodes.start(0)
        await nodes.start(2)
        assert nodes.broker(0).store.commit_log.end == places[-1][0]
        refusal = await nodes.try_to_promote(0)
        assert refusal == "1 more replica must answer, with all that it acknowledged"
        await nodes.start(1)
        replicas = nodes.broker(1).replicas
        assert replicas is not None
        await nodes.until(lambda: len(replicas.peers.links()) == 2)
        await nodes.promote(1)
        await nodes.in_sync()
        with promised("replicas have the same log"):
            assert {nodes.log_bytes(ordinal) for ordinal in (0, 1, 2)} == {good}
        await nodes.until(lambda: _read_all(nodes, 0) == _COUNT)
        await _fill(nodes, 30)
        await _are_equal(nodes, _COUNT + 30)


async def test_what_another_replica_does_not_send_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it says about the place where its records end."""
    async with ReplicaNodes(tmp_path, 2, _OPTIONS) as nodes:
        await nodes.in_sync()
        await _fill(nodes)
        await _are_equal(nodes)
        good = nodes.log_bytes(0)
        places = _places(nodes, 0)
        await nodes.stop(1)
        for place in places[20:24]:
            _flip(tmp_path, 1, place)
        _progress(tmp_path, 1).unlink()
        received = LogRepair.received

        def shortened(repair: LogRepair, link: Link, frame: Fetch | Fetched) -> None:
            if isinstance(frame, Fetched):
                assert isinstance(frame.records, bytes)
                frame = dataclasses.replace(frame, records=frame.records[: places[20][1]])
            received(repair, link, frame)

        monkeypatch.setattr(LogRepair, "received", shortened)
        await nodes.start(1)
        repair = nodes.group(1).repair
        await nodes.until(lambda: repair.repaired_bytes > 0)
        await nodes.until(lambda: not repair.damaged_ranges)
        with promised("replicas have the same log"):
            assert nodes.log_bytes(1) == good
        assert _notes(tmp_path, 1) == []


async def test_most_of_a_segment_is_put_back(tmp_path: Path) -> None:
    """Megabytes come back piece by piece, while the brokers serve."""
    options = {"mappedFileSizeCommitLog": str(8 << 20)}
    async with ReplicaNodes(tmp_path, 2, options) as nodes:
        await nodes.in_sync()
        async with Producer("group", namesrv=nodes.namesrv) as producer:
            for begin in range(0, 8000, 100):
                messages = [Message("topic", b"%d-" % n * 200) for n in range(begin, begin + 100)]
                await asyncio.gather(*map(producer.send, messages))
        await _are_equal(nodes, 8000)
        good = nodes.log_bytes(0)
        await nodes.stop(1)
        path = tmp_path / "replica-1" / "commitlog" / f"{0:020d}"
        with path.open("r+b") as file:
            file.seek(1 << 20)
            file.write(b"\xff" * (5 << 20))
        _progress(tmp_path, 1).unlink()
        await nodes.start(1)
        repair = nodes.group(1).repair
        await nodes.until(lambda: repair.repaired_bytes > 0 and not repair.damaged_ranges)
        with promised("replicas have the same log"):
            assert nodes.log_bytes(1) == good
        assert repair.repaired_bytes >= 5 << 20
        await _are_equal(nodes, 8000)
        assert _read_all(nodes, 1) == 8000
