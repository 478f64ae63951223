"""What the store asks of a filter on message properties, and reading few of many properties.

A filter looks at a handful of a message's properties; those are searched for in the stored text,
which is several times cheaper than to decode all of it.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from mailboat.model.compiled import Condition

_NAME_END: Final = b"\x01"
_ENTRY_END: Final = b"\x02"


class PropertyFilter(Protocol):
    """Decides by a message's properties whether a consumer gets it."""

    @property
    def condition(self) -> Condition | None:
        """The same for many records at once; None where there is no compiled core for it."""
        ...

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Decide by decoded properties."""
        ...

    def matches_text(self, text: bytes, start: int, end: int) -> bool:
        """Decide by the properties text that lies in `text` between two positions."""
        ...


class PropertyReader:
    """Finds the values of some properties in properties texts."""

    __slots__ = ("_entry_starts",)

    def __init__(self, names: Sequence[str]) -> None:
        """Look for these names; none may hold U+0001 or U+0002."""
        starts = [_ENTRY_END + name.encode() + _NAME_END for name in names]
        self._entry_starts = [(start, len(start)) for start in starts]

    def read(self, text: bytes, start: int, end: int) -> list[str | None]:
        """Return the values in the order of the names, None for those that are not there.

        As `decode_properties` has it: of a name that comes twice the last value counts, and an
        empty value counts as none.
        """
        values: list[str | None] = []
        for entry_start, size in self._entry_starts:
            at = text.rfind(entry_start, start, end)
            if at >= 0:
                at += size
            elif text.startswith(entry_start[1:], start, end):
                at = start + size - 1
            else:
                values.append(None)
                continue
            value_end = text.find(_ENTRY_END, at, end)
            if value_end < 0:
                value_end = end
            if value_end == at:
                values.append(_value_before(text, start, at, entry_start))
                continue
            try:
                values.append(text[at:value_end].decode())
            except UnicodeDecodeError:
                values.append(text[at:value_end].decode("utf-8", "replace"))
        return values


def _value_before(text: bytes, start: int, empty_at: int, entry_start: bytes) -> str | None:
    """Return the last value that is not empty of a name whose value at `empty_at` is.

    Only entries of this name are looked at: a message may have ten thousand of others, and an
    expression some hundred names.
    """
    size = len(entry_start)
    entry_at = empty_at - size
    while (entry_at := text.rfind(entry_start, start, entry_at)) >= 0:
        if not text.startswith(_ENTRY_END, entry_at + size):
            value_at = entry_at + size
            break
    else:
        # The first entry has no other one's end before it.
        value_at = start + size - 1
        if not text.startswith(entry_start[1:], start, empty_at) or value_at == empty_at:
            return None
    value = text[value_at : text.find(_ENTRY_END, value_at)]
    return value.decode("utf-8", "replace") if value else None
