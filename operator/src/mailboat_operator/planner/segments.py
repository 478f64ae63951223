"""The CommitLog's files in few words: what a plan needs of them, and no more.

A broker lists every segment of its log, which are tens of thousands on a large volume with small
segments. A plan only asks what may go when, so neighbours that go alike are added up. Each sum is
at most a `SUMS`-th part of the log, and counts as old as the newest message in it: a forecast lets
it go a little late, never early.
"""

from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from mailboat_operator.planner.snapshot import Manifest

SUMS: Final = 240
"""So many sums, and a few more where one kind of segment ends and another one begins."""


# Java's longs: a number beyond has no place in a status, and none in a float.
_MOST: Final = (1 << 63) - 1
Number: TypeAlias = Annotated[int, Meta(ge=-_MOST, le=_MOST)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=_MOST)]


class Segment(msgspec.Struct, gc=False):
    """One file of the CommitLog as GET /api/v1/retention lists it; a time of -1 is not known."""

    physical_offset: Number = 0
    size_bytes: Count = 0
    last_timestamp_ms: Number = -1
    is_read: bool = False


def sum_segments(segments: Sequence[Segment], end: int | None) -> list[Manifest]:
    """Add up neighbours, in the form in which the broker lists segments; the last one stays alone.

    Args:
        segments: In the order of the log.
        end: Physical offset behind the last message; None if the broker does not say.
    """
    most = -(-len(segments) // SUMS)
    sums: list[Manifest] = []
    kind: tuple[bool, bool] | None = None
    count = 0
    for segment in segments[:-1]:
        is_whole = end is None or segment.physical_offset + segment.size_bytes <= end
        own_kind = (segment.is_read, is_whole and segment.last_timestamp_ms >= 0)
        if own_kind != kind or count == most or not own_kind[1]:
            sums.append(msgspec.to_builtins(segment))
            kind, count = own_kind, 1
        else:
            last = sums[-1]
            last["size_bytes"] += segment.size_bytes
            last["last_timestamp_ms"] = max(last["last_timestamp_ms"], segment.last_timestamp_ms)
            count += 1
        if not own_kind[1]:
            break  # Being written, not begun, or of unknown age: nothing behind it goes either.
    return sums + [msgspec.to_builtins(segment) for segment in segments[-1:]]
