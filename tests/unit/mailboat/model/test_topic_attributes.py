"""Promises of mailboat.model.topic_attributes."""

import pytest

from mailboat.errors import IllegalMessageError
from mailboat.model.topic_attributes import alter_attributes


def test_a_new_topic_takes_its_attributes() -> None:
    """`+name=value` sets attributes when the topic is made, several joined by commas."""
    assert alter_attributes(None, "+message.type=FIFO,+queue.type=SimpleCQ") == {
        "message.type": "FIFO",
        "queue.type": "SimpleCQ",
    }


def test_a_topic_changes_and_loses_attributes() -> None:
    """`+` changes, `-` removes, the rest stays, and the given table is left alone."""
    current = {"message.type": "FIFO", "queue.type": "SimpleCQ"}
    assert alter_attributes(current, "+message.type=NORMAL")["message.type"] == "NORMAL"
    assert alter_attributes(current, "-message.type") == {"queue.type": "SimpleCQ"}
    assert alter_attributes(current, "") == current
    assert current["message.type"] == "FIFO"


@pytest.mark.parametrize(
    ("current", "changes", "complaint"),
    [
        (None, "message.type=FIFO", "malformed"),
        (None, "+message.type", "malformed"),
        (None, "-message.type", "cannot be removed"),
        ({}, "-message.type", "cannot be removed"),
        ({}, "+message.type=FIFO,-message.type", "changed twice"),
        (None, "+colour=red", "'colour' is not supported; known are queue.type"),
        (None, "+message.type=ODD", "cannot be 'ODD'; it takes UNSPECIFIED, NORMAL"),
        (None, "+queue.type=BatchCQ", "it takes SimpleCQ"),
        (None, "+cleanup.policy=COMPACTION", "it takes DELETE"),
        ({}, "+queue.type=SimpleCQ", "fixed when the topic is made"),
    ],
)
def test_what_cannot_be_done_is_refused(
    current: dict[str, str] | None, changes: str, complaint: str
) -> None:
    """Malformed, unknown, unchangeable and unsupported attributes get one clear sentence."""
    with pytest.raises(IllegalMessageError, match=complaint):
        alter_attributes(current, changes)
