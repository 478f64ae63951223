"""The quotas of all users of one broker: finds what a user has used, and tells who was refused.

Users without quotas cost nothing here. There is one `UserUse` for each user with quotas that has
asked for something, until it has none any more.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mailboat.broker.dispatcher import Asker
from mailboat.broker.quotas.made_names import Kind, MadeNames
from mailboat.broker.quotas.user_use import UserUse
from mailboat.errors import BrokerError
from mailboat.model.batch import count_messages
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import RETRY_PREFIX
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.send_header import SendRequest, send_request
from mailboat.remoting.connection import Connection
from mailboat.security.audit import AuditLog, shown
from mailboat.security.quotas import QUOTA_NAMES, Quotas
from mailboat.security.users import User, UserDirectory

_log: Final = logging.getLogger(__name__)

QUEUE_LOCKS: Final = "queueLocks"

_ONEWAY_BIT: Final = 2
_LINE_EVERY_S: Final = 60.0


class UserQuotas:
    """Keeps the users of one broker within their quotas."""

    def __init__(
        self,
        users: UserDirectory,
        audit: AuditLog,
        made: MadeNames,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nothing used.

        Args:
            users: who there is.
            audit: gets a line a minute for each quota of a user that refuses something.
            made: which topics and groups users have made.
            clock: seconds that never go back.
        """
        self.made = made
        self._users = users
        self._audit = audit
        self._clock = clock
        self._uses: dict[str, UserUse] = {}
        self._by_connection: dict[Connection, set[UserUse]] = {}
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def uses(self) -> Iterable[UserUse]:
        """Return what users with quotas have used, in the order in which they came."""
        return self._uses.values()

    def use(self, user: User | None) -> UserUse | None:
        """Return what a user has used, None where nothing is bounded."""
        if user is None or user.quotas is None:
            return None
        use = self._uses.get(user.name)
        if use is None:
            use = self._uses[user.name] = UserUse(user.name, self._clock, self._tell)
        if use.quotas is not user.quotas:
            use.change(user.quotas)
        return use

    def use_of(self, access_key: str) -> UserUse | None:
        """Return what the user with an access key has used, None where nothing is bounded."""
        return self.use(self._users.get(access_key)) if access_key else None

    def users_changed(self) -> None:
        """Hold to what the users' quotas are now."""
        for name in list(self._uses):
            user = self._users.get(name)
            if user is None or user.quotas is None:
                # Its pulls that wait go on.
                self._uses.pop(name).change(Quotas())
                for quota in QUOTA_NAMES:
                    self._told.pop((name, quota), None)
            elif self._uses[name].quotas is not user.quotas:
                self._uses[name].change(user.quotas)
        self.made.keep_users(lambda name: self._users.get(name) is not None)

    # -- connections ----------------------------------------------------------------------------

    def admit(self, user: User, connection: Connection) -> None:
        """Count the connection of a request that a user has signed.

        Raises:
            BrokerError: SYSTEM_BUSY, the user has as many as it may; this one is closed once that
                is answered.
        """
        use = self.use(user)
        if use is None or connection in use.connections or connection.is_closed:
            return
        try:
            use.admit(connection)
        except BrokerError:
            # What was read with this request is refused too, and everything is answered by then.
            asyncio.get_running_loop().call_soon(connection.close)
            raise
        self._by_connection.setdefault(connection, set()).add(use)

    def connection_closed(self, connection: Connection) -> None:
        """Count a connection no more."""
        for use in self._by_connection.pop(connection, ()):
            use.connections.discard(connection)
            use.turns.connection_closed(connection)

    # -- sends ----------------------------------------------------------------------------------

    def publish(
        self, user: User, connection: Connection, request: SendRequest, body: bytes
    ) -> Asker:
        """Take what a send needs; return whom its answer is written to.

        Raises:
            BrokerError: FLOW_CONTROL, the quota is used up; TOPIC_NOT_EXIST or
                SUBSCRIPTION_GROUP_NOT_EXIST, it would make one topic or group more than the user
                may.
        """
        use = self.use(user)
        if use is None:
            return connection
        self._refuse_topic(use, request.fields.topic)
        is_batch = request.code == RequestCode.SEND_BATCH_MESSAGE or request.fields.batch
        messages = max(count_messages(body), 1) if is_batch else 1
        may_wait = not request.flag & _ONEWAY_BIT
        wait_s = use.publish(connection, messages, len(body), may_wait=may_wait)
        return connection if wait_s <= 0.0 else use.answers.hold(connection, wait_s)

    def publish_by_http(self, user: User, topic: str, messages: int, size_bytes: int) -> None:
        """Take what messages need that came by no connection of ours.

        Raises:
            BrokerError: as `publish`; what comes by HTTP is refused and not held back.
        """
        use = self.use(user)
        if use is not None:
            self._refuse_topic(use, topic)
            use.publish(None, messages, size_bytes, may_wait=False)

    def reply(self, user: User, connection: Connection, command: RemotingCommand) -> None:
        """Take what an answer of one client to the message of another needs.

        Raises:
            BrokerError: as `publish`: answers are messages to topics, which they may make.
        """
        use = self.use(user)
        if use is not None:
            self._refuse_topic(use, send_request(command).fields.topic)
            use.publish(connection, 1, len(command.body), may_wait=False)

    def release_answers(self) -> None:
        """Send the answers that are held back: the broker ends."""
        for use in self._uses.values():
            use.answers.release_all()

    # -- topics, groups and locks ---------------------------------------------------------------

    def _refuse_topic(self, use: UserUse, topic: str) -> None:
        if topic.startswith(RETRY_PREFIX):
            # It is made with its group, and so is the group where there is none.
            self._refuse_group(use, topic.removeprefix(RETRY_PREFIX))
            return
        if self.made.exists(Kind.TOPIC, topic):
            return
        if not self._may_make(use, Kind.TOPIC, topic, use.quotas.topics):
            raise BrokerError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please! It is not on this broker, and user "
                f"{use.name} has made as many topics as its quota allows, {use.quotas.topics}.",
            )

    def refuse_group(self, access_key: str, group: str) -> None:
        """Raise where a user of a group would make it, and it is one too many.

        Raises:
            BrokerError: SUBSCRIPTION_GROUP_NOT_EXIST, as where none is made.
        """
        use = self.use_of(access_key)
        if use is not None:
            self._refuse_group(use, group)

    def _refuse_group(self, use: UserUse, group: str) -> None:
        if self.made.exists(Kind.GROUP, group):
            return
        if not self._may_make(use, Kind.GROUP, group, use.quotas.groups):
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist, and user {use.name} has made as "
                f"many groups as its quota allows, {use.quotas.groups}",
            )

    def _may_make(self, use: UserUse, kind: Kind, name: str, quota: int | None) -> bool:
        may = self.made.may_make(use.name, kind, name, quota)
        if not may:
            use.refuse(kind.value)
        return may

    def lockable(
        self, access_key: str, new: Sequence[MessageQueue], held: int
    ) -> Sequence[MessageQueue]:
        """Return those of some queues that a user may lock with so many that it has locked."""
        use = self.use_of(access_key)
        if use is None or use.quotas.queue_locks is None:
            return new
        left = max(use.quotas.queue_locks - held, 0)
        if len(new) > left:
            use.refuse(QUEUE_LOCKS)
        return new[:left]

    # -- who was refused ------------------------------------------------------------------------

    def _tell(self, use: UserUse, quota: str) -> None:
        """Write one line in a minute for each quota of a user."""
        now_s = self._clock()
        key = use.name, quota
        told_s, left_out = self._told.get(key, (-_LINE_EVERY_S, 0))
        if now_s - told_s < _LINE_EVERY_S:
            self._told[key] = told_s, left_out + 1
            return
        self._told[key] = now_s, 0
        self._audit.note("quota", user=use.name, quota=quota, refusedBefore=left_out)
        _log.warning(
            "quota used up user=%s quota=%s suppressed=%d", shown(use.name), quota, left_out
        )
