"""Tables as bytes: rows of equal layout, big-endian, packed and cut up with one call for all rows.

What is done to each of many messages costs mostly the calls; `struct` does a whole table in one.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final

# Longer tables are packed in pieces, so that few layouts are needed and each stays small.
_MAX_ROWS: Final = 256


def pack_rows(row: Sequence[str], *columns: Sequence[Any]) -> bytes:
    """Return the rows of a table, one after the other.

    Args:
        row: the fields of a row as `struct` writes them, one for each column.
        columns: the values of one field for all rows; all have the same length.
    """
    count, width = len(columns[0]), len(columns)
    if count > _MAX_ROWS:
        return b"".join(
            pack_rows(row, *[column[start : start + _MAX_ROWS] for column in columns])
            for start in range(0, count, _MAX_ROWS)
        )
    values: list[Any] = [None] * (count * width)
    for index, column in enumerate(columns):
        values[index::width] = column
    return _layout("".join(row), count).pack(*values)


def cut_rows(row: str, row_bytes: int, data: bytes) -> tuple[Any, ...]:
    """Return the fields of all rows of a table, one row after the other.

    Args:
        row: the fields of a row as `struct` writes them.
        row_bytes: how many bytes a row has; `data` is a multiple of it.
        data: the table.
    """
    piece_bytes = _MAX_ROWS * row_bytes
    if len(data) <= piece_bytes:
        return _layout(row, len(data) // row_bytes).unpack(data)
    fields: list[Any] = []
    for start in range(0, len(data), piece_bytes):
        fields += cut_rows(row, row_bytes, data[start : start + piece_bytes])
    return tuple(fields)


@lru_cache(maxsize=1024)
def _layout(row: str, count: int) -> Struct:
    return Struct(">" + row * count)
