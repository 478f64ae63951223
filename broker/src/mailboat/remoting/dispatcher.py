"""Sends each request to the processor of its code and its answer back.

Errors end here: a processor raises, the peer gets a response code and one sentence, everybody
else's requests go on.

Source: apache/rocketmq remoting/netty/NettyRemotingAbstract.java (processRequestCommand)
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final

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
from mailboat.protocol.frame import Frame
from mailboat.remoting.connection import Connection

_log: Final = logging.getLogger(__name__)

Answer = RemotingCommand | None
Processor = Callable[[Connection, RemotingCommand], Answer | Awaitable[Answer]]
"""Answers a request at once, later (awaitable), or by writing to the connection itself (None)."""

_MAX_IN_FLIGHT: Final = 4096


class Dispatcher:
    """A `FrameHandler` with one processor per request code.

    Answers to the frames of one read leave with one write; processors that return an awaitable are
    answered when it is done.
    """

    def __init__(self, *, max_in_flight: int = _MAX_IN_FLIGHT) -> None:
        """Start without processors; at most `max_in_flight` requests may be awaited at a time."""
        self._processors: dict[int, Processor] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._max_in_flight = max_in_flight
        self.on_connection_closed: list[Callable[[Connection], None]] = []
        """Called with each connection that ended."""

    def register(self, code: int, processor: Processor) -> None:
        """Make `processor` answer the requests of one code."""
        if code in self._processors:
            raise ValueError(f"request {request_code_name(code)} already has a processor")
        self._processors[code] = processor

    def connection_opened(self, connection: Connection) -> None:
        """Do nothing: a connection means nothing before its first request."""

    def connection_closed(self, connection: Connection) -> None:
        """Tell the listeners."""
        for listener in self.on_connection_closed:
            listener(connection)

    def frames_received(self, connection: Connection, frames: list[Frame]) -> None:
        """Handle every frame of one read, answering with one write.

        Once the peer leaves too many answers unread, the remaining frames wait until it reads.
        """
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
            remark = f" request type {command.code} not supported"
            answer: Answer = command.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        else:
            try:
                result = processor(connection, command)
            except Exception as error:
                answer = answer_error(command, error)
            else:
                if inspect.isawaitable(result):
                    answer = self._start(connection, command, result)
                else:
                    answer = result
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
        if len(self._tasks) >= self._max_in_flight:
            if inspect.iscoroutine(result):
                result.close()
            remark = f"[OVERLOAD]{len(self._tasks)} requests are in progress, try again later"
            return command.response(ResponseCode.SYSTEM_BUSY, remark)
        task = asyncio.get_running_loop().create_task(self._finish(connection, command, result))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _finish(
        self, connection: Connection, command: RemotingCommand, result: Awaitable[Answer]
    ) -> None:
        try:
            answer = await result
        except Exception as error:
            answer = answer_error(command, error)
        data = encode_answer(command, answer)
        if data is not None:
            connection.write(data)


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
