"""Where a message stands with each group of its topic.

The tools of RocketMQ compare a group's offset with the message's; here the copies that a group's
retries leave behind are looked at too, so a message that failed is not called consumed.

Source: apache/rocketmq tools/admin/DefaultMQAdminExtImpl.java (messageTrackDetail).
"""

import asyncio
from dataclasses import dataclass
from enum import Enum

from mailboat.client.admin.cluster import ClusterAdmin
from mailboat.client.admin.groups import GroupAdmin
from mailboat.client.admin.messages import MessageAdmin
from mailboat.client.admin.offsets import OffsetAdmin
from mailboat.client.admin.topics import TopicAdmin
from mailboat.errors import RouteNotFoundError
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import SCHEDULE_TOPIC, dlq_topic, is_retry_or_dlq, retry_topic
from mailboat.model.properties import PropertyName
from mailboat.model.subscription import EXPRESSION_TAG
from mailboat.protocol.client_connections import ConsumerConnection

BROADCASTING = "BROADCASTING"


class ConsumeState(Enum):
    """What became of a message in one group."""

    CONSUMED = "consumed"
    NOT_CONSUMED = "not consumed"
    FILTERED = "filtered"
    """The group is past it, and its subscription leaves it out."""
    RETRYING = "retrying"
    """It failed and waits in the group's retry topic, or for its delay."""
    DEAD_LETTER = "dead letter"
    BROADCAST = "broadcast"
    """Members of a broadcasting group keep their offsets to themselves."""
    UNKNOWN = "unknown"
    """The group has no offset in the message's queue."""


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """A message in one group: the group is consumed up to `consumer_offset` in its queue."""

    group: str
    state: ConsumeState
    online: bool
    consumer_offset: int | None


class StandingAdmin:
    """Compares messages with what groups have consumed."""

    def __init__(
        self,
        cluster: ClusterAdmin,
        topics: TopicAdmin,
        groups: GroupAdmin,
        messages: MessageAdmin,
        offsets: OffsetAdmin,
    ) -> None:
        """Ask over the other parts of the admin client."""
        self._cluster = cluster
        self._topics = topics
        self._groups = groups
        self._messages = messages
        self._offsets = offsets

    async def queue_of(self, message: MessageExt) -> MessageQueue | None:
        """Return the queue of a stored message, or None where no broker has its address any more.

        A record names the address of its broker, not the name.
        """
        brokers = await self._cluster.brokers_at(message.store_address)
        names = {each.broker_name for each in brokers}
        if not names:
            route = await self._topics.route(message.topic)
            names = {each.broker_name for each in route.broker_datas}
        if len(names) != 1:
            return None
        return MessageQueue(message.topic, names.pop(), message.queue_id)

    async def of_message(self, message: MessageExt) -> list[GroupStanding]:
        """Return where a message stands with each group that consumes its topic, by group name."""
        queue = await self.queue_of(message)
        groups = sorted(await self._topics.consumer_groups(message.topic))
        return list(await asyncio.gather(*(self._of_group(message, queue, g) for g in groups)))

    async def _of_group(
        self, message: MessageExt, queue: MessageQueue | None, group: str
    ) -> GroupStanding:
        connection = await self._groups.connection(group)
        committed = None if queue is None else await self._offsets.committed(group, queue)
        state = compare(message, committed, connection)
        if state is ConsumeState.CONSUMED and message.unique_key is not None:
            state = await self._after_failure(message, group)
        return GroupStanding(group, state, connection is not None, committed)

    async def _after_failure(self, message: MessageExt, group: str) -> ConsumeState:
        """Look for copies of a message in the topics that a group's failures go through."""
        if is_retry_or_dlq(message.topic):
            return ConsumeState.CONSUMED
        if await self._copies(dlq_topic(group), message):
            return ConsumeState.DEAD_LETTER
        retry = retry_topic(group)
        retries = await self._copies(retry, message)
        parked = [
            copy
            for copy in await self._copies(SCHEDULE_TOPIC, message)
            if copy.properties.get(PropertyName.REAL_TOPIC) == retry
        ]
        if len(parked) > len(retries):
            return ConsumeState.RETRYING
        for copy in retries:
            queue = await self.queue_of(copy)
            committed = None if queue is None else await self._offsets.committed(group, queue)
            if committed is None or copy.queue_offset >= committed:
                return ConsumeState.RETRYING
        return ConsumeState.CONSUMED

    async def _copies(self, topic: str, message: MessageExt) -> list[MessageExt]:
        try:
            return await self._messages.by_unique_key(topic, message.unique_key or "")
        except RouteNotFoundError:
            return []


def compare(
    message: MessageExt, committed: int | None, connection: ConsumerConnection | None
) -> ConsumeState:
    """Return what a group's offset and subscription say of a message."""
    if connection is not None and connection.message_model == BROADCASTING:
        return ConsumeState.BROADCAST
    if committed is None:
        return ConsumeState.UNKNOWN if connection is None else ConsumeState.NOT_CONSUMED
    if message.queue_offset >= committed:
        return ConsumeState.NOT_CONSUMED
    if connection is not None:
        subscription = connection.subscription_table.get(message.topic)
        if (
            subscription is not None
            and subscription.expression_type == EXPRESSION_TAG
            and not subscription.takes_all
            and message.tags not in subscription.tags_set
        ):
            return ConsumeState.FILTERED
    return ConsumeState.CONSUMED
