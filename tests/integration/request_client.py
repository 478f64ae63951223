"""A client that sends a broker single requests, and the requests that several test files send."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from mailboat.broker.controller import BrokerController
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    encode_heartbeat,
)
from mailboat.remoting.client import RemotingClient
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher


class Client:
    """One client process: a connection, an id, and what the broker asked it."""

    def __init__(self, address: str, client_id: str = "10.0.0.1@1") -> None:
        """Prepare a client of the broker at `address`."""
        self.address = address
        self.client_id = client_id
        self.pushed: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self.dispatcher = Dispatcher()
        self.dispatcher.register(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._notified)
        self._remoting = RemotingClient(self.dispatcher)

    async def call(
        self, code: int, ext_fields: Mapping[str, ExtValue] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Send a request and return the answer."""
        command = RemotingCommand.request(code, ext_fields, body)
        return await self._remoting.request(self.address, command, 15.0)

    async def heartbeat(
        self, *topics: str, group: str | None = None, producer: str | None = None
    ) -> RemotingCommand:
        """Register as a member of a consumer group, a producer group or both."""
        data = HeartbeatData(self.client_id)
        if group is not None:
            subscriptions = [SubscriptionData(topic, sub_version=1) for topic in topics]
            data.consumer_data_set.append(ConsumerData(group, subscription_data_set=subscriptions))
        if producer is not None:
            data.producer_data_set.append(ProducerData(producer))
        return await self.call(RequestCode.HEART_BEAT, body=encode_heartbeat(data))

    async def send(self, topic: str, body: bytes, queue_id: int = 0, properties: str = "") -> str:
        """Store a message and return its offset message id."""
        answer = await self.call(
            RequestCode.SEND_MESSAGE_V2,
            {
                "a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1,
                "h": 0, "i": properties, "j": 0, "k": False,
            },
            body,
        )  # fmt: skip
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer.ext_fields["msgId"]

    async def close(self) -> None:
        """Close the connection."""
        await self._remoting.close()

    def _notified(self, _connection: Connection, command: RemotingCommand) -> None:
        self.pushed.put_nowait(command)


@asynccontextmanager
async def client_of(
    broker: BrokerController, client_id: str = "10.0.0.1@1"
) -> AsyncIterator[Client]:
    """Connect a client to a broker."""
    client = Client(broker.address, client_id)
    yield client
    await client.close()


def topic_fields(topic: str, **changes: ExtValue) -> dict[str, ExtValue]:
    """Return what mqadmin updateTopic sends."""
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        **changes,
    }


async def make_topic(client: Client, topic: str, **changes: ExtValue) -> RemotingCommand:
    """Make a topic as mqadmin does."""
    return await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, **changes))


async def commit(
    client: Client, group: str, topic: str, queue_id: int, queue_offset: int
) -> RemotingCommand:
    """Commit an offset and wait for the answer, as mqadmin does."""
    return await client.call(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue_id,
            "commitOffset": queue_offset,
        },
    )


async def query(
    client: Client, group: str, topic: str, queue_id: int, **more: ExtValue
) -> RemotingCommand:
    """Ask for a committed offset."""
    return await client.call(
        RequestCode.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": group, "topic": topic, "queueId": queue_id, **more},
    )
