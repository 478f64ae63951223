"""A compiled SQL92 expression.

Source: apache/rocketmq filter/SqlFilter.java and broker/filter/ExpressionMessageFilter.java.
"""

from collections.abc import Mapping

from mailboat.filtering.property_filter import PropertyReader
from mailboat.filtering.sql.closures import build
from mailboat.filtering.sql.parser import parse
from mailboat.filtering.sql.program import pack
from mailboat.filtering.sql.values import NotComparableError
from mailboat.model import compiled


class SqlFilter:
    """Tells which messages an expression takes: those for which it is true.

    Not those for which it is false or unknown, or whose properties it cannot compare.
    """

    __slots__ = ("_read", "_test", "condition", "names")

    def __init__(self, text: str) -> None:
        """Compile an expression.

        Raises:
            FilterSyntaxError: it is none, or beyond a limit; the text says where and why.
        """
        tree = parse(text)
        self.names, self._test = build(tree)
        self._read = PropertyReader(self.names).read
        self.condition: compiled.Condition | None = None
        read = compiled.read_condition
        if read is not None and (packed := pack(tree)) is not None:
            self.condition = read(packed)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Decide by decoded properties."""
        try:
            return self._test([properties.get(name) for name in self.names]) is True
        except NotComparableError:
            return False

    def matches_text(self, text: bytes, start: int, end: int) -> bool:
        """Decide by the properties text that lies in `text` between two positions."""
        try:
            return self._test(self._read(text, start, end)) is True
        except NotComparableError:
            return False


def compile_sql(text: str) -> SqlFilter:
    """Compile an expression.

    Raises:
        FilterSyntaxError: it is none, or beyond a limit; the text says where and why.
    """
    return SqlFilter(text)
