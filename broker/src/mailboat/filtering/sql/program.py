"""From a checked tree to the bytes that the compiled core reads.

`core/wire/src/sql_program.rs` has their table.
"""

import struct

from mailboat.filtering.sql.tree import (
    CONTAINS,
    STARTSWITH,
    AllOf,
    AnyOf,
    Compare,
    Constant,
    Equal,
    In,
    Negate,
    Node,
    Not,
    Property,
    TextMatch,
    Truth,
)

_MAX_BYTES = 65_536
_SYMBOLS = {">": b">", ">=": b"G", "<": b"<", "<=": b"L"}


def pack(tree: Node) -> bytes | None:
    """Pack a condition; None for one that is left to Python.

    That is one whose text is no Unicode, and one that is much larger than its expression, since
    BETWEEN has what it compares twice.
    """
    packed = bytearray()
    try:
        _put(tree, packed)
    except UnicodeEncodeError:
        return None
    return bytes(packed) if len(packed) <= _MAX_BYTES else None


def _put(node: Node, packed: bytearray) -> None:
    operands: tuple[Node, ...] = ()
    match node:
        case Property(name):
            packed += b"p" + _text(name)
        case Constant(value):
            packed += _constant(value)
        case Negate(operand):
            packed += b"-"
            operands = (operand,)
        case Not(operand):
            packed += b"!"
            operands = (operand,)
        case Truth(Property(name)):
            packed += b"?" + _text(name)
        case AllOf(operands):
            packed += b"&" + _count(len(operands))
        case AnyOf(operands):
            packed += b"|" + _count(len(operands))
        case Equal(left, right):
            packed += b"="
            operands = (left, right)
        case Compare(symbol, left, right):
            packed += _SYMBOLS[symbol]
            operands = (left, right)
        case In(Property(name), texts, is_negated):
            packed += (b"n" if is_negated else b"i") + _text(name) + _count(len(texts))
            packed += b"".join(map(_text, texts))
        case TextMatch(kind, operand, text, is_negated):
            letter = b"c" if kind == CONTAINS else b"b" if kind == STARTSWITH else b"e"
            packed += (letter.upper() if is_negated else letter) + _text(text)
            operands = (operand,)
    if len(packed) <= _MAX_BYTES:
        for part in operands:
            _put(part, packed)


def _constant(value: str | float | None) -> bytes:
    if value is None:
        return b"0"
    if isinstance(value, bool):
        return b"T" if value else b"F"
    if isinstance(value, int):
        return b"w" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    return b"s" + _text(value)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _count(len(encoded)) + encoded


def _count(number: int) -> bytes:
    return number.to_bytes(4, "big")
