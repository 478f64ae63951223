"""What becomes of a message that a consumer could not handle: another try later, or a dead letter.

    %RETRY%group    read by every member of the group; filled by sends-back (36), and by the sends
                    of clients whose sends-back failed
    %DLQ%group      read by nobody by itself: people look, mend and redrive

Source: apache/rocketmq broker/processor/AbstractSendMessageProcessor.java (consumerSendMsgBack,
handleRetryAndDLQ) @ rocketmq-all-5.3.3.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mailboat.broker.groups import SubscriptionGroupManager
from mailboat.broker.topic_creation import TopicCreation
from mailboat.broker.topics import TopicConfigManager
from mailboat.errors import BrokerError
from mailboat.model.names import RETRY_PREFIX, dlq_topic, retry_topic
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.protocol.codes import ResponseCode

FIRST_LEVEL: Final = 3
"""Delay level of the first retry; each further one waits a level longer."""

_OWN_LIMIT_VERSION: Final = 121
"""V3_4_9, the first client version that may set the number of tries itself."""


@dataclass(slots=True)
class RetryCounts:
    """What this broker did since it started."""

    sent_back: int = 0
    """Messages that wait for another try."""

    dead_letters: int = 0
    """Messages that went into a dead-letter topic."""


class RetryService:
    """Finds and makes the topics of groups, and says when a message is dead."""

    def __init__(
        self,
        groups: SubscriptionGroupManager,
        topics: TopicConfigManager,
        is_ordered: Callable[[str], bool],
    ) -> None:
        """Serve one broker; `is_ordered` tells whether a group holds locks of ordered queues."""
        self._groups = groups
        self._topics = topics
        self._is_ordered = is_ordered
        self.counts = RetryCounts()

    def group(self, name: str, maker: str = "") -> SubscriptionGroupConfig:
        """Return a group's configuration, made where unknown groups are; `maker` is who asks.

        Raises:
            BrokerError: there is no such group.
        """
        config = self._groups.find(name, maker)
        if config is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}"
            )
        return config

    def max_times(self, group: SubscriptionGroupConfig, version: int, asked: int | None) -> int:
        """Return after how many tries a message is dead: the client's word, else the group's."""
        if asked is not None and version >= _OWN_LIMIT_VERSION:
            return asked
        return group.retry_max_times

    def retry_queue(self, group: SubscriptionGroupConfig) -> tuple[str, int]:
        """Return topic and queue of a group's next try, the topic made if it did not exist.

        Raises:
            BrokerError: the topic takes no messages.
        """
        name = retry_topic(group.group_name)
        if name not in self._topics.table:
            self._topics.create_retry_topic(
                group.group_name, queue_nums=max(group.retry_queue_nums, 1)
            )
        topic = self._topics.table[name]
        if not topic.is_writable:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden"
            )
        # Of the topic, not of the group: what is stored where nobody reads would be lost.
        return name, random.randrange(max(min(topic.read_queue_nums, topic.write_queue_nums), 1))

    def make_dead_letter_topic(self, group: str) -> TopicCreation | None:
        """Begin to make the topic of a group's dead letters; None where it exists.

        Raises:
            BrokerError: there is no room for it.
        """
        return self._topics.create_dlq_topic(group)

    def is_dead(
        self, topic: str, reconsume_times: int, version: int, asked_max: int | None
    ) -> bool:
        """Tell whether a client's own send to a retry topic is a dead letter.

        That is one beyond the last try, and any from a group that consumes in order: it has tried
        in place.

        Raises:
            BrokerError: the group does not exist.
        """
        group = self.group(topic.removeprefix(RETRY_PREFIX))
        limit = self.max_times(group, version, asked_max)
        return reconsume_times > limit or self._is_ordered(group.group_name)

    def place_of_direct_send(
        self, topic: str, reconsume_times: int, version: int, asked_max: int | None
    ) -> tuple[str, int] | None:
        """Return the dead-letter queue for a client's own send to a retry topic that `is_dead`.

        Its topic must exist. None leaves the message where it was sent.

        Raises:
            BrokerError: the group does not exist, or its topic cannot be made.
        """
        group = self.group(topic.removeprefix(RETRY_PREFIX))
        if self.is_dead(topic, reconsume_times, version, asked_max):
            self.counts.dead_letters += 1
            return dlq_topic(group.group_name), 0
        self.retry_queue(group)
        self.counts.sent_back += 1
        return None
