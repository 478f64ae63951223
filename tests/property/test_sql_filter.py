"""SQL92 expressions: whatever the text, and random ones against a second evaluator.

The second evaluator follows Java's classes to the letter (values carry their class, numbers are
read by hand-made tables), and shares nothing with the one under test but the text in between.
"""

import math
import struct
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from mailboat.errors import FilterSyntaxError
from mailboat.filtering.property_filter import PropertyReader
from mailboat.filtering.sql.sql_filter import compile_sql
from mailboat.model.properties import decode_properties

INTEGER, LONG, DOUBLE, STRING, BOOLEAN = "Integer", "Long", "Double", "String", "Boolean"
Typed = tuple[str, Any] | None
Tree = tuple[Any, ...]

# What Integer.parseInt, Long.parseLong and Double.valueOf make of texts; None: they throw.
_READ: Final[dict[str, tuple[int | None, int | None, float | None]]] = {
    "0": (0, 0, 0.0),
    "-0": (0, 0, -0.0),
    "5": (5, 5, 5.0),
    "-5": (-5, -5, -5.0),
    "+7": (7, 7, 7.0),
    "007": (7, 7, 7.0),
    "5.5": (None, None, 5.5),
    "-.5e1": (None, None, -5.0),
    "5.": (None, None, 5.0),
    " 5\t": (None, None, 5.0),
    "5d": (None, None, 5.0),
    "5L": (None, None, None),
    "2147483647": (2**31 - 1, 2**31 - 1, 2147483647.0),
    "2147483648": (None, 2**31, 2147483648.0),
    "-2147483648": (-(2**31), -(2**31), -2147483648.0),
    "9223372036854775807": (None, 2**63 - 1, 2.0**63),
    "9223372036854775808": (None, None, 2.0**63),
    "1e400": (None, None, math.inf),
    "-Infinity": (None, None, -math.inf),
    "NaN": (None, None, math.nan),
    "0x10": (None, None, None),
    "0x1p4": (None, None, 16.0),
    "1_0": (None, None, None),
    "": (None, None, None),
    "-": (None, None, None),
    "true": (None, None, None),
    "FALSE": (None, None, None),
    "it's": (None, None, None),
    "\u0663": (3, 3, None),
    "infinity": (None, None, None),
}
_TEXTS: Final = sorted(_READ)
_NAMES: Final = ["a", "b", "_c", "D1", "$", "order"]


class Thrown(Exception):
    """Java threw."""


def _read(text: str, java_class: str) -> Typed:
    number = _READ[text][(INTEGER, LONG, DOUBLE).index(java_class)]
    if number is None:
        raise Thrown
    return java_class, number


def _bits(number: float) -> int:
    return int.from_bytes(
        struct.pack(">d", number if number == number else math.nan), "big", signed=True
    )


def _compare_to(left: Any, right: Any) -> int:
    if isinstance(left, float) and not left < right and not left > right:
        return (_bits(left) > _bits(right)) - (_bits(left) < _bits(right))
    return (left > right) - (left < right)


def _order(left: Typed, right: Typed) -> int:
    """ComparisonExpression.__compare."""
    assert left is not None
    assert right is not None
    if left[0] != right[0]:
        pair = {left[0], right[0]}
        if left[0] == BOOLEAN:
            if right[0] == STRING:
                raise Thrown
            return -1
        if STRING in pair and BOOLEAN in pair:
            left = BOOLEAN, left[1].lower() == "true"
        elif BOOLEAN in pair:
            return -1
        elif STRING in pair:
            (wanted,) = pair - {STRING}
            left = _read(left[1], wanted) if left[0] == STRING else left
            right = _read(right[1], wanted) if right[0] == STRING else right
        else:
            wanted = DOUBLE if DOUBLE in pair else LONG
            kind: type = float if wanted == DOUBLE else int
            left, right = (wanted, kind(left[1])), (wanted, kind(right[1]))
        assert left is not None
        assert right is not None
    return _compare_to(left[1], right[1])


def _truth(value: Typed) -> bool | None:
    assert value is None or value[0] == BOOLEAN
    return None if value is None else value[1]


def _boolean(value: bool | None) -> Typed:
    return None if value is None else (BOOLEAN, value)


def _reference(tree: Tree, properties: dict[str, str]) -> Typed:
    kind, *rest = tree
    if kind == "property":
        return (STRING, properties[rest[0]]) if rest[0] in properties else None
    if kind == "constant":
        return rest[0]
    if kind == "minus":
        value = _reference(rest[0], properties)
        is_number = value is not None and value[0] in (INTEGER, LONG, DOUBLE)
        return (value[0], -value[1]) if value is not None and is_number else None
    if kind == "not":
        truth = _truth(_reference(rest[0], properties))
        return _boolean(None if truth is None else not truth)
    if kind == "cast":
        return None if _reference(rest[0], properties) is None else (BOOLEAN, False)
    if kind in ("AND", "OR"):
        decides = kind == "OR"
        left = _truth(_reference(rest[0], properties))
        if left is decides:
            return BOOLEAN, decides
        right = _truth(_reference(rest[1], properties))
        if right is decides:
            return BOOLEAN, decides
        return None if left is None or right is None else (BOOLEAN, not decides)
    if kind == "=":
        left, right = (_reference(side, properties) for side in rest)
        if (left is None) != (right is None):
            return None if left is None else (BOOLEAN, False)
        return BOOLEAN, left is None or left == right or _order(left, right) == 0
    if kind in ("<", "<=", ">", ">="):
        left = _reference(rest[0], properties)
        right = None if left is None else _reference(rest[1], properties)
        if left is None or right is None:
            return None
        if left[0] == right[0] == STRING:
            left, right = _read(left[1], DOUBLE), _read(right[1], DOUBLE)
        answer = _order(left, right)
        is_met = {"<": answer < 0, "<=": answer <= 0, ">": answer > 0, ">=": answer >= 0}
        return BOOLEAN, is_met[kind]
    if kind == "IN":
        value = _reference(rest[0], properties)
        return None if value is None else (BOOLEAN, (value[1] in rest[1]) != rest[2])
    word, operand, text, is_negated = kind, *rest
    value = _reference(operand, properties) if text else None
    if value is None or value[0] != STRING:
        return BOOLEAN, False
    found = {
        "CONTAINS": text in value[1],
        "STARTSWITH": value[1].startswith(text),
        "ENDSWITH": value[1].endswith(text),
    }
    return BOOLEAN, found[word] != is_negated


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _render(tree: Tree) -> str:
    kind, *rest = tree
    if kind == "property":
        return str(rest[0])
    if kind == "constant":
        value = rest[0]
        if value is None:
            return "NULL"
        return _quoted(value[1]) if value[0] == STRING else str(value[1])
    if kind == "minus":
        return f"- {_render(rest[0])}"
    if kind == "not":
        return f"NOT {_render(rest[0])}"
    if kind == "cast":
        return _render(rest[0])
    if kind == "IN":
        texts = ", ".join(map(_quoted, rest[1]))
        return f"({_render(rest[0])} {'NOT ' if rest[2] else ''}in ({texts}))"
    if kind in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
        return f"({_render(rest[0])} {'not ' if rest[2] else ''}{kind} {_quoted(rest[1])})"
    return f"({_render(rest[0])} {kind} {_render(rest[1])})"


_property = st.sampled_from(_NAMES).map(lambda name: ("property", name))
_text = st.sampled_from(_TEXTS)
_whole = st.sampled_from([0, 3, 5, 7, 2**31 - 1, 2**31, 2**63 - 1]) | st.integers(0, 2**63 - 1)
_number = _whole.map(
    lambda number: ("constant", (INTEGER if number < 2**31 else LONG, number))
) | st.sampled_from([0.5, 5.0, 5.5, 7.0, 16.0, 2147483648.0, 1e300]).map(
    lambda number: ("constant", (DOUBLE, number))
)
_signed = _number | _number.map(lambda number: ("minus", number))
_boolean_constant = st.booleans().map(lambda value: ("constant", (BOOLEAN, value)))
_string = _text.map(lambda text: ("constant", (STRING, text)))
_null: Tree = ("constant", None)


def _may_be_equal(tree: Tree) -> bool:
    """NULL is refused beside `=`, and so is TRUE or FALSE before another constant."""
    constants = [side[1] for side in tree[1:] if side[0] == "constant"]
    if None in constants:
        return False
    return len(constants) < 2 or constants[0][0] != BOOLEAN or constants[1][0] == BOOLEAN


def _conditions(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    minus = st.builds(lambda operand: ("minus", operand), inner | _property)
    numeric = _signed | _property | minus
    left = _property | inner | _signed | _string
    right = left | _boolean_constant
    words = st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"])
    parts = st.sampled_from(["", "5", "t", "'", "e", "it's"])
    texts = st.lists(_text, min_size=1, max_size=6)
    operand = inner | _property.map(lambda name: ("cast", name))
    return st.one_of(
        st.tuples(st.sampled_from(["AND", "OR"]), operand, operand),
        operand.map(lambda tree: ("not", tree)),
        st.tuples(st.just("="), left | _boolean_constant, right).filter(_may_be_equal),
        st.tuples(st.sampled_from(["<", "<=", ">", ">="]), numeric, numeric),
        st.tuples(st.just("IN"), _property, texts, st.booleans()),
        st.tuples(words, left | _boolean_constant, parts, st.booleans()),
    )


_condition = st.recursive(_boolean_constant | st.just(_null), _conditions, max_leaves=12)
_properties = st.dictionaries(st.sampled_from(_NAMES), _text, max_size=len(_NAMES))


@given(_condition, st.lists(_properties, min_size=1, max_size=4))
def test_random_conditions_mean_what_java_makes_of_them(
    tree: Tree, messages: list[dict[str, str]]
) -> None:
    """True for the second evaluator, and only then, is taken."""
    wanted = compile_sql(_render(tree))
    for properties in messages:
        try:
            expected = _reference(tree, properties) == (BOOLEAN, True)
        except Thrown:
            expected = False
        assert wanted.matches(properties) is expected, _render(tree)


_words = st.sampled_from(
    "a b 5 5.5 'x' ( ) , + - = <> < <= > >= NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS "
    "STARTSWITH ENDSWITH -- /* */ ' '' 0 9999999999999999999 . e \n".split(" ")
)


@given(st.text(max_size=200) | st.lists(_words, max_size=40).map(" ".join), _properties)
def test_any_text_is_compiled_or_refused(text: str, properties: dict[str, str]) -> None:
    """Nothing but a FilterSyntaxError comes out, and what compiles can be asked."""
    try:
        wanted = compile_sql(text)
    except FilterSyntaxError as error:
        assert str(error)
        return
    assert wanted.matches(properties) in (True, False)


_piece = st.sampled_from(["a", "ab", "b", "\x01", "\x02", "1", "\u00e9", "\U0001f600"])


@given(st.lists(_piece, max_size=24).map("".join), st.binary(max_size=8), st.binary(max_size=8))
def test_values_are_found_as_decoding_finds_them(text: str, before: bytes, after: bytes) -> None:
    """Whatever the properties text holds: separators at will, names twice, empty values."""
    names = ["a", "ab", "b", "aab"]
    data = text.encode()
    values = PropertyReader(names).read(before + data + after, len(before), len(before) + len(data))
    decoded = decode_properties(text)
    assert values == [decoded.get(name) for name in names]
