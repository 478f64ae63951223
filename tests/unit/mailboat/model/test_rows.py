"""Tables packed and cut up with one call."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from mailboat.model.rows import cut_rows, pack_rows

_row = st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))


@given(st.lists(_row, min_size=1, max_size=600))
def test_a_table_is_its_rows_one_after_the_other(rows: list[tuple[int, int]]) -> None:
    """Packed as a whole it has the bytes of each row packed alone, and comes apart again."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    table = pack_rows(("i", "q"), *columns)
    assert table == b"".join(struct.pack(">iq", *row) for row in rows)
    assert cut_rows("iq", 12, table) == tuple(value for row in rows for value in row)
