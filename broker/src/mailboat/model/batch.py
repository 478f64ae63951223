"""The body of a batch request (codes 320, or 310 with batch=true).

Repeated for each message, big-endian:

    offset  size  field
    0       4     size of this item, this field included
    4       4     magic, 0
    8       4     body CRC, 0
    12      4     flag
    16      4     body size n
    20      n     body
    20+n    2     properties size m
    22+n    m     properties text

Source: apache/rocketmq common/message/MessageDecoder.java (encodeMessage, decodeMessage).
"""

import struct
from collections.abc import Sequence
from typing import Final

from mailboat.errors import IllegalMessageError
from mailboat.model.message import Message
from mailboat.model.properties import MAX_PROPERTIES_BYTES, PropertyName, encode_properties

MAX_BATCH_MESSAGES: Final = 1_900
"""Most messages of a batch.

The answer has 33 bytes about each in its header, which older clients of ours read up to 64 KiB, and
nobody else is served in the ten microseconds that each takes.
"""

TOO_MANY: Final = f"a batch has at most {MAX_BATCH_MESSAGES} messages; send smaller batches"

_HEAD: Final = struct.Struct(">iiiii")
_SIZE: Final = struct.Struct(">i")
# size, flag, body size
_ITEM_HEAD: Final = struct.Struct(">i8xii")
_SHORT: Final = struct.Struct(">H")
_HEAD_BYTES: Final = 20
_FIXED_BYTES: Final = 22


BatchItem = tuple[int, bytes, bytes]
"""One message of a batch: its flag, its body, its properties still as text bytes."""


def encode_batch(messages: Sequence[Message], unique_keys: Sequence[str]) -> bytes:
    """Return the batch body of `messages`, giving each the unique key at its place."""
    parts: list[bytes] = []
    for message, unique_key in zip(messages, unique_keys, strict=True):
        properties = message.all_properties()
        properties[PropertyName.UNIQ_KEY] = unique_key
        try:
            text = encode_properties(properties).encode()
        except UnicodeEncodeError as error:
            raise IllegalMessageError(
                f"properties of a message for {message.topic} hold what is no text: {error}"
            ) from error
        if len(text) > MAX_PROPERTIES_BYTES:
            raise IllegalMessageError(
                f"properties of a message for {message.topic} take {len(text)} bytes; "
                f"at most {MAX_PROPERTIES_BYTES} are allowed"
            )
        size = _FIXED_BYTES + len(message.body) + len(text)
        parts += (
            _HEAD.pack(size, 0, 0, message.flag, len(message.body)),
            message.body,
            len(text).to_bytes(2, "big"),
            text,
        )
    return b"".join(parts)


def decode_batch(body: bytes) -> list[BatchItem]:
    """Return the items of a batch body.

    Raises:
        IllegalMessageError: a size does not fit what is there, or there are too many messages;
            nothing of the batch is usable.
    """
    items: list[BatchItem] = []
    position, end = 0, len(body)
    unpack_head, unpack_short = _ITEM_HEAD.unpack_from, _SHORT.unpack_from
    try:
        while position < end:
            size, flag, body_size = unpack_head(body, position)
            body_at = position + _HEAD_BYTES
            body_end = body_at + body_size
            position += size
            if body_size < 0 or position > end or position < body_end + 2:
                raise _broken(len(items), f"has the size {size}, which does not fit")
            (text_size,) = unpack_short(body, body_end)
            if text_size != position - body_end - 2:
                raise _broken(len(items), f"has properties of {text_size} bytes that do not fit")
            if len(items) == MAX_BATCH_MESSAGES:
                raise IllegalMessageError(TOO_MANY)
            items.append((flag, body[body_at:body_end], body[body_end + 2 : position]))
    except struct.error:
        raise _broken(len(items), "is cut short") from None
    if not items:
        raise IllegalMessageError("the batch holds no message")
    return items


def count_messages(body: bytes) -> int:
    """Return how many messages a batch body holds, as far as its sizes can be followed.

    It looks at no more than `MAX_BATCH_MESSAGES` of them, for a batch with more is refused.
    """
    position, last = 0, len(body) - _FIXED_BYTES
    if last < 0:
        return 0
    unpack_size = _SIZE.unpack_from
    try:
        for count in range(1, MAX_BATCH_MESSAGES):
            position += unpack_size(body, position)[0]
            if position > last:
                return count
    except struct.error:
        # A size led back beyond the start: the batch is refused for it, whatever is counted.
        return count
    return MAX_BATCH_MESSAGES


def _broken(index: int, reason: str) -> IllegalMessageError:
    return IllegalMessageError(f"item {index} of the batch {reason}")
