"""Reading one queue on and on: pull, hand over, pull again.

Source: apache/rocketmq client/impl/consumer/DefaultMQPushConsumerImpl.java (pullMessage) and
PullMessageService.java.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final, Protocol

from mailboat.client.pulling import Puller, PullRequest, PullResult, PullStatus
from mailboat.client.refusals import Refusals, pause_s
from mailboat.errors import BrokerError, MailboatError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.codes import ResponseCode

logger = logging.getLogger(__name__)

SUSPEND_S: Final = 15.0
ERROR_PAUSE_S: Final = 1.0
BUSY_PAUSE_S: Final = 0.02
# What a broker is busy with may be over at once, or last for as long as a quota is used up.
BUSY_PAUSE_MAX_S: Final = 2.56
# A broker that does not park empty pulls must not be asked as fast as it answers.
IDLE_PAUSE_S: Final = 0.1
_BUSY_CODES: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})


class QueueSink(Protocol):
    """Takes what was read of a queue."""

    async def wait_for_room(self) -> None:
        """Return once more messages may come."""

    def take(self, result: PullResult) -> None:
        """Take over what a pull brought; it may hold no message and still move the offset."""

    def moved(self, queue_offset: int) -> None:
        """Go on at another offset, because the broker does not have the one asked for."""


@dataclass(slots=True)
class QueueReader:
    """Reads one queue into a sink for a group."""

    puller: Puller
    group: str
    queue: MessageQueue
    subscription: SubscriptionData
    max_messages: int
    sink: QueueSink
    refusals: Refusals = field(default_factory=Refusals)
    """The client's."""

    async def read_from(self, queue_offset: int) -> None:
        """Read until cancelled; an error is logged once and the pull tried until it works.

        A refusal is logged once a minute, and not asked for again at once. A broker that stays busy
        is asked more and more seldom, and that is logged once.
        """
        loop = asyncio.get_running_loop()
        is_failing = False
        busy_pause_s = BUSY_PAUSE_S
        while True:
            await self.sink.wait_for_room()
            asked_s = loop.time()
            try:
                result = await self._pull(queue_offset)
            except MailboatError as error:
                if isinstance(error, BrokerError) and error.code in _BUSY_CODES:
                    await asyncio.sleep(busy_pause_s)
                    if busy_pause_s < BUSY_PAUSE_MAX_S <= 2 * busy_pause_s:
                        logger.warning("pull queue=%s is put off: %s", self.queue, error)
                    busy_pause_s = min(2 * busy_pause_s, BUSY_PAUSE_MAX_S)
                    continue
                subject = f"pull topic={self.queue.topic} group={self.group}"
                if not self.refusals.tell(subject, error):
                    log = logger.debug if is_failing else logger.warning
                    log("pull queue=%s failed, tried again: %s", self.queue, error)
                    is_failing = True
                await self._recover(pause_s(error, ERROR_PAUSE_S))
                continue
            is_failing = False
            busy_pause_s = BUSY_PAUSE_S
            self._hand_over(queue_offset, result)
            if result.next_offset == queue_offset and loop.time() - asked_s < IDLE_PAUSE_S:
                await asyncio.sleep(IDLE_PAUSE_S)
            queue_offset = result.next_offset

    async def _recover(self, after_s: float) -> None:
        """Pause, then learn where the broker is now."""
        await asyncio.sleep(after_s)
        try:
            await self.puller.refresh_route(self.queue.topic)
        except MailboatError as error:
            logger.debug("route refresh topic=%s: %s", self.queue.topic, error)

    async def _pull(self, queue_offset: int) -> PullResult:
        """Pull once and decode, so that damaged bytes count as a failed pull."""
        result = await self.puller.pull(
            PullRequest(
                group=self.group,
                queue=self.queue,
                queue_offset=queue_offset,
                subscription=self.subscription,
                max_messages=self.max_messages,
                suspend_s=SUSPEND_S,
            )
        )
        result.decode()
        return result

    def _hand_over(self, queue_offset: int, result: PullResult) -> None:
        if result.status is PullStatus.OFFSET_ILLEGAL:
            logger.warning(
                "pull queue=%s moved by the broker from offset %d to %d",
                self.queue,
                queue_offset,
                result.next_offset,
            )
            self.sink.moved(result.next_offset)
        else:
            self.sink.take(result)
