"""Sends each request to the processor of its code and its answer back.

Requests whose processor has to wait are counted, in lanes that do not get into each other's way and
for each connection: a client that does not answer what others want of it keeps nobody from locking
queues, and one connection has no more than a share of a lane.

Errors end here: a processor raises, the peer gets a response code and one sentence, everybody
else's requests go on.

Source: apache/rocketmq remoting/netty/NettyRemotingAbstract.java (processRequestCommand)
"""

import asyncio
import inspect
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Set
from enum import Enum
from typing import Final
from weakref import WeakValueDictionary

from mailboat.errors import (
    BrokerError,
    IllegalMessageError,
    LocalProtocolError,
    MailboatError,
    ProtocolError,
    RemoteProtocolError,
)
from mailboat.protocol.codes import ResponseCode, request_code_name
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import LONG_HEADER, Frame
from mailboat.remoting.connection import Connection
from mailboat.remoting.turns import Asker, asker

_log: Final = logging.getLogger(__name__)

Answer = RemotingCommand | None
Processor = Callable[[Connection, RemotingCommand], Answer | Awaitable[Answer]]
"""Answers a request at once, later (awaitable), or by writing to the connection itself (None)."""

_MAX_IN_FLIGHT: Final = 4096
ROUND_S: Final = 0.01
"""How long the requests of one read may take before everybody else has a turn."""
_MAX_PER_CONNECTION: Final = 1024
LISTINGS_PER_CONNECTION: Final = 2
"""So many lists are made at a time for one connection. Its others wait, and those of other
connections go first."""

LISTINGS_PER_ADDRESS: Final = 4
"""So many lists are made at a time for one address."""


class Lane(Enum):
    """What requests wait for, while they are awaited."""

    COMMON = "requests"
    """For this server: its disk, its threads."""

    MEMBER = "locks, offsets and heartbeats"
    """For this server too, and a consumer that is refused one loses its queues."""

    LISTING = "requests for lists"
    """For lists that may be long. A list takes memory while it is made, so few are made at a time
    for one address, and its others wait."""

    LOOK = "requests about messages"
    """For messages that only the disk may have. As few are looked at at a time as lists are made,
    but a disk that hangs holds up no list."""

    RELAY = "relayed requests"
    """For the answer of another client."""


class Dispatcher:
    """A `FrameHandler` with one processor per request code.

    Answers to the frames of one read leave with one write; processors that return an awaitable are
    answered when it is done.
    """

    def __init__(
        self,
        *,
        max_in_flight: int = _MAX_IN_FLIGHT,
        max_per_connection: int = _MAX_PER_CONNECTION,
    ) -> None:
        """Start without processors; so many requests of each lane may be awaited at a time.

        Relayed ones may be four times as many: they cost their bytes only, which are counted.
        """
        self._processors: dict[int, Processor] = {}
        self._lanes: dict[int, Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: Counter[Lane] = Counter()
        self._of_connection: Counter[tuple[Connection, Lane]] = Counter()
        self._max_in_flight = dict.fromkeys(Lane, max_in_flight)
        self._max_in_flight[Lane.RELAY] *= 4
        self._max_per_connection = max_per_connection
        # Each lives as long as somebody has a place or waits for one.
        self._listings: WeakValueDictionary[tuple[Lane, str | Connection], asyncio.Semaphore]
        self._listings = WeakValueDictionary()
        self.on_connection_closed: list[Callable[[Connection], None]] = []
        """Called with each connection that ended."""
        self.on_writing_resumed: list[Callable[[Connection], None]] = []
        """Called with each connection whose peer reads again."""

    def register(self, code: int, processor: Processor, lane: Lane = Lane.COMMON) -> None:
        """Make `processor` answer the requests of one code; they are awaited in a lane."""
        if code in self._processors:
            raise ValueError(f"request {request_code_name(code)} already has a processor")
        self._processors[code] = processor
        self._lanes[code] = lane

    @property
    def codes(self) -> Set[int]:
        """The codes of the requests that are answered."""
        return self._processors.keys()

    def connection_opened(self, connection: Connection) -> None:
        """Do nothing: a connection means nothing before its first request."""

    def writing_resumed(self, connection: Connection) -> None:
        """Tell the listeners."""
        for listener in self.on_writing_resumed:
            listener(connection)

    def connection_closed(self, connection: Connection) -> None:
        """Tell the listeners."""
        for listener in self.on_connection_closed:
            listener(connection)

    def read_received(self, _connection: Connection, _data: bytes) -> bool:
        """Have every read cut into frames."""
        return False

    def reads_ended(self, _connection: Connection) -> None:
        """Do nothing: no read is kept."""

    def frames_received(self, connection: Connection, frames: list[Frame]) -> None:
        """Handle every frame of one read, answering with one write.

        Once the peer leaves too many answers unread, the remaining frames wait until it reads; once
        they have taken `ROUND_S`, until the loop has looked at everybody else.
        """
        self._handle(connection, frames, time.monotonic() + ROUND_S)

    def _handle(self, connection: Connection, frames: list[Frame], end_s: float) -> None:
        """Handle frames until a time on the monotonic clock, at least the first one."""
        answers: list[bytes] = []
        unwritten_bytes = 0
        high_water_bytes = connection.write_high_water_bytes
        for index, frame in enumerate(frames):
            try:
                command = decode_command(frame)
            except RemoteProtocolError as error:
                if answers:
                    connection.write(b"".join(answers))
                connection.protocol_error(error)
                return
            if command.is_response:
                connection.response_received(command)
                continue
            answer = self.process(connection, command)
            if time.monotonic() > end_s and index + 1 < len(frames):
                if answer is not None:
                    answers.append(answer)
                if answers:
                    connection.write(b"".join(answers))
                connection.defer(frames[index + 1 :])
                return
            if answer is None:
                continue
            answers.append(answer)
            unwritten_bytes += len(answer)
            if unwritten_bytes > high_water_bytes:
                connection.write(b"".join(answers))
                answers.clear()
                unwritten_bytes = 0
                if connection.is_write_paused:
                    connection.postpone(frames[index + 1 :])
                    return
        if answers:
            connection.write(b"".join(answers))

    def process(self, connection: Connection, command: RemotingCommand) -> bytes | None:
        """Run one request's processor; return the encoded answer if there is one already."""
        processor = self._processors.get(command.code)
        if processor is None:
            answer: Answer = _answer_unknown(command)
        else:
            try:
                result = processor(connection, command)
            except asyncio.CancelledError:
                answer = _answer_cancelled(command)
            except Exception as error:
                answer = answer_error(command, error)
            else:
                if result is None or isinstance(result, RemotingCommand):
                    answer = result
                else:
                    answer = self._start(connection, command, result)
        return encode_answer(command, answer)

    async def drain(self, timeout_s: float) -> None:
        """Wait for the awaited requests; cancel what is not done after `timeout_s`."""
        tasks = set(self._tasks)
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _start(
        self, connection: Connection, command: RemotingCommand, result: Awaitable[Answer]
    ) -> Answer:
        """Await a processor's result in a task; return an answer only if there are too many."""
        lane = self._lanes[command.code]
        place = (connection, lane)
        size = _size_bytes(command)
        problem = self._problem(place)
        if problem is None:
            connection.keep(size)
        if problem is not None or connection.is_closed:
            if inspect.iscoroutine(result):
                result.close()
            return command.response(ResponseCode.SYSTEM_BUSY, problem)
        self._in_flight[lane] += 1
        self._of_connection[place] += 1

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            connection.release(size)
            self._in_flight[lane] -= 1
            self._of_connection[place] -= 1
            if not self._of_connection[place]:
                del self._of_connection[place]

        task = asyncio.get_running_loop().create_task(self._finish(connection, command, result))
        self._tasks.add(task)
        task.add_done_callback(ended)
        return None

    def _problem(self, place: tuple[Connection, Lane]) -> str | None:
        """Say why no more requests of a connection can be awaited in a lane."""
        lane = place[1]
        for count, most, whose in (
            (self._in_flight[lane], self._max_in_flight[lane], ""),
            (self._of_connection[place], self._max_per_connection, " of this connection"),
        ):
            if count >= most:
                return f"[OVERLOAD]{count} {lane.value}{whose} are in progress, try again later"
        return None

    async def _finish(
        self, connection: Connection, command: RemotingCommand, result: Awaitable[Answer]
    ) -> None:
        asker.set(Asker(connection.peer_address, connection))
        try:
            lane = self._lanes[command.code]
            if lane in (Lane.LISTING, Lane.LOOK):
                answer = await self._placed(connection, lane, result)
            else:
                answer = await result
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            answer = _answer_cancelled(command)
        except Exception as error:
            answer = answer_error(command, error)
        data = encode_answer(command, answer)
        if data is not None:
            connection.write(data)

    def _places(self, whose: tuple[Lane, str | Connection], most: int) -> asyncio.Semaphore:
        return self._listings.setdefault(whose, asyncio.Semaphore(most))

    async def _placed(
        self, connection: Connection, lane: Lane, result: Awaitable[Answer]
    ) -> Answer:
        """Await what makes a list once its connection and its address have a place for it."""
        own = self._places((lane, connection), LISTINGS_PER_CONNECTION)
        shared = self._places((lane, connection.peer_address), LISTINGS_PER_ADDRESS)
        try:
            async with own, shared:
                return None if connection.is_closed else await result
        finally:
            if inspect.iscoroutine(result):
                result.close()  # Where it was never begun; one that has ended does not mind.


def _answer_cancelled(command: RemotingCommand) -> RemotingCommand:
    """Answer a request that is not cancelled itself, but what it waited for was."""
    name = request_code_name(command.code)
    _log.warning("request failed request=%s: what it waited for was cancelled", name)
    remark = f"what the request {name} waited for was cancelled; its outcome is open, try again"
    return command.response(ResponseCode.SYSTEM_ERROR, remark)


def _size_bytes(command: RemotingCommand) -> int:
    """Return about how much memory a request takes."""
    fields = command.ext_fields.items()
    return len(command.body) + sum(len(name) + len(value) for name, value in fields)


def _answer_unknown(command: RemotingCommand) -> RemotingCommand:
    if command.code == LONG_HEADER:
        return command.response(ResponseCode.SYSTEM_ERROR, command.remark)
    remark = f" request type {command.code} not supported"
    return command.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


def encode_answer(command: RemotingCommand, answer: Answer) -> bytes | None:
    """Encode the answer to a request; None when there is none or nobody waits for it."""
    if answer is None or command.is_oneway:
        return None
    try:
        return answer.encode()
    except LocalProtocolError as error:
        return answer_error(command, error).encode()


def answer_error(command: RemotingCommand, error: Exception) -> RemotingCommand:
    """Turn what a processor raised into a response; an error that is not ours is logged."""
    if isinstance(error, BrokerError):
        return command.response(error.code, error.remark)
    if isinstance(error, IllegalMessageError):
        return command.response(ResponseCode.MESSAGE_ILLEGAL, str(error))
    if isinstance(error, ProtocolError):
        return command.response(ResponseCode.SYSTEM_ERROR, str(error))
    name = request_code_name(command.code)
    if isinstance(error, MailboatError):
        _log.warning("request failed request=%s: %s", name, error)
        return command.response(ResponseCode.SYSTEM_ERROR, str(error))
    _log.error("request failed request=%s", name, exc_info=error)
    remark = f"internal error: {type(error).__name__}: {error}"
    return command.response(ResponseCode.SYSTEM_ERROR, remark)
