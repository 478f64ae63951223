"""What transactions use of the broker, and what they count."""

from dataclasses import dataclass
from typing import Protocol

from mailboat.broker.membership import ProducerManager
from mailboat.broker.offsets import ConsumerOffsetManager
from mailboat.broker.stats import BrokerStats
from mailboat.broker.topics import TopicConfigManager
from mailboat.config import Settings
from mailboat.store.message_store import MessageStore


class TransactionsBroker(Protocol):
    """The parts of the broker behind half messages and their ends."""

    settings: Settings
    store: MessageStore
    topics: TopicConfigManager
    offsets: ConsumerOffsetManager
    producers: ProducerManager
    stats: BrokerStats


@dataclass(slots=True)
class TransactionCounters:
    """Half messages by what became of them, since the start of the process."""

    committed: int = 0
    rolled_back: int = 0
    checks_sent: int = 0
    checks_unsent: int = 0
    """Checks for which no member of the producer group was connected."""

    given_up: int = 0
    """Moved to TRANS_CHECK_MAX_TIME_TOPIC."""

    lost: int = 0
    """Open when their records went with the log or could no longer be read."""
