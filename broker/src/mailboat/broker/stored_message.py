"""A message that takes another way than to its own topic, and one that is stored again.

Delayed and half messages are parked in topics of the broker; `park` keeps in their properties where
they belong. What is delivered, committed, sent back or redriven later is made of the stored record
again by `inner_of`.

Source: apache/rocketmq broker/schedule/ScheduleMessageService.java (messageTimeup) and
broker/transaction/queue/TransactionalMessageBridge.java (parseHalfMessageInner).
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from mailboat.model.message import MessageExt
from mailboat.model.properties import PropertyName
from mailboat.model.sys_flag import ANY_HOST_V6, TRANSACTION_MASK, TRANSACTION_PREPARED
from mailboat.model.tags import tags_code
from mailboat.store.message_inner import MessageInner


class Restorer(Protocol):
    """Stores many messages of a broker's topic where they belong, with the compiled core."""

    def restore(self, records: bytes, places: bytes, *, are_halves: bool, queue_id: int) -> int:
        """Make messages of records as `inner_of` does, and store them with one write.

        Args:
            records: of delayed messages that are due or of half messages whose transactions are
                committed, back to back.
            places: their ConsumeQueue units, with queue offsets in place of tagsCodes.
            are_halves: which of the two they are.
            queue_id: the queue in which all of them waited.

        Returns:
            How many of the first are stored. The next one is odd, or has no room.
        """
        ...

    def learn(self, places: Iterable[tuple[str, int]]) -> None:
        """Take note of topics and queue ids that messages were stored to in another way."""
        ...


def stored_form(properties: Mapping[str, str]) -> bytes:
    """Return properties as the store takes them: entries with closing separators, no checksum."""
    return "".join(
        f"{name}\x01{value}\x02"
        for name, value in properties.items()
        if name != PropertyName.CRC32 and value
    ).encode()


def park(
    message: MessageInner, properties: Mapping[str, str], topic: str, queue_id: int
) -> MessageInner:
    """Send a message to a topic of the broker; REAL_TOPIC and REAL_QID keep where it belongs.

    Args:
        message: the message as it was sent; it is changed and returned.
        properties: everything that is to be stored with it.
        topic: the broker's topic.
        queue_id: the queue of that topic.
    """
    kept = dict(properties)
    kept[PropertyName.REAL_TOPIC] = message.topic
    kept[PropertyName.REAL_QUEUE_ID] = str(message.queue_id)
    message.properties = stored_form(kept)
    message.topic = topic
    message.queue_id = queue_id
    return message


def inner_of(
    message: MessageExt, topic: str, queue_id: int, properties: Mapping[str, str]
) -> MessageInner:
    """Make a message to store of one that is stored.

    Body, flags and the producer's data are kept, the tagsCode is computed again. Of sysFlag goes
    what holds for the record only: how long its hosts are (this broker may have another address
    now), and that it was a half message or the end of one.
    """
    sys_flag = message.sys_flag & ~ANY_HOST_V6
    if sys_flag & TRANSACTION_PREPARED:
        sys_flag &= ~TRANSACTION_MASK
    return MessageInner(
        topic,
        queue_id,
        message.body,
        stored_form(properties),
        tags_code(properties.get(PropertyName.TAGS)),
        properties.get(PropertyName.UNIQ_KEY),
        properties.get(PropertyName.KEYS),
        message.flag,
        sys_flag,
        message.born_timestamp_ms,
        message.born_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
    )
