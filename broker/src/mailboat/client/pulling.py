"""Pulling messages from one queue.

Source: apache/rocketmq client/impl/consumer/PullAPIWrapper.java and
client/consumer/PullResult.java.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from mailboat.client.record_decoder import decode_messages
from mailboat.client.routes import MASTER_ID, RouteCache
from mailboat.errors import BrokerError
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionData
from mailboat.model.sys_flag import PULL_SUBSCRIPTION, PULL_SUSPEND
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, optional_int, required_int
from mailboat.remoting.client import RemotingClient

REQUEST_TIMEOUT_S: Final = 10.0
# Brokers look at parked pulls every 5 s, so an answer may come this much after the suspend time.
SUSPEND_GRACE_S: Final = 15.0


class PullStatus(Enum):
    """What a pull found."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


_STATUS_BY_CODE: Final = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@dataclass(slots=True)
class PullResult:
    """What a pull brought.

    `next_offset` is where to pull next; `max_offset` is exclusive. `body` holds the records as they
    came, unfiltered, for readers that decode in bulk.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes = field(repr=False)
    subscription: SubscriptionData = field(repr=False)
    _messages: list[MessageExt] | None = field(default=None, init=False, repr=False)

    @property
    def messages(self) -> list[MessageExt]:
        """The messages whose tag is subscribed to, decoded at the first use.

        Raises:
            CorruptRecordError: the body is damaged.
        """
        return self.decode()

    def decode(self) -> list[MessageExt]:
        """Return `messages`. Brokers compare hashes of tags, which may collide; this compares tags.

        Raises:
            CorruptRecordError: the body is damaged.
        """
        if self._messages is None:
            messages = decode_messages(self.body)
            tags = self.subscription.tags_set
            if tags:
                messages = [message for message in messages if message.tags in tags]
            self._messages = messages
        return self._messages


@dataclass(slots=True)
class PullRequest:
    """One pull.

    It never carries an offset to store for the group: brokers work on pulls and commits in
    different threads, so an old offset in a pull could end up over a newer one.
    """

    group: str
    queue: MessageQueue
    queue_offset: int
    subscription: SubscriptionData
    max_messages: int
    suspend_s: float = 0.0

    def to_command(self) -> RemotingCommand:
        """Return the request; it carries the subscription, so brokers need no heartbeat first."""
        sys_flag = PULL_SUBSCRIPTION
        if self.suspend_s > 0:
            sys_flag |= PULL_SUSPEND
        fields = {
            "consumerGroup": self.group,
            "topic": self.queue.topic,
            "queueId": str(self.queue.queue_id),
            "queueOffset": str(self.queue_offset),
            "maxMsgNums": str(self.max_messages),
            "sysFlag": str(sys_flag),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(int(self.suspend_s * 1000)),
            "subscription": self.subscription.sub_string,
            "subVersion": str(self.subscription.sub_version),
            "expressionType": self.subscription.expression_type,
            "bname": self.queue.broker_name,
        }
        return RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=fields)


class Puller:
    """Sends pulls to the broker that each queue's last answer suggested."""

    __slots__ = ("_broker_ids", "_remoting", "_routes")

    def __init__(self, remoting: RemotingClient, routes: RouteCache) -> None:
        """Pull over `remoting` from the brokers in `routes`."""
        self._remoting = remoting
        self._routes = routes
        self._broker_ids: dict[MessageQueue, int] = {}

    async def pull(self, request: PullRequest) -> PullResult:
        """Send one pull and return its answer.

        Raises:
            BrokerError: the broker refused.
            RemotingError: no answer.
            RouteNotFoundError: the queue's broker is not known.
        """
        queue = request.queue
        address = await self._routes.read_address(queue, self._broker_ids.get(queue, MASTER_ID))
        timeout_s = request.suspend_s + SUSPEND_GRACE_S if request.suspend_s else REQUEST_TIMEOUT_S
        response = await self._remoting.request(address, request.to_command(), timeout_s)
        status = _STATUS_BY_CODE.get(response.code)
        if status is None:
            raise BrokerError(response.code, response.remark or "")
        self._broker_ids[queue] = optional_int(response, "suggestWhichBrokerId", MASTER_ID)
        return PullResult(
            status=status,
            next_offset=required_int(response, "nextBeginOffset"),
            min_offset=required_int(response, "minOffset"),
            max_offset=required_int(response, "maxOffset"),
            body=response.body if status is PullStatus.FOUND else b"",
            subscription=request.subscription,
        )

    async def refresh_route(self, topic: str) -> None:
        """Ask where a topic's brokers are now, after one of them failed.

        Raises:
            RouteNotFoundError, RemotingError: nobody knows.
        """
        await self._routes.refresh(topic)
