"""A client of a broker that sends single requests and answers what the broker asks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from small_store import small_store

from mailboat.broker.controller import BrokerController
from mailboat.config import BrokerConfig, Settings
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.heartbeat import (
    CLUSTERING,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    encode_heartbeat,
)
from mailboat.protocol.lock_batch import LockBatch, decode_locked, encode_lock_batch
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.security.client_security import OPEN, ClientSecurity

BROKER_NAME = "broker-a"
_ASKED = (
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
)

Respond = Callable[[RemotingCommand], RemotingCommand | None]
"""Answers what the broker asked; None is no answer."""


class RawClient:
    """One client process: a connection, an id, and what the broker asked it."""

    def __init__(
        self,
        address: str,
        client_id: str = "10.0.0.1@1",
        language: str = "JAVA",
        security: ClientSecurity = OPEN,
    ) -> None:
        """Prepare a client of the broker at `address`."""
        self.address = address
        self.client_id = client_id
        self.language = language
        self.pushed: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self.respond: Respond = lambda _: None
        dispatcher = Dispatcher()
        for code in _ASKED:
            dispatcher.register(code, self._asked)
        self._remoting = RemotingClient(dispatcher, security=security)

    async def call(
        self, code: int, ext_fields: Mapping[str, ExtValue] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Send a request and return the answer."""
        command = RemotingCommand.request(code, ext_fields, body)
        command.language = self.language
        return await self._remoting.request(self.address, command, 20.0)

    async def ok(
        self, code: int, ext_fields: Mapping[str, ExtValue] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Send a request that has to succeed and return the answer."""
        answer = await self.call(code, ext_fields, body)
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
        return answer

    async def heartbeat(
        self,
        *topics: str,
        group: str | None = None,
        producer: str | None = None,
        message_model: str = CLUSTERING,
    ) -> None:
        """Register as a member of a consumer group, a producer group or both."""
        data = HeartbeatData(self.client_id)
        if group is not None:
            subscriptions = [SubscriptionData(topic, sub_version=1) for topic in topics]
            data.consumer_data_set.append(
                ConsumerData(
                    group, message_model=message_model, subscription_data_set=subscriptions
                )
            )
        if producer is not None:
            data.producer_data_set.append(ProducerData(producer))
        await self.ok(RequestCode.HEART_BEAT, body=encode_heartbeat(data))

    async def make_topic(self, topic: str, queues: int = 1) -> None:
        """Make a topic as mqadmin does."""
        fields: dict[str, ExtValue] = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues,
            "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0, "order": False,
        }  # fmt: skip
        await self.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def send(self, topic: str, body: bytes, queue_id: int = 0, properties: str = "") -> str:
        """Store a message and return its offset message id."""
        fields: dict[str, ExtValue] = {
            "a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1,
            "h": 0, "i": properties, "j": 0, "k": False,
        }  # fmt: skip
        answer = await self.ok(RequestCode.SEND_MESSAGE_V2, fields, body)
        return answer.ext_fields["msgId"]

    async def pull(
        self,
        group: str,
        topic: str,
        queue_offset: int,
        *,
        queue_id: int = 0,
        commit_offset: int | None = None,
        suspend_ms: int = 0,
        subscription: str | None = "*",
    ) -> RemotingCommand:
        """Pull once; `commit_offset` rides along, `suspend_ms` asks to wait for messages."""
        sys_flag = 0 if commit_offset is None else 1
        sys_flag |= 2 if suspend_ms else 0
        sys_flag |= 0 if subscription is None else 4
        fields: dict[str, ExtValue] = {
            "consumerGroup": group, "topic": topic, "queueId": queue_id,
            "queueOffset": queue_offset, "maxMsgNums": 32, "sysFlag": sys_flag,
            "commitOffset": commit_offset or 0, "suspendTimeoutMillis": suspend_ms,
            "subscription": subscription, "subVersion": 0, "expressionType": "TAG",
        }  # fmt: skip
        return await self.call(RequestCode.PULL_MESSAGE, fields)

    async def commit(
        self, group: str, topic: str, queue_offset: int, queue_id: int = 0
    ) -> RemotingCommand:
        """Commit an offset."""
        return await self.call(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {
                "consumerGroup": group,
                "topic": topic,
                "queueId": queue_id,
                "commitOffset": queue_offset,
            },
        )

    async def committed(self, group: str, topic: str, queue_id: int = 0) -> int | None:
        """Return a group's offset, None when it has none."""
        answer = await self.call(
            RequestCode.QUERY_CONSUMER_OFFSET,
            {
                "consumerGroup": group,
                "topic": topic,
                "queueId": queue_id,
                "setZeroIfNotFound": False,
            },
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return int(answer.ext_fields["offset"])

    async def lock(self, group: str, topic: str, *queue_ids: int) -> set[int]:
        """Lock queues; return those held now."""
        body = self._lock_body(group, topic, queue_ids)
        answer = await self.ok(RequestCode.LOCK_BATCH_MQ, body=body)
        return {queue.queue_id for queue in decode_locked(answer.body)}

    async def unlock(self, group: str, topic: str, *queue_ids: int) -> None:
        """Give queues back."""
        await self.ok(RequestCode.UNLOCK_BATCH_MQ, body=self._lock_body(group, topic, queue_ids))

    async def next_push(self, code: int) -> RemotingCommand:
        """Return the next request of the broker with a code; others are dropped."""
        while True:
            command = await asyncio.wait_for(self.pushed.get(), 10)
            if command.code == code:
                return command

    async def close(self) -> None:
        """Close the connection."""
        await self._remoting.close()

    def _lock_body(self, group: str, topic: str, queue_ids: Iterable[int]) -> bytes:
        queues = {MessageQueue(topic, BROKER_NAME, queue_id) for queue_id in queue_ids}
        return encode_lock_batch(LockBatch(group, self.client_id, queues))

    def _asked(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        self.pushed.put_nowait(command)
        return self.respond(command)


def broker_settings(root: Path, flush_disk_type: str = "ASYNC_FLUSH", **broker: Any) -> Settings:
    """Return the settings of a small broker on a free port."""
    return Settings(
        role="broker",
        broker=BrokerConfig(
            listen_port=0, bind_address="127.0.0.1", broker_name=BROKER_NAME, **broker
        ),
        store=small_store(root, flush_disk_type=flush_disk_type),
    )


@asynccontextmanager
async def running_broker(root: Path, **broker: Any) -> AsyncIterator[BrokerController]:
    """Run a broker over a directory."""
    controller = BrokerController(broker_settings(root, **broker))
    await controller.start()
    try:
        yield controller
    finally:
        await controller.shutdown()


@asynccontextmanager
async def connected(
    broker: BrokerController, *client_ids: str, language: str = "JAVA"
) -> AsyncIterator[list[RawClient]]:
    """Connect clients to a broker."""
    clients = [RawClient(broker.address, client_id, language) for client_id in client_ids]
    try:
        yield clients
    finally:
        for client in clients:
            await client.close()
