"""Properties of many messages at once, as columns.

The messages of one client batch mostly carry the same properties in the same order and differ in
the values only. Then one regular expression, made of the first message's names, checks and cuts up
the texts of the whole batch: a message costs a fraction of what a dictionary of its own does. Any
other batch is no table, and its messages are read one by one.
"""

import re
import time
from collections.abc import Sequence
from itertools import repeat
from operator import add
from typing import Final, NamedTuple

_END: Final = b"\x02"
_EMPTY_ENTRY: Final = b"\x02\x02"
_COLUMNS: Final = (b"KEYS", b"UNIQ_KEY", b"TAGS")
_WAIT: Final = b"WAIT"
_MAX_PATTERNS: Final = 256
_MAX_SHAPES: Final = 4096
# Programs have a dozen names. More, or long ones, are neither remembered nor worth a pattern.
_MAX_NAMES: Final = 64
_MAX_SHAPE_BYTES: Final = 2048
# A pattern takes up to a millisecond to make, and whoever has ever new names asks for one with each
# batch: so many times what it took passes before the next.
_REST_FACTOR: Final = 20

_Shape = tuple[tuple[bytes, ...], bytes | None]
"""The names of a batch and its value of WAIT."""


class PropertyColumns(NamedTuple):
    """The properties of messages that all have the same ones in the same order.

    `names` are those of every message. `wait` is the value of WAIT, the same in all, None where
    they have none. `befores` and `afters` are the texts around it, each with a separator at its
    end, `sizes` the bytes of both together. `keys`, `unique_keys` and `tags` have one value for
    each message, or are empty where the messages do not have the property.
    """

    names: tuple[bytes, ...]
    wait: bytes | None
    befores: Sequence[bytes]
    afters: Sequence[bytes]
    sizes: list[int]
    keys: Sequence[bytes]
    unique_keys: Sequence[bytes]
    tags: Sequence[bytes]


def read_property_columns(texts: Sequence[bytes]) -> PropertyColumns | None:
    """Cut properties texts into columns.

    Returns:
        None unless every text is well-formed UTF-8, has no name twice and has exactly the names of
        the first text, in its order, and all wait alike; all or none may lack their last separator.
        Values may be empty. None as well for names that were never seen before, and for very many.
    """
    first, count = texts[0], len(texts)
    if first.count(_END) > _MAX_NAMES:
        return None
    closing = b"" if first[-1:] == _END else _END
    entries = [entry.partition(b"\x01") for entry in (first + closing).split(_END)[:-1]]
    names = tuple([name for name, _, _ in entries])
    wait = next((value for name, _, value in entries if name == _WAIT), None)
    pattern = _patterns.find((names, wait))
    if pattern is None:
        return None
    joined = b"".join(texts)
    # With an entry of no bytes at the end of each text, and nowhere else, rows are told apart.
    marked = (closing + _END).join(texts) + closing + _END
    # There are as many 0x01 as entries, and one behind each name: none has two.
    if _EMPTY_ENTRY in joined or joined.count(b"\x01") != count * len(names):
        return None
    rows = pattern.findall(marked)
    if len(rows) != count or not _is_utf8(joined):
        return None
    columns = dict(zip(pattern.groupindex, zip(*rows, strict=True), strict=True))
    befores, afters = columns["before"], columns["after"]
    removed = 0 if wait is None else len(_WAIT) + len(wait) + 2
    # What the pattern skipped between two rows is missing here.
    kept = len(b"".join(befores)) + len(b"".join(afters))
    if kept + (removed + 1) * count != len(marked):
        return None
    sizes = list(map(add, map(len, texts), repeat(len(closing) - removed)))
    values = [columns.get(name.decode(), ()) for name in _COLUMNS]
    return PropertyColumns(names, wait, befores, afters, sizes, *values)


class _Patterns:
    """The patterns of the shapes that came lately."""

    def __init__(self) -> None:
        # A pattern is worth making for what comes again.
        self._seen: set[_Shape] = set()
        # The least recently used first.
        self._made: dict[_Shape, re.Pattern[bytes] | None] = {}
        self._next_s = 0.0

    def find(self, shape: _Shape) -> re.Pattern[bytes] | None:
        """Return the pattern of a shape; None if it has none, or none yet."""
        if shape in self._made:
            pattern = self._made[shape] = self._made.pop(shape)
            return pattern
        if shape not in self._seen:
            names, wait = shape
            if sum(map(len, names)) + len(wait or b"") > _MAX_SHAPE_BYTES:
                return None
            if len(self._seen) >= _MAX_SHAPES:
                self._seen.clear()
            self._seen.add(shape)
            return None
        begin_s = time.monotonic()
        if begin_s < self._next_s:
            return None
        pattern = self._made[shape] = _pattern(*shape)
        if len(self._made) > _MAX_PATTERNS:
            del self._made[next(iter(self._made))]
        end_s = time.monotonic()
        self._next_s = end_s + _REST_FACTOR * (end_s - begin_s)
        return pattern


_patterns: Final = _Patterns()


def _pattern(names: tuple[bytes, ...], wait: bytes | None) -> re.Pattern[bytes] | None:
    """Return what matches a text with these names and one separator more, None for bad names."""
    if len(set(names)) != len(names):
        return None
    parts = [b"(?P<before>"]
    for name in names:
        entry = re.escape(name) + b"\x01"
        if name == _WAIT:
            parts.append(b")" + entry + re.escape(wait or b"") + _END + b"(?P<after>")
        elif name in _COLUMNS:
            parts.append(b"%b(?P<%b>[^\x02]*)\x02" % (entry, name))
        else:
            parts.append(entry + b"[^\x02]*\x02")
    parts.append(b")" if _WAIT in names else b")(?P<after>)")
    return re.compile(b"".join(parts) + _END)


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
