"""A failed assertion about a promise is told apart from every other failure."""

import pytest
from promises import PromiseBroken, promised

from mailboat.testing.history import HistoryViolation


def test_a_failed_assertion_is_a_broken_promise() -> None:
    """It says what was promised, and what was found."""
    with pytest.raises(PromiseBroken) as caught, promised("all is there"):
        raise AssertionError("message 7 is lost")
    assert str(caught.value) == "all is there: message 7 is lost"
    assert isinstance(caught.value.__cause__, AssertionError)
    assert str(caught.value.__cause__) == "message 7 is lost"


def test_what_a_checker_found_is_kept() -> None:
    """The errors of the checkers that are shipped are assertions too."""
    violation = HistoryViolation("gap", "in queue 0")
    with pytest.raises(PromiseBroken, match="after seed 3: gap: in queue 0") as caught:
        with promised("after seed 3"):
            raise violation
    assert caught.value.__cause__ is violation


def test_a_broken_promise_is_passed_on_as_it_is() -> None:
    """Who is nearest has named it best."""
    inner = PromiseBroken("message 7 is lost")
    with pytest.raises(PromiseBroken) as caught, promised("all is there"):
        raise inner
    assert caught.value is inner


def test_other_errors_are_passed_on_as_they_are() -> None:
    """A peer that answers slowly has broken no promise."""
    late = TimeoutError("no answer")
    with pytest.raises(TimeoutError) as caught, promised("all is there"):
        raise late
    assert caught.value is late


def test_a_checker_is_marked_as_a_whole() -> None:
    """Each of its calls is a block."""

    @promised("numbers rise")
    def check(numbers: list[int]) -> int:
        assert numbers == sorted(numbers), numbers
        return len(numbers)

    assert check([1, 2]) == 2
    for _ in range(2):
        with pytest.raises(PromiseBroken, match="numbers rise"):
            check([2, 1])
