"""Sending messages.

A send without a chosen queue is tried up to three times, each time on another broker, all tries
within one timeout. What was not answered may still have been stored: a retry can store a second
copy with the same UNIQ_KEY.

Source: apache/rocketmq client/impl/producer/DefaultMQProducerImpl.java.
"""

import ipaddress
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from mailboat.client.addresses import DEFAULT_NAMESRV
from mailboat.client.callbacks import Closing
from mailboat.client.instance import ClientInstance
from mailboat.client.latency_fault import LatencyFaults
from mailboat.client.outgoing import (
    COMPRESS_ABOVE_BYTES,
    Compression,
    prepare_batch,
    prepare_message,
    prepare_stored_message,
)
from mailboat.client.replies import PendingReplies, make_reply, make_request, wait_reply
from mailboat.client.send_result import SendResult
from mailboat.client.sending import RETRIES, Sender
from mailboat.errors import MailboatError
from mailboat.model.message import Message, MessageExt
from mailboat.model.message_id import UniqKeyGenerator
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import check_group
from mailboat.protocol.codes import RequestCode
from mailboat.security.client_security import OPEN, ClientSecurity

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses the queue of a message, for order: messages of one queue are consumed in order."""

SEND_TIMEOUT_S: Final = 3.0
REQUEST_TIMEOUT_S: Final = 10.0


class Producer:
    """Sends messages; `async with` starts and closes it.

    Any number of sends may run at the same time.

    Example:
        async with Producer("shop", namesrv="127.0.0.1:9876") as producer:
            result = await producer.send(Message("orders", b"...", tags="new"))
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = DEFAULT_NAMESRV,
        security: ClientSecurity = OPEN,
        retries: int = RETRIES,
        latency_fault_avoidance: bool = False,
        compression: str = "zlib",
        compression_level: int | None = None,
        compress_above_bytes: int = COMPRESS_ABOVE_BYTES,
    ) -> None:
        """Prepare a producer.

        Args:
            group: the producer group, any legal name.
            namesrv: name servers as `HOST:PORT;...`.
            security: what requests are signed with, and how servers are connected to.
            retries: how often a send that failed is tried again.
            latency_fault_avoidance: pass over brokers that were slow or failed for a while.
            compression: `zlib`, which every client reads, or `lz4` or `zstd`, which Java clients
                read from release 5 on.
            compression_level: the codec's own level; RocketMQ's if not given.
            compress_above_bytes: bodies up to this size, and those that do not shrink, travel as
                they are. The messages of a batch are never compressed.

        Raises:
            IllegalMessageError: the group's name is illegal.
            ConfigError: `namesrv` is not a list of addresses, or `compression` is unknown.
        """
        check_group(group)
        self.group = group
        self._instance = ClientInstance(namesrv, security)
        self._compression = Compression(compression, compression_level, compress_above_bytes)
        faults = LatencyFaults() if latency_fault_avoidance else None
        self._sender = Sender(self._instance, retries=retries, faults=faults)
        self._closing = Closing(self)
        self._unique_keys: UniqKeyGenerator | None = None
        self._replies = PendingReplies()
        self._instance.handle(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._replies.process)

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    async def start(self) -> None:
        """Begin; brokers are connected when the first message needs them."""
        await self._instance.start()
        self._unique_keys = UniqKeyGenerator(ipaddress.ip_address(self._instance.ip).packed)
        self._instance.join_as_producer(self.group)

    async def close(self) -> None:
        """Leave the group and close the connections; sends that still run fail.

        Calling it again waits for the same end. A callback of the producer may call it, but does
        not wait.
        """
        await self._closing.run(self._instance.close)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that take messages of a topic.

        Raises:
            RouteNotFoundError, NoWritableQueueError, RemotingError: there are none, or nobody to
                ask.
        """
        return list(await self._instance.routes.write_queues(topic))

    def next_unique_key(self) -> str:
        """Return an id for a message that the program may send more than once.

        As property UNIQ_KEY of the message it is the id of every copy, so that copies can be told
        from other messages; without it each call of `send` gives an id of its own.
        """
        return self._started_keys().next()

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_s: float = SEND_TIMEOUT_S,
    ) -> SendResult:
        """Send a message and return how and where it was stored.

        Args:
            message: what to send.
            queue: send it there, and nowhere else if that fails.
            selector: as `queue`, chosen from the topic's queues for this message.
            timeout_s: for all tries together.

        Raises:
            IllegalMessageError: the message breaks a limit; nothing was sent.
            RouteNotFoundError, NoWritableQueueError: there is no queue to send to.
            BrokerError: the broker refused; nothing is stored.
            ConnectError: nobody could be asked; nothing is stored.
            RequestTimeoutError, ConnectionLostError: a try was not answered, so the message may or
                may not be stored.
        """
        outgoing = prepare_message(message, self.group, self._started_keys(), self._compression)
        if selector is not None:
            deadline_s = time.monotonic() + timeout_s
            queue = selector(list(await self._sender.queues(message.topic, deadline_s)), message)
            timeout_s = deadline_s - time.monotonic()
        return await self._sender.send(message.topic, outgoing, queue, timeout_s)

    async def send_stored(
        self, message: Message, sys_flag: int, *, timeout_s: float = SEND_TIMEOUT_S
    ) -> SendResult:
        """Send a message whose body was stored before, packed as the sysFlag of that record says.

        Raises:
            MailboatError: as for `send`.
        """
        outgoing = prepare_stored_message(message, sys_flag, self.group, self._started_keys())
        return await self._sender.send(message.topic, outgoing, None, timeout_s)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float = SEND_TIMEOUT_S,
    ) -> SendResult:
        """Send messages of one topic as one request: all to one queue, in order, or none.

        Raises:
            IllegalMessageError: one of them breaks a limit, or they are too large together.
            MailboatError: as for `send`.
        """
        outgoing = prepare_batch(messages, self.group, self._started_keys())
        return await self._sender.send(messages[0].topic, outgoing, queue, timeout_s)

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message and do not learn what became of it.

        Raises:
            IllegalMessageError: the message breaks a limit; nothing was sent.
            RouteNotFoundError, NoWritableQueueError: there is no queue to send to.
            ConnectError: the broker cannot be connected to.
        """
        outgoing = prepare_message(message, self.group, self._started_keys(), self._compression)
        await self._sender.send_oneway(message.topic, outgoing, queue)

    async def request(
        self, message: Message, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> MessageExt:
        """Send a message and return the reply of the consumer that gets it.

        Args:
            message: what to ask.
            timeout_s: for sending, consuming and the way back.

        Raises:
            RequestTimeoutError: no reply in time; the message may have been consumed.
            MailboatError: as for `send`.
        """
        deadline_s = time.monotonic() + timeout_s
        self._started_keys()
        # Replies come only to a producer that the brokers know.
        await self._instance.routes.write_queues(message.topic)
        await self._instance.introduce()
        request, correlation_id = make_request(message, self._instance.client_id, timeout_s)
        reply = self._replies.expect(correlation_id)
        try:
            await self.send(request, timeout_s=min(timeout_s, SEND_TIMEOUT_S))
            return await wait_reply(reply, deadline_s - time.monotonic())
        finally:
            self._replies.forget(correlation_id)

    async def reply(self, request: MessageExt, body: bytes) -> SendResult:
        """Reply to a message that a `request` sent; whoever asked gets it at once.

        Raises:
            IllegalMessageError: the message asks for no reply.
            BrokerError: who asked is gone.
            MailboatError: as for `send`.
        """
        return await self.send(make_reply(request, body))

    def _started_keys(self) -> UniqKeyGenerator:
        if self._unique_keys is None:
            raise MailboatError("the producer is not started; use 'async with' or call start()")
        return self._unique_keys
