"""Offsets as checkpoints hold them, and where a new query starts.

    {"_v": 1, "orders": {"broker-a:0": 123, "broker-a:1": 88}}

Each number is the next queue offset to read. Spark compares offsets as JSON text, so keys are
always in sorted order. The broker's name is part of a queue's identity, as everywhere in RocketMQ.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from mailboat.errors import MailboatError
from mailboat.model.message_queue import MessageQueue

VERSION: Final = 1
VERSION_KEY: Final = "_v"
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


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> OffsetJson:
    """Return the JSON object for Spark, its keys sorted."""
    topics: dict[str, dict[str, int]] = {}
    for queue, queue_offset in offsets.items():
        key = f"{queue.broker_name}:{queue.queue_id}"
        topics.setdefault(queue.topic, {})[key] = queue_offset
    encoded: OffsetJson = {
        topic: dict(sorted(by_queue.items())) for topic, by_queue in topics.items()
    }
    encoded[VERSION_KEY] = VERSION
    return dict(sorted(encoded.items()))


def decode_offsets(encoded: Mapping[str, Any]) -> QueueOffsets:
    """Return what `encode_offsets` was given.

    Raises:
        OffsetFormatError: it is not such an object, or a later version wrote it.
    """
    version = encoded.get(VERSION_KEY)
    if version != VERSION:
        raise OffsetFormatError(
            f"offsets of version {version!r} cannot be read, this source knows version {VERSION}; "
            "use the release that wrote the checkpoint, or a new checkpoint"
        )
    rest = {topic: queues for topic, queues in encoded.items() if topic != VERSION_KEY}
    return _decode_topics(rest, minimum=0)


def parse_starting_offsets(text: str, *, words: Sequence[str]) -> StartingOffsets:
    """Parse an option: one of `words`, or JSON of the checkpoint's form (`_v` may be left out).

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
    parsed.pop(VERSION_KEY, None)
    try:
        return StartingOffsets("json", _decode_topics(parsed, minimum=EARLIEST))
    except OffsetFormatError as exc:
        raise ValueError(str(exc)) from exc


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
