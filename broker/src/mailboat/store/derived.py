"""What is derived from records that lie back to back: the units of their queues, and their keys.

It is all that is kept of messages until they may be shown, which can take as long as a disk hangs.
So it holds no bodies, and says how large it is.
"""

from collections.abc import Iterable, Sequence
from itertools import starmap
from operator import attrgetter
from typing import Final, NamedTuple

from mailboat.store.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from mailboat.store.index_backlog import Indexed, IndexedRecord
from mailboat.store.index_rows import ROW
from mailboat.store.message_inner import MessageInner

_UNIT_FIELDS: Final = attrgetter("physical_offset", "size_bytes", "tags_code")
# An estimate of what Python and the answers that wait take: for each of the objects here, for each
# message, and for each message with keys beside their text.
_OBJECT_BYTES: Final = 400
_MESSAGE_BYTES: Final = 160
_KEYS_BYTES: Final = 300


class UnitsOfQueue(NamedTuple):
    """Units of one queue that follow each other."""

    queue: ConsumeQueue
    queue_offset: int
    """Of the first one."""

    units: bytes
    physical_end: int
    """Behind the last record."""

    @property
    def end(self) -> int:
        """The queue offset behind the last one."""
        return self.queue_offset + len(self.units) // UNIT_BYTES


class Keys(NamedTuple):
    """Keys of messages of one store time, in the order of the log."""

    indexed: Sequence[Indexed] | bytes
    """Messages, or an `index_rows.ROW` for each key."""

    physical_offset: int
    """Of the first message."""

    store_timestamp_ms: int


class Derived(NamedTuple):
    """Units and keys of some records."""

    queues: Sequence[UnitsOfQueue]
    keys: Sequence[Keys]
    end: int
    """The physical offset behind the last record."""

    newest_ms: int
    """The greatest store time."""

    is_read_back: bool
    """The records were read from the log; without it this process has just written them."""

    def without_removed(self) -> "Derived":
        """Return it without the messages of topics that are deleted."""
        gone = b"".join([each.units for each in self.queues if each.queue.is_removed])
        places = {physical_offset for physical_offset, _, _ in UNIT.iter_unpack(gone)}
        return self._replace(
            queues=[each for each in self.queues if not each.queue.is_removed],
            keys=[keys._replace(indexed=_without(keys.indexed, places)) for keys in self.keys],
        )

    def size_bytes(self) -> int:
        """Return about how much memory it takes, and with it the answers to who sent it."""
        size = _OBJECT_BYTES * (1 + len(self.queues) + len(self.keys))
        for each in self.queues:
            size += len(each.units) // UNIT_BYTES * _MESSAGE_BYTES
        for indexed, _, _ in self.keys:
            if isinstance(indexed, bytes):
                size += len(indexed)
            else:
                for message in indexed:
                    text_size = len(message.unique_key or "") + len(message.keys or "")
                    size += _KEYS_BYTES + text_size
        return size


def units_of_messages(
    messages: Sequence[MessageInner], queues: Sequence[ConsumeQueue], end: int
) -> list[UnitsOfQueue]:
    """Return the units of messages that were written, each with its queue; there is at least one.

    The queues come in the order of their first messages: the same sends always make the same files.
    """
    units = list(starmap(UNIT.pack, map(_UNIT_FIELDS, messages)))
    if len(set(queues)) == 1:
        return [UnitsOfQueue(queues[0], messages[0].queue_offset, b"".join(units), end)]
    first_offsets: dict[ConsumeQueue, int] = {}
    by_queue: dict[ConsumeQueue, list[bytes]] = {}
    for message, queue, unit in zip(messages, queues, units, strict=True):
        if queue not in by_queue:
            first_offsets[queue] = message.queue_offset
            by_queue[queue] = []
        by_queue[queue].append(unit)
    return [
        UnitsOfQueue(queue, first_offsets[queue], b"".join(of_queue), end)
        for queue, of_queue in by_queue.items()
    ]


def keys_alone(messages: Iterable[MessageInner]) -> list[IndexedRecord]:
    """Return what the index wants to know of messages, and nothing else of them."""
    return [
        IndexedRecord(message.topic, message.unique_key, message.keys, message.physical_offset)
        for message in messages
        if message.unique_key or message.keys
    ]


def _without(indexed: Sequence[Indexed] | bytes, places: set[int]) -> Sequence[Indexed] | bytes:
    if isinstance(indexed, bytes):
        return b"".join(
            [ROW.pack(*row) for row in ROW.iter_unpack(indexed) if row[1] not in places]
        )
    return [message for message in indexed if message.physical_offset not in places]
