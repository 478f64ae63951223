"""The typed tree of an expression.

What the parser lets through follows RocketMQ's checks: whether a part is a constant, a property or
boolean decides where it may stand.

Source: apache/rocketmq filter/expression/*.java.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from mailboat.filtering.sql.values import Value

CONTAINS: Final = "CONTAINS"
STARTSWITH: Final = "STARTSWITH"
ENDSWITH: Final = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a message property."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal: text, number, TRUE, FALSE or NULL."""

    value: Value


@dataclass(frozen=True, slots=True)
class Negate:
    """Minus; unknown for what is no number."""

    operand: "Node"


@dataclass(frozen=True, slots=True)
class Not:
    """Logical NOT."""

    operand: "Node"


@dataclass(frozen=True, slots=True)
class Truth:
    """A property that stands where a condition does: never true, since properties are texts."""

    operand: Property


@dataclass(frozen=True, slots=True)
class AllOf:
    """AND of two or more."""

    operands: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """OR of two or more."""

    operands: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Equal:
    """`=`, and IS NULL, which is equality with NULL."""

    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Compare:
    """`>`, `>=`, `<` or `<=`."""

    symbol: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class In:
    """A property in a list of texts, or not in it."""

    operand: Property
    values: frozenset[str]
    is_negated: bool


@dataclass(frozen=True, slots=True)
class TextMatch:
    """CONTAINS, STARTSWITH or ENDSWITH, or the contrary; false, not unknown, without a text."""

    kind: str
    operand: "Node"
    text: str
    is_negated: bool


Node: TypeAlias = (
    Property | Constant | Negate | Not | Truth | AllOf | AnyOf | Equal | Compare | In | TextMatch
)

_CONDITIONS: Final = (Not, Truth, AllOf, AnyOf, Equal, Compare, In, TextMatch)


def is_condition(node: Node) -> bool:
    """Tell whether a part is what RocketMQ calls a BooleanExpression; TRUE, FALSE and NULL are."""
    if isinstance(node, Constant):
        return node.value is None or isinstance(node.value, bool)
    return isinstance(node, _CONDITIONS)
