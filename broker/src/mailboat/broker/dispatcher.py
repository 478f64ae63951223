"""Sends the broker's two hot requests straight to their processors, everything else the usual way.

The sends that one round of the event loop has read, from however many connections, are checked,
stored and answered together, so that each costs a fraction of a system call. Requests keep their
order: sends are stored before the next different request is looked at. All requests of one read,
whatever they are, have `ROUND_S` together; the rest goes on in the loop's next round.
"""

import asyncio
import struct
import time
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import AbstractContextManager
from typing import Final, Protocol

from mailboat.errors import BrokerError, RemoteProtocolError
from mailboat.model.batch import count_messages
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.frame import HEADER_MAX_BYTES, SERIALIZE_BINARY, SERIALIZE_JSON, Frame
from mailboat.protocol.send_header import (
    CODE_BY_START,
    START_BYTES,
    MalformedRequestError,
    PullRequest,
    SendRequest,
    decode_pull_header,
    decode_send_header,
    peek_code,
)
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import ROUND_S, Dispatcher, answer_error, encode_answer
from mailboat.security.users import User

SEND: Final = 1
PULL: Final = 2
_OTHER: Final = 0
KINDS: Final = {
    RequestCode.SEND_MESSAGE: SEND,
    RequestCode.SEND_MESSAGE_V2: SEND,
    RequestCode.SEND_BATCH_MESSAGE: SEND,
    RequestCode.PULL_MESSAGE: PULL,
    RequestCode.LITE_PULL_MESSAGE: PULL,
}
# How the JSON headers of the hot requests start.
_KIND_BY_START: Final = {
    start: KINDS[code] for start, code in CODE_BY_START.items() if code in KINDS
}
# Where these starts lie in a frame.
_HEADER_AT: Final = 8
_START_END: Final = _HEADER_AT + START_BYTES
# A binary header starts with its code; the byte of the frame that says so stands before its length.
_CODE_END: Final = _HEADER_AT + 2
_BINARY_SEND_STARTS: Final = frozenset(
    code.to_bytes(2, "big") for code, kind in KINDS.items() if kind == SEND
)
_FORM_AT: Final = 4
_FORM_END: Final = 5
_BINARY: Final = bytes([SERIALIZE_BINARY])
_PREFIX: Final = struct.Struct(">II")
_LENGTH_BYTES: Final = 4
_RESPONSE_BIT: Final = 1
# As a plain number: an enumeration takes longer to compare.
_BATCH_CODE: Final = int(RequestCode.SEND_BATCH_MESSAGE)


# Sends are stored at once when so much has gathered: memory stays bounded, and so does a round.
_MAX_GATHERED: Final = 512
_MAX_GATHERED_BYTES: Final = 4 * 1024 * 1024
# The same for what takes longer than its bytes tell, in messages of ten microseconds each: those of
# client batches, and long headers, which may be full of keys.
_MAX_GATHERED_WORK: Final = 1_500
_LONG_HEADER_BYTES: Final = 2_048
_HEADER_BYTES_A_MESSAGE: Final = 50
# Answers to pulls are written at once when so much has gathered: until then no budget counts them.
_MAX_ANSWERS_BYTES: Final = 1024 * 1024


class Asker(Protocol):
    """Who sent a message: the connection, as far as sends need to know."""

    peer_host: bytes
    """Address and port, as records hold them."""

    def write(self, data: bytes) -> None:
        """Send an answer; dropped without a word when nobody is there any more."""
        ...


Send = tuple[Asker, SendRequest, bytes]
"""One send: who asks, the header, the body."""


class SendProcessor(Protocol):
    """Stores sends."""

    def send(self, sends: list[Send]) -> None:
        """Store messages and write the answers, now or once they are flushed."""
        ...


class SendRounds(Protocol):
    """Stores the sends in whole reads."""

    reads: dict[Connection, bytes]
    """What is kept for the end of this round of the loop."""

    def store(self) -> None:
        """Store and answer what it can of the reads; read back what is left of each."""
        ...

    def learn(self, places: Iterable[tuple[str, int]]) -> None:
        """Take note of topics and queue ids that messages were stored to in another way."""
        ...

    def allow(self, user: User, peer_host: bytes, topic: str) -> None:
        """Take sends that a user has signed to a topic, from the address of a peer."""
        ...

    def withdraw(self, access_key: str, peer_host: bytes) -> None:
        """Take no more sends of a user from the address of a peer, until they are allowed again."""
        ...


class PullProcessor(Protocol):
    """Answers pulls."""

    def pull(self, connection: Connection, request: PullRequest) -> Sequence[bytes]:
        """Return the answer in pieces, none when it comes later or not at all."""
        ...

    def arrivals(self) -> AbstractContextManager[object]:
        """Answer pulls that wait for what arrives inside, once, at the end."""
        ...


class BrokerDispatcher(Dispatcher):
    """A `Dispatcher` with a short way for sends and pulls."""

    def __init__(self) -> None:
        """Start without processors; `use` gives the two hot ones."""
        super().__init__()
        self._send: SendProcessor | None = None
        self._pull: PullProcessor | None = None
        self._rounds: SendRounds | None = None
        self._require_own_name: Callable[[str], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gathered: list[Send] = []
        self._gathered_bytes = 0
        self._gathered_work = 0
        self._reads_bytes = 0
        self._answers: list[tuple[Connection, Sequence[bytes]]] = []
        self._answers_bytes = 0
        self._answers_due_s = 0.0

    def use(
        self,
        send: SendProcessor,
        pull: PullProcessor,
        require_own_name: Callable[[str], None],
        rounds: SendRounds | None,
    ) -> None:
        """Take the processors of sends and pulls, and the check of the name in other requests.

        `rounds` takes whole reads before `send` sees what is left of them, where there is a core.
        `require_own_name` raises BrokerError for the name of another broker. Called by the event
        loop that the dispatcher works on.
        """
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._pull = pull
        self._rounds = rounds
        self._require_own_name = require_own_name

    @property
    def codes(self) -> Set[int]:
        """The codes of the requests that are answered."""
        return super().codes | KINDS.keys()

    def take_send(self, asker: Asker, request: SendRequest, body: bytes) -> None:
        """Store a message that came by no connection of ours, with the others of this round.

        Whoever calls has made sure that it may be sent.
        """
        if not self._gathered:
            assert self._loop is not None
            self._loop.call_soon(self.store_gathered)
        self._gathered.append((asker, request, body))
        self._gathered_bytes += len(body)
        if request.code == _BATCH_CODE or request.fields.batch:
            self._gathered_work += count_messages(body)
        if self._gathered_work >= _MAX_GATHERED_WORK or self._gathered_bytes >= _MAX_GATHERED_BYTES:
            self.store_gathered()

    def process(self, connection: Connection, command: RemotingCommand) -> bytes | None:
        """Do as `Dispatcher.process`, but refuse what is meant for a broker of another name.

        Release 5 puts the name into the header of whatever is about one broker's data.
        """
        broker_name = command.ext_fields.get("bname")
        if broker_name and self._require_own_name is not None:
            try:
                self._require_own_name(broker_name)
            except BrokerError as error:
                return encode_answer(command, answer_error(command, error))
        return super().process(connection, command)

    def read_received(self, connection: Connection, data: bytes) -> bool:
        """Answer a read that is one pull; keep one that begins with a send until the round ends."""
        rounds = self._rounds
        if rounds is not None and (before := rounds.reads.get(connection)) is not None:
            # Where one read was as large as reads get, the next one waits for no round of the loop.
            rounds.reads[connection] = before + data
            rounds.store()
            return True
        if connection.is_write_paused:
            return False  # A peer that does not read its answers waits.
        kind = _KIND_BY_START.get(data[_HEADER_AT:_START_END])
        if kind == PULL:
            return self._take_pull(connection, data)
        if rounds is None or (kind != SEND and not _is_binary_send(data)):
            return False
        if not rounds.reads:
            assert self._loop is not None
            self._loop.call_soon(rounds.store)
            self._reads_bytes = 0
        rounds.reads[connection] = data
        self._reads_bytes += len(data)
        if self._reads_bytes >= _MAX_GATHERED_BYTES:
            rounds.store()
        return True

    def _take_pull(self, connection: Connection, data: bytes) -> bool:
        """Answer a read if it is one pull, a frame of a JSON header alone; tell whether it was."""
        header_bytes = len(data) - _HEADER_AT
        if (
            data[:_HEADER_AT] != _PREFIX.pack(header_bytes + _LENGTH_BYTES, header_bytes)
            or header_bytes > HEADER_MAX_BYTES
            or self._gathered
        ):
            return False
        try:
            request = decode_pull_header((SERIALIZE_JSON, data[_HEADER_AT:], b""))
        except (MalformedRequestError, RemoteProtocolError):
            return False  # Said where frames are taken one by one.
        if request.flag & _RESPONSE_BIT:
            return False
        connection.frames_taken()
        if answer := self._answer_pull(connection, request):
            if not self._answers:
                assert self._loop is not None
                self._loop.call_soon(self._write_answers)
                self._answers_due_s = time.monotonic() + ROUND_S
            self._answers.append((connection, answer))
            self._answers_bytes += sum(map(len, answer))
            # A round is long where many pulls look for what few messages have.
            is_due = time.monotonic() > self._answers_due_s
            if is_due or self._answers_bytes >= _MAX_ANSWERS_BYTES:
                self._write_answers()
        return True

    def _write_answers(self) -> None:
        """Send what pulls of this round have found: their clients come together in the next one."""
        answers, self._answers = self._answers, []
        self._answers_bytes = 0
        for connection, answer in answers:
            connection.write_pieces(answer)

    def _answer_pull(self, connection: Connection, request: PullRequest) -> Sequence[bytes]:
        assert self._pull is not None
        try:
            return self._pull.pull(connection, request)
        except Exception as error:
            # As `Dispatcher.process` does: other requests are answered.
            command = RemotingCommand(
                request.code,
                opaque=request.opaque,
                flag=request.flag,
                serialize_type=request.serialize_type,
            )
            return _pieces(encode_answer(command, answer_error(command, error)))

    def reads_ended(self, connection: Connection) -> None:
        """Answer what was read before the peer stopped sending, or sent what cannot be read."""
        self._write_answers()
        while self._rounds is not None and connection in self._rounds.reads:
            self._rounds.store()
        # What is left of reads has been gathered for later, when no answer reaches the peer.
        self.store_gathered()

    def frames_received(self, connection: Connection, frames: list[Frame]) -> None:
        """Handle every frame of one read; each run of like requests is answered with one write.

        Once they have taken `ROUND_S`, the rest waits until the loop has looked at everybody else.
        """
        if len(frames) == 1 and not connection.is_write_paused:
            serialize_type, header, _ = frames[0]
            if serialize_type == SERIALIZE_JSON:
                kind = _KIND_BY_START.get(header[:START_BYTES], _OTHER)
                if kind:
                    self._run(connection, frames, kind, time.monotonic() + ROUND_S)
                    return
        end_s = time.monotonic() + ROUND_S
        start = 0
        kind = _OTHER
        try:
            for index, frame in enumerate(frames):
                next_kind = KINDS.get(peek_code(frame), _OTHER)
                if next_kind != kind:
                    run = frames[start:index]
                    if run and not self._run(connection, run, kind, end_s):
                        return
                    if connection.is_write_paused or connection.has_postponed:
                        # A peer that does not read its answers gets no more of them, and nothing
                        # overtakes what waits.
                        connection.postpone(frames[index:])
                        return
                    if run and time.monotonic() > end_s:
                        connection.defer(frames[index:])
                        return
                    start = index
                    kind = next_kind
        except RemoteProtocolError as error:
            if index == start or self._run(connection, frames[start:index], kind, end_s):
                if connection.has_postponed:
                    connection.postpone(frames[index:])  # What stands before it comes first.
                else:
                    connection.protocol_error(error)
            return
        self._run(connection, frames[start:] if start else frames, kind, end_s)

    def _run(self, connection: Connection, frames: list[Frame], kind: int, end_s: float) -> bool:
        """Handle a run of requests of one kind; tell whether the connection is still of use.

        What `end_s` leaves no time for is deferred, but for the first one.
        """
        if kind == SEND:
            return self._run_sends(connection, frames, end_s)
        if self._gathered:
            self.store_gathered()
        if kind == PULL:
            return self._run_pulls(connection, frames, end_s)
        self._handle(connection, frames, end_s)
        return not connection.is_closed

    def _send_reader(self, connection: Connection) -> Callable[[Frame], tuple[Asker, SendRequest]]:
        """Return what reads the headers of sends of a connection, and says who is answered."""

        def read(frame: Frame) -> tuple[Asker, SendRequest]:
            return connection, decode_send_header(frame)

        return read

    def _pull_decoder(self, _connection: Connection) -> Callable[[Frame], PullRequest]:
        """Return what reads the headers of pulls of a connection."""
        return decode_pull_header

    def _run_sends(self, connection: Connection, frames: list[Frame], end_s: float) -> bool:
        gathered = self._gathered
        read = self._send_reader(connection)
        if not gathered:
            assert self._loop is not None
            self._loop.call_soon(self.store_gathered)
        for index, frame in enumerate(frames):
            try:
                asker, request = read(frame)
            except MalformedRequestError as error:
                answer = encode_answer(error.command, answer_error(error.command, error))
                if answer is not None:
                    connection.write(answer)
                if time.monotonic() > end_s and index + 1 < len(frames):
                    connection.defer(frames[index + 1 :])
                    return not connection.is_closed
                continue
            except RemoteProtocolError as error:
                self.store_gathered()
                connection.protocol_error(error)
                return False
            if request.flag & _RESPONSE_BIT:
                self._handle(connection, [frame], end_s)
                continue
            _, header, body = frame
            gathered.append((asker, request, body))
            self._gathered_bytes += len(body)
            if request.code == _BATCH_CODE or request.fields.batch:
                self._gathered_work += count_messages(body)
            elif len(header) <= _LONG_HEADER_BYTES and len(gathered) < _MAX_GATHERED:
                continue
            self._gathered_work += len(header) // _HEADER_BYTES_A_MESSAGE
            if self._gathered_work < _MAX_GATHERED_WORK and len(gathered) < _MAX_GATHERED:
                continue
            self.store_gathered()
            gathered = self._gathered
            if time.monotonic() > end_s and index + 1 < len(frames):
                connection.defer(frames[index + 1 :])
                return not connection.is_closed
        if len(gathered) >= _MAX_GATHERED or self._gathered_bytes >= _MAX_GATHERED_BYTES:
            self.store_gathered()
        return True

    def store_gathered(self) -> None:
        """Store the sends that came by themselves, and wake the pulls that wait for them."""
        sends, self._gathered = self._gathered, []
        self._gathered_bytes = self._gathered_work = 0
        if sends:
            assert self._send is not None
            assert self._pull is not None
            # Pulls that wait for these messages are answered here, not a round of the loop later.
            with self._pull.arrivals():
                self._send.send(sends)
            if self._rounds is not None:
                fields = [request.fields for _, request, _ in sends]
                self._rounds.learn({(of_one.topic, of_one.queue_id) for of_one in fields})

    async def drain(self, timeout_s: float) -> None:
        """Store what has gathered, then wait as `Dispatcher.drain` does."""
        while self._rounds is not None and self._rounds.reads:
            self._rounds.store()
        self.store_gathered()
        self._write_answers()
        await super().drain(timeout_s)

    def _run_pulls(self, connection: Connection, frames: list[Frame], end_s: float) -> bool:
        answers: list[bytes] = []
        unwritten_bytes = 0
        decode = self._pull_decoder(connection)
        for index, frame in enumerate(frames):
            try:
                request = decode(frame)
            except MalformedRequestError as error:
                answer = _pieces(encode_answer(error.command, answer_error(error.command, error)))
            except RemoteProtocolError as error:
                connection.write_pieces(answers)
                connection.protocol_error(error)
                return False
            else:
                if request.flag & _RESPONSE_BIT:
                    self._handle(connection, [frame], end_s)
                    continue
                answer = self._answer_pull(connection, request)
            answers += answer
            unwritten_bytes += sum(map(len, answer))
            if time.monotonic() > end_s and index + 1 < len(frames):
                if answers:
                    connection.write_pieces(answers)
                connection.defer(frames[index + 1 :])
                return not connection.is_closed
            if unwritten_bytes > connection.write_high_water_bytes:
                connection.write_pieces(answers)
                answers.clear()
                unwritten_bytes = 0
                if connection.is_write_paused:
                    connection.postpone(frames[index + 1 :])
                    return True
        if answers:
            connection.write_pieces(answers)
        return True


def _pieces(answer: bytes | None) -> Sequence[bytes]:
    return () if answer is None else (answer,)


def _is_binary_send(data: bytes) -> bool:
    is_binary = data[_FORM_AT:_FORM_END] == _BINARY
    return is_binary and data[_HEADER_AT:_CODE_END] in _BINARY_SEND_STARTS
