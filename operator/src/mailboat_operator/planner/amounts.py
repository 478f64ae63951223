"""Quantities of Kubernetes objects, compared by what they amount to."""

from fractions import Fraction
from typing import Final

_UNITS: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "Ki": Fraction(1 << 10),
    "Mi": Fraction(1 << 20),
    "Gi": Fraction(1 << 30),
    "Ti": Fraction(1 << 40),
    "Pi": Fraction(1 << 50),
}


def same_amount(one: object, other: object) -> bool:
    """Return whether two quantities are the same amount, as `1Gi` and `1024Mi`."""
    amounts = [_amount(one), _amount(other)]
    return None not in amounts and amounts[0] == amounts[1]


def _amount(value: object) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = str(value)
    unit = text.lstrip("0123456789.+-")
    number, factor = text.removesuffix(unit), _UNITS.get(unit) if unit else Fraction(1)
    if factor is None or not number:
        return None
    try:
        return Fraction(number) * factor
    except ValueError:
        return None
