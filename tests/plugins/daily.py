"""A few of many cases that take long, and a few of endless random ones: other ones each day.

`MAILBOAT_TEST_DAY` names the day, a number, or `all` for all cases (`make soak`). `tests/gate.py`
sets it once for a run, so that midnight changes nothing within one; else it is today.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import Final, TypeVar

VARIABLE: Final = "MAILBOAT_TEST_DAY"
_Case = TypeVar("_Case")


def some_of(cases: Sequence[_Case], count: int) -> list[_Case]:
    """Return so many of the cases of the day, in their order."""
    day = _day()
    if day is None:
        return list(cases)
    chosen = Random(day).sample(range(len(cases)), count)
    return [cases[place] for place in sorted(chosen)]


def place_of(name: str, count: int) -> int | None:
    """Return which of so many cases of a test is the day's, by the test's name; None for all."""
    day = _day()
    return None if day is None else (zlib.crc32(name.encode()) + day) % count


def first_seed() -> int:
    """Return where the seeds of the day begin: a million for each day, and 0 for all."""
    return 1_000_000 * (_day() or 0)


def _day() -> int | None:
    day = os.environ.get(VARIABLE)
    if day == "all":
        return None
    return int(day) if day else datetime.now(UTC).toordinal()
