"""Finding messages by id, by key and by place.

Source: apache/rocketmq client/impl/MQAdminImpl.java (viewMessage, queryMessage).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from mailboat.client.broker_calls import call
from mailboat.client.instance import ClientInstance
from mailboat.client.pulling import Puller, PullRequest, PullStatus
from mailboat.client.record_decoder import decode_messages
from mailboat.errors import BrokerError
from mailboat.model.message import MessageExt
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import TOOLS_GROUP
from mailboat.model.subscription import SUBSCRIBE_ALL, SubscriptionData
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.protocol.route import MASTER_ID

QUERY_TIMEOUT_S: Final = 15.0
UNIQUE_KEY_MAX: Final = 32
BROWSE_BATCH: Final = 32


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
        """
        place = decode_offset_message_id(offset_message_id)
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

    async def browse(
        self, queue: MessageQueue, begin_offset: int, end_offset: int
    ) -> AsyncIterator[MessageExt]:
        """Yield the messages of a queue from `begin_offset` to before `end_offset`."""
        queue_offset = begin_offset
        while queue_offset < end_offset:
            result = await self._puller.pull(
                PullRequest(
                    group=TOOLS_GROUP,
                    queue=queue,
                    queue_offset=queue_offset,
                    subscription=SubscriptionData(queue.topic, SUBSCRIBE_ALL),
                    max_messages=min(BROWSE_BATCH, end_offset - queue_offset),
                )
            )
            for message in result.messages:
                if message.queue_offset < end_offset:
                    yield message
            if result.status is PullStatus.NO_NEW_MSG or result.next_offset <= queue_offset:
                return
            queue_offset = result.next_offset

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
        code = RequestCode.QUERY_MESSAGE
        try:
            response = await call(
                self._instance.remoting, address, code, fields, timeout_s=QUERY_TIMEOUT_S
            )
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return b""
            raise
        return response.body


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
