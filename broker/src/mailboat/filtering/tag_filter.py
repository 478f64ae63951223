"""Tag subscriptions as the broker evaluates them: by the tagsCode in the ConsumeQueue.

Codes are computed from the tags' text, not taken from the client: clients in other languages hash
non-ASCII tags differently, and would receive nothing. Two tags with one hash both pass; the
consumer compares the text once more.

Source: apache/rocketmq store/DefaultMessageFilter.java (isMatchedByConsumeQueue).
"""

from functools import lru_cache
from typing import Final

from mailboat.errors import IllegalMessageError
from mailboat.model.subscription import build_subscription

MAX_EXPRESSION_BYTES: Final = 131_072
"""Half of what the header of a pull has room for."""

MAX_TAGS: Final = 10_000
"""A heartbeat has room for a hundred thousand, which would take a fifth of a second to read, with
each pull."""

_CACHED_EXPRESSIONS: Final = 4096
_CACHED_CHARACTERS: Final = 256
# A long one takes up to a megabyte as codes, those of three thousand tags a quarter.
_CACHED_LONG_EXPRESSIONS: Final = 32


def tags_codes(expression: str) -> frozenset[int] | None:
    """Return the tagsCodes that an expression such as `a || b` takes, None when it takes all.

    Raises:
        IllegalMessageError: the expression names no tag, or is too long.
    """
    if len(expression) <= _CACHED_CHARACTERS:
        return _recall(expression)
    size = len(expression.encode(errors="surrogatepass"))
    if size > MAX_EXPRESSION_BYTES:
        raise IllegalMessageError(
            f"the subscription has {size} bytes where {MAX_EXPRESSION_BYTES} are allowed; "
            "subscribe to fewer tags"
        )
    tags = expression.count("||") + 1
    if tags > MAX_TAGS:
        raise IllegalMessageError(
            f"the subscription has {tags} tags where {MAX_TAGS} are allowed; subscribe to fewer"
        )
    return _recall_long(expression)


def _read(expression: str) -> frozenset[int] | None:
    subscription = build_subscription("", expression)
    return None if subscription.takes_all else frozenset(subscription.code_set)


_recall: Final = lru_cache(_CACHED_EXPRESSIONS)(_read)
_recall_long: Final = lru_cache(_CACHED_LONG_EXPRESSIONS)(_read)
