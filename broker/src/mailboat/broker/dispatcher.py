"""Sends the broker's two hot requests straight to their processors, everything else the usual way.

One read of a socket may hold many sends: they are decoded, checked, stored and answered together,
so that each costs a fraction of a system call. A send keeps its place among the other requests of its
connection: what was collected is stored before the next different request is looked at.
"""

import logging
from typing import Final, Protocol

from mailboat.errors import RemoteProtocolError
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.frame import Frame
from mailboat.protocol.send_header import (
    MalformedRequestError,
    PullRequest,
    SendRequest,
    decode_pull_header,
    decode_send_header,
    peek_code,
)
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, answer_error, encode_answer
from mailboat.store.message_inner import MessageInner

log = logging.getLogger(__name__)

_SEND_CODES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
    }
)
_PULL_CODES: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
_RESPONSE_BIT: Final = 1


class SendProcessor(Protocol):
    """Stores the sends of one read."""

    def check(
        self, connection: Connection, request: SendRequest, body: bytes
    ) -> MessageInner | bytes | None:
        """Return the message to store, or the answer where there is none to store."""
        ...

    def store_all(
        self, connection: Connection, sends: list[tuple[SendRequest, MessageInner]]
    ) -> bytes:
        """Store what was checked and return the answers that can be given at once."""
        ...


class PullProcessor(Protocol):
    """Answers pulls."""

    def pull(self, connection: Connection, request: PullRequest) -> bytes | None:
        """Return the answer, None when it comes later or not at all."""
        ...


class BrokerDispatcher(Dispatcher):
    """A `Dispatcher` with a short way for sends and pulls."""

    def __init__(self) -> None:
        """Start without processors; `use` gives the two hot ones."""
        super().__init__()
        self._send: SendProcessor | None = None
        self._pull: PullProcessor | None = None

    def use(self, send: SendProcessor, pull: PullProcessor) -> None:
        """Take the processors of sends and pulls."""
        self._send = send
        self._pull = pull

    def frames_received(self, connection: Connection, frames: list[Frame]) -> None:
        """Handle every frame of one read, answering with one write where it is possible."""
        send, pull = self._send, self._pull
        assert send is not None
        assert pull is not None
        answers: list[bytes] = []
        sends: list[tuple[SendRequest, MessageInner]] = []
        others: list[Frame] = []
        for frame in frames:
            try:
                code = peek_code(frame)
                if code not in _SEND_CODES:
                    if sends:
                        answers.append(send.store_all(connection, sends))
                        sends = []
                    if code not in _PULL_CODES:
                        others.append(frame)
                        continue
                    self._others(connection, others, answers)
                    others = []
                    answer = self._pull_one(connection, pull, frame)
                else:
                    self._others(connection, others, answers)
                    others = []
                    answer = self._check_one(connection, send, frame, sends)
            except RemoteProtocolError as error:
                if sends:
                    answers.append(send.store_all(connection, sends))
                connection.write(b"".join(answers))
                connection.protocol_error(error)
                return
            if answer is not None:
                answers.append(answer)
        if sends:
            answers.append(send.store_all(connection, sends))
        self._others(connection, others, answers)
        if answers:
            connection.write(b"".join(answers))

    def _others(self, connection: Connection, frames: list[Frame], answers: list[bytes]) -> None:
        """Give frames of ordinary requests to the ordinary way, in order."""
        if frames:
            if answers:
                connection.write(b"".join(answers))
                answers.clear()
            super().frames_received(connection, frames)

    def _check_one(
        self,
        connection: Connection,
        send: SendProcessor,
        frame: Frame,
        sends: list[tuple[SendRequest, MessageInner]],
    ) -> bytes | None:
        try:
            request = decode_send_header(frame)
            if request.flag & _RESPONSE_BIT:
                super().frames_received(connection, [frame])
                return None
            checked = send.check(connection, request, frame[2])
        except MalformedRequestError as error:
            return encode_answer(error.command, answer_error(error.command, error))
        if isinstance(checked, MessageInner):
            sends.append((request, checked))
            return None
        return checked

    def _pull_one(self, connection: Connection, pull: PullProcessor, frame: Frame) -> bytes | None:
        try:
            request = decode_pull_header(frame)
            if request.flag & _RESPONSE_BIT:
                super().frames_received(connection, [frame])
                return None
            return pull.pull(connection, request)
        except MalformedRequestError as error:
            return encode_answer(error.command, answer_error(error.command, error))
