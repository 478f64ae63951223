"""The broker's dispatcher where requests are authenticated: none goes the short ways unjudged.

Each request is decoded once, and what was judged is what is carried out: sends and pulls are read
from the command whose signature was checked, not from the bytes of its header, which may say one
thing twice. The compiled core takes the sends of whole reads here too, but only those that are
signed by a user whose send to the same topic from the same address was allowed here before. What
was allowed is forgotten when any user changes, and for a user at an address when anything of it is
refused.

What a guard allows, the quotas of its user may still refuse or hold back: all of that is asked here
(`_admit` for every request, `_judged_send` for sends), but for what a processor alone can know.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.broker.dispatcher import KINDS, PULL, SEND, Asker, BrokerDispatcher
from mailboat.broker.quotas.service import UserQuotas
from mailboat.broker.record_reads import record_at
from mailboat.errors import BrokerError
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import Frame
from mailboat.protocol.send_header import (
    MalformedRequestError,
    PullFields,
    PullRequest,
    SendFields,
    SendRequest,
    guarded_pull,
    guarded_send,
)
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Answer, answer_error, encode_answer
from mailboat.remoting.guarded import GuardedDispatcher, check
from mailboat.security.guard import Guard
from mailboat.security.needs import named_place, pull_needs
from mailboat.security.signing import access_key_of
from mailboat.security.users import User

# A response with the code of a send or a pull goes on as what it is, by its flag.
_NO_SEND: Final = SendFields("", "", "", 0, 0, 0, 0, 0)
_NO_PULL: Final = PullFields("", "", 0, 0, 0, 0, 0, 0, 0)
# They bring a message too, which is stored or handed on.
_REPLIES: Final = frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2})


class GuardedBrokerDispatcher(GuardedDispatcher, BrokerDispatcher):
    """A `BrokerDispatcher` that carries out only what a guard allows."""

    def __init__(self, guard: Guard, quotas: UserQuotas, broker: BrokerContext) -> None:
        """Start without processors; requests may name messages of `broker`."""
        super().__init__(guard)
        self._quotas: Final = quotas
        self._broker: Final = broker

    def process(self, connection: Connection, command: RemotingCommand) -> bytes | None:
        """Do as `GuardedDispatcher.process`, once the message that a request names is in memory.

        Its topic says whether the request is allowed, and only the disk may have it. It is read for
        users whom rules bind; for nobody else.
        """
        place = named_place(command)
        if place is None or self._broker.store.warming.is_hot_at(place):
            return super().process(connection, command)
        try:
            address, certified_as = connection.peer_address, connection.certified_as
            user = self._guard.authenticate(command, address, certified_as)
        except BrokerError as error:
            return encode_answer(command, answer_error(command, error))
        if not self._guard.is_bound(user):
            return super().process(connection, command)
        result = self._process_cold(connection, command, place)
        return encode_answer(command, self._start(connection, command, result))

    async def _process_cold(
        self, connection: Connection, command: RemotingCommand, place: int
    ) -> Answer:
        await record_at(self._broker, place, connection.peer_address)
        user = check(self._guard, self, connection, command)
        self._admit(user, connection, command)
        result = self._processors[command.code](connection, command)
        return await result if inspect.isawaitable(result) else result

    def _take_pull(self, _connection: Connection, _data: bytes) -> bool:
        """Have reads of pulls cut into frames."""
        return False

    def connection_closed(self, connection: Connection) -> None:
        """Do as `Dispatcher.connection_closed`, and count it for its users no more."""
        self._quotas.connection_closed(connection)
        super().connection_closed(connection)

    def _send_reader(self, connection: Connection) -> Callable[[Frame], tuple[Asker, SendRequest]]:
        return partial(self._judged_send, connection)

    def _pull_decoder(self, connection: Connection) -> Callable[[Frame], PullRequest]:
        return partial(self._judged_pull, connection)

    def _judged_send(self, connection: Connection, frame: Frame) -> tuple[Asker, SendRequest]:
        """Read a send that is allowed, and who is answered.

        Raises:
            MalformedRequestError: it is not, or it is none.
            RemoteProtocolError: the header cannot be read at all.
        """
        command = decode_command(frame)
        if command.is_response:
            return connection, SendRequest(command.code, _NO_SEND, command.flag)
        user = self._judge(connection, command, SEND)
        request = guarded_send(command)
        if user.quotas is None:
            # One that a certificate vouches for is not signed, and so not the core's to take.
            if self._rounds is not None and access_key_of(command):
                self._rounds.allow(user, connection.peer_host, request.fields.topic)
            return connection, request
        try:
            return self._quotas.publish(user, connection, request, frame[2]), request
        except BrokerError as error:
            raise MalformedRequestError(command, error) from error

    def _judged_pull(self, connection: Connection, frame: Frame) -> PullRequest:
        """Read a pull that is allowed, as `_judged_send` does."""
        command = decode_command(frame)
        if command.is_response:
            return PullRequest(command.code, _NO_PULL, command.flag)
        return guarded_pull(command, self._judge(connection, command, PULL).name)

    def _judge(self, connection: Connection, command: RemotingCommand, kind: int) -> User:
        """Return who may have a send or a pull carried out."""
        try:
            if KINDS.get(command.code) != kind:
                # It was taken for one by the first of two codes; the last one was decoded.
                raise BrokerError(ResponseCode.NO_PERMISSION, "the header has two codes")
            user = self._guard.check(command, connection.peer_address, connection.certified_as)
            self._admit(user, connection, command)
        except Exception as error:
            # As processors do; whatever goes wrong, it is not carried out.
            if self._rounds is not None:
                self._rounds.withdraw(access_key_of(command), connection.peer_host)
            answer = answer_error(command, error)
            refusal = BrokerError(answer.code, answer.remark or "")
            raise MalformedRequestError(command, refusal) from error
        return user

    def _admit(self, user: User, connection: Connection, command: RemotingCommand) -> None:
        if user.quotas is None:
            return
        self._quotas.admit(user, connection)
        if command.code in _REPLIES:
            self._quotas.reply(user, connection, command)


def make_dispatcher(
    guard: Guard | None, quotas: UserQuotas | None, broker: BrokerContext
) -> BrokerDispatcher:
    """Return the dispatcher of a broker, with the guard and the quotas that it has."""
    if guard is None or quotas is None:
        return BrokerDispatcher()
    return GuardedBrokerDispatcher(guard, quotas, broker)


def recheck_pull(guard: Guard, request: PullRequest, address: str) -> None:
    """Judge a pull again that has waited.

    Raises:
        BrokerError: NO_PERMISSION, it may no longer be made.
    """
    needs = pull_needs(request.fields.topic, request.fields.consumer_group)
    guard.allow(request.asked_by, needs, request.code, address)
