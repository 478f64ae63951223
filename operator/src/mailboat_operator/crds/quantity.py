"""Sizes and times as Kubernetes writes them: `100Gi`, `6h30m`, `20%`.

Sizes are whole bytes here. The grammar of a size is the part of Kubernetes' quantities (its
apimachinery `resource.Quantity`) that makes sense for a volume: no exponent, no `m`, no sign.
"""

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

QUANTITY_PATTERN: Final = r"^[1-9][0-9]{0,14}(\.[0-9]{1,3})?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
"""A size above nothing."""

DURATION_PATTERN: Final = r"^([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,5}s)?$"
"""A time; the empty text is ruled out by its length."""

STEP_PATTERN: Final = r"^[1-9][0-9]{0,2}%$|" + QUANTITY_PATTERN
"""A percentage or a size."""

QUANTITY_HINT: Final = "must be a size such as 512Mi or 100Gi"
DURATION_HINT: Final = "must be a time such as 30m, 6h or 6h30m"
STEP_HINT: Final = "must be a percentage such as 20% or a size such as 10Gi"

_SUFFIXES: Final = {
    "": 1,
    "k": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "P": 1000**5,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "Pi": 1 << 50,
}
_PARTS: Final = re.compile(r"(?P<number>[0-9.]+)(?P<suffix>[A-Za-z]*)", re.ASCII)
_QUANTITY: Final = re.compile(QUANTITY_PATTERN.removesuffix("$") + r"\Z", re.ASCII)
_DURATION: Final = re.compile(
    r"(?:(?P<h>[0-9]{1,4})h)?(?:(?P<m>[0-9]{1,4})m)?(?:(?P<s>[0-9]{1,5})s)?\Z", re.ASCII
)
_PERCENT: Final = re.compile(r"[1-9][0-9]{0,2}%\Z", re.ASCII)


def parse_quantity(text: str) -> int:
    """Return the bytes that a size means; part of a byte counts as a whole one.

    Raises:
        ValueError: the text is no size.
    """
    parts = _PARTS.fullmatch(text) if _QUANTITY.match(text) else None
    if parts is None:
        raise ValueError(f"{text!r}: {QUANTITY_HINT}")
    return math.ceil(Decimal(parts["number"]) * _SUFFIXES[parts["suffix"]])


def format_quantity(size_bytes: int) -> str:
    """Spell a number of bytes exactly, with the largest binary unit that divides it."""
    for suffix in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        if size_bytes and size_bytes % _SUFFIXES[suffix] == 0:
            return f"{size_bytes // _SUFFIXES[suffix]}{suffix}"
    return str(size_bytes)


def parse_duration(text: str) -> int:
    """Return the seconds that a time means.

    Raises:
        ValueError: the text is no time.
    """
    parts = _DURATION.match(text) if text else None
    if parts is None:
        raise ValueError(f"{text!r}: {DURATION_HINT}")
    hours, minutes, seconds = (int(parts[unit] or 0) for unit in "hms")
    return hours * 3600 + minutes * 60 + seconds


@dataclass(frozen=True, slots=True)
class GrowthStep:
    """How much a volume grows at a time; one of the two is set."""

    percent: int | None = None
    size_bytes: int | None = None

    def bytes_of(self, current_bytes: int) -> int:
        """Return the step for a volume of this size; part of a byte counts as a whole one."""
        if self.percent is None:
            return self.size_bytes or 0
        return -(-current_bytes * self.percent // 100)


def parse_step(text: str) -> GrowthStep:
    """Return the step that a text means.

    Raises:
        ValueError: the text is neither a percentage nor a size.
    """
    if _PERCENT.match(text):
        return GrowthStep(percent=int(text.removesuffix("%")))
    if _QUANTITY.match(text) is None:
        raise ValueError(f"{text!r}: {STEP_HINT}")
    return GrowthStep(size_bytes=parse_quantity(text))
