"""Transactions: half messages, their ends, and the questions to producers that forgot.

Source: apache/rocketmq broker/transaction/queue/TransactionalMessageServiceImpl.java and
TransactionalMessageBridge.java @ rocketmq-all-5.3.3.
"""

from mailboat.broker.transactions.ends import EndRequest
from mailboat.broker.transactions.parts import TransactionCounters
from mailboat.broker.transactions.service import TransactionalMessageService

__all__ = [
    "EndRequest",
    "TransactionCounters",
    "TransactionalMessageService",
]
