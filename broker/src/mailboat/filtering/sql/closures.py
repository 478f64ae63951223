"""From a checked tree to nested closures over the values of an expression's properties.

Every closure takes the list of values, in the order of the expression's property names, and
returns what RocketMQ's `evaluate` would: TRUE, FALSE, unknown (None) or a value. Operands are
evaluated in its order and no more of them, since the first failing one ends the evaluation.

Source: apache/rocketmq filter/expression/*.java (evaluate).
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

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
from mailboat.filtering.sql.values import (
    COMPARE,
    INTEGER_MAX,
    LONG_MAX,
    Value,
    compare,
    equal,
    is_integer,
    parse_whole,
)

Values: TypeAlias = Sequence[str | None]
Evaluate: TypeAlias = Callable[[Values], Value]
Test: TypeAlias = Callable[[Values], bool | None]


def build(tree: Node) -> tuple[tuple[str, ...], Test]:
    """Return the names of the properties that an expression needs, and its evaluation."""
    index: dict[str, int] = {}
    test = _build_test(tree, index)
    return tuple(index), test


def _build_test(node: Node, index: dict[str, int]) -> Test:
    """Build a part that the parser let stand where a condition must."""
    return cast(Test, _build(node, index))


def _build(node: Node, index: dict[str, int]) -> Evaluate:
    match node:
        case Property(name):
            return _property(index.setdefault(name, len(index)))
        case Constant(value):
            return lambda _: value
        case Negate(operand):
            return _negate(_build(operand, index))
        case Not(operand):
            return _not(_build_test(operand, index))
        case Truth(Property(name)):
            return _truth(index.setdefault(name, len(index)))
        case AllOf(operands):
            return _all_of([_build_test(operand, index) for operand in operands])
        case AnyOf(operands):
            return _any_of([_build_test(operand, index) for operand in operands])
        case Equal(Property(name), Constant(str(text))):
            return _equals_text(index.setdefault(name, len(index)), text)
        case Equal(left, right):
            return _equal(_build(left, index), _build(right, index))
        case Compare(symbol, Property(name), Constant(int(number))):
            return _compare_whole(symbol, index.setdefault(name, len(index)), number)
        case Compare(symbol, left, right):
            return _compare(symbol, _build(left, index), _build(right, index))
        case In(Property(name), texts, is_negated):
            return _in(index.setdefault(name, len(index)), texts, is_negated)
        case TextMatch():
            return _text_match(node, _build(node.operand, index))


def _property(place: int) -> Evaluate:
    return lambda values: values[place]


def _truth(place: int) -> Test:
    return lambda values: None if values[place] is None else False


def _negate(operand: Evaluate) -> Evaluate:
    def evaluate(values: Values) -> Value:
        value = operand(values)
        if value is None or isinstance(value, str | bool):
            return None
        return -value

    return evaluate


def _not(operand: Test) -> Test:
    def evaluate(values: Values) -> bool | None:
        value = operand(values)
        return None if value is None else not value

    return evaluate


def _all_of(operands: list[Test]) -> Test:
    def evaluate(values: Values) -> bool | None:
        result: bool | None = True
        for operand in operands:
            value = operand(values)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return evaluate


def _any_of(operands: list[Test]) -> Test:
    def evaluate(values: Values) -> bool | None:
        result: bool | None = False
        for operand in operands:
            value = operand(values)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return evaluate


def _equals_text(place: int, text: str) -> Test:
    def evaluate(values: Values) -> bool | None:
        value = values[place]
        return None if value is None else value == text

    return evaluate


def _equal(left: Evaluate, right: Evaluate) -> Test:
    return lambda values: equal(left(values), right(values))


def _compare_whole(symbol: str, place: int, number: int) -> Test:
    """Compare a property with a whole number, which is what most comparisons are."""
    is_met = COMPARE[symbol]
    maximum = INTEGER_MAX if is_integer(number) else LONG_MAX

    def evaluate(values: Values) -> bool | None:
        text = values[place]
        return None if text is None else is_met(parse_whole(text, maximum), number)

    return evaluate


def _compare(symbol: str, left: Evaluate, right: Evaluate) -> Test:
    is_met = COMPARE[symbol]

    def evaluate(values: Values) -> bool | None:
        first = left(values)
        return None if first is None else compare(is_met, first, right(values))

    return evaluate


def _in(place: int, texts: frozenset[str], is_negated: bool) -> Test:
    def evaluate(values: Values) -> bool | None:
        value = values[place]
        return None if value is None else (value in texts) is not is_negated

    return evaluate


def _text_match(node: TextMatch, operand: Evaluate) -> Test:
    text, is_negated = node.text, node.is_negated
    if not text:
        return lambda _: False
    matches: Callable[[str, str], bool]
    if node.kind == CONTAINS:
        matches = str.__contains__
    elif node.kind == STARTSWITH:
        matches = str.startswith
    else:
        matches = str.endswith

    def evaluate(values: Values) -> bool | None:
        value = operand(values)
        return isinstance(value, str) and matches(value, text) is not is_negated

    return evaluate
