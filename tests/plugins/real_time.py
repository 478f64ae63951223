"""Limits of real time.

A busy machine may take any time for a step. A limit near the promise would fail there without a
defect, so the limit is just below what the defect would take. Where nothing runs beside a test, the
promise itself is the limit: `MAILBOAT_TEST_TIMES=1` says so (`make soak`, `make soak-e2e`).
"""

from __future__ import annotations

import os
from typing import Final

IS_TIMED: Final = os.environ.get("MAILBOAT_TEST_TIMES") == "1"


def at_most_s(promised_s: float, defect_s: float) -> float:
    """Return how many seconds a step may take.

    Args:
        promised_s: the limit where times count.
        defect_s: the limit elsewhere, below what the step takes with the defect in question.
    """
    return promised_s if IS_TIMED else defect_s
