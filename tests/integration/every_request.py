"""A program that uses each part of our client once, so that each of its requests is sent."""

import asyncio

from cli_shell import until

from mailboat.client import (
    Admin,
    ClientSecurity,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    Sql,
    StartPoint,
    TransactionProducer,
    TransactionState,
)
from mailboat.client.broker_calls import earliest_store_time_ms
from mailboat.filtering.sql.parser import parse
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig

FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
CONDITION = "a IS NULL"
OPTIONS = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "200",
    "enablePropertyFilter": "true",
    "defaultTopicQueueNums": "2",
}
"""What the brokers need for it."""


class Desk:
    """A handler that replies to requests, refuses each message once, and keeps what came."""

    def __init__(self, replier: Producer) -> None:
        """Reply by a producer."""
        self._replier = replier
        self.bodies: list[bytes] = []
        self.messages: list[MessageExt] = []

    async def __call__(self, messages: list[MessageExt]) -> None:
        """Take messages."""
        for message in messages:
            self.bodies.append(message.payload())
            self.messages.append(message)
            if message.payload() == b"?":
                await self._replier.reply(message, b"!")
            if message.payload() == b"fails" and message.reconsume_times == 0:
                raise RuntimeError("not now")

    async def wait_for(self, body: bytes) -> None:
        """Return once a message came."""

        async def came() -> bool:
            return body in self.bodies

        await until(came, within_s=30.0)


async def send_everything(namesrv: str, security: ClientSecurity, desk: Desk) -> None:
    """Send by each kind of producer and of send, and have a transaction asked about."""
    asked = asyncio.Event()

    async def execute(message: Message, transaction_id: str) -> TransactionState:
        return TransactionState.UNKNOWN

    async def check(message: MessageExt) -> TransactionState:
        asked.set()
        return TransactionState.COMMIT

    producer = TransactionProducer("P", check, namesrv=namesrv, security=security)
    async with producer:
        await producer.send(Message("T", b"one", keys="key"))
        await producer.send(Message("T", b"fails"))
        await producer.send_batch([Message("T", b"two"), Message("T", b"three")])
        await producer.send_oneway(Message("T", b"four"))
        assert (await producer.request(Message("T", b"?"), timeout_s=20)).payload() == b"!"
        await producer.send_in_transaction(Message("T", b"half"), execute)
        async with asyncio.timeout(30):
            await asked.wait()
        for body in (b"one", b"fails", b"two", b"three", b"four", b"half"):
            await desk.wait_for(body)


async def administrate(namesrv: str, security: ClientSecurity, desk: Desk, member: str) -> None:
    """Ask all that an administrator may, while group G is online, and then change things."""
    async with Admin(namesrv=namesrv, security=security) as admin:
        [broker] = await admin.cluster.masters()
        address = broker.address
        await admin.topics.create(TopicConfig("U", read_queue_nums=1, write_queue_nums=1))
        await admin.groups.create(SubscriptionGroupConfig("H"))
        await admin.cluster.runtime_info(address)
        await admin.cluster.broker_config(address)
        await admin.cluster.update_broker_config(address, {"transactionCheckMax": "15"})
        await admin.cluster.producers(address)
        await admin.cluster.namesrv_configs()
        await admin.cluster.wipe_write_perm(broker.broker_name)
        await admin.cluster.add_write_perm(broker.broker_name)
        await admin.cluster.put_kv("N", "k", "v")
        assert await admin.cluster.kv_value("N", "k") == "v"
        await admin.cluster.delete_kv("N", "k")
        await admin.topics.names()
        await admin.topics.configs(address)
        await admin.topics.stats("T")
        await admin.topics.consumer_groups("T")
        await admin.groups.configs()
        await admin.groups.stats("G")
        await admin.groups.connection("G")
        await admin.groups.running_info("G", member)
        message = desk.messages[desk.bodies.index(b"one")]
        assert (await admin.messages.by_offset_id(message.offset_message_id)).body == b"one"
        assert await admin.messages.by_unique_key("T", message.unique_key or "")
        assert await admin.messages.by_key("T", "key")
        await admin.messages.consume_directly(message, "G", member)
        queue = MessageQueue("T", broker.broker_name, 0)
        await admin.offsets.minimum(queue)
        await admin.offsets.maximum(queue)
        await admin.offsets.at_time(queue, 0)
        await admin.offsets.reset("G", "T", FIRST)
        await admin.standing.of_message(message)
        await earliest_store_time_ms(admin._instance.remoting, address, queue)
        await admin.topics.delete("U")
        await admin.groups.delete("H")


async def consume_by_hand(namesrv: str, security: ClientSecurity) -> None:
    """Poll, commit and ask for offsets."""
    consumer = PullConsumer("PULL", namesrv=namesrv, security=security, start_point=FIRST)
    async with consumer:
        await consumer.subscribe("T", Sql(CONDITION))
        async with asyncio.timeout(30):
            while not await consumer.poll():
                pass
        await consumer.commit()
        for queue in consumer.assignment:
            await consumer.committed(queue)


async def use_everything(namesrv: str, security: ClientSecurity) -> None:
    """Use each part of the client once."""
    parse(CONDITION)  # The parser is made with the first one, which may take seconds.
    replier = Producer("R", namesrv=namesrv, security=security)
    desk = Desk(replier)
    ordered = PushConsumer(
        "ORDERED", namesrv=namesrv, security=security, start_point=FIRST, order=True
    )
    consumer = PushConsumer("G", namesrv=namesrv, security=security, start_point=FIRST)
    consumer.subscribe("T", "*", desk)
    ordered_desk = Desk(replier)
    ordered.subscribe("T", "*", ordered_desk)
    async with replier:
        await replier.send(Message("T", b"zero"))
        async with consumer, ordered:
            await desk.wait_for(b"zero")
            await ordered_desk.wait_for(b"zero")
            await send_everything(namesrv, security, desk)
            await consumer.save_offsets()
            await consume_by_hand(namesrv, security)
            member = consumer._instance.client_id
            await administrate(namesrv, security, desk, member)
