"""Offsets as checkpoints hold them, and where a new query starts.

    {"_v": 1, "orders": {"broker-a:0": 123, "broker-a:1": 88}}

Each number is the next queue offset to read. Spark compares offsets as JSON text, so keys are
always in sorted order. The broker's name is part of a queue's identity, as everywhere in RocketMQ.

Spark logs the end of a batch only. The end of a batch that is the first to read some queues tells
under `_from`, in the same form, where these begin: a repeated batch begins there, too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from mailboat.errors import MailboatError
from mailboat.model.message_queue import MessageQueue

VERSION: Final = 1
VERSION_KEY: Final = "_v"
BEGINNINGS_KEY: Final = "_from"
OWN_KEYS: Final = frozenset({VERSION_KEY, BEGINNINGS_KEY})
"""Keys of a checkpoint's offsets that are no topics."""
EARLIEST: Final = -2
LATEST: Final = -1

QueueOffsets: TypeAlias = dict[MessageQueue, int]
"""The next queue offset to read, by queue."""

OffsetJson: TypeAlias = dict[str, Any]


class OffsetFormatError(MailboatError):
    """Offsets in a checkpoint or an option are not of the form described above."""


@dataclass(frozen=True, slots=True)
class StartingOffsets:
    """`kind` is a word such as `earliest`, or `json` with offsets by queue (-2 first, -1 end)."""

    kind: str
    by_queue: Mapping[MessageQueue, int] = field(default_factory=dict)


def encode_offsets(
    offsets: Mapping[MessageQueue, int], beginnings: Mapping[MessageQueue, int] | None = None
) -> OffsetJson:
    """Return the JSON object for Spark, its keys sorted.

    Args:
        offsets: the next offset to read, by queue.
        beginnings: where the queues begin that the batch which ends there is the first to read.
    """
    encoded = _encode_topics(offsets)
    encoded[VERSION_KEY] = VERSION
    if beginnings:
        encoded[BEGINNINGS_KEY] = _encode_topics(beginnings)
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
    return _decode_topics(_topics_only(encoded), minimum=0)


def decode_beginnings(encoded: Mapping[str, Any]) -> QueueOffsets:
    """Return the beginnings that `encode_offsets` was given; earlier releases wrote none.

    Raises:
        OffsetFormatError: they are not of the form of offsets.
    """
    beginnings = encoded.get(BEGINNINGS_KEY, {})
    if not isinstance(beginnings, Mapping):
        raise OffsetFormatError(f"{BEGINNINGS_KEY} in the offsets is not an object of topics")
    return _decode_topics(beginnings, minimum=0)


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
        return StartingOffsets("json", _decode_topics(_topics_only(parsed), minimum=EARLIEST))
    except OffsetFormatError as exc:
        raise ValueError(str(exc)) from exc


def _encode_topics(offsets: Mapping[MessageQueue, int]) -> OffsetJson:
    topics: OffsetJson = {}
    for queue in sorted(offsets, key=lambda queue: (queue.topic, _queue_key(queue))):
        topics.setdefault(queue.topic, {})[_queue_key(queue)] = offsets[queue]
    return topics


def _queue_key(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


def _topics_only(encoded: Mapping[str, Any]) -> dict[str, Any]:
    return {topic: queues for topic, queues in encoded.items() if topic not in OWN_KEYS}


def _decode_topics(topics: Mapping[str, Any], *, minimum: int) -> QueueOffsets:
    offsets: QueueOffsets = {}
    for topic, queues in topics.items():
        if not isinstance(queues, Mapping):
            raise OffsetFormatError(f'offsets of topic {topic} are not an object "broker:queue"')
        for key, queue_offset in queues.items():
            broker_name, colon, queue_id = key.rpartition(":")
            if not colon or not broker_name or not (queue_id.isascii() and queue_id.isdigit()):
                raise OffsetFormatError(f"{key!r} of topic {topic} is not broker:queue")
            if type(queue_offset) is not int or queue_offset < minimum:
                raise OffsetFormatError(
                    f"the offset {queue_offset!r} of {topic} {key} is not a number "
                    f"of {minimum} or more"
                )
            offsets[MessageQueue(topic, broker_name, int(queue_id))] = queue_offset
    return offsets
