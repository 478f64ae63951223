import pytest

from mailboat.errors import ConfigError
from mailboat.model.message_queue import MessageQueue
from mailboat_spark.offsets import StartingOffsets
from mailboat_spark.planning import QueueBounds
from mailboat_spark.start_offsets import resolve_offsets

A, B = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
BOUNDS = {A: QueueBounds(10, 20), B: QueueBounds(0, 5)}


def resolve(asked, committed=(), option="startingOffsets"):
    """Resolve against `BOUNDS`."""
    return resolve_offsets(asked, BOUNDS, dict(committed), option=option)


def test_words():
    """Earliest is the first offset that is there, latest the next one to come."""
    assert resolve(StartingOffsets("earliest")) == {A: 10, B: 0}
    assert resolve(StartingOffsets("latest")) == {A: 20, B: 5}


def test_a_group_goes_on_where_it_was():
    """The stored offset is the next one to read; a queue without one is read from its start."""
    assert resolve(StartingOffsets("group"), {A: 15}) == {A: 15, B: 0}


def test_named_queues():
    """-2 and -1 stand for the ends; a queue that is not named is read whole."""
    assert resolve(StartingOffsets("json", {A: -1})) == {A: 20, B: 0}
    assert resolve(StartingOffsets("json", {A: -2, B: 3})) == {A: 10, B: 3}
    assert resolve(StartingOffsets("json", {B: 3}), option="endingOffsets") == {A: 20, B: 3}


def test_an_unknown_queue_is_named():
    """A queue that does not exist would silently read nothing."""
    with pytest.raises(ConfigError, match="queue t b:7 does not exist"):
        resolve(StartingOffsets("json", {MessageQueue("t", "b", 7): 1}))
