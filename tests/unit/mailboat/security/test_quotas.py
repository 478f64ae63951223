"""Tests of mailboat.security.quotas: what files say, and the arithmetic of buckets."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.errors import IllegalUserError
from mailboat.security.quotas import (
    QUOTA_MAX,
    QUOTA_NAMES,
    Quotas,
    TokenBucket,
    parse_quotas,
    quotas_body,
)

ALL = {
    "connections": 20,
    "publishMessagesPerSecond": 1000,
    "publishBytesPerSecond": 1048576,
    "fetchMessagesPerSecond": 2000,
    "fetchBytesPerSecond": 2097152,
    "topics": 10,
    "groups": 11,
    "heldPulls": 100,
    "queueLocks": 101,
}


def test_all_quotas_are_read_and_written() -> None:
    """The names of the documentation are all that there are."""
    assert set(QUOTA_NAMES) == set(ALL)
    quotas, unknown = parse_quotas(ALL)
    assert quotas == Quotas(20, 1000, 1048576, 2000, 2097152, 10, 11, 100, 101)
    assert unknown == ()
    assert quotas_body(quotas) == ALL


@pytest.mark.parametrize("body", [{}, {"connections": None}])
def test_nothing_is_bounded(body: dict[str, object]) -> None:
    """No quota is no quota, not one of zero."""
    assert parse_quotas(body) == (None, ())


def test_quotas_of_a_later_version_are_named_and_left_out() -> None:
    """They stop no broker, and the others hold."""
    found, unknown = parse_quotas({"zebras": "many", "connections": 3, "apples": {"red": 1}})
    assert found == Quotas(connections=3)
    assert unknown == ("apples", "zebras")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("value", [-1, 1.0, True, "1", QUOTA_MAX + 1, [], {}])
def test_a_quota_is_a_whole_number(name: str, value: object) -> None:
    """Everything else is refused, with its name."""
    with pytest.raises(IllegalUserError, match=f"quotas: {name} has to be a whole number"):
        parse_quotas({name: value})


@pytest.mark.parametrize("name", ALL)
def test_zero_is_a_quota_where_a_user_can_do_without(name: str) -> None:
    """A rate of nothing would be a user that is not let in, which has another word."""
    if name in ("topics", "groups", "queueLocks"):
        assert parse_quotas({name: 0})[0] is not None
    else:
        with pytest.raises(IllegalUserError):
            parse_quotas({name: 0})


def test_a_second_is_there_at_once_and_then_the_rate() -> None:
    """10 a second: 10 now, the eleventh after a tenth of a second."""
    bucket = TokenBucket(10, 100.0)
    for _ in range(10):
        assert bucket.wait_s(1, 100.0) == 0.0
        bucket.take(1, 100.0)
    assert bucket.wait_s(1, 100.0) == pytest.approx(0.1)
    assert bucket.wait_s(3, 100.0) == pytest.approx(0.3)
    assert bucket.wait_s(1, 100.05) == pytest.approx(0.05)
    assert bucket.wait_s(1, 100.1001) == 0.0
    # A rest of an hour is worth a second.
    assert bucket.level(3700.0) == 10


def test_what_is_larger_than_a_second_leaves_a_debt() -> None:
    """35 of 10 a second go through a full bucket; the next one waits for 25 and itself."""
    bucket = TokenBucket(10, 0.0)
    bucket.take(1, 0.0)
    assert bucket.wait_s(35, 0.0) == pytest.approx(0.1)
    assert bucket.wait_s(35, 0.2) == 0.0
    bucket.take(35, 0.2)
    assert bucket.level(0.2) == -25
    assert bucket.wait_s(1, 0.2) == pytest.approx(2.6)


def test_a_change_forgives_nothing_and_takes_nothing_away() -> None:
    """A debt stays the debt; what is there is cut to a second of the new rate."""
    bucket = TokenBucket(10, 0.0)
    bucket.take(20, 0.0)
    bucket.change(100, 0.0)
    assert bucket.level(0.0) == -10
    assert bucket.wait_s(1, 0.0) == pytest.approx(0.11)
    bucket.change(5, 1000.0)
    assert bucket.level(1000.0) == 5
    bucket.change(100, 1000.0)
    assert bucket.level(1000.0) == 5


def test_what_is_given_back_is_no_more_than_was_there() -> None:
    """A full bucket stays one."""
    bucket = TokenBucket(10, 0.0)
    bucket.take(4, 0.0)
    bucket.give_back(3, 0.0)
    assert bucket.level(0.0) == 9
    bucket.give_back(3, 0.0)
    assert bucket.level(0.0) == 10


def test_a_clock_that_goes_back_stands_still() -> None:
    """Nothing is lost and nothing is made by it."""
    bucket = TokenBucket(10, 50.0)
    bucket.take(10, 50.0)
    assert bucket.level(40.0) == 0
    assert bucket.level(50.0) == 0
    assert bucket.level(50.5) == 5


_steps = st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(1, 3_000)), min_size=1, max_size=200)


@given(rate=st.integers(1, 1_000), steps=_steps)
def test_never_more_than_the_rate_and_the_burst(rate: int, steps: list[tuple[float, int]]) -> None:
    """Whenever one begins to look, and whoever asks for what."""
    bucket = TokenBucket(rate, 0.0)
    now_s, total = 0.0, 0.0
    taken = [(0.0, 0.0)]
    largest = 0
    for pause_s, amount in steps:
        now_s += pause_s
        largest = max(largest, amount)
        if bucket.wait_s(amount, now_s) == 0.0:
            bucket.take(amount, now_s)
            taken.append((now_s, float(amount)))
    for index in range(len(taken)):
        begin_s, total = taken[index][0], 0.0
        for at_s, amount_taken in taken[index:]:
            total += amount_taken
            allowed = rate * (at_s - begin_s) + max(rate, largest)
            assert total <= allowed * (1 + 1e-9) + 1e-6


@given(rate=st.integers(1, 1_000), amounts=st.lists(st.integers(1, 3_000), min_size=1))
def test_never_less_than_the_rate_to_who_asks_all_the_time(rate: int, amounts: list[int]) -> None:
    """Who waits for exactly as long as it is told to gets the rate, but for one amount."""
    bucket = TokenBucket(rate, 0.0)
    now_s, total = 0.0, 0.0
    for amount in amounts:
        # Times are rounded: a moment more than what is missing.
        now_s += bucket.wait_s(amount, now_s) * (1 + 1e-9) + 1e-9
        assert bucket.wait_s(amount, now_s) <= 1e-6
        assert total >= rate * now_s - max(amounts) - 1e-3
        bucket.take(amount, now_s)
        total += amount


@given(st.lists(st.floats(0.0, 10.0), min_size=2))
def test_looking_changes_nothing(times: list[float]) -> None:
    """A bucket that is looked at often has what one has that is looked at once."""
    often, once = TokenBucket(7, 0.0), TokenBucket(7, 0.0)
    often.take(60, 0.0)
    once.take(60, 0.0)
    for _, at_s in pairwise(sorted(times)):
        often.level(at_s)
    assert often.level(20.0) == pytest.approx(once.level(20.0))
