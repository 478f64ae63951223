"""Which topic a stored message belongs to, by its physical offset: what it is judged by."""

from functools import partial
from typing import Final

from mailboat.errors import CorruptRecordError
from mailboat.model.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from mailboat.model.properties import PropertyName
from mailboat.model.record import decode_record
from mailboat.security.needs import TopicsAt
from mailboat.store.message_store import MessageStore

_HALVES: Final = (HALF_TOPIC, CHECK_MAX_TIME_TOPIC)


def topics_at(store: MessageStore) -> TopicsAt:
    """Return what looks into a store."""
    return partial(_topics_at, store)


def _topics_at(store: MessageStore, physical_offset: int) -> tuple[str, str] | None:
    """Return the topic of a record, and the one that a half message is meant for.

    Also of one that waits for its flush: whoever stored it may name it before others can read it.
    """
    record = store.look_message_by_offset(physical_offset, with_unflushed=True)
    if record is None:
        return None
    try:
        message, _ = decode_record(record, verify=False)
    except CorruptRecordError:
        return None
    if message.topic not in _HALVES:
        return message.topic, message.topic  # Whatever its producer wrote into its properties.
    return message.topic, message.properties.get(PropertyName.REAL_TOPIC, message.topic)
