"""Which records a read of a queue takes, and where they lie. The definition in Python.

Works on columns (all offsets, all sizes, ...), so that the loops run inside C code.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, compress
from operator import add
from struct import Struct
from typing import Final

from mailboat.model.record import CRC_PROPERTY_BYTES, FIXED_BYTES
from mailboat.store.consume_queue import UNIT_BYTES

MIN_RECORD_BYTES: Final = FIXED_BYTES + CRC_PROPERTY_BYTES
"""Of a record that is read together with others."""

Run = tuple[int, int]
"""Physical offset and size of what lies back to back."""

Chosen = tuple[bytes, int, Sequence[Run]]
"""The places of the records that a read takes: of each physical offset, size and queue offset,
packed like units. Then the queue offset where to go on, and the runs of these places."""


@lru_cache(maxsize=16)
def unit_columns(count: int) -> Struct:
    """Return the layout of so many units, or places, as one row."""
    return Struct(">" + "qiq" * count)


def choose_places(
    units: bytes,
    queue_offset: int,
    max_messages: int,
    max_bytes: int,
    tags_codes: frozenset[int] | None,
) -> Chosen | None:
    """Choose from some units, of which the first has this queue offset.

    Args:
        units: packed units, at least one.
        queue_offset: that of the first unit.
        max_messages: at most so many records.
        max_bytes: stop before the record that would exceed this sum, but for the first.
        tags_codes: only units with one of these tagsCodes; None takes all.

    Returns:
        None where places are not in order, or a size is none of a record, chosen or not.
    """
    columns = unit_columns(len(units) // UNIT_BYTES).unpack(units)
    offsets, sizes = columns[::3], columns[1::3]
    after = queue_offset + len(sizes)
    numbers: Sequence[int] = range(queue_offset, after)
    if min(sizes) < FIXED_BYTES:
        return None  # What is no unit says nothing of tags.
    if tags_codes is not None:
        chosen = [code in tags_codes for code in columns[2::3]]
        numbers = tuple(compress(numbers, chosen))
        offsets, sizes = tuple(compress(offsets, chosen)), tuple(compress(sizes, chosen))
        if not sizes:
            return b"", after, ()
    if min(sizes) < MIN_RECORD_BYTES:
        return None
    count = min(len(sizes), max_messages)
    if sum(sizes[:count]) > max_bytes:
        count = max(bisect_right(list(accumulate(sizes)), max_bytes, 0, count), 1)
    if count < len(sizes):
        after = numbers[count]
        numbers, offsets, sizes = numbers[:count], offsets[:count], sizes[:count]
    runs = runs_of(offsets, sizes)
    if runs is None:
        return None
    places = unit_columns(count).pack(
        *chain.from_iterable(zip(offsets, sizes, numbers, strict=True))
    )
    return places, after, runs


def runs_of(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> list[Run] | None:
    """Join what lies back to back of at least one; None where places are not in order."""
    ends = tuple(map(add, offsets, sizes))
    if ends[:-1] == offsets[1:]:
        return [(offsets[0], ends[-1] - offsets[0])]
    runs = []
    start = end = offsets[0]
    for physical_offset, after in zip(offsets, ends, strict=True):
        if physical_offset != end:
            if physical_offset < end:
                return None
            runs.append((start, end - start))
            start = physical_offset
        end = after
    return [*runs, (start, end - start)]
