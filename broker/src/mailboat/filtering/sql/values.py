"""Values and their comparison as Java makes it.

A property is a `str`, an absent one and NULL are None, TRUE and FALSE are `bool`, Double is `float`
and Integer and Long are `int`. The two are told apart by the value: a whole number that fits 32
bits is an Integer in RocketMQ, and what it is compared with must be one as well. The smallest
32-bit number is a Long there, since it is the negation of a number that does not fit.

Source: apache/rocketmq filter/expression/ComparisonExpression.java; java.lang.Integer.parseInt and
Double.valueOf.
"""

import math
import re
from collections.abc import Callable
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import Final, TypeAlias
from unicodedata import decimal

Value: TypeAlias = str | int | float | None
"""What a part of an expression comes to (a `bool` is an `int`)."""

INTEGER_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_LONG_DIGITS: Final = 19

_SHORT: Final = 9
# Noughts of all scripts that Java reads digits of: it looks at UTF-16 units.
_ZEROS: Final = "".join(chr(code) for code in range(0x10000) if decimal(chr(code), None) == 0)
_BEYOND_UTF16: Final = re.compile("[\U00010000-\U0010ffff]")
# Longer texts are not read again for each comparison.
_REMEMBERED: Final = 64
_DOUBLE: Final = re.compile(
    r"[+-]?(?:NaN|Infinity"
    r"|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]++\.?|[0-9a-fA-F]*+\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)[fFdD]?)"
)
# Java's String.trim().
_TRIMMED: Final = "".join(map(chr, range(33)))

COMPARE: Final[dict[str, Callable[[int, int], bool]]] = {">": gt, ">=": ge, "<": lt, "<=": le}


class NotComparableError(Exception):
    """Two values cannot be compared: RocketMQ throws, and the message is not taken."""


def is_integer(number: int) -> bool:
    """Tell whether a whole number is an Integer rather than a Long."""
    return -INTEGER_MAX <= number <= INTEGER_MAX


def parse_whole(text: str, maximum: int) -> int:
    """Read a text as Integer.parseInt (or Long.parseLong) does.

    Raises:
        NotComparableError: it is not a whole number, or beyond `maximum`.
    """
    if len(text) <= _SHORT and text.isascii() and text.isdigit():
        return int(text)
    number = _read_whole(text) if len(text) <= _REMEMBERED else _recall_whole(text)
    if number is None or not -maximum - 1 <= number <= maximum:
        raise NotComparableError(text)
    return number


def parse_double(text: str) -> float:
    """Read a text as Double.valueOf does.

    Raises:
        NotComparableError: it is not a number.
    """
    number = _read_double(text) if len(text) <= _REMEMBERED else _recall_double(text)
    if number is None:
        raise NotComparableError(text)
    return number


def _read_whole(text: str) -> int | None:
    """Return a whole number, or one that is beyond any limit, None for no number."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal():
        return None
    if not digits.isascii() and _BEYOND_UTF16.search(digits):
        return None
    number = int(digits.lstrip(_ZEROS)[: _LONG_DIGITS + 1] or "0")
    return -number if text[0] == "-" else number


def _read_double(text: str) -> float | None:
    text = text.strip(_TRIMMED)
    match = _DOUBLE.fullmatch(text)
    if match is None:
        return None
    if match["hex"] is None:
        return float(text.rstrip("fFdD") if text[-1] in "fFdD" else text)
    sign = -1.0 if text[0] == "-" else 1.0
    try:
        return sign * float.fromhex(match["hex"])
    except OverflowError:
        return sign * math.inf


# A message may have one long value, and an expression may compare it two hundred times.
_recall_whole = lru_cache(maxsize=16)(_read_whole)
_recall_double = lru_cache(maxsize=16)(_read_double)


def order(left: str | int | float, right: str | int | float) -> int:
    """Return -1, 0 or 1 as compareTo does once one side was converted to the other's class.

    Raises:
        NotComparableError: a side cannot be converted.
    """
    if isinstance(left, bool):
        if isinstance(right, bool):
            return left - right
        if isinstance(right, str):
            # RocketMQ converts the wrong side here, and its cast fails.
            raise NotComparableError(right)
        return -1
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        if isinstance(right, bool):
            return (len(left) == len("true") and left.lower() == "true") - right
        return order_numbers(_convert(left, right), right)
    if isinstance(right, bool):
        return -1
    if isinstance(right, str):
        return order_numbers(left, _convert(right, left))
    if isinstance(left, float) or isinstance(right, float):
        return order_numbers(float(left), float(right))
    return order_numbers(left, right)


def _convert(text: str, number: float) -> float:
    """Read a text as the class of the number it is compared with."""
    if isinstance(number, float):
        return parse_double(text)
    return parse_whole(text, INTEGER_MAX if is_integer(number) else LONG_MAX)


def order_numbers(left: float, right: float) -> int:
    """Compare numbers of one class as Double.compareTo does: NaN is the greatest, -0.0 below 0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right and left != 0:
        return 0
    ranks = [(n != n, math.copysign(1.0, n) if n == 0 and n == n else 0.0) for n in (left, right)]
    return (ranks[0] > ranks[1]) - (ranks[0] < ranks[1])


def equal(left: Value, right: Value) -> bool | None:
    """Compare with `=`: two absent values are equal, an absent left one is unknown.

    Raises:
        NotComparableError: the two cannot be compared.
    """
    if left is None:
        return True if right is None else None
    return right is not None and order(left, right) == 0


def compare(is_met: Callable[[int, int], bool], left: Value, right: Value) -> bool | None:
    """Compare with `>`, `>=`, `<` or `<=`; two texts are compared as numbers.

    Raises:
        NotComparableError: the two cannot be compared.
    """
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return is_met(order_numbers(parse_double(left), parse_double(right)), 0)
    return is_met(order(left, right), 0)
