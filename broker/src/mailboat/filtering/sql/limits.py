"""What an expression may cost: whoever subscribes chooses it, and the broker must bear it.

Parsing takes time in proportion to the text, evaluation to the comparisons and to the bytes of the
properties they look at. RocketMQ has no such limits.
"""

from typing import Final

from mailboat.errors import FilterSyntaxError

MAX_EXPRESSION_CHARACTERS: Final = 16_384
"""Room for a list of a thousand ids in IN (...)."""

MAX_TOKENS: Final = 4096
"""Words, literals and signs."""

MAX_COMPARISONS: Final = 256
"""Conditions of one expression; a list in IN (...) is one."""

MAX_DEPTH: Final = 64
"""Operators within operators; AND and OR of many conditions are one step, parentheses none."""


def check_length(text: str) -> None:
    """Refuse an expression by its length alone.

    Raises:
        FilterSyntaxError: it is too long.
    """
    if len(text) > MAX_EXPRESSION_CHARACTERS:
        raise FilterSyntaxError(
            f"the SQL92 expression has {len(text)} characters where "
            f"{MAX_EXPRESSION_CHARACTERS} are allowed; shorten it"
        )


def contains_comparisons(text: str) -> int:
    """Return how many comparisons a CONTAINS counts for.

    Of some properties it takes many times longer to tell that they do not hold a text than to
    compare them, and the longer the text is.
    """
    return 4 + len(text) // 16
