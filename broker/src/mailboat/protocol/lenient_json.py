"""Reads the JSON that Java's fastjson writes where it is not JSON.

RocketMQ's maps with non-text keys appear on the wire with their keys as they are:

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":5}}}
    {"offsetTable":{"T@group":{0:12,1:7}}}

`loads` accepts that, the same keys as strings, and ordinary JSON. Every key becomes a string: an
object key its compact JSON text, a number key its digits.

Source: the output of com.alibaba:fastjson 1.2 for Map<MessageQueue, ?> and Map<Integer, ?>
"""

import math
import re
from typing import Any, Final

import msgspec

from mailboat.errors import RemoteProtocolError

MAX_DEPTH: Final = 64
MAX_BYTES: Final = 4 * 1024 * 1024  # the scan is Python: about half a second for each MiB

_TOKEN: Final = re.compile(
    rb"""[ \t\r\n]*(?:
        (?P<text>"[^"\\]*(?:\\.[^"\\]*)*")
      | (?P<mark>[{}\[\]:,])
      | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
      | (?P<word>true|false|null)
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_WORDS: Final = {b"true": True, b"false": False, b"null": None}
_decode_text: Final = msgspec.json.Decoder(str).decode
_decode_plain: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def loads(text: bytes) -> Any:
    """Parse a JSON text, tolerating object and number keys.

    Raises:
        RemoteProtocolError: it is no JSON even so, or larger or deeper than the limits.
    """
    try:
        return _decode_plain(text)
    except (ValueError, RecursionError):
        if len(text) > MAX_BYTES:
            raise RemoteProtocolError(
                f"JSON text of {len(text)} bytes: the limit is {MAX_BYTES} bytes"
            ) from None
    try:
        return _Parser(text).parse()
    except ValueError as error:
        raise RemoteProtocolError(f"not a JSON text: {error}") from error


class _Parser:
    """One pass over the text; `_kind` and `_token` are the token under the cursor."""

    __slots__ = ("_depth", "_in_key", "_kind", "_position", "_text", "_token")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._position = 0
        self._depth = 0
        self._in_key = False
        self._kind = ""
        self._token = b""
        self._next()

    def parse(self) -> Any:
        value = self._value()
        if self._kind != "end":
            raise self._error()
        return value

    def _next(self) -> None:
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            raise ValueError(f"unexpected character at byte {self._position}")
        self._kind = match.lastgroup or ""
        self._token = match[self._kind]
        self._position = match.end()

    def _value(self) -> Any:
        kind, token = self._kind, self._token
        if token == b"{":
            return self._nested(self._object)
        if token == b"[":
            return self._nested(self._array)
        if kind in ("mark", "end"):
            raise self._error()
        self._next()
        return _scalar(kind, token)

    def _nested(self, read: Any) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        value = read()
        self._depth -= 1
        return value

    def _object(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        self._next()
        while self._token != b"}":
            key = self._key()
            self._take(b":")
            fields[key] = self._value()
            if self._token != b"}":
                self._take(b",")
                if self._token == b"}":
                    raise self._error()
        self._next()
        return fields

    def _array(self) -> list[Any]:
        items: list[Any] = []
        self._next()
        while self._token != b"]":
            items.append(self._value())
            if self._token != b"]":
                self._take(b",")
                if self._token == b"]":
                    raise self._error()
        self._next()
        return items

    def _key(self) -> str:
        kind, token = self._kind, self._token
        if token == b"{":
            # Keys within keys would double their escapes at every level: a small text, a huge key.
            if self._in_key:
                raise ValueError(f"an object key within an object key at byte {self._position}")
            self._in_key = True
            key = self._nested(self._object)
            self._in_key = False
            return _encode(key).decode()
        if kind == "mark" or kind == "end":
            raise self._error()
        self._next()
        return _decode_text(token) if kind == "text" else token.decode()

    def _take(self, mark: bytes) -> None:
        if self._kind != "mark" or self._token != mark:
            raise self._error()
        self._next()

    def _error(self) -> ValueError:
        found = "the end" if self._kind == "end" else repr(self._token[:20].decode("latin-1"))
        return ValueError(f"unexpected {found} before byte {self._position}")


def _scalar(kind: str, token: bytes) -> Any:
    if kind == "text":
        return _decode_text(token)
    if kind == "word":
        return _WORDS[token]
    if token.removeprefix(b"-").isdigit():
        return int(token)
    value = float(token)
    if not math.isfinite(value):
        raise ValueError("a number is out of range")
    return value
