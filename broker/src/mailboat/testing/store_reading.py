"""Reads everything that a store serves, and holds its derived files against its log."""

from mailboat.errors import CorruptRecordError
from mailboat.model.record import decode_record, locate
from mailboat.store.lookup import GetStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.history import Found, HistoryViolation, QueueKey, QueueView

_MANY = 1 << 30


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
        for piece in result.slices:
            piece.release()
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
        found.physical_offset: (key, found.queue_offset)
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
    for physical_offset, (key, queue_offset) in in_log.items():
        if physical_offset >= expired_below:
            _check_lookups(store, key, queue_offset, physical_offset)


def _check_lookups(
    store: MessageStore, key: QueueKey, queue_offset: int, physical_offset: int
) -> None:
    record = store.look_message_by_offset(physical_offset)
    if record is None:
        raise HistoryViolation("not found by id", f"{key}@{queue_offset} at {physical_offset}")
    message, _ = decode_record(record)
    for word in (message.keys, message.unique_key):
        if word is None:
            continue
        found = store.query_message(key[0], word, 10, 0, _MANY << 20).records
        if found != [record]:
            raise HistoryViolation("not found by key", f"{word} of {key}@{queue_offset}: {found}")


def _records_of_log(store: MessageStore) -> dict[int, tuple[QueueKey, int]]:
    """Walk the log by the sizes in its records, as far as it is visible."""
    records: dict[int, tuple[QueueKey, int]] = {}
    for segment in store.commit_log.segments:
        position = 0
        while segment.start + position < min(segment.end, store.dispatch.dispatched_offset):
            try:
                parts = locate(segment.view, position, segment.size_bytes)
            except ValueError:
                # A filler ends the segment; anything else shows as a difference.
                break
            topic = bytes(segment.view[parts.topic_at : parts.topic_end]).decode()
            records[segment.start + position] = (
                (topic, parts.header.queue_id),
                parts.header.queue_offset,
            )
            position = parts.properties_end
    return records


def _decode(key: QueueKey, queue_offset: int, data: bytes) -> list[Found]:
    messages: list[Found] = []
    position = 0
    while position < len(data):
        try:
            message, position = decode_record(data, position)
        except CorruptRecordError as exc:
            raise HistoryViolation("wrong bytes served", f"{key}: {exc}") from exc
        if (message.topic, message.queue_id) != key:
            raise HistoryViolation("in another queue", f"{message.topic} served for {key}")
        if message.queue_offset != queue_offset + len(messages):
            raise HistoryViolation(
                "wrong offset", f"{key}: {message.queue_offset} at {queue_offset + len(messages)}"
            )
        messages.append(Found(message.queue_offset, message.physical_offset, message.body))
    return messages
