"""Sending what is ready: to a chosen queue, or to one broker after the other until one takes it.

Source: apache/rocketmq client/impl/producer/DefaultMQProducerImpl.java (sendDefaultImpl).
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from mailboat.client.instance import ClientInstance
from mailboat.client.latency_fault import LatencyFaults
from mailboat.client.outgoing import Outgoing
from mailboat.client.queue_selection import QueueSelection
from mailboat.client.send_result import SendResult, read_send_result
from mailboat.errors import (
    BrokerError,
    ConnectError,
    MailboatError,
    RemotingError,
    RequestTimeoutError,
)
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.codes import ResponseCode

logger = logging.getLogger(__name__)

_Found = TypeVar("_Found")

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


def is_unanswered(error: BaseException) -> bool:
    """Tell whether a send that ended so may be stored: it was sent, and no answer came."""
    return isinstance(error, RemotingError) and not isinstance(error, ConnectError)


@dataclass(slots=True)
class _Tries:
    """What became of the tries of one send."""

    unanswered: RemotingError | None = None


class Sender:
    """Sends prepared messages over the connections of one client."""

    __slots__ = ("_faults", "_instance", "_retries", "_selection")

    def __init__(
        self,
        instance: ClientInstance,
        *,
        retries: int = RETRIES,
        faults: LatencyFaults | None = None,
    ) -> None:
        """Send over `instance`, trying a failed send `retries` times more."""
        self._instance = instance
        self._retries = retries
        self._faults = faults
        self._selection = QueueSelection(faults)

    async def send_oneway(self, topic: str, outgoing: Outgoing, queue: MessageQueue | None) -> None:
        """Send without an answer; raises as `Producer.send_oneway`."""
        routes = self._instance.routes
        if queue is None:
            queue = self._selection.select(topic, await routes.write_queues(topic))
        address = await routes.master_address(queue)
        await self._instance.remoting.oneway(address, outgoing.to_command(queue, oneway=True))

    async def queues(self, topic: str, deadline_s: float) -> tuple[MessageQueue, ...]:
        """Return the queues that take messages of a topic.

        Raises:
            RouteNotFoundError, NoWritableQueueError: there are none.
            ConnectError: no name server has answered before `deadline_s` (`time.monotonic`).
        """
        routes = self._instance.routes
        known = routes.known_write_queues(topic)
        return known or await _in_time(routes.write_queues(topic), deadline_s)

    async def send(
        self, topic: str, outgoing: Outgoing, queue: MessageQueue | None, timeout_s: float
    ) -> SendResult:
        """Try until a broker takes the message, tries or time are used up, or trying is useless.

        Raises:
            RouteNotFoundError, NoWritableQueueError: there is no queue to send to.
            BrokerError: the broker refused; nothing is stored.
            ConnectError: nobody could be asked; nothing is stored.
            RequestTimeoutError, ConnectionLostError: a try was not answered, whatever became of
                those after it: the message may or may not be stored.
        """
        deadline_s = time.monotonic() + timeout_s
        if queue is not None:
            return await self._try_send(queue, outgoing, deadline_s)
        tries = _Tries()
        try:
            result = await self._send_anywhere(topic, outgoing, deadline_s, tries)
        except MailboatError as error:
            if tries.unanswered is not None and error is not tries.unanswered:
                raise tries.unanswered from error
            raise
        return result if tries.unanswered is None else replace(result, is_repeated=True)

    async def _send_anywhere(
        self, topic: str, outgoing: Outgoing, deadline_s: float, tries: "_Tries"
    ) -> SendResult:
        last_broker: str | None = None
        failure: MailboatError | None = None
        for _ in range(1 + self._retries):
            if failure is not None and time.monotonic() >= deadline_s:
                break
            known = self._instance.routes.known_write_queues(topic)
            queues = known or await self.queues(topic, deadline_s)
            chosen = self._selection.select(topic, queues, last_broker)
            last_broker = chosen.broker_name
            try:
                return await self._try_send(chosen, outgoing, deadline_s)
            except BrokerError as error:
                if error.code not in RETRIED_CODES:
                    raise
                failure = error
                if error.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                    # Another broker may have its address by now.
                    await self._refresh_route(topic, deadline_s)
            except RemotingError as error:
                failure = error
                if is_unanswered(error):
                    tries.unanswered = error
                await self._refresh_route(topic, deadline_s)
            logger.debug("send topic=%s queue=%s failed: %s", topic, chosen, failure)
        assert failure is not None
        raise failure

    async def _try_send(
        self, queue: MessageQueue, outgoing: Outgoing, deadline_s: float
    ) -> SendResult:
        routes = self._instance.routes
        address = routes.known_master_address(queue)
        if address is None:
            address = await _in_time(routes.master_address(queue), deadline_s)
        started_s = time.monotonic()
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
            latency_ms = (time.monotonic() - started_s) * 1000
            self._faults.record(queue.broker_name, latency_ms, failed=failed)

    async def _refresh_route(self, topic: str, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s - time.monotonic()):
                await self._instance.routes.refresh(topic)
        except (MailboatError, TimeoutError) as error:
            # The old route stays; the next try shows whether it is any good.
            logger.debug("route refresh topic=%s: %s", topic, error)


async def _in_time(search: Coroutine[Any, Any, _Found], deadline_s: float) -> _Found:
    """Return what a search for a route finds; name servers that do not answer are no doubt.

    Raises:
        ConnectError: none of them has answered in time, so no message was sent.
    """
    try:
        async with asyncio.timeout(deadline_s - time.monotonic()):
            return await search
    except TimeoutError:
        raise ConnectError("a name server in the time that the send had") from None
    except ConnectError:
        raise
    except RemotingError as error:
        raise ConnectError(f"a name server ({error})") from error
