"""The compiled core: the hot path of the mailboat broker, and nothing it cannot do without."""

from typing import Final

from mailboat_core._native import (
    Condition,
    IndexSlots,
    Round,
    SendRounds,
    check_records,
    choose_places,
    decode_records,
    decode_rows,
    property_values,
    read_condition,
    scan_records,
)

__version__: Final = "0.1.0"

__all__ = [
    "Condition",
    "IndexSlots",
    "Round",
    "SendRounds",
    "__version__",
    "check_records",
    "choose_places",
    "decode_records",
    "decode_rows",
    "property_values",
    "read_condition",
    "scan_records",
]
