"""A slave here below what speaks as a master of RocketMQ does (real ones: tests/interop)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

import pytest

from mailboat.broker.controller import BrokerController
from mailboat.config import load_settings
from mailboat.disk.real import RealDisk
from mailboat.model.record import BLANK_MAGIC
from mailboat.node import Node
from mailboat.protocol.bodies import encode_kv_table, encode_properties_text
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.limits import RemotingLimits
from mailboat.remoting.server import RemotingServer
from mailboat.replication.java_ha import FRAME_HEAD
from mailboat.store.message_inner import MessageInner
from mailboat.store.message_store import MessageStore
from mailboat.testing.cluster import SMALL_STORE
from mailboat.testing.store_simulator import HOST, small_config

_SEGMENT_BYTES = 65_536
_FILLER = BLANK_MAGIC.to_bytes(4, "big")


@pytest.fixture(name="log")
def _log(tmp_path: Path) -> bytes:
    """A log of several segments, with anything behind the heads of its fillers."""
    config = small_config(
        "ASYNC_FLUSH",
        mapped_file_size_commit_log=_SEGMENT_BYTES,
        mapped_file_size_consume_queue=4000,
        store_path_root_dir=str(tmp_path / "theirs"),
    )
    store = MessageStore(config, RealDisk(), store_host=HOST)
    store.open()
    for number in range(150):
        message = MessageInner(
            topic="orders",
            queue_id=number % 3,
            body=Random(number).randbytes(1000 + number % 7),
            properties=f"KEYS\x01k{number}\x02".encode(),
            tags_code=0,
            unique_key=None,
            keys=f"k{number}",
            flag=0,
            sys_flag=0,
            born_timestamp_ms=1_700_000_000_000,
            born_host=HOST,
        )
        store.put_messages([message])
    log, pieces = store.commit_log, []
    for segment in log.segments:
        data = segment.read(0, min(segment.end, log.end) - segment.start)
        if segment.end < log.end:
            end = data.rfind(_FILLER) + 4
            data = data[:end] + b"\xda\xa3\x20\xa7" * (len(data) - end)
        pieces.append(data[:_SEGMENT_BYTES])
    store.close()
    assert len(pieces) > 2
    return b"".join(pieces)


def _end_of(log: bytes, count: int) -> int:
    """Return where the record ends that is the last of so many."""
    at = 0
    while count:
        size = int.from_bytes(log[at : at + 4], "big")
        is_filler = log[at + 4 : at + 8] == _FILLER
        at += size
        count -= not is_filler
    return at


class _Master:
    """Speaks as a master of RocketMQ; the log may be changed while it does."""

    def __init__(self, log: bytes, start: int = 0) -> None:
        self.log, self.start = log, start
        self.frame_bytes = 1000
        self.segment_bytes = _SEGMENT_BYTES
        self.own_key = "haTransferBatchSize"
        self.shift = 0
        """Added to the physical offset of each frame: a master that is broken."""

        self.requests: list[int] = []
        self.reported = -1
        self._reported_to = asyncio.Condition()
        self._grown = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def end(self) -> int:
        return self.start + len(self.log)

    async def __aenter__(self) -> Self:
        dispatcher = Dispatcher()
        dispatcher.register(RequestCode.GET_BROKER_CONFIG, self._config)
        dispatcher.register(RequestCode.GET_BROKER_RUNTIME_INFO, self._runtime_info)
        self._clients = RemotingServer(dispatcher, RemotingLimits(), name="master")
        while True:
            self._replicas = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = self._replicas.sockets[0].getsockname()[1]
            try:
                await self._clients.start("127.0.0.1", self.port - 1)
            except OSError:
                self._replicas.close()
            else:
                return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._replicas.close()
        self.hang_up()
        await self._clients.stop_accepting()
        await self._clients.close(0)

    def grow(self, log: bytes) -> None:
        self.log += log
        self._grown.set()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()

    async def until_reported(self, physical_offset: int) -> None:
        """Wait until the slave has a log up to there."""
        async with asyncio.timeout(20), self._reported_to:
            await self._reported_to.wait_for(lambda: self.reported >= physical_offset)

    def _config(self, _: Connection, command: RemotingCommand) -> RemotingCommand:
        keys = {"mappedFileSizeCommitLog": str(self.segment_bytes), self.own_key: "32768"}
        return command.response(ResponseCode.SUCCESS, body=encode_properties_text(keys))

    def _runtime_info(self, _: Connection, command: RemotingCommand) -> RemotingCommand:
        table = {"commitLogMinOffset": str(self.start), "commitLogMaxOffset": str(self.end)}
        return command.response(ResponseCode.SUCCESS, body=encode_kv_table(table))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        first = await reader.readexactly(8)
        if first[0]:
            # RocketMQ takes it for an offset that it does not have, and says nothing.
            await reader.read()
            return
        at = int.from_bytes(first, "big")
        self.requests.append(at)
        sending = asyncio.create_task(self._send(writer, at))
        try:
            while True:
                self.reported = int.from_bytes(await reader.readexactly(8), "big")
                async with self._reported_to:
                    self._reported_to.notify_all()
        except (asyncio.IncompleteReadError, ConnectionError):
            sending.cancel()

    async def _send(self, writer: asyncio.StreamWriter, at: int) -> None:
        while True:
            if at < self.end:
                rest = _SEGMENT_BYTES - at % _SEGMENT_BYTES
                data = self.log[at - self.start :][: min(self.frame_bytes, rest)]
                writer.write(FRAME_HEAD.pack(at + self.shift, len(data)) + data)
                # One that slows itself down.
                writer.write(FRAME_HEAD.pack(at + self.shift + len(data), 0) * 500)
                at += len(data)
            else:
                self._grown.clear()
                await self._grown.wait()
            await writer.drain()


@asynccontextmanager
async def _slave(root: Path, master: _Master, **config: str) -> AsyncIterator[BrokerController]:
    """Start a slave of a master; it knows it by its configuration."""
    overrides = {
        **SMALL_STORE,
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "httpPort": "-1",
        "haListenPort": "0",
        "brokerName": "broker-a",
        "brokerRole": "SLAVE",
        "brokerId": "1",
        "haMasterAddress": f"127.0.0.1:{master.port}",
        "mappedFileSizeCommitLog": str(_SEGMENT_BYTES),
        "storePathRootDir": str(root),
        **config,
    }
    node = Node(load_settings("broker", overrides=overrides))
    await node.start()
    assert node.broker is not None
    try:
        yield node.broker
    finally:
        await node.shutdown()


async def _until_problem(broker: BrokerController, words: str) -> None:
    assert broker.replicas is not None
    async with asyncio.timeout(20):
        while words not in broker.replicas.java_master.problem:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _check_log(broker: BrokerController, log: bytes, start: int = 0) -> None:
    """Compare a log with that of the master, which has anything behind the heads of fillers."""
    found = broker.store.commit_log
    assert found.end == start + len(log)
    for segment in found.segments:
        ours = segment.read(0, min(segment.end, found.end) - segment.start)
        theirs = log[segment.start - start :][: len(ours)]
        alike = len(ours.rstrip(b"\0")) if segment.end < found.end else len(ours)
        assert ours[:alike] == theirs[:alike]
        assert alike > _SEGMENT_BYTES // 2 or segment.end > found.end


async def _until_stored(broker: BrokerController, count: int) -> None:
    async with asyncio.timeout(20):
        while _stored(broker) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _stored(broker: BrokerController) -> int:
    store = broker.store
    return sum(store.max_offset(*key) for key in store.queue_keys())


@pytest.mark.parametrize("frame_bytes", [7, 1000, 32_768])
async def test_the_whole_history_is_taken(tmp_path: Path, log: bytes, frame_bytes: int) -> None:
    """From the first byte on, in any pieces, whatever is behind fillers, and then what comes."""
    whole = log if frame_bytes > 7 else log[: _end_of(log, 100)]
    master = _Master(whole[: _SEGMENT_BYTES + 5000])
    master.frame_bytes = frame_bytes
    async with master, _slave(tmp_path / "ours", master) as broker:
        await master.until_reported(_SEGMENT_BYTES + 3000)
        assert master.requests == [1]
        master.grow(whole[_SEGMENT_BYTES + 5000 :])
        await master.until_reported(len(whole))
        assert master.requests == [1]
        _check_log(broker, whole)
        await _until_stored(broker, whole.count(b"KEYS\x01k"))


async def test_a_master_without_its_oldest_segment(tmp_path: Path, log: bytes) -> None:
    """The log begins where that of the master does, also after a restart."""
    log = log[_SEGMENT_BYTES:]
    at = _SEGMENT_BYTES + 5000
    async with _Master(log[:at], _SEGMENT_BYTES) as master:
        async with _slave(tmp_path / "ours", master):
            await master.until_reported(2 * _SEGMENT_BYTES + 3000)
        master.grow(log[at:])
        async with _slave(tmp_path / "ours", master) as broker:
            await master.until_reported(master.end)
            assert master.requests[0] == _SEGMENT_BYTES
            _check_log(broker, log, _SEGMENT_BYTES)
            # The queues go on where they were, without what is gone.
            await _until_stored(broker, 150)


@pytest.mark.parametrize("is_at_segment_end", [False, True])
async def test_a_slave_comes_again(tmp_path: Path, log: bytes, *, is_at_segment_end: bool) -> None:
    """It shows at once what it had, compares the end of both logs, and goes on; also by itself."""
    at = _SEGMENT_BYTES if is_at_segment_end else _end_of(log, 90)
    async with _Master(log[:at]) as master:
        async with _slave(tmp_path / "ours", master) as broker:
            await master.until_reported(at)
            count = log[:at].count(b"KEYS\x01k")
            await _until_stored(broker, count)
        async with _slave(tmp_path / "ours", master) as broker:
            assert _stored(broker) == count
            master.reported = -1
            master.grow(log[at : 2 * _SEGMENT_BYTES + 4000])
            await master.until_reported(2 * _SEGMENT_BYTES + 1000)
            assert 0 < master.requests[-1] < at
            master.hang_up()
            master.grow(log[2 * _SEGMENT_BYTES + 4000 :])
            await master.until_reported(len(log))
            _check_log(broker, log)
            assert len(master.requests) == 3


async def test_a_reported_log_is_durable(tmp_path: Path, log: bytes) -> None:
    """With SYNC_FLUSH nothing is reported before it is flushed."""
    async with (
        _Master(log) as master,
        _slave(tmp_path / "ours", master, flushDiskType="SYNC_FLUSH") as broker,
    ):
        store = broker.store
        while master.reported < len(log):
            assert master.reported <= store.flushed_offset
            await master.until_reported(master.reported + 1)
        assert store.flushed_offset == len(log)
        await _until_stored(broker, 150)


async def test_another_log_is_not_followed(tmp_path: Path, log: bytes) -> None:
    """Shorter, longer and different, gone at the beginning: said, and nothing is written."""
    at = _end_of(log, 90)
    async with _Master(log[:at]) as master, _slave(tmp_path / "ours", master) as broker:
        await master.until_reported(at)
        master.log = log[: at - 2000]
        master.hang_up()
        await _until_problem(broker, "they have diverged")
        damaged = bytearray(log)
        damaged[at - 5000] ^= 1
        master.log = bytes(damaged)
        await _until_problem(broker, "the master has another log")
        master.log, master.start = log[2 * _SEGMENT_BYTES :], 2 * _SEGMENT_BYTES
        await _until_problem(broker, f"that of the master begins at {2 * _SEGMENT_BYTES}")
        _check_log(broker, log[:at])
        master.log, master.start = log, 0
        await master.until_reported(len(log))
        _check_log(broker, log)


async def test_other_segments_are_not_followed(tmp_path: Path, log: bytes) -> None:
    """Fillers would lie inside segments here."""
    master = _Master(log)
    master.segment_bytes = 2 * _SEGMENT_BYTES
    async with master, _slave(tmp_path / "ours", master) as broker:
        await _until_problem(broker, f"mappedFileSizeCommitLog is {2 * _SEGMENT_BYTES}")
        assert broker.store.commit_log.end == 0


async def test_who_is_no_broker_of_rocketmq_is_not_followed(tmp_path: Path, log: bytes) -> None:
    """One of ours that does not answer in time is not taken for a master of RocketMQ."""
    master = _Master(log)
    master.own_key = "httpPort"
    async with master, _slave(tmp_path / "ours", master) as broker:
        await _until_problem(broker, "it is no broker of RocketMQ")
        assert master.requests == []
        assert broker.store.commit_log.end == 0
        # It is looked at again and again: who is silent once may be of either kind later.
        master.own_key = "haTransferBatchSize"
        await master.until_reported(len(log))


async def test_frames_out_of_place_and_damage_end_the_connection(
    tmp_path: Path, log: bytes
) -> None:
    """What does not follow, and what is no sound record, is not written; it tries again."""
    damaged = bytearray(log)
    damaged[5000] ^= 1
    master = _Master(log)
    master.shift = 8
    async with master, _slave(tmp_path / "ours", master) as broker:
        await _until_problem(broker, "it sends 9 and not 1")
        assert broker.store.commit_log.end == 0
        master.shift, master.log = 0, bytes(damaged)
        async with asyncio.timeout(20):
            while broker.store.commit_log.end == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await _until_problem(broker, "checksum")
        assert broker.store.commit_log.end <= 5000
        master.log = log
        await master.until_reported(len(log))
        _check_log(broker, log)


async def test_who_was_promoted_follows_no_more(tmp_path: Path, log: bytes) -> None:
    """Once a person lets the slave lead, the master's log is not taken any more, nor later on."""
    at = _end_of(log, 90)
    async with _Master(log[:at]) as master:
        async with _slave(tmp_path / "ours", master) as broker:
            await master.until_reported(at)
            assert broker.replicas is not None
            broker.replicas.group.promote(accepts_loss=True)
            async with asyncio.timeout(20):
                while not broker.is_leading:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            master.grow(log[at:])
            await _until_problem(broker, "leads")
            assert broker.store.commit_log.end == at
            assert _stored(broker) == log[:at].count(b"KEYS\x01k")
