"""What processors may use of the broker.

`BrokerController` is the one that runs; a test may give another.
"""

from collections.abc import Mapping
from typing import Protocol

from mailboat.broker.blocking_calls import StoreThreads
from mailboat.broker.flush_service import FlushService
from mailboat.broker.groups import SubscriptionGroupManager
from mailboat.broker.membership import ConsumerManager, ProducerManager
from mailboat.broker.offsets import ConsumerOffsetManager
from mailboat.broker.queue_locks import QueueLockManager
from mailboat.broker.quotas.service import UserQuotas
from mailboat.broker.registration import NamesrvRegistration
from mailboat.broker.replicas.service import ReplicaService
from mailboat.broker.retry import RetryService
from mailboat.broker.schedule import ScheduleMessageService
from mailboat.broker.sql_filters import SqlFilters
from mailboat.broker.stats import BrokerStats
from mailboat.broker.topics import TopicConfigManager
from mailboat.broker.transactions import TransactionalMessageService
from mailboat.config import Settings
from mailboat.security.directory import Directory
from mailboat.store.message_store import MessageStore


class BrokerContext(Protocol):
    """The parts of one broker."""

    settings: Settings
    store: MessageStore
    store_threads: StoreThreads
    flush: FlushService
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    consumers: ConsumerManager
    producers: ProducerManager
    queue_locks: QueueLockManager
    registration: NamesrvRegistration
    sql_filters: SqlFilters
    stats: BrokerStats
    retry: RetryService
    schedule: ScheduleMessageService
    transactions: TransactionalMessageService
    replicas: ReplicaService | None
    directory: Directory | None
    """All users, where requests are authenticated."""

    quotas: UserQuotas | None
    """What users may use, where requests are authenticated."""

    @property
    def address(self) -> str:
        """The address that clients are told, "ip:port"."""
        ...

    @property
    def is_leading(self) -> bool:
        """Whether this broker stores messages: it has no replicas, or leads them."""
        ...

    def refuse_changes(self) -> None:
        """Refuse to change topics, groups, offsets or locks where that is another one's to do.

        Raises:
            BrokerError: SYSTEM_ERROR, this replica does not lead, or not enough others follow it.
        """
        ...

    def refuse_messages(self) -> None:
        """Refuse to store a message where no message may be stored.

        Raises:
            BrokerError: SERVICE_NOT_AVAILABLE, this replica does not lead; SYSTEM_ERROR, not enough
                others follow it.
        """
        ...

    async def known_to_replicas(self) -> None:
        """Return once the replicas in the in-sync set know all changes, at once without replicas.

        Raises:
            BrokerError: that is not known in time.
        """
        ...

    def topic_deleted(self, topic: str) -> None:
        """Tell replicas that a topic's messages are gone."""
        ...

    def change_config(self, changes: Mapping[str, str]) -> None:
        """Change live settings, all of them or none.

        Raises:
            ConfigError: a key is unknown or needs a restart, or a value is bad.
        """
        ...
