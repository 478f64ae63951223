"""Tests of mailboat.remoting.connection, against a transport that only takes notes."""

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any

import pytest

from mailboat.errors import ConnectionLostError, PeerBusyError, RequestTimeoutError
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import Frame, FrameDecoder, encode_frame
from mailboat.remoting import complaints, connection_set
from mailboat.remoting.connection import Connection
from mailboat.remoting.connection_set import ConnectionSet
from mailboat.remoting.limits import RemotingLimits
from mailboat.testing.virtual_time import VirtualTime

LIMITS = RemotingLimits()


class NotedTransport(asyncio.Transport):
    """Stands for the operating system: takes bytes, or leaves them when `reads` is off."""

    def __init__(self, peername: Any = ("10.0.0.1", 5000)) -> None:
        """Stand for a socket connected to `peername`."""
        super().__init__({"peername": peername})
        self.written: list[bytes] = []
        self.is_reading_paused = False
        self.is_aborted = False
        self.is_closed = False
        self.unsent = 0
        self.is_stuck = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Take note of the high-water mark."""
        self.high_water = high

    def get_write_buffer_size(self) -> int:
        """Return what was written while the peer was stuck, or what the test says."""
        return self.unsent

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take note of the bytes."""
        self.written.append(bytes(data))
        self.unsent += len(data) if self.is_stuck else 0

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Take note of each piece."""
        for data in list_of_data:
            self.write(data)

    def is_closing(self) -> bool:
        """Whether it was closed either way."""
        return self.is_closed or self.is_aborted

    def close(self) -> None:
        """Take note."""
        self.is_closed = True

    def abort(self) -> None:
        """Take note."""
        self.is_aborted = True
        self.unsent = 0

    def pause_reading(self) -> None:
        """Take note."""
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        """Take note."""
        self.is_reading_paused = False


class NotingHandler:
    """Takes note of what a connection reports."""

    def __init__(self) -> None:
        """Start without notes."""
        self.opened: list[Connection] = []
        self.closed: list[Connection] = []
        self.resumed: list[Connection] = []
        self.frames: list[Frame] = []

    def connection_opened(self, connection: Connection) -> None:
        """Take note."""
        self.opened.append(connection)

    def writing_resumed(self, connection: Connection) -> None:
        """Take note."""
        self.resumed.append(connection)

    def connection_closed(self, connection: Connection) -> None:
        """Take note."""
        self.closed.append(connection)

    def read_received(self, _connection: Connection, _data: bytes) -> bool:
        """Take none."""
        return False

    def reads_ended(self, connection: Connection) -> None:
        """Keep none."""

    def frames_received(self, connection: Connection, frames: list[Frame]) -> None:
        """Take note; responses go where they belong."""
        self.frames += frames
        for frame in frames:
            command = decode_command(frame)
            if command.is_response:
                connection.response_received(command)


def new_set(limits: RemotingLimits = LIMITS, capacity: int | None = None) -> ConnectionSet:
    """Return an empty set of connections of a server called "test"."""
    return ConnectionSet(limits, name="test", capacity=capacity, expects_frames=True)


def connect(
    owner: ConnectionSet, peername: Any = ("10.0.0.1", 5000)
) -> tuple[Connection, NotedTransport, NotingHandler]:
    """Open a connection of `owner`."""
    handler = NotingHandler()
    connection = Connection(handler, owner)
    transport = NotedTransport(peername)
    connection.connection_made(transport)
    return connection, transport, handler


def sweep(connection: Connection, after_s: float, *, expects_frames: bool = True) -> None:
    """Let a connection be looked at some seconds from now."""
    connection.sweep(time.monotonic() + after_s, LIMITS, expects_frames=expects_frames)


FRAME = encode_frame(0, b'{"code":1}')


@pytest.mark.parametrize(
    ("peername", "peer", "host"),
    [
        (("10.0.0.1", 5000), "10.0.0.1:5000", "0a00000100001388"),
        (("::1", 80, 0, 0), "[::1]:80", "00" * 15 + "01" + "00000050"),
        (("::ffff:10.0.0.1", 80, 0, 0), "10.0.0.1:80", "0a00000100000050"),
        (("fe80::1%eth0", 80, 0, 2), "[fe80::1]:80", "fe80" + "00" * 13 + "01" + "00000050"),
    ],
)
async def test_peer_is_text_and_stored_host(peername: Any, peer: str, host: str) -> None:
    """The peer's address is there for people and as records store it."""
    connection, transport, handler = connect(new_set(), peername)
    assert (peer, host) == (connection.peer, connection.peer_host.hex())
    assert [connection] == handler.opened
    assert LIMITS.write_high_water_bytes == transport.high_water


async def test_peer_that_left_before_it_was_accepted_is_no_connection() -> None:
    """A socket without a peer is dropped and nobody hears of it."""
    owner = new_set()
    connection, transport, handler = connect(owner, None)
    assert transport.is_aborted
    connection.connection_lost(None)
    assert ([], [], 0) == (handler.opened, handler.closed, len(owner))


async def test_connection_beyond_the_limit_is_closed() -> None:
    """The limit closes the newcomer and nobody else; a place that gets free is given again."""
    owner = new_set(capacity=1)
    first, first_transport, _ = connect(owner)
    second, second_transport, second_handler = connect(owner)
    second.connection_lost(None)
    assert (False, True) == (first_transport.is_aborted, second_transport.is_aborted)
    assert ([], [], 1) == (second_handler.opened, second_handler.closed, len(owner))
    first.connection_lost(None)
    third, _, third_handler = connect(owner)
    assert [third] == third_handler.opened


async def test_frames_of_one_read_come_together() -> None:
    """The handler gets all frames of a read at once."""
    connection, _, handler = connect(new_set())
    connection.data_received(FRAME + FRAME + FRAME[:5])
    assert [(0, b'{"code":1}', b"")] * 2 == handler.frames
    connection.data_received(FRAME[5:])
    assert 3 == len(handler.frames)


async def test_silent_newcomer_is_dropped() -> None:
    """A peer has ten seconds to its first whole frame."""
    connection, transport, _ = connect(new_set())
    connection.data_received(FRAME[:-1])
    sweep(connection, 9.9)
    assert not transport.is_aborted
    sweep(connection, 10.1)
    assert transport.is_aborted


async def test_our_own_connection_may_stay_silent() -> None:
    """A client does not expect requests from a server."""
    connection, transport, _ = connect(new_set())
    sweep(connection, 11, expects_frames=False)
    assert not transport.is_aborted


async def test_peers_do_not_pay_for_our_own_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time in which this process stood still counts against nobody, time after it does."""
    clock = VirtualTime()
    monkeypatch.setattr(connection_set, "time", clock)
    owner = new_set()
    _, transport, _ = connect(owner)
    clock.advance(60)
    owner._sweep()
    assert not transport.is_aborted
    for _ in range(11):
        clock.advance(1)
        owner._sweep()
    assert transport.is_aborted


async def test_every_connection_of_many_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of connections are looked at in slices, none is left out."""
    clock = VirtualTime()
    monkeypatch.setattr(connection_set, "time", clock)
    owner = new_set()
    transports = [connect(owner, ("10.0.0.1", port))[1] for port in range(1201)]
    clock.advance(11)
    owner._sweep_due_s = clock.monotonic()
    aborted = []
    for _ in range(3):
        owner._sweep()
        aborted.append(sum(transport.is_aborted for transport in transports))
    assert [500, 1000, 1201] == aborted


async def test_frame_must_be_finished_in_thirty_seconds() -> None:
    """A frame that trickles in is dropped although bytes keep coming."""
    connection, transport, _ = connect(new_set())
    connection.data_received(FRAME + FRAME[:3])
    for second in range(30):
        sweep(connection, second)
        connection.data_received(FRAME[3 + second % 5 : 4 + second % 5] if second < 5 else b"")
    assert not transport.is_aborted
    sweep(connection, 30.1)
    assert transport.is_aborted


async def test_finished_frames_restart_the_clock() -> None:
    """A busy peer whose reads always end in the middle of a frame is left alone."""
    connection, transport, _ = connect(new_set())
    connection.data_received(FRAME + FRAME[:3])
    for second in range(0, 300, 20):
        sweep(connection, second)
        connection.data_received(FRAME[3:] + FRAME[:3])
    assert not transport.is_aborted


@pytest.mark.parametrize("activity", ["read", "write"])
async def test_idle_connection_is_closed_after_two_minutes(activity: str) -> None:
    """Reads and writes both keep a connection alive; without either it is closed."""
    connection, transport, _ = connect(new_set())
    connection.data_received(FRAME)
    for second in (0, 100, 200):
        sweep(connection, second)
        if activity == "read":
            connection.data_received(FRAME)
        else:
            connection.write(b"x")
    sweep(connection, 300)
    sweep(connection, 419)
    assert not transport.is_aborted
    sweep(connection, 420.1)
    assert transport.is_aborted


async def test_peer_that_does_not_read_is_dropped_after_ten_seconds() -> None:
    """Above the high-water mark nothing more is read, and after ten seconds it is over."""
    connection, transport, _ = connect(new_set())
    connection.data_received(FRAME)
    connection.pause_writing()
    assert (True, True) == (connection.is_write_paused, transport.is_reading_paused)
    sweep(connection, 9.9)
    assert not transport.is_aborted
    sweep(connection, 10.1)
    assert transport.is_aborted


async def test_slow_reader_goes_on_when_it_has_read() -> None:
    """Frames that were put back come again, in order, before new ones are read."""
    connection, transport, handler = connect(new_set())
    connection.pause_writing()
    connection.postpone([(0, b'{"code":1}', b"")])
    connection.postpone([(0, b'{"code":2}', b"")])
    connection.data_received(encode_frame(0, b'{"code":3}'))  # read before the pause took effect
    assert [] == handler.frames
    connection.resume_writing()
    assert [b'{"code":1}', b'{"code":2}', b'{"code":3}'] == [frame[1] for frame in handler.frames]
    assert (False, False) == (connection.is_write_paused, transport.is_reading_paused)
    assert [connection] == handler.resumed
    sweep(connection, 11)
    assert not transport.is_aborted


def stuck(
    owner: ConnectionSet, host: str, unsent: int, *, stale: bool = False
) -> tuple[Connection, NotedTransport]:
    """Connect a peer that reads nothing of what is written to it."""
    connection, transport, _ = connect(owner, (host, 5000))
    transport.is_stuck = True
    connection.write(bytes(unsent))
    if stale:
        sweep(connection, 0)
        sweep(connection, 1)
    return connection, transport


async def test_largest_peer_pays_for_short_memory(caplog: pytest.LogCaptureFixture) -> None:
    """What all keep together has a budget; nothing above it is ever written."""
    owner = new_set(RemotingLimits(unsent_budget_bytes=1000))
    peers = [stuck(owner, "10.0.0.1", size) for size in (300, 400, 250)]
    assert owner.kept.look() == 950
    connection, transport = stuck(owner, "10.0.0.1", 40)
    assert [False, True, False] == [transport.is_aborted for _, transport in peers]
    assert (590, 40, False) == (owner.kept.look(), transport.unsent, transport.is_aborted)
    connection.write(bytes(600))
    assert (550, True) == (owner.kept.look(), transport.is_aborted)
    assert "400 bytes of answers that it does not read" in caplog.records[0].getMessage()
    assert "more than 985 for all (unsentBudgetBytes=1000)" in caplog.records[0].getMessage()


async def test_the_address_that_keeps_most_pays(caplog: pytest.LogCaptureFixture) -> None:
    """Many small ones of one address do not cost another its large answer."""
    owner = new_set(RemotingLimits(unsent_budget_bytes=1000))
    many = [stuck(owner, "10.0.0.1", 100)[1] for _ in range(6)]
    _, large = stuck(owner, "10.0.0.2", 500)
    assert (2, False) == (sum(transport.is_aborted for transport in many), large.is_aborted)


async def test_what_does_not_move_goes_first() -> None:
    """Of one address, whoever has not read for a second pays before a large answer on its way."""
    owner = new_set(RemotingLimits(unsent_budget_bytes=1000))
    old = [stuck(owner, "10.0.0.1", 300, stale=True)[1] for _ in range(2)]
    moving, moved = stuck(owner, "10.0.0.1", 100)
    for _ in range(2):
        sweep(moving, 1)
        moved.unsent = 0
        moving.write(bytes(100))
    _, large = stuck(owner, "10.0.0.1", 500)
    assert [True, False] == [transport.is_aborted for transport in old]
    assert (False, False) == (moved.is_aborted, large.is_aborted)


async def test_peer_that_is_gone_is_not_blamed() -> None:
    """What was kept for a connection that was lost counts no more."""
    owner = new_set(RemotingLimits(unsent_budget_bytes=1000))
    gone, _ = stuck(owner, "10.0.0.1", 900)
    gone.connection_lost(None)
    _, transport = stuck(owner, "10.0.0.2", 900)
    assert not transport.is_aborted


async def test_unfinished_frames_count() -> None:
    """The part of a frame that has arrived is kept for its peer and has the same budget."""
    owner = new_set(RemotingLimits(unsent_budget_bytes=100_000))
    frame = RemotingCommand.request(10, body=bytes(80_000)).encode()
    first, first_transport, _ = connect(owner)
    first.data_received(frame[:60_000])
    second, second_transport, _ = connect(owner)
    second.data_received(frame[:30_000])
    assert 90_000 == owner.kept.look()
    second.data_received(frame[30_000:40_000])
    assert (True, False) == (first_transport.is_aborted, second_transport.is_aborted)
    assert 40_000 == owner.kept.look()
    second.data_received(frame[40_000:])
    assert (0, False) == (owner.kept.look(), second_transport.is_aborted)


async def test_others_have_a_turn_between_full_reads() -> None:
    """The loop reads such a peer again and again before it looks at anybody else."""
    connection, transport, handler = connect(new_set())
    full = FRAME * (256_000 // len(FRAME) + 1)
    for size in (len(full), len(FRAME) * 2):
        handler.frames.clear()
        connection.data_received(full[:size])
        is_full = size == len(full)
        assert transport.is_reading_paused == is_full
        await asyncio.sleep(0)
        assert len(handler.frames) == size // len(FRAME)
        assert not transport.is_reading_paused
    connection.connection_lost(None)


async def test_frames_put_back_count() -> None:
    """So do requests that wait until their peer reads."""
    owner = new_set(RemotingLimits(unsent_budget_bytes=1000))
    connection, _, _ = connect(owner)
    connection.pause_writing()
    connection.postpone([(0, b"h" * 10, b"b" * 90)])
    connection.postpone([(0, b"h" * 10, b"b" * 40)])
    assert 150 == owner.kept.look()
    connection.keep(50)
    assert 200 == owner.kept.look()
    connection.release(50)
    connection.data_received(b"")
    assert 150 == owner.kept.look()


async def test_answers_that_can_wait_find_no_room_above_half() -> None:
    """What is pulled waits while half of the budget is in use, by those who use the most of it."""
    owner = new_set(RemotingLimits(unsent_budget_bytes=1000))
    connection, _, _ = connect(owner)
    assert connection.has_room()
    _, transport = stuck(owner, "10.0.0.1", 600)
    other, _, _ = connect(owner, ("10.0.0.2", 5000))
    assert (False, True) == (connection.has_room(), other.has_room())
    reader, _, _ = connect(owner)
    reader.write(b"read at once")
    assert reader.has_room()
    _, more = stuck(owner, "10.0.0.1", 200)
    await asyncio.sleep(0.01)
    assert (False, True) == (reader.has_room(), other.has_room())
    transport.unsent = more.unsent = 100
    await asyncio.sleep(0.01)
    assert connection.has_room()
    connection.pause_writing()
    assert not connection.has_room()


async def test_bytes_that_do_not_move_make_room_for_others() -> None:
    """Above half of the budget a peer that has read nothing since the last sweep is closed."""
    owner = new_set(RemotingLimits(unsent_budget_bytes=1000))
    peers = [stuck(owner, "10.0.0.1", size) for size in (200, 150, 150, 100)]
    for _ in range(2):
        assert not any(transport.is_aborted for _, transport in peers)
        owner._sweep()
    assert [True, False, False, False] == [transport.is_aborted for _, transport in peers]
    owner._sweep()
    assert [True, False, False, False] == [transport.is_aborted for _, transport in peers]


async def test_our_own_client_may_send_what_it_wants() -> None:
    """The budget is a server's."""
    limits = RemotingLimits(unsent_budget_bytes=1000)
    owner = ConnectionSet(limits, name="test", capacity=None, expects_frames=False)
    _, transport = stuck(owner, "10.0.0.1", 2000)
    assert not transport.is_aborted


async def test_peers_that_do_not_listen_are_asked_nothing() -> None:
    """A server sends no request to a peer that reads or answers too little of the earlier ones."""
    connection, transport, _ = connect(new_set(RemotingLimits(max_unanswered=2)))
    asked = [
        asyncio.create_task(connection.request(RemotingCommand.request(307), 5)) for _ in range(3)
    ]
    await asyncio.sleep(0)
    with pytest.raises(PeerBusyError, match="has 2 requests to answer first"):
        await asked[2]
    for request in sent(transport):
        connection.data_received(request.response(0).encode())
    assert [0, 0] == [(await request).code for request in asked[:2]]
    connection.pause_writing()
    with pytest.raises(PeerBusyError, match="5000 does not read"):
        await connection.request(RemotingCommand.request(307), 5)
    assert 2 == len(sent(transport))


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, b"\0\0\0\4\0\0\0\xff", FRAME + b"\xff" * 8],
)
async def test_malformed_input_closes_with_one_log_line(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Garbage ends the connection; a peer that repeats it does not fill the log."""
    owner = new_set()
    with caplog.at_level(logging.DEBUG):
        for port in range(5):
            connection, transport, _ = connect(owner, ("10.0.0.1", port))
            connection.data_received(data)
            assert transport.is_closing()
            connection.data_received(FRAME)  # too late
            connection.connection_lost(None)
        connection, _, _ = connect(owner, ("10.0.0.2", 1))
        connection.data_received(data)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert ["peer=10.0.0.1:0", "peer=10.0.0.2:1"] == [line.split()[3] for line in lines]
    assert all("malformed input" in line for line in lines)
    assert all(record.exc_info is None for record in caplog.records)


async def test_suppressed_complaints_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next line about a peer says how many were left out."""
    clock = VirtualTime()
    monkeypatch.setattr(complaints, "time", clock)
    owner = new_set()
    connection, _, _ = connect(owner)
    for _ in range(4):
        owner.complaints.complain(connection.peer, "nonsense")
    clock.advance(61)
    owner.complaints.complain(connection.peer, "nonsense")
    assert ["suppressed=0", "suppressed=3"] == [
        record.getMessage().split()[-2].rstrip(":") for record in caplog.records
    ]


async def test_tls_hello_is_closed_quietly(caplog: pytest.LogCaptureFixture) -> None:
    """A client that tries TLS first and plain afterwards leaves no warning."""
    connection, transport, _ = connect(new_set())
    with caplog.at_level(logging.INFO):
        connection.data_received(bytes.fromhex("16030100c5010000c10303"))
    assert transport.is_closed
    assert [] == caplog.records


def sent(transport: NotedTransport) -> list[RemotingCommand]:
    """Return the commands that were written."""
    decoder = FrameDecoder()
    return [decode_command(frame) for data in transport.written for frame in decoder.feed(data)]


async def test_responses_find_their_requests_in_any_order() -> None:
    """Each request gets the response with its opaque; the others go on waiting."""
    connection, transport, _ = connect(new_set())
    first = asyncio.create_task(connection.request(RemotingCommand.request(40), 5))
    second = asyncio.create_task(connection.request(RemotingCommand.request(220), 5))
    await asyncio.sleep(0)
    requests = sent(transport)
    assert 2 == len({request.opaque for request in requests})
    connection.data_received(requests[1].response(0, "second").encode())
    assert "second" == (await second).remark
    assert not first.done()
    connection.data_received(requests[0].response(1, "first").encode())
    assert (1, "first") == ((await first).code, (await first).remark)


async def test_late_and_unknown_responses_are_counted_and_dropped() -> None:
    """A response that nobody waits for disturbs nobody."""
    connection, transport, _ = connect(new_set())
    with pytest.raises(RequestTimeoutError, match="did not answer GET_CONSUMER_RUNNING_INFO"):
        await connection.request(RemotingCommand.request(307), 0.01)
    (request,) = sent(transport)
    connection.data_received(request.response(0).encode())
    connection.data_received(RemotingCommand(0, opaque=12345, flag=1).encode())
    assert 2 == connection.unknown_responses
    assert not transport.is_closing()


async def test_response_that_meets_a_cancelled_request_is_dropped() -> None:
    """A response that arrives in the same moment as the caller gives up harms nothing."""
    connection, transport, _ = connect(new_set())
    waiting = asyncio.create_task(connection.request(RemotingCommand.request(307), 5))
    await asyncio.sleep(0)
    (request,) = sent(transport)
    waiting.cancel()
    connection.data_received(request.response(0).encode())
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert 1 == connection.unknown_responses


async def test_requests_fail_when_the_connection_is_lost() -> None:
    """Whoever waits learns that the outcome is unknown; later requests are refused."""
    owner = new_set()
    connection, _, handler = connect(owner)
    waiting = asyncio.create_task(connection.request(RemotingCommand.request(307), 5))
    await asyncio.sleep(0)
    connection.connection_lost(ConnectionResetError())
    with pytest.raises(ConnectionLostError, match=r"10\.0\.0\.1:5000 closed the connection"):
        await waiting
    with pytest.raises(ConnectionLostError):
        await connection.request(RemotingCommand.request(307), 5)
    assert ([connection], True, 0) == (handler.closed, connection.is_closed, len(owner))


async def test_writing_to_a_closed_connection_is_silent() -> None:
    """A push to a peer that just left is nobody's error."""
    connection, transport, _ = connect(new_set())
    connection.send_oneway(RemotingCommand.request(40, oneway=True))
    connection.close()
    connection.write(b"x")
    connection.send_oneway(RemotingCommand.request(40, oneway=True))
    connection.connection_lost(None)
    connection.write(b"x")
    connection.close()
    connection.abort()
    assert 1 == len(transport.written)


async def test_opaque_stays_an_int32() -> None:
    """After two billion requests the numbers start again."""
    connection, transport, _ = connect(new_set())
    connection._next_opaque = 2**31 - 2
    for _ in range(2):
        connection.send_oneway(RemotingCommand.request(40))
    assert [(2**31 - 1, True), (0, True)] == [
        (command.opaque, command.is_oneway) for command in sent(transport)
    ]


async def test_few_pieces_leave_as_they_are_and_many_joined() -> None:
    """A large piece is not copied; all pieces count as written, and none is to a closed peer."""
    connection, transport, _ = connect(owner := new_set())
    connection.write_pieces([b"head", b"body"])
    assert transport.written == [b"head", b"body"]
    connection.write_pieces([b"1", b"2", b"3", b"4", b"5"])
    assert transport.written[2:] == [b"12345"]
    assert owner.kept.at_most == len(b"headbody12345")
    connection.close()
    connection.write_pieces([b"late", b"r"])
    assert len(transport.written) == 3


class PythonsTransport(NotedTransport):
    """One of Python's own, as far as can be seen."""

    __module__ = "asyncio.selector_events"

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send an empty piece for ever, and never pause."""
        raise AssertionError(list(list_of_data))


async def test_pythons_own_transport_gets_one_piece() -> None:
    """From 3.12 on its `writelines` is of no use."""
    transport = PythonsTransport()
    connection = Connection(NotingHandler(), new_set())
    connection.connection_made(transport)
    connection.write_pieces([b"head", b""])
    connection.write_pieces([b"head", b"body"])
    assert transport.written == [b"head", b"headbody"]
