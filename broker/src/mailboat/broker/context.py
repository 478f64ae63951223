"""What processors may use of the broker.

`BrokerController` is the one that runs; a test may give another.
"""

from typing import Protocol

from mailboat.broker.groups import SubscriptionGroupManager
from mailboat.broker.membership import ConsumerManager, ProducerManager
from mailboat.broker.offsets import ConsumerOffsetManager
from mailboat.broker.registration import NamesrvRegistration
from mailboat.broker.schedule import ScheduleMessageService
from mailboat.broker.stats import BrokerStats
from mailboat.broker.topics import TopicConfigManager
from mailboat.broker.transactions import TransactionalMessageService
from mailboat.config import Settings
from mailboat.store.message_store import MessageStore


class BrokerContext(Protocol):
    """The parts of one broker."""

    settings: Settings
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    consumers: ConsumerManager
    producers: ProducerManager
    registration: NamesrvRegistration
    stats: BrokerStats
    schedule: ScheduleMessageService
    transactions: TransactionalMessageService

    @property
    def address(self) -> str:
        """The address that clients are told, "ip:port"."""
        ...
