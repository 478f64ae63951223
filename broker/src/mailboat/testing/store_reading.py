"""Reads everything that a store serves, and holds its derived files against its log."""

import struct
from typing import Final

from mailboat.model.record import BLANK_MAGIC, FIXED_BYTES, check_sums, decode_record, locate
from mailboat.store.lookup import GetStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.history import Found, HistoryViolation, QueueKey, QueueView

_MANY: Final = 1 << 30
_LOOKUPS: Final = 6
# size, magic, queue id, queue offset, physical offset
_PLACE: Final = struct.Struct(">iI4xi4xqq")


def read_queue(store: MessageStore, key: QueueKey) -> QueueView:
    """Return everything that a consumer can read of one queue.

    Raises:
        HistoryViolation: what is served is not whole records of this queue.
    """
    low, high = store.min_offset(*key), store.max_offset(*key)
    messages: list[Found] = []
    at = low
    while at < high:
        result = store.get_message(*key, at, 1000, _MANY)
        if result.status != GetStatus.FOUND:
            raise HistoryViolation("gap", f"{key} at {at}: status {result.status}, to {high}")
        messages += _decode(key, at, b"".join(result.slices))
        if result.next_offset <= at:
            raise HistoryViolation("no way on", f"{key} at {at} continues at {result.next_offset}")
        at = result.next_offset
    return QueueView(low, high, messages)


def read_store(store: MessageStore) -> dict[QueueKey, QueueView]:
    """Return everything that consumers can read.

    Raises:
        HistoryViolation: what is served is not whole records of its queue.
    """
    return {key: read_queue(store, key) for key in store.queues.by_key}


def check_derived(
    store: MessageStore, queues: dict[QueueKey, QueueView], *, expired_below: int = 0
) -> None:
    """Check that the queues hold exactly the records of the log, and that look-ups find them.

    Records below `expired_below` may have come back without their units and keys: a crash can undo
    the removal of a segment alone.

    Raises:
        HistoryViolation: they do not agree.
    """
    in_queues = {
        found.physical_offset: (key[1], found.queue_offset)
        for key, view in queues.items()
        for found in view.messages
    }
    in_log = _records_of_log(store)
    differing = sorted(
        item
        for item in in_queues.items() ^ in_log.items()
        if item[0] >= expired_below or item[0] not in in_log
    )
    if differing:
        raise HistoryViolation("queues and log differ", f"in {differing[:6]}")
    # Look-ups cost as much as all the rest: some from everywhere and the newest.
    messages = [
        (key, found)
        for key, view in queues.items()
        for found in view.messages
        if found.physical_offset >= expired_below
    ]
    messages.sort(key=lambda item: item[1].physical_offset)
    step = len(messages) // _LOOKUPS + 1
    for key, found in messages[::-step]:
        _check_lookups(store, key, found)


def _check_lookups(store: MessageStore, key: QueueKey, found: Found) -> None:
    record = store.look_message_by_offset(found.physical_offset)
    if record is None:
        raise HistoryViolation("not found by id", f"{key}, {found}")
    message, _ = decode_record(record)
    for word in (message.keys, message.unique_key):
        if word is None:
            continue
        records = store.query_message(key[0], word, 10, 0, _MANY << 20).records
        if records != [record]:
            raise HistoryViolation("not found by key", f"{word} of {key}, {found}: {records}")


def _records_of_log(store: MessageStore) -> dict[int, tuple[int, int]]:
    """Walk the log by the sizes in its records, as far as it is visible."""
    records: dict[int, tuple[int, int]] = {}
    for segment in store.commit_log.segments:
        position = 0
        end = min(segment.size_bytes, store.dispatch.dispatched_offset - segment.start)
        # Less than a record's fixed part can only be a filler.
        while position + FIXED_BYTES <= end:
            size, magic, queue_id, queue_offset, physical_offset = _PLACE.unpack_from(
                segment.read(position, FIXED_BYTES), 0
            )
            if magic == BLANK_MAGIC:
                break
            if physical_offset != segment.start + position or size <= 0:
                raise HistoryViolation("broken log", f"at {segment.start + position}")
            records[physical_offset] = (queue_id, queue_offset)
            position += size
    return records


def _decode(key: QueueKey, queue_offset: int, data: bytes) -> list[Found]:
    messages: list[Found] = []
    position = 0
    while position < len(data):
        try:
            parts = locate(data, position, len(data))
            check_sums(data, position, parts)
        except ValueError as exc:
            raise HistoryViolation("wrong bytes served", f"{key}@{queue_offset}: {exc}") from exc
        header = parts.header
        topic = data[parts.topic_at : parts.topic_end].decode()
        if (topic, header.queue_id) != key:
            raise HistoryViolation("in another queue", f"{topic}/{header.queue_id} for {key}")
        if header.queue_offset != queue_offset + len(messages):
            raise HistoryViolation(
                "wrong offset", f"{key}: {header.queue_offset} at {queue_offset + len(messages)}"
            )
        body = data[parts.body_at : parts.body_end]
        messages.append(Found(header.queue_offset, header.physical_offset, body))
        position = parts.properties_end
    return messages
