"""Pulls that wait: for a message, for room, for a quota, or for a compiled expression.

A pull may go by what its group has subscribed to. Where a heartbeat has changed that meanwhile, it
is answered at once, and its client asks again.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from mailboat.broker.pull_request_hold import HeldPull
from mailboat.broker.quotas.user_use import UserUse
from mailboat.errors import BrokerError
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.send_header import PullFields, PullRequest
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import answer_error, encode_answer

_log = logging.getLogger(__name__)

Answer: TypeAlias = Sequence[bytes]
"""A frame in pieces; none where nobody waits for it, or it comes later."""

LATER: Final[Answer] = ()

ONEWAY_BIT: Final = 2
"""Of a request's flag: nobody waits for an answer."""

# What a waiting pull may have without being counted; a tagsCode in a set.
_SHORT_TEXT: Final = 128
_FEW_CODES: Final = 8
_CODE_BYTES: Final = 80


class Wanted(NamedTuple):
    """Which messages a pull wants."""

    what: frozenset[int] | str | None
    """Their tagsCodes, or the SQL92 expression that they match; None takes all."""

    by: SubscriptionData | None
    """The subscription of its group that says so, None where the pull itself does."""


class Puller(Protocol):
    """What goes on with a pull that has waited."""

    @property
    def recheck(self) -> Callable[[PullRequest, str], None] | None:
        """Raises BrokerError where whoever asked from an address may not read any more; None where
        nobody is asked who it is."""
        ...

    def pull(self, connection: Connection, request: PullRequest) -> Answer:
        """Begin anew."""
        ...

    def pull_again(self, held: "Wait") -> Answer:
        """Read what was put off; return the answer, nothing when it comes later."""
        ...

    def look_again(self, held: "WaitForMessage", is_late: bool) -> bool:
        """Answer a pull if there is something for it, or if its time is up; tell whether."""
        ...

    def is_turn_of(self, held: "Wait", use: UserUse, is_late: bool) -> bool:
        """Tell whether a pull may be answered now; one whose time is up is told to ask again."""
        ...


class Wait(HeldPull, gc=False, eq=False, kw_only=True):
    """A pull that waits, and who goes on with it."""

    processor: Puller
    request: PullRequest
    wanted: Wanted

    def retry(self, is_late: bool) -> bool:
        """Go on if it may; tell whether it was answered."""
        if self.processor.recheck is not None:
            self.check()
        return self.go_on(is_late)

    def go_on(self, is_late: bool) -> bool:
        """Do as `retry` once it is known that this may still be answered."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise BrokerError where whoever asked may not read any more."""
        if self.processor.recheck is not None:
            self.processor.recheck(self.request, self.connection.peer_address)

    def failed(self, error: Exception) -> None:
        """Answer with an error."""
        command = command_of(self.request)
        answer = encode_answer(command, answer_error(command, error))
        self.write(LATER if answer is None else (answer,))

    def write(self, answer: Answer) -> None:
        """Send the answer if there is one now."""
        if answer:
            self.connection.write_pieces(answer)


class WaitForMessage(Wait, gc=False, eq=False, kw_only=True):
    """Waits for a message that it wants, in vain up to `scanned_offset`."""

    scanned_offset: int

    def go_on(self, is_late: bool) -> bool:
        """Answer it if there is something for it."""
        return self.processor.look_again(self, is_late)


class WaitForRoom(Wait, gc=False, eq=False, kw_only=True):
    """Waits until it may be read; what it may have then is taken from its user's quota."""

    use: UserUse | None = None
    taken: tuple[int, int] = (0, 0)

    def uncount(self) -> None:
        """Give back what was taken."""
        HeldPull.uncount(self)
        if self.use is not None:
            self.use.given_back(*self.taken)
            self.use = None

    def go_on(self, is_late: bool) -> bool:
        """Read it now."""
        self.uncount()
        self.write(self.processor.pull_again(self))
        return True


class WaitForQuota(Wait, gc=False, eq=False, kw_only=True):
    """Waits until the quota of whoever asked allows for an answer."""

    use: UserUse

    def go_on(self, is_late: bool) -> bool:
        """Read it if its turn has come."""
        if not self.processor.is_turn_of(self, self.use, is_late):
            return is_late
        self.uncount()
        self.write(self.processor.pull_again(self))
        return True


class WaitForFilter(Wait, gc=False, eq=False, kw_only=True):
    """Waits until its expression is compiled."""

    def go_on(self, is_late: bool) -> bool:
        """Begin anew."""
        self.uncount()
        self.write(self.processor.pull(self.connection, self.request))
        return True


def command_of(request: PullRequest) -> RemotingCommand:
    """Return what to answer a pull by."""
    command = RemotingCommand.request(request.code)
    command.flag = request.flag
    command.opaque = request.opaque
    command.serialize_type = request.serialize_type
    return command


def refused(request: PullRequest, error: BrokerError) -> Answer:
    """Return the answer to a pull that is refused, nothing where nobody wants one."""
    if request.flag & ONEWAY_BIT:
        return LATER
    return (command_of(request).response(error.code, error.remark).encode(),)


def unreadable(request: PullRequest, error: OSError) -> Answer:
    """Return the answer to a pull whose messages the disk does not give, and log it."""
    place = f"topic {request.fields.topic} queue {request.fields.queue_id}"
    _log.warning("pull failed %s: %s", place, error)
    remark = f"{place} cannot be read: {error}"
    return refused(request, BrokerError(ResponseCode.SYSTEM_ERROR, remark))


def text_bytes(fields: PullFields, wanted: frozenset[int] | str | None) -> int:
    """Return what a pull that waits takes beyond what most do."""
    text = fields.subscription
    size = 0 if text is None or len(text) <= _SHORT_TEXT else sys.getsizeof(text)
    if isinstance(wanted, frozenset) and len(wanted) > _FEW_CODES:
        size += _CODE_BYTES * len(wanted)
    return size
