"""What both ways of storing a send go by: properties with a meaning, limits, hashes of tags.

Source: apache/rocketmq broker/processor/AbstractSendMessageProcessor.java (msgCheck).
"""

import random
from collections.abc import Sequence
from typing import Final

from mailboat.broker.topic_creation import TopicCreation
from mailboat.broker.topics import TopicConfigManager
from mailboat.errors import BrokerError, IllegalMessageError
from mailboat.model.batch import BatchItem
from mailboat.model.names import SEND_FORBIDDEN_TOPICS, check_topic
from mailboat.model.properties import MAX_PROPERTIES_BYTES, PropertyName
from mailboat.model.tags import tags_code
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.send_header import SendFields
from mailboat.store.message_inner import MessageInner

# The checksum property, and the separator that it may need, go on top.
MAX_STORED_PROPERTIES_BYTES: Final = MAX_PROPERTIES_BYTES - 21
# Properties that only this broker may set, or that must not be stored.
SERVER_OWNED: Final = frozenset(
    {
        PropertyName.MESSAGE_REGION,
        PropertyName.TRACE_ON,
        PropertyName.CLUSTER,
        PropertyName.POP_CK,
        PropertyName.CRC32,
        PropertyName.DELIVER_MS,
        PropertyName.DELAY_MS,
    }
)
# What these ask for is not built yet: to take the message as an ordinary one would be a lie.
UNSUPPORTED: Final = frozenset({"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
# Messages with these are parked in a topic of the broker first.
PARKED: Final = frozenset({PropertyName.DELAY, PropertyName.TRANSACTION_PREPARED})
RARE_PROPERTIES: Final = SERVER_OWNED | UNSUPPORTED | PARKED
MAX_BATCH_PROPERTIES: Final = 20_000
"""Of all messages of a batch together: nobody else is served in the half microsecond that each
takes."""

ROOMY_BATCH_BYTES: Final = 3 * MAX_BATCH_PROPERTIES
"""Only what is larger can have more, at a name and two separators for each."""

MAX_BATCH_KEYS: Final = 20_000
"""Of all messages of a batch together, beyond the first of each: an entry of the index takes more
than a microsecond."""

_TAG_CACHE_SIZE: Final = 65536
_CACHED_TAG_CHARACTERS: Final = 128


class TagsCodes(dict[str, int]):
    """Remembers the tagsCode of tags; a tag that is not there yet is hashed."""

    def __missing__(self, tag: str) -> int:
        """Hash a tag and remember it, for a bounded number of tags of ordinary length."""
        if len(tag) > _CACHED_TAG_CHARACTERS:
            return tags_code(tag)
        if len(self) >= _TAG_CACHE_SIZE:
            self.clear()
        code = self[tag] = tags_code(tag)
        return code


def refuse_topic(topic: str) -> None:
    """Raise BrokerError for a topic that clients may not send to, whether it exists or not."""
    try:
        check_topic(topic)
    except IllegalMessageError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from error
    if topic in SEND_FORBIDDEN_TOPICS:
        raise BrokerError(
            ResponseCode.NO_PERMISSION, f"sending to the system topic {topic} is forbidden"
        )


def refuse_many_properties(items: Sequence[BatchItem]) -> None:
    """Raise BrokerError for a batch whose properties would take too long to read."""
    count = sum([text.count(b"\x02") for _, _, text in items])
    if count > MAX_BATCH_PROPERTIES:
        raise BrokerError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the messages of a batch have at most {MAX_BATCH_PROPERTIES} properties together, "
            f"these have {count}; send smaller batches",
        )


def refuse_many_keys(messages: Sequence[MessageInner]) -> None:
    """Raise BrokerError for a batch whose keys would take too long to index."""
    count = sum([message.keys.count(" ") for message in messages if message.keys])
    if count > MAX_BATCH_KEYS:
        raise BrokerError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the messages of a batch have at most {MAX_BATCH_KEYS} keys together, beyond one of "
            f"each, these have {count}; send smaller batches",
        )


def created_topic(topics: TopicConfigManager, fields: SendFields) -> TopicCreation:
    """Begin to make the topic of a send that is not there.

    Raises:
        BrokerError: the default topic that the send names does not allow it, or there is no room.
    """
    creation = topics.create_in_send(
        fields.topic, fields.default_topic, fields.default_topic_queue_nums
    )
    if creation is None:
        raise BrokerError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{fields.topic}] not exist, apply first please! It is not on this broker and "
            f"{fields.default_topic} does not allow to create it.",
        )
    return creation


def chosen_queue_id(fields: SendFields, config: TopicConfig) -> int:
    """Return the queue for a send: the one it names, or any where it names none.

    Raises:
        BrokerError: the topic has no such queue.
    """
    queues = max(config.read_queue_nums, config.write_queue_nums)
    if fields.queue_id >= queues:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{fields.queue_id}] is illegal, topic {config.topic_name} has the "
            f"queues 0 to {queues - 1}",
        )
    if fields.queue_id < 0:
        return random.randrange(max(config.write_queue_nums, 1))
    return fields.queue_id
