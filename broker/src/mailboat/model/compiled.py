"""What the compiled core has for readers of records; None where it is not used.

Each has its definition in Python beside the place that calls it, and does the same.
"""

from collections.abc import Callable
from typing import Any, Protocol

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

check_records: Callable[[bytes, bytes, bytes, int, bool], int] | None
"""Takes records back to back, their packed places, the topic (UTF-8) and queue id of all, and
whether to check their checksums. Returns the number of the first bad record, -1 when all are
good."""

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

QueueUnits = tuple[str, int, int, int, bytes, int]
KeyRows = tuple[bytes, int, int]
scan_records: (
    Callable[
        [bytes, int, int, bool, int],
        tuple[int, int, int, int, list[QueueUnits], list[KeyRows]],
    ]
    | None
)
"""Takes bytes of the CommitLog, a position in them and its physical offset, whether to check the
checksums, and the most rows of keys (0: none are made). Returns what is derived from the plain
records from there on, to the end or the first that needs a closer look (`Scan::take` of
`core/wire/src/scan.rs` tells which do): their bytes, their count, the last and the newest store
time; by queue its topic, queue id, first queue offset, first physical offset, units and the
physical offset behind the last record; by millisecond an `index_backlog.ROW` for each key, the
first physical offset and the store time. All messages of one queue are next to each other there."""


class Condition(Protocol):
    """An SQL92 condition that the core judges."""

    def judge(
        self, records: bytes, at: int, max_messages: int, max_bytes: int
    ) -> tuple[list[tuple[int, int]], int, int]:
        """Judge records that lie back to back, from a position on.

        Returns begin and end of those that are taken (neighbours together), how many they are, and
        the position of the first record that was not judged: there is none; there are
        `max_messages`; it is taken and would exceed `max_bytes`; or it is left to Python, for what
        it is or because this call has done enough.
        """
        ...


read_condition: Callable[[bytes], Condition | None] | None
"""Takes a condition as `mailboat.filtering.sql.program` packs it; None where it is none."""

if core.FOUND.is_used:
    choose_places = core.native.choose_places
    check_records = core.native.check_records
    decode_records = core.native.decode_records
    decode_rows = core.native.decode_rows
    property_values = core.native.property_values
    read_condition = core.native.read_condition
    scan_records = core.native.scan_records
else:
    choose_places = check_records = decode_records = decode_rows = property_values = None
    read_condition = None
    scan_records = None
