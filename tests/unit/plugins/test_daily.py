"""What is chosen of many cases on a day."""

import daily
import pytest

CASES = list(range(30))


def test_each_case_has_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day's cases are few, always the same ones and in order; a month has seen them all."""
    seen: set[int] = set()
    for day in range(740_000, 740_040):
        monkeypatch.setenv(daily.VARIABLE, str(day))
        chosen = daily.some_of(CASES, 4)
        assert chosen == daily.some_of(CASES, 4) == sorted(set(chosen))
        assert len(chosen) == 4
        seen.update(chosen)
    assert seen == set(CASES)


def test_the_soak_has_all_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a day."""
    monkeypatch.setenv(daily.VARIABLE, "all")
    assert daily.some_of(CASES, 4) == CASES
    monkeypatch.delenv(daily.VARIABLE)
    assert len(daily.some_of(CASES, 4)) == 4


def test_each_day_has_seeds_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ones all day."""
    monkeypatch.setenv(daily.VARIABLE, "740000")
    assert daily.first_seed() == 740_000_000_000
    monkeypatch.setenv(daily.VARIABLE, "all")
    assert daily.first_seed() == 0
