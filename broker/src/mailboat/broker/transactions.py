"""Transactions: half messages, their ends, and the questions to producers that forgot.

Source: apache/rocketmq broker/transaction/queue/TransactionalMessageServiceImpl.java and
TransactionalMessageBridge.java @ rocketmq-all-5.3.3.
"""

from collections.abc import Mapping

from mailboat.errors import BrokerError
from mailboat.protocol.codes import ResponseCode
from mailboat.store.message_inner import MessageInner


class TransactionalMessageService:
    """Keeps half messages until they are committed or rolled back."""

    def prepare(self, message: MessageInner, properties: Mapping[str, str]) -> MessageInner:
        """Make a message with TRAN_MSG one of the half topic.

        Args:
            message: as it was sent, with its real topic and queue.
            properties: everything that is to be stored with it.
        """
        del message, properties
        raise BrokerError(
            ResponseCode.NO_PERMISSION,
            "transaction messages are not supported by this broker (property TRAN_MSG)",
        )
