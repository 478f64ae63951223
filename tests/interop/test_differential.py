"""The same scenarios on the real broker and on mailboat: clients must see the same.

What they saw is compared leaf by leaf, after the scenarios masked ids, addresses and times. Where
mailboat differs on purpose, `DIFFERENCES` says why; a difference listed there that is not seen any
more is a failure too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from interop_plays import MAILBOAT
from interop_scenarios import SCENARIOS

if TYPE_CHECKING:
    from conftest import PlaysFactory

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

# Each client against the broker of its own line; those of 4.9.8 were not published as jars.
BROKERS = {"5.5.0": "5.5.0", "4.9.8": "4.9.7"}

_ABSENT = "(absent)"


@dataclass(frozen=True)
class Difference:
    """Where mailboat shows clients something else than a broker of RocketMQ, and why."""

    brokers: str
    scenarios: str
    leaves: str
    reason: str

    def covers(self, broker: str, scenario: str, leaf: str) -> bool:
        """Whether the leaf of the scenario is meant."""
        return (
            re.fullmatch(self.brokers, broker) is not None
            and re.fullmatch(self.scenarios, scenario) is not None
            and re.fullmatch(self.leaves, leaf) is not None
        )


DIFFERENCES = [
    Difference(
        ".*",
        ".*",
        ".*/properties/__CRC32#",
        "each record carries a checksum over all of it: enabledAppendPropCRC is on by default",
    ),
    Difference(
        "4.9.7",
        ".*",
        ".*/properties/(MSG_REGION|TRACE_ON)",
        "as in 5.x every message tells its region and that it may be traced: without these a "
        "consumer sends no trace",
    ),
    Difference(
        ".*",
        "batch",
        ".*/properties/(CLUSTER|MSG_REGION|TRACE_ON)",
        "the messages of a batch get the broker's properties like any other, so that they can be "
        "traced and answered too",
    ),
    Difference(
        ".*",
        ".*",
        ".*/properties/WAIT",
        "whether the producer waited for the disk is not stored; 4.9 does so for single messages, "
        "5.x leaves it in",
    ),
    Difference(
        ".*",
        "transaction_.*",
        "/messages/.*/TRAN_MSG",
        "a committed message is no half message any more; RocketMQ leaves the mark on it",
    ),
    Difference(
        ".*",
        "transaction_immunity",
        ".*/TRAN_PREPARED_QUEUE_OFFSET",
        "a half message that is to be left alone stays where it is; RocketMQ writes it again in "
        "each round, with the place of the first copy",
    ),
    Difference(
        "4.9.7",
        "transaction_outcomes",
        "/sent/.*/transactionId",
        "as in 5.x the answer to a half message names the transaction",
    ),
    Difference(
        "4.9.7",
        "transaction_.*",
        ".*/properties/__transactionId__",
        "as in 5.x the id of the transaction is stored with the half message",
    ),
    Difference(
        "4.9.7",
        "transaction_.*",
        "/messages/.*/(REAL_TOPIC|REAL_QID)",
        "as in 5.x a committed message lies where it belongs and needs no pointer to it",
    ),
    Difference(
        "4.9.7",
        "orderly_dead_letter",
        "/dead/.*/(DELAY|REAL_TOPIC|REAL_QID)",
        "as in 5.x the dead letter of an orderly group is stored at once, not after a delay",
    ),
    Difference(
        "4.9.7",
        "refusals",
        "/wrong queue/code",
        "as in 5.x a queue that does not exist is INVALID_PARAMETER, 29, and not an error of the "
        "system, 1, which clients would try again",
    ),
    Difference(
        "4.9.7",
        "reset_offline",
        "/(result|bodies)/.*",
        "as in 5.x a group without members is set back too; 4.9 refuses with 206",
    ),
]


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value that is no container, under its path; keys with one "_" are measurements."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not key.startswith("_") or key.startswith("__"):
                yield from _leaves(item, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        yield f"{path}/length", len(value)
        for i, item in enumerate(value):
            yield from _leaves(item, f"{path}/{i}")
    else:
        yield path, value


def _differences(theirs: object, ours: object) -> dict[str, tuple[object, object]]:
    """The leaves that are not equal: path to what Java and what mailboat showed."""
    left, right = dict(_leaves(theirs)), dict(_leaves(ours))
    return {
        path: (left.get(path, _ABSENT), right.get(path, _ABSENT))
        for path in sorted(left.keys() | right.keys())
        if left.get(path, _ABSENT) != right.get(path, _ABSENT)
    }


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
@pytest.mark.parametrize("line", list(BROKERS))
def test_clients_see_the_same(line: str, scenario: str, plays: PlaysFactory) -> None:
    """What clients of a release line see of a feature is what its own broker shows them."""
    unexplained = {
        leaf: values
        for leaf, values in _compared(line, scenario, plays).items()
        if not any(each.covers(BROKERS[line], scenario, leaf) for each in DIFFERENCES)
    }
    assert unexplained == {}


def _compared(line: str, scenario: str, plays: PlaysFactory) -> dict[str, tuple[object, object]]:
    broker = BROKERS[line]
    theirs = plays(broker, line).observed(broker, line, scenario)
    ours = plays(MAILBOAT, line).observed(MAILBOAT, line, scenario)
    return _differences(theirs, ours)


def test_listed_differences_are_seen_in_all_scenarios(plays: PlaysFactory) -> None:
    """Each difference in the list is there: what has become equal is no longer excused."""
    seen = [
        (BROKERS[line], scenario, leaf)
        for line in BROKERS
        for scenario in SCENARIOS
        for leaf in _compared(line, scenario, plays)
    ]
    stale = [each for each in DIFFERENCES if not any(each.covers(*where) for where in seen)]
    assert stale == []


def test_a_difference_would_be_found() -> None:
    """The comparison sees a changed value, a missing property, a longer list and a new key."""
    theirs = {"list": [1, {"a": "x", "b": "y"}], "_late_ms": 3, "kept": None}
    ours = {"list": [1, {"a": "z"}, 2], "_late_ms": 9, "kept": None, "more": True}
    assert _differences(theirs, ours) == {
        "/list/1/a": ("x", "z"),
        "/list/1/b": ("y", _ABSENT),
        "/list/2": (_ABSENT, 2),
        "/list/length": (2, 3),
        "/more": (_ABSENT, True),
    }


def test_every_scenario_is_a_feature_test() -> None:
    """No scenario is only compared: each has its promise in the feature tests too."""
    features = Path(__file__).with_name("test_features.py").read_text()
    assert [name for name in SCENARIOS if f"def test_{name}(" not in features] == []
