"""Client library: producers, consumers and administration over asyncio.

What belongs here: everything a program needs to talk to name servers and brokers, mailboat's or
Java's. Never here: anything that serves. May import remoting, protocol and what is below them.
"""

from mailboat.client.admin import Admin
from mailboat.client.allocation import (
    Allocation,
    allocate_averagely,
    allocate_by_circle,
    allocate_by_config,
    allocate_by_consistent_hash,
    allocate_by_machine_room,
)
from mailboat.client.handler_runner import ConsumeLater
from mailboat.client.process_queue import FlowLimits
from mailboat.client.producer import Producer, QueueSelector
from mailboat.client.pull_consumer import PullConsumer
from mailboat.client.pulling import PullResult, PullStatus
from mailboat.client.push_consumer import MessageModel, PushConsumer
from mailboat.client.queue_offsets import ConsumeFromWhere, StartPoint
from mailboat.client.send_result import SendResult, SendStatus
from mailboat.client.subscriptions import Sql
from mailboat.client.transaction_producer import (
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from mailboat.model.message import Message, MessageExt
from mailboat.model.message_queue import MessageQueue
from mailboat.security.client_security import ClientSecurity, ClientTls, Credentials

__all__ = [
    "Admin",
    "Allocation",
    "ClientSecurity",
    "ClientTls",
    "ConsumeFromWhere",
    "ConsumeLater",
    "Credentials",
    "FlowLimits",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "QueueSelector",
    "SendResult",
    "SendStatus",
    "Sql",
    "StartPoint",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "allocate_averagely",
    "allocate_by_circle",
    "allocate_by_config",
    "allocate_by_consistent_hash",
    "allocate_by_machine_room",
]
