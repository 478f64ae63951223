"""A broker that speaks as a master of RocketMQ does, its log, and a slave of ours below it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from mailboat.broker.controller import BrokerController
from mailboat.config import load_settings
from mailboat.disk.real import RealDisk
from mailboat.model.message_queue import MessageQueue
from mailboat.model.record import BLANK_MAGIC
from mailboat.node import Node
from mailboat.protocol.bodies import encode_kv_table, encode_properties_text
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.stats_bodies import TopicOffset, encode_topic_stats
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.limits import RemotingLimits
from mailboat.remoting.server import RemotingServer
from mailboat.replication.java_ha import FRAME_HEAD
from mailboat.store.message_inner import MessageInner
from mailboat.store.message_store import MessageStore
from mailboat.store.segment import Segment
from mailboat.testing.cluster import SMALL_STORE
from mailboat.testing.store_simulator import HOST, small_config

SEGMENT_BYTES = 65_536
_FILLER = BLANK_MAGIC.to_bytes(4, "big")


def write_log(directory: Path) -> bytes:
    """Return a log of several segments, with anything behind the heads of its fillers."""
    store = _opened(directory)
    for number in range(150):
        store.put_messages([_message(number, number % 3)])
    pieces = []
    for segment, data in _segments(store):
        if segment.end < store.commit_log.end:
            end = data.rfind(_FILLER) + 4
            data = data[:end] + b"\xda\xa3\x20\xa7" * (len(data) - end)
        pieces.append(data[:SEGMENT_BYTES])
    store.close()
    assert len(pieces) > 2
    return b"".join(pieces)


def write_lives(directory: Path) -> tuple[bytes, int]:
    """Return a log in which a topic was deleted and made again, and where its second life begins.

    Of 30 messages each of the queues 0 to 2 has 10, of 8 later ones 0 and 1 have 4, from 0 on.
    """
    store = _opened(directory)
    for number in range(30):
        store.put_messages([_message(number, number % 3)])
    begin = store.commit_log.end
    store.delete_topic("orders")
    for number in range(30, 38):
        store.put_messages([_message(number, number % 2)])
    log = b"".join(data for _, data in _segments(store))
    store.close()
    return log, begin


def write_small(directory: Path, count: int, segment_bytes: int) -> bytes:
    """Return a log of so many small messages of one queue."""
    store = _opened(directory, segment_bytes)
    for begin in range(0, count, 500):
        store.put_messages(
            [_message(number, 0, 1) for number in range(begin, min(begin + 500, count))]
        )
    log = b"".join(data for _, data in _segments(store))
    store.close()
    return log


def write_large(directory: Path, first: int, behind: bytes) -> bytes:
    """Return a log of segments of 4 MiB, the first of which has a filler of 2.6 MB.

    Logs have the same sizes if `first`, of two digits, leaves the same rest by 7; `behind` says
    what is behind the head of the filler.
    """
    store = _opened(directory, 4 << 20)
    sizes = (500_000, 500_000, 500_000, 3_000_000)
    for number, size_bytes in enumerate(sizes):
        store.put_messages([_message(first + number, 0, size_bytes)])
    log = b"".join(data for _, data in _segments(store))
    store.close()
    head_end = log.rindex(_FILLER, 0, 4 << 20) + 4
    size = (4 << 20) - head_end
    assert size > 2_500_000
    return log[:head_end] + (behind * size)[:size] + log[4 << 20 :]


def _opened(directory: Path, segment_bytes: int = SEGMENT_BYTES) -> MessageStore:
    config = small_config(
        "ASYNC_FLUSH",
        mapped_file_size_commit_log=segment_bytes,
        max_message_size=4 << 20,
        mapped_file_size_consume_queue=4000,
        store_path_root_dir=str(directory),
    )
    store = MessageStore(config, RealDisk(), store_host=HOST)
    store.open()
    return store


def _message(number: int, queue_id: int, size_bytes: int = 1000) -> MessageInner:
    return MessageInner(
        topic="orders",
        queue_id=queue_id,
        body=Random(number).randbytes(size_bytes + number % 7),
        properties=f"KEYS\x01k{number}\x02".encode(),
        tags_code=0,
        unique_key=None,
        keys=f"k{number}",
        flag=0,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        born_host=HOST,
    )


def _segments(store: MessageStore) -> Iterator[tuple[Segment, bytes]]:
    log = store.commit_log
    for segment in log.segments:
        yield segment, segment.read(0, min(segment.end, log.end) - segment.start)


def end_of(log: bytes, count: int) -> int:
    """Return where the record ends that is the last of so many."""
    at = 0
    while count:
        size = int.from_bytes(log[at : at + 4], "big")
        is_filler = log[at + 4 : at + 8] == _FILLER
        at += size
        count -= not is_filler
    return at


class SpeakingMaster:
    """Speaks as a master of RocketMQ; the log may be changed while it does."""

    def __init__(self, log: bytes, start: int = 0) -> None:
        """Have a log that begins at a physical offset."""
        self.log, self.start = log, start
        self.frame_bytes = 1000
        self.segment_bytes = SEGMENT_BYTES
        self.own_key = "haTransferBatchSize"
        self.shift = 0
        """Added to the physical offset of each frame: a master that is broken."""

        self.sends_below = 1 << 60
        """The physical offset behind the last byte that it sends of its log."""

        self.tables = {
            RequestCode.GET_ALL_TOPIC_CONFIG: b'{"topicConfigTable":{}}',
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: b'{"subscriptionGroupTable":{}}',
            RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{}}',
            RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{}}',
        }
        """What it answers, by request."""

        self.config: dict[str, str] = {}
        """More of its configuration."""

        self.info: dict[str, str] = {}
        """More of what it says of itself."""

        self.answers: dict[int, bytes] = {}
        """What it says instead, by request."""

        self.is_mute = False
        """Whether it does not say where its log ends, as one that has too much to do."""

        self.asked = asyncio.Event()
        """It was asked where its log ends."""

        self.ends: dict[str, dict[int, int]] = {}
        """Where its queues end, by topic; all begin at 0."""

        self.requests: list[int] = []
        self.reported = -1
        self._reported_to = asyncio.Condition()
        self._grown = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self.start + len(self.log)

    async def __aenter__(self) -> Self:
        """Listen."""
        dispatcher = Dispatcher()
        dispatcher.register(RequestCode.GET_BROKER_CONFIG, self._config)
        dispatcher.register(RequestCode.GET_BROKER_RUNTIME_INFO, self._runtime_info)
        dispatcher.register(RequestCode.GET_TOPIC_STATS_INFO, self._bounds)
        for code in self.tables:
            dispatcher.register(code, self._table)
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
        """End all connections."""
        self._replicas.close()
        self.hang_up()
        await self._clients.stop_accepting()
        await self._clients.close(0)

    def grow(self, log: bytes = b"") -> None:
        """Have more of the log, and send what may be sent."""
        self.log += log
        self._grown.set()

    def hang_up(self) -> None:
        """End the connections over which the log goes."""
        for writer in self._writers:
            writer.close()

    async def until_reported(self, physical_offset: int) -> None:
        """Wait until the slave has a log up to there."""
        async with asyncio.timeout(20), self._reported_to:
            await self._reported_to.wait_for(lambda: self.reported >= physical_offset)

    def _config(self, _: Connection, command: RemotingCommand) -> RemotingCommand:
        if command.code in self.answers:
            return command.response(ResponseCode.SUCCESS, body=self.answers[command.code])
        keys = {"mappedFileSizeCommitLog": str(self.segment_bytes), self.own_key: "32768"}
        body = encode_properties_text(keys | self.config)
        return command.response(ResponseCode.SUCCESS, body=body)

    def _runtime_info(self, _: Connection, command: RemotingCommand) -> RemotingCommand | None:
        self.asked.set()
        if self.is_mute:
            return None
        if command.code in self.answers:
            return command.response(ResponseCode.SUCCESS, body=self.answers[command.code])
        table = {"commitLogMinOffset": str(self.start), "commitLogMaxOffset": str(self.end)}
        return command.response(ResponseCode.SUCCESS, body=encode_kv_table(table | self.info))

    def _bounds(self, _: Connection, command: RemotingCommand) -> RemotingCommand:
        topic = command.ext_fields["topic"]
        bounds = {
            MessageQueue(topic, "broker-a", queue_id): TopicOffset(0, end)
            for queue_id, end in self.ends[topic].items()
        }
        return command.response(ResponseCode.SUCCESS, body=encode_topic_stats(bounds))

    def _table(self, _: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.response(ResponseCode.SUCCESS, body=self.tables[command.code])

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
            if at < min(self.end, self.sends_below):
                segment_rest = self.segment_bytes - at % self.segment_bytes
                rest = min(segment_rest, self.sends_below - at)
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
async def slave_of(
    root: Path, master: SpeakingMaster, **config: str
) -> AsyncIterator[BrokerController]:
    """Start a slave of a master; it knows it by its configuration."""
    async with node_of(root, master, **config) as node:
        assert node.broker is not None
        yield node.broker


@asynccontextmanager
async def node_of(root: Path, master: SpeakingMaster, **config: str) -> AsyncIterator[Node]:
    """Start a slave as `slave_of` does, and give its whole process."""
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
        "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
        "storePathRootDir": str(root),
        **config,
    }
    node = Node(load_settings("broker", overrides=overrides))
    await node.start()
    try:
        yield node
    finally:
        await node.shutdown()
