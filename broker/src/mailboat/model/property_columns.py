"""Properties of many messages at once, as columns.

The messages of one client batch mostly carry the same properties in the same order and differ in
the values only. Then one regular expression, made of the first message's names, checks and cuts up
the texts of the whole batch: a message costs a fraction of what a dictionary of its own does. Any
other batch is no table, and its messages are read one by one.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from operator import add
from typing import Final, NamedTuple

_END: Final = b"\x02"
_EMPTY_ENTRY: Final = b"\x02\x02"
_COLUMNS: Final = (b"KEYS", b"UNIQ_KEY", b"TAGS")
_WAIT: Final = b"WAIT"
_MAX_PATTERNS: Final = 256
_MAX_SHAPES: Final = 4096
# How often the names of a batch were seen. A pattern is worth making for names that come again.
_seen: Counter[tuple[bytes, ...]] = Counter()


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
        Values may be empty. None as well for names that were never seen before.
    """
    first, count = texts[0], len(texts)
    closing = b"" if first[-1:] == _END else _END
    entries = (first + closing).split(_END)[:-1]
    names = tuple([entry.partition(b"\x01")[0] for entry in entries])
    pattern = _pattern_for(names)
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
    befores, waits, afters = columns["before"], columns.get("WAIT"), columns["after"]
    wait = waits[0] if waits else None
    removed = 0 if wait is None else len(_WAIT) + len(wait) + 2
    if waits and waits.count(wait) != count:
        return None
    # What the pattern skipped between two rows is missing here.
    kept = len(b"".join(befores)) + len(b"".join(afters))
    if kept + (removed + 1) * count != len(marked):
        return None
    sizes = list(map(add, map(len, texts), repeat(len(closing) - removed)))
    values = [columns.get(name.decode(), ()) for name in _COLUMNS]
    return PropertyColumns(names, wait, befores, afters, sizes, *values)


def _pattern_for(names: tuple[bytes, ...]) -> re.Pattern[bytes] | None:
    if _seen[names] < 2:
        if len(_seen) >= _MAX_SHAPES:
            _seen.clear()
        _seen[names] += 1
        if _seen[names] < 2:
            return None
    return _pattern(names)


@lru_cache(maxsize=_MAX_PATTERNS)
def _pattern(names: tuple[bytes, ...]) -> re.Pattern[bytes] | None:
    """Return what matches a text with these names and one separator more, None for bad names."""
    if len(set(names)) != len(names):
        return None
    parts = [b"(?P<before>"]
    for name in names:
        value = b"[^\x02]*"
        if name in (*_COLUMNS, _WAIT):
            value = b"(?P<%b>%b)" % (name, value)
        entry = re.escape(name) + b"\x01" + value + _END
        parts.append(b")%b(?P<after>" % entry if name == _WAIT else entry)
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
