"""What the compiled core has for readers of records; None where it is not used.

Each has its definition in Python beside the place that calls it, and does the same.
"""

from collections.abc import Callable
from typing import Any

from mailboat import core

choose_places: (
    Callable[
        [bytes, int, int, int, frozenset[int] | None],
        tuple[bytes, int, list[tuple[int, int]]] | None,
    ]
    | None
)
"""Takes units, the queue offset of the first, limits of messages and bytes, and the tagsCodes that
are wanted (None: all). Returns the places of the records that these limits allow, packed like
units with the queue offset for the tagsCode; the queue offset where to go on; and physical offset
and size of what lies back to back. None where places are not in order, or are none of records."""

check_records: Callable[[bytes, bytes, bool], int] | None
"""Takes records back to back, their packed places, and whether to check their checksums. Returns
the number of the first bad record, -1 when all are good."""

decode_records: Callable[[bytes], tuple[list[tuple[Any, ...]], int]] | None
"""Takes records back to back. Returns the fields of `MessageExt` for each, and where it stopped: at
the end, or at the first bad record."""

_Seen = tuple[int, int, int]
decode_rows: (
    Callable[
        [bytes, int, int, frozenset[bytes]],
        tuple[list[bytes], list[bytes], list[tuple[Any, ...]], _Seen, int],
    ]
    | None
)
"""Takes records back to back, where to begin, the queue offset to stop before and the tags that are
wanted (none: all). Returns payloads, stored properties and heads as `mailboat_spark.records` keeps
them; the first and the last queue offset seen, and how many; and where it stopped: at the end, at
the first bad record, or at one with a compressed body."""

property_values: Callable[[list[bytes], bytes], list[bytes | None]] | None
"""Takes stored properties and a name. Returns its value in each, None where there is none."""

if core.FOUND.is_used:
    choose_places = core.native.choose_places
    check_records = core.native.check_records
    decode_records = core.native.decode_records
    decode_rows = core.native.decode_rows
    property_values = core.native.property_values
else:
    choose_places = check_records = decode_records = decode_rows = property_values = None
