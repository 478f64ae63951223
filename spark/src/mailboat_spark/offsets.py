"""Offsets as checkpoints hold them, and where a new query starts.

    {"_v": 1, "orders": {"broker-a:0": 123, "broker-a:1": 88}}

Each number is the next queue offset to read. Spark compares offsets as JSON text, so keys are
always in sorted order. The broker's name is part of a queue's identity, as everywhere in RocketMQ.

Spark logs the end of a batch only. The end of a batch that is the first to read some queues tells
under `_from`, in the same form, where these begin: a repeated batch begins there, too.

An offset is a number only: a queue that became shorter and grew again, or a topic that was made
anew, has another message there. So `_last` holds a witness for each queue, the store time
(milliseconds) and the CRC32 of the record before the offset, and who goes on from there compares.
`_began_ms` is when a query began that reads what came later only (`latest`).

    {"_began_ms": 1764000000000, "_last": {"orders": {"broker-a:0": [1764000000123, 2774]}}, ...}
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from mailboat.errors import MailboatError
from mailboat.model.message_queue import MessageQueue

VERSION: Final = 1
VERSION_KEY: Final = "_v"
BEGINNINGS_KEY: Final = "_from"
WITNESSES_KEY: Final = "_last"
BEGAN_KEY: Final = "_began_ms"
OWN_KEYS: Final = frozenset({VERSION_KEY, BEGINNINGS_KEY, WITNESSES_KEY, BEGAN_KEY})
"""Keys of a checkpoint's offsets that are no topics."""
EARLIEST: Final = -2
LATEST: Final = -1

QueueOffsets: TypeAlias = dict[MessageQueue, int]
"""The next queue offset to read, by queue."""

OffsetJson: TypeAlias = dict[str, Any]

_Value = TypeVar("_Value")


class Witness(NamedTuple):
    """What tells a record from any other one that may come to lie at its queue offset."""

    store_timestamp_ms: int
    crc32: int
    """Over the whole record as brokers give it; its store time and place are in it."""


Witnesses: TypeAlias = dict[MessageQueue, Witness]
"""The record before the next queue offset to read, by queue."""


class PlacedWitness(NamedTuple):
    """A witness and the queue offset at which it was seen."""

    queue_offset: int
    witness: Witness


class OffsetFormatError(MailboatError):
    """Offsets in a checkpoint or an option are not of the form described above."""


@dataclass(frozen=True, slots=True)
class StartingOffsets:
    """`kind` is a word such as `earliest`, or `json` with offsets by queue (-2 first, -1 end)."""

    kind: str
    by_queue: Mapping[MessageQueue, int] = field(default_factory=dict)


def encode_offsets(
    offsets: Mapping[MessageQueue, int],
    beginnings: Mapping[MessageQueue, int] | None = None,
    *,
    witnesses: Mapping[MessageQueue, Witness] | None = None,
    began_ms: int | None = None,
) -> OffsetJson:
    """Return the JSON object for Spark, its keys sorted.

    Args:
        offsets: the next offset to read, by queue.
        beginnings: where the queues begin that the batch which ends there is the first to read.
        witnesses: the record before the offset, where it is known.
        began_ms: when the query began, if it reads only what was stored later.
    """
    encoded = _encode_topics(offsets)
    encoded[VERSION_KEY] = VERSION
    if beginnings:
        encoded[BEGINNINGS_KEY] = _encode_topics(beginnings)
    if witnesses:
        encoded[WITNESSES_KEY] = _encode_topics(
            {queue: list(witness) for queue, witness in witnesses.items()}
        )
    if began_ms is not None:
        encoded[BEGAN_KEY] = began_ms
    return dict(sorted(encoded.items()))


def decode_offsets(encoded: Mapping[str, Any]) -> QueueOffsets:
    """Return the offsets that `encode_offsets` was given.

    Raises:
        OffsetFormatError: it is not such an object, or a later version wrote it.
    """
    version = encoded.get(VERSION_KEY)
    if version != VERSION:
        raise OffsetFormatError(
            f"offsets of version {version!r} cannot be read, this source knows version {VERSION}; "
            "use the release that wrote the checkpoint, or a new checkpoint"
        )
    return _decode_topics(_topics_only(encoded), _offset_from(0))


def decode_beginnings(encoded: Mapping[str, Any]) -> QueueOffsets:
    """Return the beginnings that `encode_offsets` was given; earlier releases wrote none.

    Raises:
        OffsetFormatError: they are not of the form of offsets.
    """
    return _decode_topics(_own_topics(encoded, BEGINNINGS_KEY), _offset_from(0))


def decode_witnesses(encoded: Mapping[str, Any]) -> Witnesses:
    """Return the witnesses that `encode_offsets` was given; earlier releases wrote none.

    Raises:
        OffsetFormatError: they are not of the form described above.
    """
    return _decode_topics(_own_topics(encoded, WITNESSES_KEY), _witness)


def decode_began_ms(encoded: Mapping[str, Any]) -> int | None:
    """Return when the query began, if the offsets say it.

    Raises:
        OffsetFormatError: it is no time.
    """
    began_ms = encoded.get(BEGAN_KEY)
    if began_ms is None or type(began_ms) is int:
        return began_ms
    raise OffsetFormatError(f"{BEGAN_KEY} in the offsets is no number of milliseconds")


def parse_starting_offsets(text: str, *, words: Sequence[str]) -> StartingOffsets:
    """Parse an option: one of `words`, or JSON of the checkpoint's form (only topics count).

    Raises:
        ValueError: it is neither; the text says why.
    """
    word = text.strip().lower()
    if word in words:
        return StartingOffsets(word)
    if not word.startswith("{"):
        raise ValueError(f'is none of {", ".join(words)} and no JSON such as {{"t":{{"b:0":12}}}}')
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as exc:
        raise ValueError(f"is not JSON: {exc}") from exc
    try:
        return StartingOffsets("json", _decode_topics(_topics_only(parsed), _offset_from(EARLIEST)))
    except OffsetFormatError as exc:
        raise ValueError(str(exc)) from exc


def _encode_topics(values: Mapping[MessageQueue, Any]) -> OffsetJson:
    topics: OffsetJson = {}
    for queue in sorted(values, key=lambda queue: (queue.topic, _queue_key(queue))):
        topics.setdefault(queue.topic, {})[_queue_key(queue)] = values[queue]
    return topics


def _queue_key(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


def _topics_only(encoded: Mapping[str, Any]) -> dict[str, Any]:
    return {topic: queues for topic, queues in encoded.items() if topic not in OWN_KEYS}


def _own_topics(encoded: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    topics = encoded.get(key, {})
    if not isinstance(topics, Mapping):
        raise OffsetFormatError(f"{key} in the offsets is not an object of topics")
    return topics


def _offset_from(minimum: int) -> Callable[[Any, str], int]:
    def check(value: Any, place: str) -> int:
        if type(value) is not int or value < minimum:
            raise OffsetFormatError(
                f"the offset {value!r} of {place} is not a number of {minimum} or more"
            )
        return value

    return check


def _witness(value: Any, place: str) -> Witness:
    if isinstance(value, list) and [type(part) for part in value] == [int, int]:
        return Witness(*value)
    raise OffsetFormatError(f"{value!r} of {place} is no store time with a checksum")


def _decode_topics(
    topics: Mapping[str, Any], check: Callable[[Any, str], _Value]
) -> dict[MessageQueue, _Value]:
    values: dict[MessageQueue, _Value] = {}
    for topic, queues in topics.items():
        if not isinstance(queues, Mapping):
            raise OffsetFormatError(f'offsets of topic {topic} are not an object "broker:queue"')
        for key, value in queues.items():
            broker_name, colon, queue_id = key.rpartition(":")
            if not colon or not broker_name or not (queue_id.isascii() and queue_id.isdigit()):
                raise OffsetFormatError(f"{key!r} of topic {topic} is not broker:queue")
            queue = MessageQueue(topic, broker_name, int(queue_id))
            values[queue] = check(value, f"{topic} {key}")
    return values
