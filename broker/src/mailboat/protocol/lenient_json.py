"""Reads the JSON that Java's fastjson writes where it is not JSON.

RocketMQ's maps with non-text keys appear on the wire with their keys as they are:

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":5}}}
    {"offsetTable":{"T@group":{0:12,1:7}}}

`loads` accepts that, the same keys as strings, and ordinary JSON. Every key becomes a string: an
object key its compact JSON text, a number key its digits.

The text is put in order by a few passes of the `re` module and then read as ordinary JSON. No pass
looks at a byte more than a fixed number of times, whatever the text is.

Source: the output of com.alibaba:fastjson 1.2 for Map<MessageQueue, ?> and Map<Integer, ?>
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from mailboat.errors import RemoteProtocolError

MAX_BYTES: Final = 4 * 1024 * 1024
"""Longest text that is read when it is not JSON: at most some 0.3 us for each of its bytes."""

# A text that is not closed goes to the end: to look for its end from each quote would be quadratic.
_TEXT: Final = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))', re.DOTALL)
# The following look at what is left of a JSON text when `_PLACE` stands for each text in it.
_PLACE: Final = b"\0"
_BARE_KEY: Final = re.compile(rb"([{,]\s*+)(-?[0-9][0-9.eE+-]*+|true|false|null)(?=\s*+:)")
# Keys within keys would double their escapes at every level: a small text, a huge key.
_OBJECT_KEY: Final = re.compile(rb"\{[^{}\[\]]*+\}(?=\s*+:)")

_decode_plain: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def loads(text: bytes) -> Any:
    """Parse a JSON text, tolerating object and number keys.

    Raises:
        RemoteProtocolError: it is no JSON even so, or not JSON and longer than `MAX_BYTES`.
    """
    try:
        return _decode_plain(text)
    except (ValueError, RecursionError):
        if len(text) > MAX_BYTES:
            raise RemoteProtocolError(
                f"JSON text of {len(text)} bytes: the limit is {MAX_BYTES} bytes"
            ) from None
    try:
        return _decode_plain(with_text_keys(text))
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"not a JSON text: {error}") from error


def with_text_keys(text: bytes) -> bytes:
    """Return a JSON text whose object and number keys are made texts; the rest stays as it is.

    Raises:
        ValueError: it is not such a text; what else is wrong with it is left to who reads it.
    """
    parts = _TEXT.split(text)
    rest = _PLACE.join(parts[::2])
    if rest.count(_PLACE) != len(parts) // 2:
        raise ValueError("a NUL outside of a text")
    pieces = _BARE_KEY.split(rest)
    # Several times as quick as `sub` with a template.
    pieces[2::3] = [b'"' + key + b'"' for key in pieces[2::3]]
    rest = b"".join(pieces)
    texts = iter(parts[1::2])
    done = []
    position = 0
    for found in _OBJECT_KEY.finditer(rest):
        done.append(_filled(rest[position : found.start()], texts))
        key = msgspec.json.format(_filled(found[0], texts), indent=-1)
        done.append(_encode(key.decode()))
        position = found.end()
    done.append(_filled(rest[position:], texts))
    return b"".join(done)


def _filled(rest: bytes, texts: Iterator[bytes]) -> bytes:
    """Put the texts back in their places."""
    first, *others = rest.split(_PLACE)
    if not others:
        return first
    return first + b"".join([next(texts) + other for other in others])
