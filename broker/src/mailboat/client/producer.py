"""Sending messages.

A send without a chosen queue is tried up to three times, each time on another broker, all tries
within one timeout. What was not answered may still have been stored: a retry can store a second
copy with the same UNIQ_KEY.

Source: apache/rocketmq client/impl/producer/DefaultMQProducerImpl.java.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from mailboat.client.addresses import DEFAULT_NAMESRV
from mailboat.client.instance import ClientInstance
from mailboat.client.latency_fault import LatencyFaults
from mailboat.client.outgoing import Outgoing, prepare_batch, prepare_message
from mailboat.client.queue_selection import QueueSelection
from mailboat.client.send_result import STATUS_BY_CODE, SendResult
from mailboat.errors import BrokerError, MailboatError, RemotingError, RequestTimeoutError
from mailboat.model.message import Message
from mailboat.model.message_id import UniqKeyGenerator
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import check_group
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.command import RemotingCommand, required_int

logger = logging.getLogger(__name__)

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses the queue of a message, for order: messages of one queue are consumed in order."""

SEND_TIMEOUT_S: Final = 3.0
RETRIES: Final = 2
RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)


class Producer:
    """Sends messages; `async with` starts and closes it.

    Any number of sends may run at the same time.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = DEFAULT_NAMESRV,
        retries: int = RETRIES,
        latency_fault_avoidance: bool = False,
    ) -> None:
        """Prepare a producer.

        Args:
            group: the producer group, any legal name.
            namesrv: name servers as `HOST:PORT;...`.
            retries: how often a send that failed is tried again.
            latency_fault_avoidance: pass over brokers that were slow or failed for a while.

        Raises:
            IllegalMessageError: the group's name is illegal.
            ConfigError: `namesrv` is not a list of addresses.
        """
        check_group(group)
        self.group = group
        self._instance = ClientInstance(namesrv)
        self._retries = retries
        self._faults = LatencyFaults() if latency_fault_avoidance else None
        self._selection = QueueSelection(self._faults)
        self._unique_keys: UniqKeyGenerator | None = None

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
        """Leave the group and close the connections; sends that still run fail."""
        await self._instance.close()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that take messages of a topic.

        Raises:
            RouteNotFoundError, NoWritableQueueError, RemotingError: there are none, or nobody to
                ask.
        """
        return list(await self._instance.routes.write_queues(topic))

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
            RemotingError: no answer, so the message may or may not be stored.
        """
        outgoing = prepare_message(message, self.group, self._started_keys())
        if selector is not None:
            queue = selector(await self.queues(message.topic), message)
        return await self._send(message.topic, outgoing, queue, timeout_s)

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
        return await self._send(messages[0].topic, outgoing, queue, timeout_s)

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message and do not learn what became of it.

        Raises:
            IllegalMessageError: the message breaks a limit; nothing was sent.
            RouteNotFoundError, NoWritableQueueError: there is no queue to send to.
            ConnectError: the broker cannot be connected to.
        """
        outgoing = prepare_message(message, self.group, self._started_keys())
        routes = self._instance.routes
        if queue is None:
            queues = await routes.write_queues(message.topic)
            queue = self._selection.select(message.topic, queues)
        address = await routes.master_address(queue)
        await self._instance.remoting.oneway(address, outgoing.to_command(queue, oneway=True))

    def _started_keys(self) -> UniqKeyGenerator:
        if self._unique_keys is None:
            raise MailboatError("the producer is not started; use 'async with' or call start()")
        self._instance.tasks.check()
        return self._unique_keys

    async def _send(
        self, topic: str, outgoing: Outgoing, queue: MessageQueue | None, timeout_s: float
    ) -> SendResult:
        """Try until a broker takes the message, tries or time are used up, or trying is useless."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        if queue is not None:
            return await self._try_send(queue, outgoing, deadline_s)
        last_broker: str | None = None
        failure: MailboatError | None = None
        for _ in range(1 + self._retries):
            if failure is not None and asyncio.get_running_loop().time() >= deadline_s:
                break
            queues = await self._instance.routes.write_queues(topic)
            chosen = self._selection.select(topic, queues, last_broker)
            last_broker = chosen.broker_name
            try:
                return await self._try_send(chosen, outgoing, deadline_s)
            except BrokerError as error:
                if error.code not in RETRIED_CODES:
                    raise
                failure = error
            except RemotingError as error:
                failure = error
                await self._refresh_route(topic, deadline_s)
            logger.debug("send topic=%s queue=%s failed: %s", topic, chosen, failure)
        assert failure is not None
        raise failure

    async def _try_send(
        self, queue: MessageQueue, outgoing: Outgoing, deadline_s: float
    ) -> SendResult:
        loop = asyncio.get_running_loop()
        address = await self._instance.routes.master_address(queue)
        started_s = loop.time()
        if started_s >= deadline_s:
            raise RequestTimeoutError(f"no time was left to send to {queue}")
        try:
            response = await self._instance.remoting.request(
                address, outgoing.to_command(queue), deadline_s - started_s
            )
            result = read_send_result(response, queue, outgoing.message_id)
        except (RemotingError, BrokerError):
            self._record_latency(queue, started_s, failed=True)
            raise
        self._record_latency(queue, started_s, failed=False)
        return result

    def _record_latency(self, queue: MessageQueue, started_s: float, *, failed: bool) -> None:
        if self._faults is not None:
            latency_ms = (asyncio.get_running_loop().time() - started_s) * 1000
            self._faults.record(queue.broker_name, latency_ms, failed=failed)

    async def _refresh_route(self, topic: str, deadline_s: float) -> None:
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._instance.routes.refresh(topic)
        except (MailboatError, TimeoutError) as error:
            # The old route stays; the next try shows whether it is any good.
            logger.debug("route refresh topic=%s: %s", topic, error)


def read_send_result(response: RemotingCommand, queue: MessageQueue, message_id: str) -> SendResult:
    """Return what a broker's answer says of a stored message.

    Raises:
        BrokerError: the answer is a refusal.
    """
    status = STATUS_BY_CODE.get(response.code)
    if status is None:
        raise BrokerError(response.code, response.remark or "")
    fields = response.ext_fields
    return SendResult(
        status=status,
        message_id=message_id,
        offset_message_id=fields.get("msgId", ""),
        message_queue=MessageQueue(
            queue.topic, queue.broker_name, required_int(response, "queueId")
        ),
        queue_offset=required_int(response, "queueOffset"),
        region=fields.get("MSG_REGION", "DefaultRegion"),
        trace_on=fields.get("TRACE_ON") == "true",
    )
