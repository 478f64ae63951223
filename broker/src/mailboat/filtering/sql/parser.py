"""From an expression's text to its tree, with every check that RocketMQ makes before it evaluates.

Source: apache/rocketmq filter/parser/SelectorParser.jj and the create... methods of
filter/expression/*.java.
"""

from typing import Final, NamedTuple, cast

from lark import Lark, Token, Transformer, UnexpectedToken, v_args

from mailboat.errors import FilterSyntaxError
from mailboat.filtering.sql.grammar import GRAMMAR
from mailboat.filtering.sql.lexer import SqlLexer
from mailboat.filtering.sql.limits import (
    MAX_COMPARISONS,
    MAX_DEPTH,
    check_length,
    contains_comparisons,
)
from mailboat.filtering.sql.tree import (
    CONTAINS,
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
    is_condition,
)
from mailboat.filtering.sql.values import LONG_MAX, NotComparableError, Value, order

_SHOWN_CHARACTERS: Final = 32
_LONG_DIGITS: Final = 19


def parse(text: str) -> Node:
    """Parse and check an expression.

    Raises:
        FilterSyntaxError: it is none, or beyond a limit; the text says where and why.
    """
    if not text.strip():
        raise FilterSyntaxError("the SQL92 expression is empty; write one such as a > 5")
    check_length(text)
    try:
        # The builder replaces every tree of lark's, so that it returns what a rule's method did.
        part = cast(_Part, _PARSER.parse(text))
        return _condition(part).node
    except UnexpectedToken as error:
        reason = _unexpected(error.token)
    except FilterSyntaxError as error:
        reason = str(error)
    raise FilterSyntaxError(f"bad SQL92 expression: {reason}")


def _unexpected(token: Token) -> str:
    if token.type == "$END":
        return "it ends too early; complete or close what was begun"
    shown = str(token)[:_SHOWN_CHARACTERS]
    advice = ""
    if shown.upper() in ("LIKE", "ESCAPE"):
        advice = "; there is no LIKE, use CONTAINS, STARTSWITH or ENDSWITH"
    assert token.start_pos is not None
    return f"unexpected {shown!r} at position {token.start_pos + 1}{advice}"


class _Part(NamedTuple):
    """A part of the tree, where its text begins, and what limits look at.

    What BETWEEN compares is evaluated twice, and its comparisons count twice.
    """

    node: Node
    start: int
    depth: int = 0
    comparisons: int = 0


def _at(part: _Part) -> str:
    return f"at position {part.start + 1}"


def _over(node: Node, *parts: _Part, start: int | None = None, adds: int = 0) -> _Part:
    """Return the part whose node stands over others and `adds` comparisons to theirs."""
    depth = max(part.depth for part in parts) + 1
    if depth > MAX_DEPTH:
        raise FilterSyntaxError(
            f"operators are nested more than {MAX_DEPTH} deep {_at(parts[0])}; simplify it"
        )
    comparisons = sum(part.comparisons for part in parts) + adds
    if comparisons > MAX_COMPARISONS:
        raise FilterSyntaxError(
            f"there are more than {MAX_COMPARISONS} comparisons, where a CONTAINS counts for "
            "4 and one more for each 16 characters; use IN (...) for lists of texts"
        )
    return _Part(node, parts[0].start if start is None else start, depth, comparisons)


def _condition(part: _Part) -> _Part:
    """Return a part that can be true; a property becomes one."""
    if isinstance(part.node, Property):
        return _over(Truth(part.node), part, adds=1)
    if not is_condition(part.node):
        raise FilterSyntaxError(f"the value {_at(part)} is no condition; compare it with something")
    return part


def _check_number(part: _Part) -> None:
    """Refuse what `>`, `>=`, `<` and `<=` cannot compare."""
    if isinstance(part.node, Constant):
        value = part.node.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FilterSyntaxError(
                f"the value {_at(part)} cannot be compared by >, >=, <, <= or BETWEEN; only "
                "numbers can"
            )
    elif is_condition(part.node):
        raise FilterSyntaxError(
            f"the condition {_at(part)} cannot be compared by >, >=, <, <= or BETWEEN; NOT "
            "takes the next operand only, so write NOT (...)"
        )


def _check_equality(left: _Part, right: _Part) -> None:
    for part in (left, right):
        if isinstance(part.node, Constant) and part.node.value is None:
            raise FilterSyntaxError(f"NULL {_at(part)} cannot be compared; use IS NULL")
    if (
        isinstance(left.node, Constant)
        and isinstance(right.node, Constant)
        and isinstance(left.node.value, bool)
        and not isinstance(right.node.value, bool)
    ):
        raise FilterSyntaxError(
            f"TRUE or FALSE {_at(left)} cannot be compared with the value {_at(right)}"
        )


def _check_bounds(low: _Part, high: _Part) -> None:
    if not isinstance(low.node, Constant) or not isinstance(high.node, Constant):
        return
    first, last = low.node.value, high.node.value
    try:
        in_order = first is not None and last is not None and order(last, first) >= 0
    except NotComparableError:
        in_order = False
    if not in_order:
        raise FilterSyntaxError(f"the first bound of BETWEEN {_at(low)} must not exceed the second")


def _compared(symbol: str, left: _Part, right: _Part) -> _Part:
    _check_number(left)
    _check_number(right)
    return _over(Compare(symbol, left.node, right.node), left, right, adds=1)


def _text_match(left: _Part, kind: str, text: str, *, is_negated: bool) -> _Part:
    adds = contains_comparisons(text) if kind == CONTAINS else 1
    return _over(TextMatch(kind, left.node, text, is_negated), left, adds=adds)


def _text(token: Token) -> str:
    return token[1:-1].replace("''", "'")


@v_args(inline=True)
class _TreeBuilder(Transformer[Token, _Part]):
    """Makes the tree while lark reduces: one method for each alternative of the grammar."""

    def any_of(self, *parts: _Part) -> _Part:
        operands = [_condition(part) for part in parts[::2]]
        return _over(AnyOf(tuple(part.node for part in operands)), *operands)

    def all_of(self, *parts: _Part) -> _Part:
        operands = [_condition(part) for part in parts[::2]]
        return _over(AllOf(tuple(part.node for part in operands)), *operands)

    def equal(self, left: _Part, _symbol: Token, right: _Part) -> _Part:
        _check_equality(left, right)
        return _over(Equal(left.node, right.node), left, right, adds=1)

    def not_equal(self, left: _Part, symbol: Token, right: _Part) -> _Part:
        equality = self.equal(left, symbol, right)
        return _over(Not(equality.node), equality)

    def is_null(self, left: _Part, *_: Token) -> _Part:
        return _over(Equal(left.node, Constant(None)), left, adds=1)

    def is_not_null(self, left: _Part, *_: Token) -> _Part:
        absence = self.is_null(left)
        return _over(Not(absence.node), absence)

    def compare(self, left: _Part, symbol: Token, right: _Part) -> _Part:
        return _compared(str(symbol), left, right)

    def text_match(self, left: _Part, kind: Token, text: Token) -> _Part:
        return _text_match(left, kind.type, _text(text), is_negated=False)

    def no_text_match(self, left: _Part, _not: Token, kind: Token, text: Token) -> _Part:
        return _text_match(left, kind.type, _text(text), is_negated=True)

    def between(self, left: _Part, _between: Token, low: _Part, _and: Token, high: _Part) -> _Part:
        _check_bounds(low, high)
        conditions = _compared(">=", left, low), _compared("<=", left, high)
        return _over(AllOf((conditions[0].node, conditions[1].node)), *conditions)

    def not_between(
        self, left: _Part, _not: Token, _between: Token, low: _Part, _and: Token, high: _Part
    ) -> _Part:
        conditions = _compared("<", left, low), _compared(">", left, high)
        return _over(AnyOf((conditions[0].node, conditions[1].node)), *conditions)

    def contained(self, left: _Part, _in: Token, texts: frozenset[str]) -> _Part:
        return self._contained(left, texts, is_negated=False)

    def not_contained(self, left: _Part, _not: Token, _in: Token, texts: frozenset[str]) -> _Part:
        return self._contained(left, texts, is_negated=True)

    def _contained(self, left: _Part, texts: frozenset[str], *, is_negated: bool) -> _Part:
        if not isinstance(left.node, Property):
            raise FilterSyntaxError(f"IN needs a property before it, not the value {_at(left)}")
        return _over(In(left.node, texts, is_negated), left, adds=1)

    def texts(self, *tokens: Token) -> frozenset[str]:
        return frozenset(_text(token) for token in tokens[1::2])

    def plus(self, _sign: Token, operand: _Part) -> _Part:
        return operand

    def negate(self, sign: Token, operand: _Part) -> _Part:
        return _over(Negate(operand.node), operand, start=sign.start_pos)

    def negation(self, word: Token, operand: _Part) -> _Part:
        condition = _condition(operand)
        return _over(Not(condition.node), condition, start=word.start_pos)

    def group(self, _left: Token, inner: _Part, _right: Token) -> _Part:
        return inner

    def name(self, token: Token) -> _Part:
        return _Part(Property(str(token)), token.start_pos or 0)

    def string(self, token: Token) -> _Part:
        return _constant(token, _text(token))

    def true(self, token: Token) -> _Part:
        return _constant(token, True)

    def false(self, token: Token) -> _Part:
        return _constant(token, False)

    def null(self, token: Token) -> _Part:
        return _constant(token, None)

    def whole(self, token: Token) -> _Part:
        digits = token.rstrip("lL")
        if len(digits) > _LONG_DIGITS or int(digits) > LONG_MAX:
            raise FilterSyntaxError(
                f"the number at position {(token.start_pos or 0) + 1} is greater than {LONG_MAX}"
            )
        return _constant(token, int(digits))

    def decimal(self, token: Token) -> _Part:
        number = float(token)
        if not 0 < number < float("inf"):
            raise FilterSyntaxError(
                f"the number at position {(token.start_pos or 0) + 1} is outside of 4.9e-324 to "
                "1.7976931348623157e308; write zero as 0"
            )
        return _constant(token, number)


def _constant(token: Token, value: Value) -> _Part:
    return _Part(Constant(value), token.start_pos or 0)


_PARSER: Final = Lark(
    GRAMMAR, start="selector", parser="lalr", lexer=SqlLexer, transformer=_TreeBuilder()
)
