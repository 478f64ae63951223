"""Sharing a topic's queues among the members of a group.

Each member asks a broker who is in the group and computes its own share; see `allocation`. It
happens at the start, every 20 s, when a broker says that the members changed, and when a route
changed.

Source: apache/rocketmq client/impl/consumer/RebalanceImpl.java and RebalanceService.java.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

from mailboat.client.allocation import Allocation
from mailboat.client.background import repeat
from mailboat.client.broker_calls import call
from mailboat.client.instance import ClientInstance
from mailboat.client.refusals import is_denied
from mailboat.errors import BrokerError, MailboatError, RouteNotFoundError
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.bodies import decode_consumer_id_list
from mailboat.protocol.codes import RequestCode, ResponseCode

logger = logging.getLogger(__name__)

REBALANCE_INTERVAL_S: Final = 20.0
# A topic without a route (a retry topic just being made, say) is looked for again this soon.
UNROUTED_INTERVAL_S: Final = 1.0

AssignmentListener = Callable[[str, list[MessageQueue]], None]
"""Told of a topic and this member's queues of it, after they changed."""

Assign = Callable[[str, set[MessageQueue]], Awaitable[None]]
"""Takes a topic and the queues of it that are this member's from now on."""


def tell_assignment(
    listeners: Iterable[AssignmentListener], topic: str, own: Iterable[MessageQueue]
) -> None:
    """Tell the program's listeners of this member's queues of a topic.

    What one of them raises is logged: the queues are this member's, whatever it thinks of them.
    """
    queues = sorted(own)
    for listener in list(listeners):
        try:
            listener(topic, list(queues))
        except (Exception, asyncio.CancelledError):
            # CancelledError: the result of something that was cancelled; nothing is awaited here.
            logger.exception("assignment listener failed topic=%s", topic)


class Rebalancer:
    """Keeps the queues of one member of a group."""

    __slots__ = ("_assign", "_group", "_instance", "_strategy", "_topics", "_wake")

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        *,
        strategy: Allocation | None,
        assign: Assign,
    ) -> None:
        """Share queues by `strategy`, or take all of them (broadcasting) where it is None."""
        self._instance = instance
        self._group = group
        self._strategy = strategy
        self._assign = assign
        self._topics: set[str] = set()
        self._wake = asyncio.Event()

    def add_topic(self, topic: str) -> None:
        """Share the queues of `topic` too."""
        self._topics.add(topic)

    def start(self) -> asyncio.Task[None]:
        """Rebalance at once and then again and again; return the task that does."""
        self._wake.set()
        return self._instance.tasks.spawn(
            partial(repeat, self.rebalance, every_s=REBALANCE_INTERVAL_S, wake=self._wake),
            "rebalance",
        )

    def wake(self) -> None:
        """Rebalance soon."""
        self._wake.set()

    async def rebalance(self) -> None:
        """Share the queues of every topic once.

        A topic that cannot be shared now keeps its queues and holds up no other one.
        """
        for topic in sorted(self._topics):
            try:
                queues = await self._instance.routes.read_queues(topic)
                self._instance.first_looks.note(topic, queues)
                own = await self._own_queues(topic, queues)
                if own is not None:
                    await self._assign(topic, own)
            except RouteNotFoundError as error:
                self._instance.first_looks.note(topic, ())
                logger.debug("rebalance topic=%s has no route yet: %s", topic, error)
                asyncio.get_running_loop().call_later(UNROUTED_INTERVAL_S, self._wake.set)
            except MailboatError as error:
                subject = f"rebalance topic={topic} group={self._group}"
                if not self._instance.refusals.tell(subject, error):
                    logger.warning("%s: %s", subject, error)

    async def _own_queues(
        self, topic: str, queues: tuple[MessageQueue, ...]
    ) -> set[MessageQueue] | None:
        """Return this member's share, or None where nobody knows it now.

        Raises:
            MailboatError: the members cannot be learned.
        """
        if self._strategy is None:
            return set(queues)
        members = await self._members(topic)
        client_id = self._instance.client_id
        if client_id not in members:
            logger.info("rebalance topic=%s group=%s: not a member yet", topic, self._group)
            asyncio.get_running_loop().call_later(UNROUTED_INTERVAL_S, self._wake.set)
            return None
        try:
            own = set(self._strategy(client_id, queues, members))
        except (Exception, asyncio.CancelledError):
            logger.exception("allocation strategy failed topic=%s group=%s", topic, self._group)
            return None
        strange = own.difference(queues)
        if strange:
            logger.error(
                "allocation strategy gives what is no queue of topic=%s group=%s: %r",
                topic,
                self._group,
                next(iter(strange)),
            )
            return None
        return own

    async def _members(self, topic: str) -> list[str]:
        """Ask one broker of the topic for the group's members; it is told about us if it forgot."""
        addresses = self._instance.routes.topic_addresses(topic)
        if not addresses:
            raise RouteNotFoundError(f"no address of a broker of topic {topic} is known")
        address = random.choice(addresses)
        members = await self._ask_members(address)
        if self._instance.client_id not in members:
            refusal = await self._instance.send_heartbeat(address)
            if refusal is not None:
                # It will not know us for being asked again.
                raise refusal
            members = await self._ask_members(address)
        return sorted(members)

    async def _ask_members(self, address: str) -> list[str]:
        fields = {"consumerGroup": self._group}
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        try:
            response = await call(self._instance.remoting, address, code, {**fields})
        except BrokerError as error:
            # A group without members is an error to Java brokers.
            if error.code == ResponseCode.SYSTEM_ERROR and not is_denied(error):
                return []
            raise
        return decode_consumer_id_list(response.body)
