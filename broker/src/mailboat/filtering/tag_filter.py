"""Tag subscriptions as the broker evaluates them: by the tagsCode in the ConsumeQueue.

Codes are computed from the tags' text, not taken from the client: clients in other languages hash
non-ASCII tags differently, and would receive nothing. Two tags with one hash both pass; the
consumer compares the text once more.

Source: apache/rocketmq store/DefaultMessageFilter.java (isMatchedByConsumeQueue).
"""

from functools import lru_cache
from typing import Final

from mailboat.model.subscription import build_subscription

_CACHED_EXPRESSIONS: Final = 4096


@lru_cache(_CACHED_EXPRESSIONS)
def tags_codes(expression: str) -> frozenset[int] | None:
    """Return the tagsCodes that an expression such as `a || b` takes, None when it takes all.

    Raises:
        IllegalMessageError: the expression names no tag.
    """
    subscription = build_subscription("", expression)
    return None if subscription.takes_all else frozenset(subscription.code_set)
