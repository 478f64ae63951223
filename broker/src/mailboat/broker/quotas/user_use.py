"""What one user uses of this broker, against its quotas.

Sends beyond the quota of a second are stored, and their answers held back until the quota allows
for them: whoever waits for answers is slowed down to the quota and hears of nothing. Whoever does
not wait is refused once `SEND_WAIT_MAX_S` would have to be waited for, and so is what wants no
answer at all. A connection to which answers are held back already may have half of that only: the
rest is for those of the same user that wait for each answer, so that one connection that sends
without waiting leaves room for others.

Pulls are answered with what the quota has room for, a message at least, and wait while it has none.
They get a tenth of a second's worth or more: with each message by itself there would be as many
requests as messages.
"""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from mailboat.broker.quotas.fetch_turns import FetchTurns
from mailboat.broker.quotas.held_answers import HeldAnswers
from mailboat.errors import BrokerError
from mailboat.protocol.codes import ResponseCode
from mailboat.remoting.connection import Connection
from mailboat.security.quotas import Quotas, TokenBucket

SEND_WAIT_MAX_S: Final = 1.0
"""Longest time for which an answer to a send is held back: clients wait for 3 s."""

FETCH_AT_LEAST_S: Final = 0.1
"""A pull is answered once there is so much time's worth."""

CONNECTIONS: Final = "connections"
PUBLISH_MESSAGES: Final = "publishMessagesPerSecond"
PUBLISH_BYTES: Final = "publishBytesPerSecond"
FETCH_MESSAGES: Final = "fetchMessagesPerSecond"
FETCH_BYTES: Final = "fetchBytesPerSecond"
HELD_PULLS: Final = "heldPulls"


class Room(NamedTuple):
    """What an answer to a pull may have: its first message it has in any case."""

    messages: int
    size_bytes: int


class UserUse:
    """The buckets and counts of one user."""

    def __init__(
        self, name: str, clock: Callable[[], float], tell: Callable[["UserUse", str], None]
    ) -> None:
        """Begin without quotas; `change` gives them.

        Args:
            name: of the user.
            clock: seconds that never go back.
            tell: is told of each quota that refused something.
        """
        self.name = name
        self.quotas = Quotas()
        self.connections: set[Connection] = set()
        self.held_pulls = 0
        self.refused: Counter[str] = Counter()
        """How often each quota refused something."""

        self.delayed: Counter[str] = Counter()
        """How often each quota had something wait."""

        self.answers = HeldAnswers()
        self.turns = FetchTurns(self.fetch_wait_s)
        self._clock = clock
        self._tell = tell
        self._publish: dict[str, TokenBucket] = {}
        self._fetch: dict[str, TokenBucket] = {}

    def change(self, quotas: Quotas) -> None:
        """Hold to other quotas from now on; what is used stays used."""
        self.quotas = quotas
        self._change(self._publish, PUBLISH_MESSAGES, quotas.publish_messages_per_second)
        self._change(self._publish, PUBLISH_BYTES, quotas.publish_bytes_per_second)
        self._change(self._fetch, FETCH_MESSAGES, quotas.fetch_messages_per_second)
        self._change(self._fetch, FETCH_BYTES, quotas.fetch_bytes_per_second)
        self.turns.look()

    def _change(self, buckets: dict[str, TokenBucket], name: str, rate: int | None) -> None:
        if rate is None:
            buckets.pop(name, None)
        elif name in buckets:
            buckets[name].change(rate, self._clock())
        else:
            buckets[name] = TokenBucket(rate, self._clock())

    def refuse(self, quota: str) -> None:
        """Count what a quota refuses."""
        self.refused[quota] += 1
        self._tell(self, quota)

    # -- connections ----------------------------------------------------------------------------

    def admit(self, connection: Connection) -> None:
        """Count a connection that the user has signed a request on.

        Raises:
            BrokerError: SYSTEM_BUSY, the user has as many as it may; this one is to be closed.
        """
        quota = self.quotas.connections
        if quota is not None and len(self.connections) >= quota:
            self.refuse(CONNECTIONS)
            # Java consumers ask again 20 ms after FLOW_CONTROL, and a second after anything else.
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"[FLOW]user {self.name} has {len(self.connections)} connections to this broker, "
                f"its quota is {quota}; this one is closed",
            )
        self.connections.add(connection)

    # -- sends ----------------------------------------------------------------------------------

    def publish(
        self, connection: Connection | None, messages: int, size_bytes: int, *, may_wait: bool
    ) -> float:
        """Take what a send needs; return for how many seconds its answer is to be held back.

        Args:
            connection: where it came from, None where it came by none.
            messages: how many it has.
            size_bytes: of their bodies.
            may_wait: whether its sender waits for an answer, which can be held back.

        Raises:
            BrokerError: FLOW_CONTROL, the quota is used up.
        """
        now_s = self._clock()
        wait_s, quota = 0.0, ""
        for name, bucket in self._publish.items():
            amount = messages if name == PUBLISH_MESSAGES else size_bytes
            if (bucket_wait_s := bucket.wait_s(amount, now_s)) > wait_s:
                wait_s, quota = bucket_wait_s, name
        if wait_s > 0.0:
            limit_s = SEND_WAIT_MAX_S if may_wait else 0.0
            if connection is not None and self.answers.waits(connection):
                limit_s /= 2
            if wait_s > limit_s:
                self.refuse(quota)
                raise BrokerError(
                    ResponseCode.FLOW_CONTROL,
                    f"[FLOW]client has exhausted the send quota: user {self.name} may send "
                    f"{self._publish[quota].rate} ({quota}) to this broker, try again later",
                )
            self.delayed[quota] += 1
        for name, bucket in self._publish.items():
            bucket.take(messages if name == PUBLISH_MESSAGES else size_bytes, now_s)
        return wait_s

    # -- pulls ----------------------------------------------------------------------------------

    def fetch_wait_s(self) -> float:
        """Return how long it is until a pull may be answered, 0.0 where it may be now."""
        now_s = self._clock()
        wait_s = 0.0
        for bucket in self._fetch.values():
            least = max(bucket.rate * FETCH_AT_LEAST_S, 1.0)
            wait_s = max(wait_s, bucket.wait_s(least, now_s))
        return wait_s

    def fetch_delayed(self) -> None:
        """Count a pull that has to wait."""
        now_s = self._clock()
        name = max(self._fetch, key=lambda name: self._fetch[name].wait_s(1.0, now_s), default="")
        if name:
            self.delayed[name] += 1

    def room(self) -> Room:
        """Return what the answer to a pull may have now."""
        now_s = self._clock()
        left = {name: max(int(one.level(now_s)), 1) for name, one in self._fetch.items()}
        return Room(left.get(FETCH_MESSAGES, sys.maxsize), left.get(FETCH_BYTES, sys.maxsize))

    def fetched(self, messages: int, size_bytes: int) -> None:
        """Take what the answer to a pull has, whether there was room for it or not."""
        now_s = self._clock()
        for name, bucket in self._fetch.items():
            bucket.take(messages if name == FETCH_MESSAGES else size_bytes, now_s)

    def given_back(self, messages: int, size_bytes: int) -> None:
        """Undo `fetched`: a read from the disk has not found what was taken for it."""
        now_s = self._clock()
        for name, bucket in self._fetch.items():
            bucket.give_back(messages if name == FETCH_MESSAGES else size_bytes, now_s)

    def pull_held(self) -> None:
        """Count a pull that begins to wait, for a message or for anything else.

        Raises:
            BrokerError: SYSTEM_BUSY, as many wait as may.
        """
        quota = self.quotas.held_pulls
        if quota is not None and self.held_pulls >= quota:
            self.refuse(HELD_PULLS)
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"[FLOW]{self.held_pulls} pulls of user {self.name} wait at this broker, its quota "
                f"(heldPulls) is {quota}",
            )
        self.held_pulls += 1

    def pull_ended(self) -> None:
        """Count a pull that waits no more."""
        self.held_pulls -= 1
