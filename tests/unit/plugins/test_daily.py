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


def test_two_cases_take_turns_day_by_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all tests have their first one on the same day; the soak has both of each."""
    names = [f"test_{number}" for number in range(20)]
    places = []
    for day in (740_000, 740_001):
        monkeypatch.setenv(daily.VARIABLE, str(day))
        places.append([daily.place_of(name, 2) for name in names])
    assert all({first, second} == {0, 1} for first, second in zip(*places, strict=True))
    assert set(places[0]) == {0, 1}
    monkeypatch.setenv(daily.VARIABLE, "all")
    assert daily.place_of("test_1", 2) is None
