"""Tests of mailboat.remoting.dispatcher."""

import asyncio
import logging

import pytest

import mailboat.remoting.dispatcher as dispatcher_module
from mailboat.errors import BrokerError, DiskFullError, IllegalMessageError, RemoteProtocolError
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import Frame, FrameDecoder
from mailboat.remoting.connection import Connection
from mailboat.remoting.connection_set import ConnectionSet
from mailboat.remoting.dispatcher import LISTINGS_PER_CONNECTION, Answer, Dispatcher, Lane
from mailboat.remoting.limits import RemotingLimits
from mailboat.remoting.turns import SERVER, Asker, asker


class NotedTransport(asyncio.Transport):
    """Takes note of what is written, and pauses the writer when told to."""

    def __init__(self, host: str = "10.0.0.1") -> None:
        """Stand for a connected socket."""
        super().__init__({"peername": (host, 5000)})
        self.written: list[bytes] = []
        self.connection: Connection | None = None
        self.pause_at_write = 0
        self.is_closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the mark."""

    def get_write_buffer_size(self) -> int:
        """Nothing is unsent."""
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take note of the bytes."""
        self.written.append(bytes(data))
        if len(self.written) == self.pause_at_write and self.connection is not None:
            self.connection.pause_writing()

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.is_closed

    def close(self) -> None:
        """Take note."""
        self.is_closed = True

    def abort(self) -> None:
        """Take note."""
        self.is_closed = True

    def pause_reading(self) -> None:
        """Ignore it."""

    def resume_reading(self) -> None:
        """Ignore it."""


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine does not split the requests of one read over several rounds here."""
    monkeypatch.setattr(dispatcher_module, "ROUND_S", 60.0)


def connect(
    dispatcher: Dispatcher, limits: RemotingLimits | None = None, host: str = "10.0.0.1"
) -> tuple[Connection, NotedTransport]:
    """Open a connection that the dispatcher serves."""
    owner = ConnectionSet(
        limits or RemotingLimits(), name="test", capacity=None, expects_frames=True
    )
    connection = Connection(dispatcher, owner)
    transport = NotedTransport(host)
    transport.connection = connection
    connection.connection_made(transport)
    return connection, transport


def answers(transport: NotedTransport) -> list[RemotingCommand]:
    """Return the commands that were written."""
    decoder = FrameDecoder()
    return [decode_command(frame) for data in transport.written for frame in decoder.feed(data)]


def request(code: int, opaque: int = 1, *, oneway: bool = False, body: bytes = b"") -> bytes:
    """Return the frame of a request."""
    return RemotingCommand(code, opaque=opaque, flag=2 if oneway else 0, body=body).encode()


def echo(_: Connection, command: RemotingCommand) -> Answer:
    """Answer with the request's body."""
    return command.response(0, body=command.body)


async def test_answers_of_one_read_leave_with_one_write() -> None:
    """Requests are answered in order with a single write."""
    dispatcher = Dispatcher()
    dispatcher.register(1000, echo)
    connection, transport = connect(dispatcher)
    connection.data_received(b"".join(request(1000, n, body=b"%d" % n) for n in range(5)))
    assert 1 == len(transport.written)
    assert [(n, b"%d" % n) for n in range(5)] == [(a.opaque, a.body) for a in answers(transport)]


async def test_unknown_code_is_answered_with_code_3() -> None:
    """RocketMQ's own words, in the form of the request."""
    connection, transport = connect(Dispatcher())
    connection.data_received(RemotingCommand(4711, opaque=7, serialize_type=1).encode())
    (answer,) = answers(transport)
    assert (3, " request type 4711 not supported", 7, 1) == (
        answer.code,
        answer.remark,
        answer.opaque,
        answer.serialize_type,
    )


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (BrokerError(17, "no topic"), 17, "no topic"),
        (IllegalMessageError("too long"), 13, "too long"),
        (RemoteProtocolError("bad body"), 1, "bad body"),
        (DiskFullError("no room"), 1, "no room"),
        (KeyError("x"), 1, "internal error: KeyError: 'x'"),
    ],
)
@pytest.mark.parametrize("later", [False, True])
async def test_errors_become_answers_and_others_go_on(
    error: Exception, code: int, remark: str, later: bool
) -> None:
    """What a processor raises reaches the peer as one sentence; the next request is served."""

    def fail(_: Connection, command: RemotingCommand) -> Answer:
        raise error

    async def fail_later(_: Connection, command: RemotingCommand) -> Answer:
        raise error

    dispatcher = Dispatcher()
    dispatcher.register(1000, fail_later if later else fail)
    dispatcher.register(1001, echo)
    connection, transport = connect(dispatcher)
    connection.data_received(request(1000, 1) + request(1001, 2))
    await dispatcher.drain(5)
    by_opaque = {answer.opaque: answer for answer in answers(transport)}
    assert (code, remark) == (by_opaque[1].code, by_opaque[1].remark)
    assert 0 == by_opaque[2].code


async def test_only_errors_of_ours_are_logged_with_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A peer's mistakes leave no log line, a failing disk one, a bug one with its traceback."""

    def fail(_: Connection, command: RemotingCommand) -> Answer:
        raise [BrokerError(1, ""), RemoteProtocolError(""), DiskFullError(""), KeyError("")][
            command.opaque
        ]

    dispatcher = Dispatcher()
    dispatcher.register(1000, fail)
    connection, _ = connect(dispatcher)
    connection.data_received(b"".join(request(1000, n) for n in range(4)))
    assert [("WARNING", False), ("ERROR", True)] == [
        (record.levelname, record.exc_info is not None) for record in caplog.records
    ]
    assert logging.getLogger("mailboat.remoting.dispatcher").name == caplog.records[0].name


async def test_oneway_requests_are_never_answered() -> None:
    """Neither a result nor an error nor an unknown code is answered."""

    def fail(_: Connection, command: RemotingCommand) -> Answer:
        raise BrokerError(1, "no")

    async def echo_later(connection: Connection, command: RemotingCommand) -> Answer:
        return echo(connection, command)

    dispatcher = Dispatcher()
    dispatcher.register(1000, echo)
    dispatcher.register(1001, fail)
    dispatcher.register(1002, echo_later)
    connection, transport = connect(dispatcher)
    connection.data_received(b"".join(request(code, oneway=True) for code in range(1000, 1004)))
    await dispatcher.drain(5)
    assert [] == transport.written


async def test_processor_may_answer_later_by_itself() -> None:
    """None means: no answer now."""
    held: list[tuple[Connection, RemotingCommand]] = []

    def hold(connection: Connection, command: RemotingCommand) -> Answer:
        held.append((connection, command))
        return None

    dispatcher = Dispatcher()
    dispatcher.register(1000, hold)
    connection, transport = connect(dispatcher)
    connection.data_received(request(1000, 9))
    assert [] == transport.written
    held[0][0].write(held[0][1].response(19).encode())
    assert [(19, 9)] == [(answer.code, answer.opaque) for answer in answers(transport)]


async def test_slow_requests_do_not_hold_up_others() -> None:
    """An awaited request is answered when it is done, later ones before it."""
    released = asyncio.Event()

    async def slow(_: Connection, command: RemotingCommand) -> Answer:
        await released.wait()
        return command.response(0)

    dispatcher = Dispatcher()
    dispatcher.register(1000, slow)
    dispatcher.register(1001, echo)
    connection, transport = connect(dispatcher)
    connection.data_received(request(1000, 1) + request(1001, 2))
    assert [2] == [answer.opaque for answer in answers(transport)]
    released.set()
    await dispatcher.drain(5)
    assert [2, 1] == [answer.opaque for answer in answers(transport)]


async def test_too_many_awaited_requests_are_refused() -> None:
    """Above the limit the answer is SYSTEM_BUSY, which clients retry elsewhere."""
    released = asyncio.Event()

    async def slow(_: Connection, command: RemotingCommand) -> Answer:
        await released.wait()
        return command.response(0)

    dispatcher = Dispatcher(max_in_flight=2)
    dispatcher.register(1000, slow)
    connection, transport = connect(dispatcher)
    connection.data_received(b"".join(request(1000, n) for n in range(3)))
    (refusal,) = answers(transport)
    assert (2, 2) == (refusal.code, refusal.opaque)
    assert refusal.remark is not None
    assert refusal.remark.startswith("[OVERLOAD]")
    released.set()
    await dispatcher.drain(5)
    assert [2, 0, 1] == [answer.opaque for answer in answers(transport)]


async def test_requests_of_one_lane_do_not_keep_others_waiting() -> None:
    """What waits for other clients has limits of its own, and each connection has its share."""
    released = asyncio.Event()

    async def slow(_: Connection, command: RemotingCommand) -> Answer:
        await released.wait()
        return command.response(0)

    dispatcher = Dispatcher(max_in_flight=3, max_per_connection=2)
    for code, lane in ((1000, Lane.COMMON), (1001, Lane.MEMBER), (1002, Lane.RELAY)):
        dispatcher.register(code, slow, lane)
    first, first_transport = connect(dispatcher)
    second, second_transport = connect(dispatcher)
    for code in (1000, 1001, 1002):
        first.data_received(b"".join(request(code, n) for n in range(3)))
        second.data_received(b"".join(request(code, n) for n in range(2)))
    assert [(answer.code, answer.opaque, answer.remark) for answer in answers(first_transport)] == [
        (2, 2, f"[OVERLOAD]2 {name} of this connection are in progress, try again later")
        for name in ("requests", "locks, offsets and heartbeats", "relayed requests")
    ]
    # Three of each lane are awaited by now, and four of the one that may have more.
    assert [
        (answer.code, answer.opaque, answer.remark) for answer in answers(second_transport)
    ] == [
        (2, 1, f"[OVERLOAD]3 {name} are in progress, try again later")
        for name in ("requests", "locks, offsets and heartbeats")
    ]
    released.set()
    await dispatcher.drain(5)
    second.data_received(request(1000, 7))
    await dispatcher.drain(5)
    assert answers(second_transport)[-1].opaque == 7


async def test_awaited_requests_are_kept_for_their_peer() -> None:
    """Their bytes count while they are awaited, and no longer; beyond the budget it is closed."""
    released = asyncio.Event()

    async def slow(_: Connection, command: RemotingCommand) -> Answer:
        await released.wait()
        return command.response(0)

    dispatcher = Dispatcher()
    dispatcher.register(1000, slow)
    connection, transport = connect(dispatcher, RemotingLimits(unsent_budget_bytes=1000))
    connection.data_received(request(1000, 1, body=bytes(400)))
    assert connection.kept_bytes() == 400
    released.set()
    await dispatcher.drain(5)
    await asyncio.sleep(0)
    assert (connection.kept_bytes(), len(answers(transport))) == (0, 1)
    released.clear()
    for number in range(3):
        connection.data_received(request(1000, number, body=bytes(400)))
    assert transport.is_closed
    await dispatcher.drain(0.01)


async def test_drain_ends_requests_that_take_too_long() -> None:
    """Shutting down does not wait for ever."""

    async def forever(_: Connection, command: RemotingCommand) -> Answer:
        await asyncio.Event().wait()
        return None

    dispatcher = Dispatcher()
    dispatcher.register(1000, forever)
    connection, transport = connect(dispatcher)
    connection.data_received(request(1000))
    await dispatcher.drain(0.01)
    await dispatcher.drain(0.01)
    assert [] == transport.written


@pytest.mark.parametrize("later", [False, True])
async def test_a_request_is_answered_when_what_it_waits_for_is_cancelled(later: bool) -> None:
    """Somebody else's cancellation is no reason to leave a peer without an answer."""
    shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    shared.cancel()

    def read(_: Connection, command: RemotingCommand) -> Answer:
        shared.result()
        return command.response(0)

    async def read_later(_: Connection, command: RemotingCommand) -> Answer:
        await shared
        return command.response(0)

    dispatcher = Dispatcher()
    dispatcher.register(12, read_later if later else read)
    dispatcher.register(1001, echo)
    connection, transport = connect(dispatcher)
    connection.data_received(request(12, 1) + request(1001, 2))
    await dispatcher.drain(5)
    by_opaque = {answer.opaque: answer for answer in answers(transport)}
    assert (1, by_opaque[1].remark) == (
        by_opaque[1].code,
        "what the request QUERY_MESSAGE waited for was cancelled; its outcome is open, try again",
    )
    assert 0 == by_opaque[2].code
    assert not transport.is_closed


async def test_unreadable_header_closes_after_the_answers_before_it() -> None:
    """Frames before a broken header are served, the connection is then closed."""
    dispatcher = Dispatcher()
    dispatcher.register(1000, echo)
    connection, transport = connect(dispatcher)
    broken = bytes.fromhex("0000000800000004") + b"nope"
    connection.data_received(request(1000, 1) + broken + request(1000, 2))
    assert [1] == [answer.opaque for answer in answers(transport)]
    assert transport.is_closed


async def test_peer_that_does_not_read_is_not_served_further() -> None:
    """Many requests of one read do not pile up answers for a peer that reads none."""
    dispatcher = Dispatcher()
    dispatcher.register(1000, echo)
    connection, transport = connect(dispatcher, RemotingLimits(write_high_water_bytes=1000))
    transport.pause_at_write = 1
    connection.data_received(b"".join(request(1000, n, body=bytes(400)) for n in range(20)))
    served = len(answers(transport))
    assert served < 5
    transport.pause_at_write = 0
    connection.resume_writing()
    assert list(range(20)) == [answer.opaque for answer in answers(transport)]


async def test_peer_that_was_slow_to_read_its_last_answer_is_served_further() -> None:
    """One large answer that nothing else waits behind stops nothing that comes after it."""
    dispatcher = Dispatcher()
    dispatcher.register(1000, echo)
    connection, transport = connect(dispatcher, RemotingLimits(write_high_water_bytes=1000))
    transport.pause_at_write = 1
    connection.data_received(request(1000, 0, body=bytes(2000)))
    assert connection.is_write_paused
    connection.resume_writing()
    connection.data_received(request(1000, 1))
    assert [0, 1] == [answer.opaque for answer in answers(transport)]


async def test_answer_that_fits_no_frame_becomes_an_error() -> None:
    """An answer beyond 16 MiB is an error for its peer, not a broken connection."""

    def huge(_: Connection, command: RemotingCommand) -> Answer:
        return command.response(0, body=bytes(16_777_216))

    dispatcher = Dispatcher()
    dispatcher.register(1000, huge)
    connection, transport = connect(dispatcher)
    connection.data_received(request(1000, 5))
    (answer,) = answers(transport)
    assert (1, 5) == (answer.code, answer.opaque)
    assert "the limit is 16777216 bytes" in (answer.remark or "")


async def test_listeners_hear_of_closed_connections() -> None:
    """Group membership ends with the connection."""
    gone: list[Connection] = []
    dispatcher = Dispatcher()
    dispatcher.on_connection_closed.append(gone.append)
    connection, _ = connect(dispatcher)
    connection.connection_lost(None)
    assert [connection] == gone


def test_code_has_one_processor() -> None:
    """Registering a code twice is a mistake of ours."""
    dispatcher = Dispatcher()
    dispatcher.register(310, echo)
    with pytest.raises(ValueError, match="SEND_MESSAGE_V2 already has a processor"):
        dispatcher.register(310, echo)


async def test_response_frames_reach_the_waiting_request() -> None:
    """A response is not taken for a request, whatever its code."""
    dispatcher = Dispatcher()
    dispatcher.register(10, echo)
    connection, transport = connect(dispatcher)
    waiting = asyncio.create_task(connection.request(RemotingCommand.request(307), 5))
    await asyncio.sleep(0)
    (sent,) = answers(transport)
    frames: list[Frame] = FrameDecoder().feed(sent.response(10, "x").encode())
    dispatcher.frames_received(connection, frames)
    assert 10 == (await waiting).code
    assert 1 == len(transport.written)


async def test_what_is_awaited_knows_who_asks() -> None:
    """Turns go round by address and connection; the loop's other tasks work for nobody."""
    dispatcher = Dispatcher()
    askers: list[Asker] = []

    async def note(_: Connection, command: RemotingCommand) -> Answer:
        askers.append(asker.get())
        return command.response(0)

    dispatcher.register(1000, note)
    connection, _ = connect(dispatcher)
    connection.data_received(request(1000))
    await dispatcher.drain(10)
    assert askers == [Asker("10.0.0.1", connection)]
    assert asker.get() == SERVER


async def test_lists_of_one_address_are_made_some_at_a_time() -> None:
    """Each takes memory until it is sent. Other addresses, and other requests, do not wait; what a
    connection has asked for that is closed meanwhile is not made at all."""
    gate = asyncio.Event()
    begun: list[int] = []

    async def listing(_: Connection, command: RemotingCommand) -> Answer:
        begun.append(command.opaque)
        await gate.wait()
        return command.response(0)

    dispatcher = Dispatcher()
    dispatcher.register(1000, listing, Lane.LISTING)
    dispatcher.register(1001, echo)
    first, first_transport = connect(dispatcher)
    second, _ = connect(dispatcher)
    third, _ = connect(dispatcher)
    other, _ = connect(dispatcher, host="10.0.0.2")
    first.data_received(request(1000, 0) + request(1000, 1) + request(1000, 2))
    second.data_received(request(1000, 100) + request(1000, 101) + request(1000, 102))
    third.data_received(request(1000, 200))
    other.data_received(request(1000, 300) + request(1001, 301))
    first.data_received(request(1001, 50))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert begun == [0, 1, 100, 101, 300]
    assert [50] == [answer.opaque for answer in answers(first_transport)]
    second.abort()
    second.connection_lost(None)
    gate.set()
    await dispatcher.drain(10)
    assert begun == [0, 1, 100, 101, 300, 200, 2]
    assert not dispatcher._listings


async def test_a_list_that_was_never_begun_can_be_cancelled() -> None:
    """A server that ends leaves no coroutine behind that nobody has awaited."""

    async def listing(_: Connection, command: RemotingCommand) -> Answer:
        await asyncio.Event().wait()
        return command.response(0)

    dispatcher = Dispatcher()
    dispatcher.register(1000, listing, Lane.LISTING)
    connection, _ = connect(dispatcher)
    connection.data_received(b"".join(request(1000, n) for n in range(LISTINGS_PER_CONNECTION + 1)))
    await asyncio.sleep(0)
    await dispatcher.drain(0.01)
    assert not dispatcher._tasks
