"""What becomes of a message whose handler failed: its broker delivers it again later.

First the broker is asked to take it back (CONSUMER_SEND_MSG_BACK). If it does not, the message is
published to the group's retry topic, which any broker may take.

Source: apache/rocketmq client/impl/consumer/DefaultMQPushConsumerImpl.java (sendMessageBack) and
ConsumeMessageOrderlyService.java (sendMessageBack).
"""

import logging
from typing import Final

from mailboat.client.broker_calls import send_message_back
from mailboat.client.instance import ClientInstance
from mailboat.client.outgoing import prepare_retry
from mailboat.client.sending import Sender
from mailboat.errors import MailboatError
from mailboat.model.message import MessageExt
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import RETRY_PREFIX, retry_topic
from mailboat.model.properties import PropertyName

logger = logging.getLogger(__name__)

# The delay level of a first retry, 10 s unless the broker is configured otherwise.
FIRST_RETRY_LEVEL: Final = 3
SEND_TIMEOUT_S: Final = 5.0
UNLIMITED: Final = 2**31 - 1
"""As often as it takes, in the wire's 32 bits."""


def restore_topic(message: MessageExt) -> None:
    """Give a message that was read from a retry topic the topic that it was sent to."""
    if message.topic.startswith(RETRY_PREFIX):
        message.topic = message.properties.get(PropertyName.RETRY_TOPIC, message.topic)


class Retries:
    """Gives failed messages of a group back to the brokers."""

    __slots__ = ("_group", "_instance", "_max_reconsume_times", "_sender")

    def __init__(self, instance: ClientInstance, group: str, max_reconsume_times: int) -> None:
        """Have each message come again `max_reconsume_times` times at most."""
        self._instance = instance
        self._group = group
        self._max_reconsume_times = max_reconsume_times
        self._sender = Sender(instance)

    async def give_back(self, queue: MessageQueue, message: MessageExt, delay_level: int) -> None:
        """Have a message that was read from `queue` delivered again later.

        Args:
            queue: where it was read; for a retried message the retry topic's queue.
            message: the message, under the topic that it was sent to.
            delay_level: how much later, 0 for the broker's choice, -1 for never: a dead letter.

        Raises:
            MailboatError: no broker took it.
        """
        try:
            await send_message_back(
                self._instance.remoting,
                await self._instance.routes.master_address(queue),
                self._group,
                message,
                broker_name=queue.broker_name,
                delay_level=delay_level,
                max_reconsume_times=self._max_reconsume_times,
            )
        except MailboatError as error:
            logger.warning(
                "broker did not take a failed message back, published anew queue=%s "
                "queue_offset=%d: %s",
                queue,
                message.queue_offset,
                error,
            )
            await self._publish(message, delay_level)

    async def give_up(self, message: MessageExt) -> None:
        """Have a message that failed too often in its queue stored with the dead letters.

        Raises:
            MailboatError: no broker took it.
        """
        await self._send(
            message,
            FIRST_RETRY_LEVEL + message.reconsume_times,
            max(message.reconsume_times, self._max_reconsume_times),
        )

    async def _publish(self, message: MessageExt, delay_level: int) -> None:
        if delay_level < 0:
            reconsume_times = min(self._max_reconsume_times + 1, UNLIMITED)
        else:
            reconsume_times = message.reconsume_times + 1
        level = delay_level if delay_level > 0 else FIRST_RETRY_LEVEL + message.reconsume_times
        await self._send(message, level, reconsume_times)

    async def _send(self, message: MessageExt, delay_level: int, reconsume_times: int) -> None:
        outgoing = prepare_retry(
            message,
            self._group,
            delay_level=delay_level,
            reconsume_times=reconsume_times,
            max_reconsume_times=self._max_reconsume_times,
        )
        await self._sender.send(retry_topic(self._group), outgoing, None, SEND_TIMEOUT_S)
