"""A few of many cases that take long, other ones each day.

`MAILBOAT_TEST_DAY` names the day, a number, or `all` for all cases (`make soak`). `tests/gate.py`
sets it once for a run, so that midnight changes nothing within one; else it is today.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import Final, TypeVar

VARIABLE: Final = "MAILBOAT_TEST_DAY"
_Case = TypeVar("_Case")


def some_of(cases: Sequence[_Case], count: int) -> list[_Case]:
    """Return so many of the cases of the day, in their order."""
    day = os.environ.get(VARIABLE) or str(datetime.now(UTC).toordinal())
    if day == "all":
        return list(cases)
    chosen = Random(int(day)).sample(range(len(cases)), count)
    return [cases[place] for place in sorted(chosen)]
