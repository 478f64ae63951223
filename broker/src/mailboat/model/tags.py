"""Java's String.hashCode and the tagsCode that ConsumeQueue units and subscriptions carry.

`h = 31 * h + unit` over UTF-16 code units in 32 bits: a number written in base 31 whose digits are
the characters. CPython's `int(text, 31)` evaluates exactly such a number in C, so a Latin-1 string
is split into two digit strings (code % 31 and code // 31) by two table look-ups and converted
twice: several times faster than a loop, which decides what an index key costs.

Source: java.lang.String.hashCode; apache/rocketmq store/MessageExtBrokerInner.java
(tagsString2tagsCode).
"""

from typing import Final

_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"
_LOW_DIGIT: Final = bytes(_DIGITS[code % 31] for code in range(256))
_HIGH_DIGIT: Final = bytes(_DIGITS[code // 31] for code in range(256))
_MASK: Final = 0xFFFFFFFF
# `int()` refuses more than 4300 digits and is quadratic; pieces keep it short and linear.
_PIECE: Final = 512
_POWERS: Final = [pow(31, exponent, 1 << 32) for exponent in range(_PIECE + 1)]
# Keys of one program look alike (`order-00017`, `order-00018`): their high digits are the same, and
# so is what those add to the hash.
_MAX_SHAPES: Final = 4096
_shapes: dict[bytes, int] = {}


def unsigned_hash(data: bytes, seed: int = 0) -> int:
    """Return String.hashCode of Latin-1 characters in 32 unsigned bits.

    Args:
        data: one byte for each character.
        seed: the unsigned hash of the text that comes before `data`.
    """
    if len(data) <= _PIECE:
        high_digits = data.translate(_HIGH_DIGIT)
        try:
            high = _shapes[high_digits]
        except KeyError:
            high = _add_shape(high_digits)
        return (
            seed * _POWERS[len(data)] + int(data.translate(_LOW_DIGIT) or b"0", 31) + high
        ) & _MASK
    h = seed
    for start in range(0, len(data), _PIECE):
        h = unsigned_hash(data[start : start + _PIECE], h)
    return h


def _add_shape(high_digits: bytes) -> int:
    if len(_shapes) >= _MAX_SHAPES:
        _shapes.clear()
    value = _shapes[high_digits] = 31 * int(high_digits, 31) if high_digits else 0
    return value


def unsigned_text_hash(text: str, seed: int = 0) -> int:
    """Return String.hashCode of any text in 32 unsigned bits, continuing from `seed`."""
    try:
        return unsigned_hash(text.encode("latin-1"), seed)
    except UnicodeEncodeError:
        data = text.encode("utf-16-be", "surrogatepass")
        h = seed
        for index in range(0, len(data), 2):
            h = (31 * h + (data[index] << 8) + data[index + 1]) & _MASK
        return h


def signed(h: int) -> int:
    """Turn 32 unsigned bits into Java's signed int."""
    return h - 0x100000000 if h & 0x80000000 else h


def java_hash(text: str) -> int:
    """Return String.hashCode as Java sees it, a signed 32-bit number."""
    return signed(unsigned_text_hash(text))


def tags_code(tag: str | None) -> int:
    """Return the tagsCode of a tag: its hash, or 0 where there is none."""
    return java_hash(tag) if tag else 0
