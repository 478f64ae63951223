"""Transactions of our client through a real broker."""

import asyncio
from collections import Counter
from pathlib import Path

from mailboat.client import (
    ConsumeFromWhere,
    Message,
    MessageExt,
    PushConsumer,
    StartPoint,
    TransactionProducer,
    TransactionState,
)
from mailboat.testing.cluster import Cluster
from mailboat.testing.receiver import Receiver

FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
PATIENCE_S = 20.0
OPTIONS = {"transactionTimeOut": "1000", "transactionCheckInterval": "200"}


class Bank:
    """Local transactions whose messages say how they end: at first, and when asked."""

    def __init__(self) -> None:
        """Begin without transactions."""
        self.executed: list[str] = []
        self.checked: list[MessageExt] = []
        self._checked = asyncio.Event()

    async def execute(self, message: Message, transaction_id: str) -> TransactionState:
        """End as the first word of the body says."""
        self.executed.append(transaction_id)
        first = message.body.split()[0].decode()
        if first == "raise":
            raise RuntimeError("the database went away")
        return TransactionState[first.upper()]

    async def check(self, message: MessageExt) -> TransactionState:
        """Answer as the last word of the body says; after `raise` to the second question only."""
        self.checked.append(message)
        self._checked.set()
        words = message.payload().split()
        times = Counter(checked.unique_key for checked in self.checked)[message.unique_key]
        if words[0] == b"raise" and times == 1:
            raise RuntimeError("still away")
        return TransactionState[words[-1].decode().upper()]

    async def wait_checked(self, count: int) -> None:
        """Return once so many transactions were asked about."""
        async with asyncio.timeout(PATIENCE_S):
            while len({message.unique_key for message in self.checked}) < count:
                self._checked.clear()
                await self._checked.wait()


def consumer_of(cluster: Cluster, receiver: Receiver) -> PushConsumer:
    """Return a consumer of topic T."""
    consumer = PushConsumer("C", namesrv=cluster.namesrv_addresses, start_point=FIRST)
    consumer.subscribe("T", "*", receiver)
    return consumer


async def test_transactions_end_as_the_program_says(tmp_path: Path):
    """Committed messages come once, rolled-back ones never; the broker asks about the others."""
    bank, receiver = Bank(), Receiver()
    bodies = [
        b"commit",
        b"rollback",
        b"unknown commit",
        b"unknown rollback",
        b"raise commit",
        b"commit" + b" commit" * 1000,
    ]
    async with (
        Cluster(tmp_path, options=OPTIONS) as cluster,
        TransactionProducer("P", bank.check, namesrv=cluster.namesrv_addresses) as producer,
        consumer_of(cluster, receiver),
    ):
        results = [
            await producer.send_in_transaction(
                Message("T", body, tags="t", properties={"n": str(number)}), bank.execute
            )
            for number, body in enumerate(bodies)
        ]
        await receiver.wait(4)
        await bank.wait_checked(3)
        await producer.send(Message("T", b"the end"))
        received = await receiver.wait(5)
    states = [result.state.name for result in results]
    assert states == ["COMMIT", "ROLLBACK", "UNKNOWN", "UNKNOWN", "UNKNOWN", "COMMIT"]
    ids = [result.sent.message_id for result in results]
    assert bank.executed == ids
    assert Counter(received) == Counter([*(bodies[i] for i in (0, 2, 4, 5)), b"the end"])
    committed = {message.payload(): message for message in receiver.messages}
    for i in (0, 2, 4, 5):
        message = committed[bodies[i]]
        assert (message.unique_key, message.tags, message.properties["n"]) == (ids[i], "t", str(i))
    assert {message.unique_key for message in bank.checked} == {ids[2], ids[3], ids[4]}
    assert {message.topic for message in bank.checked} == {"T"}


async def test_another_producer_of_the_group_is_asked(tmp_path: Path):
    """After the sender and the broker have restarted, a producer that names the topic is asked."""
    first, second, receiver = Bank(), Bank(), Receiver()
    async with Cluster(tmp_path, options=OPTIONS) as cluster:
        namesrv = cluster.namesrv_addresses
        async with TransactionProducer("P", first.check, namesrv=namesrv) as producer:
            result = await producer.send_in_transaction(
                Message("T", b"unknown commit"), first.execute
            )
        await cluster.stop_broker()
        await cluster.start_broker(0)
        async with (
            TransactionProducer("P", second.check, topics=["T"], namesrv=namesrv),
            consumer_of(cluster, receiver),
        ):
            await receiver.wait(1)
    assert receiver.messages[0].unique_key == result.sent.message_id
    assert second.checked[0].unique_key == result.sent.message_id
