"""What replicas promise beside messages, checked: each doctored story is called by its name."""

from collections import Counter
from collections.abc import Callable

import pytest

from mailboat.testing.history import HistoryViolation
from mailboat.testing.replica_history import (
    Commits,
    DelayedMessages,
    Transactions,
    check_logs,
)

_KEY = ("orders", 0)


def _commits() -> Commits:
    """Offset 5 was committed at second 1, offset 9 at second 2."""
    commits = Commits()
    commits.answer(_KEY, 5, 1.0)
    commits.answer(_KEY, 9, 2.0)
    return commits


@pytest.mark.parametrize("offset", [5, 7, 9, 12])
def test_commits_may_go_back_by_the_window_only(offset: int) -> None:
    """What was answered before it is there; a consumer may have got further."""
    _commits().check({_KEY: offset}, {_KEY: 12}, before_s=1.5, now_s=3.0)


@pytest.mark.parametrize(
    ("anomaly", "offsets"),
    [
        ("commit lost", {_KEY: 4}),
        ("commit lost", {}),
        ("commit beyond the end", {_KEY: 13}),
    ],
)
def test_doctored_commits_are_named(anomaly: str, offsets: dict[tuple[str, int], int]) -> None:
    """Offsets that went back further, or to where there is nothing."""
    with pytest.raises(HistoryViolation) as caught:
        _commits().check(offsets, {_KEY: 12}, before_s=1.5, now_s=3.0)
    assert caught.value.anomaly == anomaly


def test_what_was_found_once_stays() -> None:
    """An offset that a check has seen counts as answered then."""
    commits = _commits()
    commits.check({_KEY: 12}, {_KEY: 12}, before_s=1.5, now_s=3.0)
    with pytest.raises(HistoryViolation, match="commit lost"):
        commits.check({_KEY: 11}, {_KEY: 12}, before_s=3.5, now_s=4.0)


def test_a_commit_follows_the_end_of_a_queue_that_has_lost_messages() -> None:
    """A group of ASYNC_MASTER: what was read is gone."""
    _commits().check({_KEY: 3}, {_KEY: 3}, before_s=2.5, now_s=3.0)


def _delayed() -> DelayedMessages:
    """Two messages due at second 10: one acknowledged, one unknown; a third was refused."""
    delayed = DelayedMessages()
    for body in (b"known", b"unknown", b"refused"):
        delayed.send(body, 10.0)
    delayed.acknowledge(b"known")
    delayed.refuse(b"refused")
    return delayed


def test_true_delayed_messages_are_believed() -> None:
    """They come in time; a double is counted, and what is unknown may be missing."""
    delayed = _delayed()
    delayed.see(b"known", 10.0)
    assert delayed.check(Counter([b"known", b"known"])) == 1
    assert delayed.check(Counter([b"known", b"unknown"])) == 0


@pytest.mark.parametrize(
    ("anomaly", "doctored"),
    [
        ("delayed message early", lambda delayed: delayed.see(b"known", 9.9)),
        ("delayed message lost", lambda delayed: delayed.check(Counter([b"unknown"]))),
        ("refused but stored", lambda delayed: delayed.see(b"refused", 11.0)),
        ("changed or never sent", lambda delayed: delayed.see(b"other", 11.0)),
    ],
)
def test_doctored_delayed_messages_are_named(
    anomaly: str, doctored: Callable[[DelayedMessages], object]
) -> None:
    """Each anomaly by its name."""
    with pytest.raises(HistoryViolation) as caught:
        doctored(_delayed())
    assert caught.value.anomaly == anomaly


def _transactions() -> Transactions:
    """One to commit, one to roll back, one to commit that was refused, one that is unknown."""
    transactions = Transactions()
    for key, commits in (("C", True), ("R", False), ("N", True), ("U", True)):
        transactions.begin(key, commits=commits)
    transactions.prepare("C")
    transactions.prepare("R")
    transactions.refuse("N")
    return transactions


def test_true_transactions_are_believed() -> None:
    """What was decided, once."""
    _transactions().check(Counter(["C"]))
    _transactions().check(Counter(["C", "U"]))
    assert _transactions().commits("C")
    assert not _transactions().commits("R")
    assert not _transactions().commits("never begun")


@pytest.mark.parametrize(
    ("anomaly", "delivered"),
    [
        ("half message lost", ["U"]),
        ("rolled back but delivered", ["C", "R"]),
        ("committed twice", ["C", "C"]),
        ("refused but stored", ["C", "N"]),
        ("changed or never sent", ["C", "X"]),
    ],
)
def test_doctored_transactions_are_named(anomaly: str, delivered: list[str]) -> None:
    """Each anomaly by its name."""
    with pytest.raises(HistoryViolation) as caught:
        _transactions().check(Counter(delivered))
    assert caught.value.anomaly == anomaly


def test_logs_are_equal_where_all_have_them() -> None:
    """One begins later, one ends earlier."""
    check_logs({0: (0, b"abcdef"), 1: (2, b"cdefgh"), 2: (0, b"abcde")})


def test_logs_that_differ_are_named() -> None:
    """A byte that one replica has otherwise."""
    with pytest.raises(HistoryViolation, match="logs differ: of replicas 0 and 2 at 3"):
        check_logs({0: (0, b"abcdef"), 1: (2, b"cdefgh"), 2: (0, b"abcXe")})
