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
from mailboat.model.properties import MAX_PROPERTIES_BYTES, encode_properties

_HEAD: Final = struct.Struct(">iiiii")
_SHORT: Final = struct.Struct(">H")
_FIXED_BYTES: Final = 22


BatchItem = tuple[int, bytes, bytes]
"""One message of a batch: its flag, its body, its properties still as text bytes."""


def encode_batch(messages: Sequence[Message], unique_keys: Sequence[str]) -> bytes:
    """Return the batch body of `messages`, giving each the unique key at its place."""
    parts: list[bytes] = []
    for message, unique_key in zip(messages, unique_keys, strict=True):
        properties = {**message.all_properties(), "UNIQ_KEY": unique_key}
        text = encode_properties(properties).encode()
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
        IllegalMessageError: a size does not fit what is there; nothing of the batch is usable.
    """
    items: list[BatchItem] = []
    position, end = 0, len(body)
    try:
        while position < end:
            size, _, _, flag, body_size = _HEAD.unpack_from(body, position)
            body_at = position + 20
            body_end = body_at + body_size
            position += size
            if body_size < 0 or position > end or size < _FIXED_BYTES + body_size:
                raise _broken(len(items), f"has the size {size}, which does not fit")
            properties_size = _SHORT.unpack_from(body, body_end)[0]
            if properties_size != size - _FIXED_BYTES - body_size:
                raise _broken(
                    len(items), f"has properties of {properties_size} bytes that do not fit"
                )
            items.append((flag, body[body_at:body_end], body[body_end + 2 : position]))
    except struct.error:
        raise _broken(len(items), "is cut short") from None
    if not items:
        raise IllegalMessageError("the batch holds no message")
    return items


def _broken(index: int, reason: str) -> IllegalMessageError:
    return IllegalMessageError(f"item {index} of the batch {reason}")
