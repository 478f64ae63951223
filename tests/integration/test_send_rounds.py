"""Sends that the compiled core takes, on a running broker: their write, order and failures."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from raw_client import RawClient, connected, running_broker

from mailboat.broker.controller import BrokerController
from mailboat.broker.processors import send_rounds
from mailboat.disk import Disk
from mailboat.model.batch import encode_batch
from mailboat.model.message import Message
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.frame import SERIALIZE_BINARY
from mailboat.store import commit_log
from mailboat.store.dispatch import Dispatch
from mailboat.store.message_inner import PreparedRecords
from mailboat.store.segment import Segment

pytestmark = pytest.mark.core
SEND = {
    "a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "j": "0",
    "k": "false", "m": "false",
}  # fmt: skip


LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "m": "batch",
}  # fmt: skip


class Answer(NamedTuple):
    """What the broker says to one request."""

    opaque: int
    code: int
    queue_offset: int


class Peer:
    """A connection on which frames are written as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use a connection."""
        self._reader, self.writer = reader, writer

    async def header(self) -> dict[str, Any]:
        """Return the header of the next answer."""
        async with asyncio.timeout(30):
            size = int.from_bytes(await self._reader.readexactly(4))
            data = await self._reader.readexactly(size)
        header: dict[str, Any] = json.loads(data[4 : 4 + int.from_bytes(data[1:4])])
        return header

    async def answers(self, count: int) -> list[Answer]:
        """Return the next answers, in the order in which they come."""
        found: list[Answer] = []
        while len(found) < count:
            header = await self.header()
            fields = header.get("extFields") or {}
            offset = int(fields.get("queueOffset", fields.get("offset", -1)))
            found.append(Answer(header["opaque"], header["code"], offset))
        return found


def full(_disk: Disk, _fd: int, _data: bytes, _position: int) -> None:
    """Stand for a disk that takes nothing."""
    raise OSError(28, "No space left on device")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    """Run a broker whose core knows topic T."""
    async with running_broker(tmp_path) as controller, connected(controller, "c@1") as (client,):
        assert controller.dispatcher._rounds is not None
        await client.make_topic("T", 2)
        for queue_id in range(2):
            await client.send("T", b"first", queue_id)
        yield controller


@pytest.fixture
async def peer(broker: BrokerController) -> AsyncIterator[Peer]:
    """Connect to it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    yield Peer(reader, writer)
    writer.close()


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    """Connect a well-behaved client."""
    async with connected(broker, "c@2") as (client,):
        yield client


def frame(code: int, fields: dict[str, str], body: bytes, opaque: int) -> bytes:
    """Return one request."""
    command = RemotingCommand.request(code, fields, body)
    command.opaque = opaque
    return command.encode()


def send(opaque: int, *, queue_id: int = 0, properties: str = "", body: bytes = b"x") -> bytes:
    """Return a send with a unique key, and further properties."""
    text = f"UNIQ_KEY\x01U{opaque}\x02{properties}"
    fields = SEND | {"e": str(queue_id), "i": text}
    return frame(RequestCode.SEND_MESSAGE_V2, fields, body, opaque)


def batch(opaque: int, count: int) -> bytes:
    """Return a batch of so many messages."""
    keys = [f"B{opaque}.{number}" for number in range(count)]
    body = encode_batch([Message("T", b"x" * 100)] * count, keys)
    return frame(RequestCode.SEND_BATCH_MESSAGE, SEND | {"m": "true", "i": ""}, body, opaque)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many messages each round of the core has stored."""
    counts: list[int] = []
    dispatch = Dispatch.dispatch_prepared

    def noted(self: Dispatch, prepared: PreparedRecords, end: int, now_ms: int) -> None:
        counts.append(sum(count for _, count, _, _ in prepared.queues))
        dispatch(self, prepared, end, now_ms)

    monkeypatch.setattr(Dispatch, "dispatch_prepared", noted)
    return counts


async def test_sends_and_batches_of_one_read_are_one_write(
    peer: Peer, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten sends and three batches of ten: forty messages, each answered with its place."""
    writes: list[int] = []
    write = commit_log.write_fully

    def counted(disk: Disk, fd: int, data: bytes, position: int) -> None:
        writes.append(len(data))
        write(disk, fd, data, position)

    monkeypatch.setattr(commit_log, "write_fully", counted)
    sends = [send(opaque) for opaque in range(10)]
    peer.writer.write(b"".join(sends + [batch(opaque, 10) for opaque in range(10, 13)]))
    answers = await peer.answers(13)
    places = [*range(1, 11), 11, 21, 31]
    assert answers == [Answer(opaque, 0, place) for opaque, place in enumerate(places)]
    assert taken == [40]
    assert len(writes) == 1


async def test_what_the_core_leaves_keeps_its_place(peer: Peer, taken: list[int]) -> None:
    """A send with an empty property is Python's, and the plain one behind it comes behind it."""
    ask = frame(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}, b"", 3)
    peer.writer.write(send(0) + send(1, properties="odd\x01\x02") + send(2) + ask + send(4))
    answers = await peer.answers(5)
    assert sorted(answers) == [Answer(0, 0, 1), Answer(1, 0, 2), Answer(2, 0, 3), Answer(3, 0, 4),
                               Answer(4, 0, 4)]  # fmt: skip
    assert taken == [1]
    peer.writer.write(send(5))
    assert await peer.answers(1) == [Answer(5, 0, 5)]
    assert taken == [1, 1]


async def test_frames_cut_anywhere_are_taken(peer: Peer, taken: list[int]) -> None:
    """The head of a frame may come with the frames before it, and its rest by itself."""
    data = b"".join(send(opaque, body=b"x" * 300) for opaque in range(60))
    step = 257
    for start in range(0, len(data), step):
        peer.writer.write(data[start : start + step])
        await peer.writer.drain()
        await asyncio.sleep(0)
    answers = await peer.answers(60)
    assert answers == [Answer(opaque, 0, opaque + 1) for opaque in range(60)]
    assert sum(taken) == 60


async def test_a_topic_that_changes_is_looked_at_anew(
    peer: Peer, client: RawClient, taken: list[int]
) -> None:
    """With one queue left, a send to the second is refused; a topic made anew begins at 0."""
    peer.writer.write(send(0, queue_id=1))
    assert await peer.answers(1) == [Answer(0, 0, 1)]
    await client.make_topic("T", 1)
    peer.writer.write(send(1, queue_id=1))
    [refused] = await peer.answers(1)
    assert refused.code == ResponseCode.INVALID_PARAMETER
    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    await client.make_topic("T", 2)
    for opaque in range(2, 5):
        peer.writer.write(send(opaque))
        assert await peer.answers(1) == [Answer(opaque, 0, opaque - 2)]
    assert taken == [1, 1, 1]


async def test_a_round_that_cannot_be_written_is_given_back(
    broker: BrokerController, peer: Peer, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each send is refused, nothing of them is there, and the next ones get their places."""
    log = broker.store.commit_log
    end = log.end
    with monkeypatch.context() as patch:
        patch.setattr(commit_log, "write_fully", full)
        peer.writer.write(b"".join(map(send, range(3))))
        answers = await peer.answers(3)
    assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert log.end == end
    assert broker.stats.put_failed == 3
    peer.writer.write(b"".join(map(send, range(3, 6))))
    assert await peer.answers(3) == [Answer(n, 0, n - 2) for n in range(3, 6)]
    assert taken == [3]


@pytest.mark.parametrize("properties", ["", "odd\x01\x02"])
async def test_what_became_of_an_unknown_write_has_no_place(
    broker: BrokerController, peer: Peer, monkeypatch: pytest.MonkeyPatch, properties: str
) -> None:
    """A write that fails and cannot be undone: the core answers as Python does what it leaves."""

    def broken(_self: Segment, _position: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(commit_log, "write_fully", full)
    monkeypatch.setattr(Segment, "cut", broken)
    peer.writer.write(send(1, queue_id=1, properties=properties) + send(2, properties=properties))
    found = [await peer.header() for _ in range(2)]
    assert {header["code"] for header in found} == {ResponseCode.FLUSH_DISK_TIMEOUT}
    plain = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "msgId": "", "queueOffset": "0"}
    fields = {header["opaque"]: header["extFields"] for header in found}
    assert fields == {1: plain | {"queueId": "1"}, 2: plain | {"queueId": "0"}}
    assert broker.stats.put_failed == 2


async def test_what_a_round_has_no_room_for_is_of_the_next(
    peer: Peer, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four messages a call, and no time: all twenty are the core's, and keep their order."""
    monkeypatch.setattr(send_rounds, "_MESSAGES_A_CALL", 4)
    monkeypatch.setattr(send_rounds, "ROUND_S", 0.0)
    peer.writer.write(b"".join(map(send, range(20))))
    assert await peer.answers(20) == [Answer(n, 0, n + 1) for n in range(20)]
    assert taken == [4] * 5


async def test_what_waits_for_the_next_round_counts(
    broker: BrokerController, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is stored; and a peer with more than there is room for is closed."""
    monkeypatch.setattr(send_rounds, "_MESSAGES_A_CALL", 4)
    peer.writer.write(send(0))
    assert await peer.answers(1) == [Answer(0, 0, 1)]
    connections = broker._server._connections
    connection = list(connections)[-1]
    rounds: Any = connection._handler
    rounds = rounds._rounds
    data = b"".join(map(send, range(10, 22)))
    connection.data_received(data)
    for stored in (4, 8, 12):
        rounds.store()
        assert connection.awaited_bytes == len(data) * (12 - stored) // 12
    assert await peer.answers(12) == [Answer(n, 0, n - 8) for n in range(10, 22)]
    connection.data_received(data)
    monkeypatch.setattr(connections.kept, "look_at", 0)
    monkeypatch.setattr(connections.kept, "_limit", 0)
    rounds.store()
    assert connection.is_closed
    assert not rounds.reads


async def test_a_peer_that_stops_sending_gets_all_rounds(
    broker: BrokerController, peer: Peer, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for the next round is answered before the connection ends."""
    monkeypatch.setattr(send_rounds, "_MESSAGES_A_CALL", 4)
    peer.writer.write(send(0))
    assert await peer.answers(1) == [Answer(0, 0, 1)]
    connection = list(broker._server._connections)[-1]
    connection.data_received(b"".join(map(send, range(1, 21))))
    connection.eof_received()
    assert await peer.answers(20) == [Answer(n, 0, n + 1) for n in range(1, 21)]
    assert taken == [1] + [4] * 5


async def test_the_end_of_a_segment_is_one_reads_alone(
    broker: BrokerController, peer: Peer, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three connections one has its sends stored behind the roll, the others by the core."""
    log = broker.store.commit_log
    monkeypatch.setattr(log.segments[-1], "size_bytes", log.end + 20 - log.segments[-1].start)
    streams = [await asyncio.open_connection("127.0.0.1", broker.port) for _ in range(2)]
    peers = [peer, *(Peer(*stream) for stream in streams)]
    connections = list(broker._server._connections)[-3:]
    for number, connection in enumerate(connections):
        connection.data_received(send(number))
    answers = [await one.answers(1) for one in peers]
    assert sorted(answers) == [[Answer(n, 0, n + 1)] for n in range(3)]
    assert taken == [2]
    for _, writer in streams:
        writer.close()


async def test_a_queue_is_known_by_itself(client: RawClient, peer: Peer, taken: list[int]) -> None:
    """One queue of a very wide topic is the core's once a message is in it."""
    await client.make_topic("Wide", 5_000)
    fields = SEND | {"b": "Wide", "e": "4999", "i": "UNIQ_KEY\x01U\x02"}
    for number in range(2):
        peer.writer.write(frame(RequestCode.SEND_MESSAGE_V2, fields, b"x", number))
        assert await peer.answers(1) == [Answer(number, 0, number)]
    assert taken == [1]


async def test_a_binary_header_is_the_cores(client: RawClient, taken: list[int]) -> None:
    """It is answered in the same form; the fields are those of the answer in JSON."""
    for number, code in enumerate([RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE]):
        names = LONG_NAMES if code == RequestCode.SEND_MESSAGE else {}
        fields = SEND | {"i": f"UNIQ_KEY\x01U{number}\x02"}
        fields = {names.get(name, name): value for name, value in fields.items()}
        command = RemotingCommand.request(code, fields, b"x")
        command.serialize_type = SERIALIZE_BINARY
        answer = await client._remoting.request(client.address, command, 20.0)
        assert (answer.code, answer.serialize_type) == (0, SERIALIZE_BINARY)
        assert answer.ext_fields["queueOffset"] == str(number + 1)
    assert taken == [1, 1]


async def test_a_peer_that_stops_sending_is_answered(peer: Peer, taken: list[int]) -> None:
    """What was read before the end of the stream is stored and answered, odd or not."""
    peer.writer.write(send(0) + send(1, properties="odd\x01\x02"))
    peer.writer.write_eof()
    assert sorted(await peer.answers(2)) == [Answer(0, 0, 1), Answer(1, 0, 2)]
    assert taken == [1]
