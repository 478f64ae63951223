"""Tag expressions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.errors import IllegalMessageError
from mailboat.model.subscription import SubscriptionGroupConfig, build_subscription
from mailboat.model.tags import java_hash


@pytest.mark.parametrize("expression", [None, "", "*", " * ", "  "])
def test_nothing_and_the_star_take_everything(expression: str | None) -> None:
    """The sets stay empty, as Java sends them."""
    subscription = build_subscription("T", expression, 5)
    assert subscription.takes_all
    assert (subscription.sub_string, subscription.sub_version) == ("*", 5)
    assert (subscription.tags_set, subscription.code_set) == (set(), set())


def test_tags_are_split_and_trimmed() -> None:
    """`TagA || TagB` names two tags by name and by hash."""
    subscription = build_subscription("T", "TagA ||TagB||  || TagA ")
    assert subscription.tags_set == {"TagA", "TagB"}
    assert subscription.code_set == {2598919, 2598920}
    assert not subscription.takes_all
    assert (subscription.sub_string, subscription.expression_type) == (
        "TagA ||TagB||  || TagA ",
        "TAG",
    )


def test_separators_alone_are_refused() -> None:
    """`||` takes nothing, which nobody means."""
    with pytest.raises(IllegalMessageError, match="names no tag"):
        build_subscription("T", " || ||")


@given(st.text(st.sampled_from("ab| *"), max_size=20))
def test_any_expression_is_a_subscription_or_a_documented_error(expression: str) -> None:
    """Hashes always belong to the tags."""
    try:
        subscription = build_subscription("T", expression)
    except IllegalMessageError:
        return
    assert subscription.code_set == {java_hash(tag) for tag in subscription.tags_set}
    assert subscription.takes_all == (not subscription.tags_set)


def test_a_group_starts_as_rocketmq_makes_it() -> None:
    """Sixteen tries, one retry queue, everything enabled."""
    group = SubscriptionGroupConfig("g")
    assert (group.retry_max_times, group.retry_queue_nums) == (16, 1)
    assert group.consume_enable
    assert group.consume_broadcast_enable
    assert (group.which_broker_when_consume_slowly, group.consume_timeout_minute) == (1, 15)
