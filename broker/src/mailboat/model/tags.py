"""Java's String.hashCode and the tagsCode that ConsumeQueue units and subscriptions carry.

`h = 31 * h + unit` over UTF-16 code units in 32 bits: a number written in base 31 whose digits are
the characters. CPython's `int(text, 31)` evaluates exactly such a number in C, so a Latin-1 string
is split into two digit strings (code % 31 and code // 31) by two table look-ups and converted
twice: several times faster than a loop, which decides what an index key costs.

Source: java.lang.String.hashCode; apache/rocketmq store/MessageExtBrokerInner.java
(tagsString2tagsCode).
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from operator import add, and_, mul
from typing import Final

from mailboat.model.rows import cut_rows

_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"
_LOW_DIGIT: Final = bytes(_DIGITS[code % 31] for code in range(256))
_HIGH_DIGIT: Final = bytes(_DIGITS[code // 31] for code in range(256))
# Codes 48 to 78 as digits; what is no digit makes `int` refuse.
_KEY_DIGIT: Final = bytes(_DIGITS[code - 48] if 48 <= code < 79 else 33 for code in range(256))
_MASK: Final = 0xFFFFFFFF
# `int()` refuses more than 4300 digits and is quadratic; pieces keep it short and linear.
_PIECE: Final = 512
_POWERS: Final = [pow(31, exponent, 1 << 32) for exponent in range(_PIECE + 1)]
# Keys of one program look alike (`order-00017`, `order-00018`): their high digits are the same, and
# so is what those add to the hash.
_MAX_SHAPES: Final = 4096
_shapes: dict[bytes, int] = {}
# Consecutive keys differ in their last characters only.
_SHORT: Final = 3
_MAX_SHORT_HASHES: Final = 16384
# The hash of `size` characters of code 48.
_FORTY_EIGHTS: Final = [48 * total & _MASK for total in accumulate(_POWERS, initial=0)]


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


def unsigned_hashes(texts: Sequence[bytes], seed: int) -> list[int]:
    """Return the unsigned hashes of many UTF-8 texts, each continuing from `seed`.

    Texts of one length, as keys of one program are, cost a fraction of what one call for each does:
    what they begin with in common is hashed once, and the loops over the rest run inside `map`.
    """
    size = len(texts[0]) if texts else 0
    data = b"".join(texts)
    if not data.isascii():
        return [unsigned_text_hash(text.decode(), seed) for text in texts]
    if not 0 < size <= _PIECE or len(texts) == 1 or len(set(map(len, texts))) != 1:
        return [unsigned_hash(text, seed) for text in texts]
    differing = int.from_bytes(data[:size], "big") ^ int.from_bytes(data[-size:], "big")
    rest = (differing.bit_length() + 7) // 8
    pieces = cut_rows(f"{size - rest}s{rest}s", size, data)
    head, tails = pieces[0], pieces[1::2]
    if pieces[0::2].count(head) != len(texts):
        # First and last did not speak for those between them.
        head, tails, rest = b"", cut_rows(f"{size}s", size, data), size
    base = unsigned_hash(head, seed) * _POWERS[rest] & _MASK
    numbers = map(_short_hashes.__getitem__, tails) if rest <= _SHORT else _hash_tails(tails)
    return list(map(and_, map(add, numbers, repeat(base)), repeat(_MASK)))


def _hash_tails(tails: Sequence[bytes]) -> Iterable[int]:
    """Return numbers that are the hashes of texts of one size, but for more than 32 bits."""
    size = len(tails[0])
    data = b"".join(tails)
    try:
        # Keys are mostly digits and capitals up to N: their codes less 48 are digits of base 31
        # already, and one conversion does.
        lows = _numbers(data.translate(_KEY_DIGIT), size)
        return map(add, lows, repeat(_FORTY_EIGHTS[size]))
    except ValueError:
        lows = _numbers(data.translate(_LOW_DIGIT), size)
        highs = _numbers(data.translate(_HIGH_DIGIT), size)
        return map(add, lows, map(mul, highs, repeat(31)))


def _numbers(digits: bytes, size: int) -> list[int]:
    """Read numbers of `size` digits of base 31 each."""
    return list(map(int, cut_rows(f"{size}s", size, digits), repeat(31)))


class _ShortHashes(dict[bytes, int]):
    """Remembers the hashes of texts so short that a program has used most of them soon."""

    def __missing__(self, data: bytes) -> int:
        if len(self) >= _MAX_SHORT_HASHES:
            self.clear()
        value = self[data] = unsigned_hash(data)
        return value


_short_hashes: Final = _ShortHashes()


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
