"""Finding messages by id, by key and by place; reading queues without consuming them.

Source: apache/rocketmq client/impl/MQAdminImpl.java (viewMessage, queryMessage).
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Final, NamedTuple

from mailboat.client.admin.cluster import ClusterAdmin
from mailboat.client.broker_calls import call
from mailboat.client.instance import ClientInstance
from mailboat.client.pulling import Puller, PullRequest, PullResult, PullStatus
from mailboat.client.record_decoder import decode_messages
from mailboat.errors import BrokerError, MailboatError, RemotingError
from mailboat.model.message import MessageExt
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import TOOLS_GROUP
from mailboat.model.subscription import SUBSCRIBE_ALL, SubscriptionData
from mailboat.protocol.bodies import convert_body
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.queue_map import loads_object
from mailboat.protocol.route import MASTER_ID

logger = logging.getLogger(__name__)

QUERY_TIMEOUT_S: Final = 15.0
UNIQUE_KEY_MAX: Final = 32
# Brokers of 4.9 leave `_UNIQUE_KEY_QUERY` out of a signature whoever made it, those of 5 and ours
# where the client is no newer than this, V4_9_3.
_QUERY_VERSION: Final = 399
BROWSE_BATCH: Final = 32
DIRECT_TIMEOUT_S: Final = 15.0
"""Brokers wait 10 s for the member that they hand a message to."""
FOLLOW_SUSPEND_S: Final = 10.0
FOLLOW_RETRY_S: Final = 1.0
FOLLOW_BUFFER: Final = 256


class PlacedMessage(NamedTuple):
    """A message and the queue that it was read from."""

    queue: MessageQueue
    message: MessageExt


class DirectConsumption(NamedTuple):
    """What a member made of a message that was handed to it."""

    result: str
    """`CR_SUCCESS`, `CR_LATER`, `CR_THROW_EXCEPTION`, ... (Go clients give a number)."""
    remark: str
    spent_ms: int


class MessageAdmin:
    """Looks messages up."""

    def __init__(self, instance: ClientInstance) -> None:
        """Use the connections of `instance`."""
        self._instance = instance
        self._puller = Puller(instance.remoting, instance.routes)

    async def by_offset_id(self, offset_message_id: str) -> MessageExt:
        """Return the message of a broker's id; the broker's address is part of the id.

        Raises:
            IllegalMessageError: it is not such an id.
            BrokerError: there is no message at that place (any more).
            MailboatError: this client signs, and the name servers know no broker at that address.
        """
        place = decode_offset_message_id(offset_message_id)
        await self._check_known(place.address)
        fields: dict[str, ExtValue] = {"offset": place.physical_offset}
        code = RequestCode.VIEW_MESSAGE_BY_ID
        response = await call(self._instance.remoting, place.address, code, fields)
        messages = decode_messages(response.body)
        if not messages:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"no message at {place}")
        return messages[0]

    async def by_unique_key(self, topic: str, unique_key: str) -> list[MessageExt]:
        """Return the copies of the message to which a producer gave the id `unique_key`."""
        messages = await self._query(topic, unique_key, UNIQUE_KEY_MAX, 0, _now_ms(), unique=True)
        return [message for message in messages if message.unique_key == unique_key]

    async def by_key(
        self, topic: str, key: str, *, max_messages: int = 64, begin_ms: int = 0, end_ms: int = 0
    ) -> list[MessageExt]:
        """Return messages with one of their KEYS equal to `key`, oldest first.

        Args:
            topic: where to look.
            key: the key.
            max_messages: at most so many from each broker.
            begin_ms: stored at or after this time.
            end_ms: stored at or before this time; 0 means now.
        """
        messages = await self._query(topic, key, max_messages, begin_ms, end_ms or _now_ms())
        return [message for message in messages if key in (message.keys or "").split(" ")]

    async def at(self, queue: MessageQueue, queue_offset: int) -> MessageExt | None:
        """Return the message at one place of a queue, or None where there is none."""
        async for message in self.browse(queue, queue_offset, queue_offset + 1):
            return message
        return None

    async def read(
        self,
        queue: MessageQueue,
        queue_offset: int,
        *,
        max_messages: int = BROWSE_BATCH,
        subscription: SubscriptionData | None = None,
        suspend_s: float = 0.0,
    ) -> PullResult:
        """Pull once from a queue; no group's offset changes.

        Args:
            queue: the queue.
            queue_offset: where to begin.
            max_messages: at most so many.
            subscription: only messages that pass it.
            suspend_s: how long the broker waits where there is nothing yet.
        """
        return await self._puller.pull(
            PullRequest(
                group=TOOLS_GROUP,
                queue=queue,
                queue_offset=queue_offset,
                subscription=subscription or SubscriptionData(queue.topic, SUBSCRIBE_ALL),
                max_messages=max_messages,
                suspend_s=suspend_s,
            )
        )

    async def browse(
        self,
        queue: MessageQueue,
        begin_offset: int,
        end_offset: int,
        subscription: SubscriptionData | None = None,
    ) -> AsyncIterator[MessageExt]:
        """Yield the messages of a queue from `begin_offset` to before `end_offset`."""
        queue_offset = begin_offset
        while queue_offset < end_offset:
            result = await self.read(
                queue,
                queue_offset,
                max_messages=min(BROWSE_BATCH, end_offset - queue_offset),
                subscription=subscription,
            )
            for message in result.messages:
                if message.queue_offset < end_offset:
                    yield message
            if result.status is PullStatus.NO_NEW_MSG or result.next_offset <= queue_offset:
                return
            queue_offset = result.next_offset

    async def consume_directly(
        self, message: MessageExt, group: str, client_id: str
    ) -> DirectConsumption:
        """Have one member of a group consume a stored message now, outside of its turn.

        No offset changes and nothing is sent back, whatever comes of it.

        Raises:
            BrokerError: the member is not online, does not answer, or cannot do that.
            MailboatError: as for `by_offset_id`.
        """
        fields: dict[str, ExtValue] = {
            "consumerGroup": group,
            "clientId": client_id,
            "msgId": message.offset_message_id,
            "topic": message.topic,
        }
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        address = message.store_address
        await self._check_known(address)
        response = await call(
            self._instance.remoting, address, code, fields, timeout_s=DIRECT_TIMEOUT_S
        )
        table = loads_object(response.body)
        return DirectConsumption(
            str(table.get("consumeResult", "")),
            str(table.get("remark") or ""),
            convert_body(table.get("spentTimeMills") or 0, int),
        )

    async def follow(
        self, starts: Mapping[MessageQueue, int], subscription: SubscriptionData | None = None
    ) -> AsyncGenerator[PlacedMessage, None]:
        """Yield the messages of some queues from given offsets on, as they come, without end.

        A broker that does not answer is asked again every second.

        Raises:
            BrokerError: a broker refuses.
        """
        found: asyncio.Queue[PlacedMessage] = asyncio.Queue(FOLLOW_BUFFER)
        tasks = [
            asyncio.create_task(self._follow_one(queue, queue_offset, subscription, found))
            for queue, queue_offset in starts.items()
        ]
        try:
            while True:
                taking = asyncio.create_task(found.get())
                tasks.append(taking)
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                tasks.remove(taking)
                for task in done - {taking}:
                    task.result()
                yield taking.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow_one(
        self,
        queue: MessageQueue,
        queue_offset: int,
        subscription: SubscriptionData | None,
        found: asyncio.Queue[PlacedMessage],
    ) -> PlacedMessage:
        while True:
            try:
                result = await self.read(
                    queue, queue_offset, subscription=subscription, suspend_s=FOLLOW_SUSPEND_S
                )
                messages = result.messages
            except RemotingError as error:
                logger.debug("follow queue=%s: %s", queue, error)
                await asyncio.sleep(FOLLOW_RETRY_S)
                await self._puller.refresh_route(queue.topic)
                continue
            for message in messages:
                await found.put(PlacedMessage(queue, message))
            queue_offset = result.next_offset

    async def _check_known(self, address: str) -> None:
        """Refuse to send a signed request to whoever an id or a message names.

        A signature can be used again by whoever gets it.
        """
        if self._instance.security.credentials is None:
            return
        if not await ClusterAdmin(self._instance).brokers_at(address):
            raise MailboatError(
                f"the name servers know no broker at {address}; a signed request is not sent there"
            )

    async def _query(
        self,
        topic: str,
        key: str,
        max_messages: int,
        begin_ms: int,
        end_ms: int,
        *,
        unique: bool = False,
    ) -> list[MessageExt]:
        fields: dict[str, ExtValue] = {
            "topic": topic,
            "key": key,
            "maxNum": max_messages,
            "beginTimestamp": begin_ms,
            "endTimestamp": end_ms,
            "_UNIQUE_KEY_QUERY": unique,
        }
        route = await self._instance.name_servers.topic_route(topic)
        addresses = [
            broker.broker_addrs.get(MASTER_ID) or next(iter(broker.broker_addrs.values()))
            for broker in route.broker_datas
            if broker.broker_addrs
        ]
        bodies = await asyncio.gather(*(self._query_one(address, fields) for address in addresses))
        messages = [message for body in bodies for message in decode_messages(body)]
        return sorted(messages, key=lambda message: message.store_timestamp_ms)

    async def _query_one(self, address: str, fields: dict[str, ExtValue]) -> bytes:
        command = RemotingCommand.request(RequestCode.QUERY_MESSAGE, fields)
        command.version = _QUERY_VERSION
        response = await self._instance.remoting.request(address, command, QUERY_TIMEOUT_S)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return b""
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark or "")
        return response.body


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
