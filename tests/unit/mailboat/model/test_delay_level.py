"""Delays by RocketMQ's table: level 1 is 1 s, 18 is 2 h."""

import pytest

from mailboat.config.store import DEFAULT_DELAY_LEVELS
from mailboat.model.delay_level import DelayLevels, level_of, queue_id_of

ROCKETMQ_SECONDS = [
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
]  # fmt: skip


def test_the_default_table_is_rocketmqs() -> None:
    """All 18 levels, as the documentation of RocketMQ lists them."""
    levels = DelayLevels(DEFAULT_DELAY_LEVELS)
    delays = [levels.delay_ms(level) for level in range(1, 19)]
    assert delays == [1000 * seconds for seconds in ROCKETMQ_SECONDS]
    assert levels.last == 18


def test_a_level_above_the_table_is_the_last_one() -> None:
    """RocketMQ takes 19 for 18."""
    assert DelayLevels("1s 2s").delay_ms(3) == 2_000
    assert DelayLevels("1s 2s").delay_ms(999) == 2_000


def test_days_are_a_unit() -> None:
    """s, m, h and d are known."""
    assert DelayLevels("7s 6m 5h 4d").longest_ms == 4 * 86_400_000


def test_a_level_lies_in_the_queue_before_it() -> None:
    """Level 1 is queue 0 of the schedule topic."""
    assert queue_id_of(1) == 0
    assert level_of(17) == 18


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        # A Java broker's record: store time and the delay of its level.
        ({"DELAY": "3"}, 1_000_000 + 10_000),
        ({"DELAY": "19"}, 1_000_000 + 7_200_000),
        ({"DELAY": "broken"}, 1_000_000),
        ({}, 1_000_000),
        # Our own says when, whatever the level is now.
        ({"DELAY": "3", "MAILBOAT_DELIVER_MS": "1234567"}, 1_234_567),
        ({"DELAY": "3", "MAILBOAT_DELAY_MS": "7000"}, 1_000_000 + 7_000),
    ],
)
def test_a_record_says_when_it_is_due(properties: dict[str, str], due_ms: int) -> None:
    """A record keeps its own time; Java's is due after the delay of its level."""
    assert DelayLevels(DEFAULT_DELAY_LEVELS).deliver_ms(properties, 1_000_000) == due_ms
