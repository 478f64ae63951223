"""Messages that are delivered later.

Source: apache/rocketmq broker/schedule/ScheduleMessageService.java @ rocketmq-all-5.3.3.
"""

from collections.abc import Mapping

from mailboat.errors import BrokerError
from mailboat.protocol.codes import ResponseCode
from mailboat.store.message_inner import MessageInner


class ScheduleMessageService:
    """Parks delayed messages and delivers them when they are due."""

    def park(
        self, message: MessageInner, properties: Mapping[str, str], level: int
    ) -> MessageInner:
        """Make a delayed message one of the schedule topic.

        Args:
            message: as it was sent, with its real topic and queue.
            properties: everything that is to be stored with it.
            level: the delay level, at least 1.
        """
        del message, properties, level
        raise BrokerError(
            ResponseCode.MESSAGE_ILLEGAL,
            "delayed messages are not supported by this broker (property DELAY)",
        )
