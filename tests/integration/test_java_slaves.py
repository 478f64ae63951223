"""RocketMQ's slaves of a broker here, by their bytes (the real ones: tests/interop)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from promises import promised
from raw_client import RawClient
from replica_nodes import ReplicaNodes

from mailboat.client import Message, Producer
from mailboat.model.record import BLANK_MAGIC
from mailboat.protocol.codes import RequestCode
from mailboat.replication.java_ha import FRAME_HEAD

pytestmark = pytest.mark.slow  # They wait for reports and links.

_SEGMENT_BYTES = 65_536
_ALONE = {"inSyncReplicas": "1", "mappedFileSizeCommitLog": str(_SEGMENT_BYTES)}


class _Slave:
    """What a slave of RocketMQ does, without its mistakes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.log = bytearray()
        self.segment_bytes = _SEGMENT_BYTES

    def report(self, physical_offset: int) -> None:
        self.writer.write(physical_offset.to_bytes(8, "big"))

    async def take(self, begin: int) -> int:
        """Take a frame, which must fit the log; return how large it is."""
        head = await self.reader.readexactly(FRAME_HEAD.size)
        physical_offset, size = FRAME_HEAD.unpack(head)
        assert physical_offset == begin + len(self.log)
        last = physical_offset + max(size, 1) - 1
        assert physical_offset // self.segment_bytes == last // self.segment_bytes
        self.log += await self.reader.readexactly(size)
        return int(size)

    async def follow(self, begin: int, end: int) -> None:
        """Take what there is up to a physical offset, and report it."""
        while begin + len(self.log) < end:
            await self.take(begin)
            self.report(begin + len(self.log))


@asynccontextmanager
async def _connected(nodes: ReplicaNodes, ordinal: int = 0) -> AsyncIterator[_Slave]:
    replicas = nodes.broker(ordinal).replicas
    assert replicas is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", replicas.peers.port)
    try:
        async with asyncio.timeout(30):
            yield _Slave(reader, writer)
    finally:
        writer.close()


async def _registered(nodes: ReplicaNodes) -> None:
    """Wait until the master leads and the name server knows it."""
    await nodes.in_sync()
    assert await nodes.broker(0).registration.register_now()


def _records(log: bytes, begin: int) -> list[int]:
    """Return where the records of a log begin that do so at a physical offset or behind it."""
    found, at = [], 0
    while at < len(log):
        if at >= begin and int.from_bytes(log[at + 4 : at + 8], "big") != BLANK_MAGIC:
            found.append(at)
        at += int.from_bytes(log[at : at + 4], "big")
    return found


async def _send(nodes: ReplicaNodes, count: int, size_bytes: int = 1000) -> int:
    """Send messages and return where the log ends."""
    async with Producer("group", namesrv=nodes.namesrv) as producer:
        for number in range(count):
            await producer.send(Message("topic", Random(number).randbytes(size_bytes)))
    return nodes.broker(0).store.commit_log.end


async def test_an_empty_slave_gets_the_whole_log(tmp_path: Path) -> None:
    """From the oldest segment on, fillers and what is behind them included, and then what comes."""
    async with ReplicaNodes(tmp_path, 1, _ALONE) as nodes:
        await _registered(nodes)
        end = await _send(nodes, 200)
        assert end > 2 * _SEGMENT_BYTES
        async with _connected(nodes) as slave:
            slave.report(0)
            await slave.follow(0, end)
            with promised("a slave has its master's log"):
                assert slave.log == nodes.log_bytes(0)
            end = await _send(nodes, 100)
            await slave.follow(0, end)
            with promised("a slave has its master's log"):
                assert slave.log == nodes.log_bytes(0)


async def test_slaves_are_shown(tmp_path: Path) -> None:
    """mqadmin's haStatus and the status have them, as none of the in-sync set."""
    async with ReplicaNodes(tmp_path, 1, _ALONE) as nodes:
        await _registered(nodes)
        end = await _send(nodes, 20)
        async with _connected(nodes) as slave:
            slave.report(0)
            await slave.follow(0, end)
            replicas = nodes.broker(0).replicas
            assert replicas is not None
            await nodes.until(lambda: replicas.report().java_slaves[0].acked_end == end)
            [shown] = replicas.report().java_slaves
            assert (shown.lag_bytes, shown.sent_end) == (0, end)
            client = RawClient(nodes.broker(0).address)
            status = json.loads((await client.ok(RequestCode.GET_BROKER_HA_STATUS)).body)
            await client.close()
            assert status["inSyncSlaveNums"] == 0
            [found] = status["haConnectionInfo"]
            assert (found["addr"], found["slaveAckOffset"]) == (shown.address, end)
            assert (found["diff"], found["inSync"]) == (0, False)


async def test_a_slave_goes_on_where_it_was(tmp_path: Path) -> None:
    """Also inside a record, where a master of RocketMQ may have left it."""
    async with ReplicaNodes(tmp_path, 1, _ALONE) as nodes:
        await _registered(nodes)
        end = await _send(nodes, 150)
        for begin in (1, 5000, _SEGMENT_BYTES - 1, _SEGMENT_BYTES, end - 10, end):
            async with _connected(nodes) as slave:
                slave.report(begin)
                await slave.follow(begin, end)
                with promised("a slave has its master's log"):
                    assert slave.log == nodes.log_bytes(0)[begin:]


async def test_a_slave_that_is_idle_hears_something(tmp_path: Path) -> None:
    """Within 6 s, and it is where the slave's log ends."""
    async with ReplicaNodes(tmp_path, 1, _ALONE) as nodes:
        await _registered(nodes)
        end = await _send(nodes, 3)
        async with _connected(nodes) as slave:
            slave.report(end)
            async with asyncio.timeout(8):
                assert await slave.take(end) == 0


@pytest.mark.parametrize("beyond", [1, 1 << 32])
async def test_a_slave_of_another_master_is_refused(tmp_path: Path, beyond: int) -> None:
    """One that has more than the log here, at once or later, is closed and sent nothing."""
    async with ReplicaNodes(tmp_path, 1, _ALONE) as nodes:
        await _registered(nodes)
        end = await _send(nodes, 3)
        async with _connected(nodes) as slave:
            slave.report(end + beyond)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await slave.take(end + beyond)
        async with _connected(nodes) as slave:
            slave.report(0)
            await slave.follow(0, end)
            slave.report(end + beyond)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await slave.take(0)


async def test_a_slave_gets_only_what_is_confirmed(tmp_path: Path) -> None:
    """What a replica in the set has not got yet is not sent; it is no member of the set."""
    async with ReplicaNodes(tmp_path, 2, {"mappedFileSizeCommitLog": "65536"}) as nodes:
        await nodes.in_sync()
        await _send(nodes, 3)
        log = nodes.broker(0).store.replica
        async with _connected(nodes) as slave:
            slave.report(0)
            await slave.follow(0, log.confirmed_offset)
            leading = nodes.group(0).replica.leading
            assert leading is not None
            assert {member.ordinal for member in leading.recorded} == {0, 1}
            # What is written and not confirmed: as if the other replica had not answered yet.
            second = _records(nodes.log_bytes(0), 1)[0]
            confirmed, log.confirmed_offset = log.confirmed_offset, second
            async with _connected(nodes) as other:
                other.report(0)
                assert await other.take(0) == second
                assert await other.take(0) == 0
                log.confirmed_offset = confirmed
                await _send(nodes, 1)
                await other.follow(0, log.confirmed_offset)
                with promised("a slave has its master's log"):
                    assert other.log == nodes.log_bytes(0)


async def test_a_slave_that_does_not_read_costs_no_memory(tmp_path: Path) -> None:
    """At most some megabytes wait for it, however large the log is; once it reads it gets all."""
    async with ReplicaNodes(tmp_path, 1, {"inSyncReplicas": "1"}) as nodes:
        await _registered(nodes)
        end = await _send(nodes, 40, 1_000_000)
        replicas = nodes.broker(0).replicas
        assert replicas is not None
        async with _connected(nodes) as slave:
            slave.segment_bytes = nodes.broker(0).store.commit_log.segments[0].size_bytes
            slave.report(0)
            await slave.take(0)
            (one,) = replicas.java_slaves.slaves
            sent = -1
            while sent < one.physical_offset:
                sent = one.physical_offset
                await asyncio.sleep(0.3)
            # What it was sent lies in the socket's buffers, but for little.
            assert 0 < sent < end - (20 << 20)
            assert one.unsent_bytes < 2 << 20
            await slave.follow(0, end)
            with promised("a slave has its master's log"):
                assert slave.log == nodes.log_bytes(0)


async def test_a_group_with_a_secret_has_no_slaves_of_rocketmq(tmp_path: Path) -> None:
    """They know none, and would get every message without it."""
    (tmp_path / "secret").write_text("known to replicas only")
    options = {**_ALONE, "haSecretFile": str(tmp_path / "secret")}
    async with ReplicaNodes(tmp_path, 1, options) as nodes:
        await _registered(nodes)
        await _send(nodes, 3)
        async with _connected(nodes) as slave:
            slave.report(0)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await slave.take(0)


@pytest.mark.parametrize(
    ("part", "begin"),
    [
        ("size", 0),
        ("magic", 0),
        ("body", 0),
        ("body", 5000),
        ("body checksum", 0),
        ("properties", _SEGMENT_BYTES - 1),
    ],
)
async def test_damage_is_not_sent(tmp_path: Path, part: str, begin: int) -> None:
    """A slave of RocketMQ gives what it gets to consumers, whatever its checksums say, and never
    gets over bytes that are no record: it gets what is before them, from wherever it begins."""
    async with ReplicaNodes(tmp_path, 1, _ALONE) as nodes:
        await _registered(nodes)
        end = await _send(nodes, 120)
        assert end > _SEGMENT_BYTES
        log = nodes.broker(0).store.commit_log
        data = nodes.log_bytes(0)
        # The first record that begins 2000 bytes behind, or in the next segment.
        found = _records(data, begin + 2000)[0]
        size = int.from_bytes(data[found : found + 4], "big")
        at = {"size": 3, "magic": 4, "body": 500, "body checksum": 8, "properties": size - 9}[part]
        segment = log.find(found)
        assert segment is not None
        segment.write(bytes([data[found + at] ^ 1]), found + at - segment.start)
        async with _connected(nodes) as slave:
            slave.report(begin)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await slave.follow(begin, end)
            assert slave.log == data[begin : begin + len(slave.log)]
            assert len(slave.log) <= found - begin


async def test_what_a_slave_lacks_of_a_damaged_record_is_not_sent(tmp_path: Path) -> None:
    """Somebody who has the first half of it, as a master of RocketMQ may have left him."""
    async with ReplicaNodes(tmp_path, 1, _ALONE) as nodes:
        await _registered(nodes)
        end = await _send(nodes, 20)
        found = nodes.broker(0).store.physical_position("topic", 0, 2)
        assert found is not None
        good = nodes.log_bytes(0)
        nodes.broker(0).store.commit_log.segments[0].write(b"!!", found + 500)
        async with _connected(nodes) as slave:
            slave.report(found + 300)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await slave.take(found + 300)
        # It is sound before that place.
        async with _connected(nodes) as slave:
            slave.report(found - 300)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await slave.follow(found - 300, end)
            assert slave.log == good[found - 300 : found]


async def test_a_message_larger_than_a_frame(tmp_path: Path) -> None:
    """It comes in several frames, and a slave may go on anywhere inside it."""
    options = {"inSyncReplicas": "1", "mappedFileSizeCommitLog": str(4 << 20)}
    async with ReplicaNodes(tmp_path, 1, options) as nodes:
        await _registered(nodes)
        end = await _send(nodes, 3, 3 << 20)
        for begin in (0, 1 << 20, (3 << 20) + 5000, (4 << 20) - 1, 5 << 20):
            async with _connected(nodes) as slave:
                slave.segment_bytes = 4 << 20
                slave.report(begin)
                await slave.follow(begin, end)
                with promised("a slave has its master's log"):
                    assert slave.log == nodes.log_bytes(0)[begin:]


async def test_who_does_not_lead_has_no_slaves(tmp_path: Path) -> None:
    """A slave that connects to one of our own slaves is closed, and sent nothing."""
    async with ReplicaNodes(tmp_path, 2) as nodes:
        await nodes.in_sync()
        await _send(nodes, 3)
        async with _connected(nodes, 1) as slave:
            slave.report(0)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await slave.take(0)


async def test_a_stranger_is_closed(tmp_path: Path) -> None:
    """What begins neither as a replica's nor as a slave's connection ends at once."""
    async with ReplicaNodes(tmp_path, 1, _ALONE) as nodes:
        await _registered(nodes)
        async with _connected(nodes) as slave:
            slave.writer.write(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await slave.take(0)


async def test_a_slave_that_meets_damage_gets_it_after_repair(tmp_path: Path) -> None:
    """Its connection ends there; the master has another replica's bytes once it comes again."""
    async with ReplicaNodes(tmp_path, 2, {**_ALONE, "inSyncReplicas": "2"}) as nodes:
        await _registered(nodes)
        end = await _send(nodes, 100)
        await nodes.until(lambda: nodes.broker(0).store.replica.confirmed_offset == end)
        store = nodes.broker(0).store
        good = nodes.log_bytes(0)
        place = store.physical_position("topic", 0, 3)
        assert place is not None
        with (tmp_path / "replica-0" / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(place)
            file.write(b"\0\0\0\7damaged")
        async with _connected(nodes) as slave:
            slave.report(0)
            with pytest.raises(asyncio.IncompleteReadError):
                await slave.follow(0, end)
        repair = nodes.group(0).repair
        await nodes.until(lambda: repair.repaired_bytes > 0 and not repair.damaged_ranges)
        with promised("a slave has its master's log"):
            assert nodes.log_bytes(0) == good
        async with _connected(nodes) as slave:
            slave.report(0)
            await slave.follow(0, end)
            assert slave.log == good
