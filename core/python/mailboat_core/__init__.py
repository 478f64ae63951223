"""The compiled core: the hot path of the mailboat broker, and nothing it cannot do without."""

from mailboat_core._native import (
    body_crc,
    check_records,
    choose_places,
    decode_records,
    decode_rows,
    property_values,
)

__all__ = [
    "body_crc",
    "check_records",
    "choose_places",
    "decode_records",
    "decode_rows",
    "property_values",
]
