"""What of a dead letter goes back, where to, and under which name the position is kept."""

import pytest

from mailboat.client.admin.groups import is_position_group, is_position_of
from mailboat.client.admin.redrive import (
    Destination,
    Selection,
    default_position_group,
    origin_topic,
)
from mailboat.errors import MailboatError
from mailboat.model.message import MessageExt

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))

# As RocketMQ 5.5.0 stores a message that was delayed, failed three times and died.
LETTER_PROPERTIES = {
    "CLUSTER": "DefaultCluster",
    "DELAY": "3",
    "DLQ_ORIGIN_MESSAGE_ID": "ORIGIN",
    "DLQ_ORIGIN_TOPIC": "%RETRY%C",
    "KEYS": "k1 k2",
    "MAX_OFFSET": "9",
    "MIN_OFFSET": "0",
    "MSG_REGION": "DefaultRegion",
    "ORIGIN_MESSAGE_ID": "ORIGIN",
    "REAL_QID": "0",
    "REAL_TOPIC": "%RETRY%C",
    "RETRY_TOPIC": "T",
    "TAGS": "a",
    "TRACE_ON": "true",
    "UNIQ_KEY": "ID",
    "WAIT": "true",
    "__CRC32#": "0123456789",
    "own": "v",
}


def letter(stored_ms: int = 0, **properties: str) -> MessageExt:
    """Return a dead letter."""
    return MessageExt(
        "%DLQ%C", b"x", 0, 5, 1000, 0, 7, 0, 0, 0, HOST, stored_ms, HOST, 3, 0, properties
    )


def test_the_producers_message_goes_back():
    """Id, tags, keys, own properties, flag and body stay; the traces of the way here do not."""
    message = Destination("C").message(letter(**LETTER_PROPERTIES))
    assert (message.topic, message.body, message.flag) == ("T", b"x", 7)
    assert message.properties == {"KEYS": "k1 k2", "TAGS": "a", "UNIQ_KEY": "ID", "own": "v"}


def test_a_letter_for_its_group_only_keeps_its_topic():
    """Consumers read the topic of a retried message from RETRY_TOPIC."""
    message = Destination("C", to_group=True).message(letter(**LETTER_PROPERTIES))
    assert message.topic == "%RETRY%C"
    assert message.properties["RETRY_TOPIC"] == "T"


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"RETRY_TOPIC": "T", "DLQ_ORIGIN_TOPIC": "U"}, "T"),
        ({"DLQ_ORIGIN_TOPIC": "U"}, "U"),
        ({"DLQ_ORIGIN_TOPIC": "%RETRY%C"}, None),
        ({"RETRY_TOPIC": "%RETRY%C"}, None),
        ({}, None),
    ],
)
def test_where_a_letter_came_from(properties: dict[str, str], expected: str | None):
    """A retry topic is a stop on the way, not where the message was sent to."""
    assert origin_topic(letter(**properties)) == expected


def test_a_letter_of_unknown_origin_needs_a_topic():
    """--topic serves such letters only; without it the error says which letter and what to do."""
    assert Destination("C", topic="V").of(letter()) == "V"
    assert Destination("C", topic="V").of(letter(RETRY_TOPIC="T")) == "T"
    with pytest.raises(MailboatError, match=r"dead letter ID of group C .* --topic"):
        Destination("C").of(letter(UNIQ_KEY="ID"))


def test_time_range_holds_both_ends():
    """A letter counts by when it became one."""
    times = (9, 10, 20, 21)

    def taken(selection: Selection) -> list[int]:
        return [ms for ms in times if selection.takes(letter(ms))]

    assert taken(Selection(10, 20)) == [10, 20]
    assert taken(Selection(begin_ms=10)) == [10, 20, 21]
    assert taken(Selection(end_ms=20)) == [9, 10, 20]
    assert taken(Selection()) == [9, 10, 20, 21]


def test_each_range_has_a_position_of_its_own():
    """The same range finds its position again, another one does not, nor does the whole."""
    names = {
        default_position_group("C", selection)
        for selection in (
            Selection(),
            Selection(10, 20),
            Selection(10, 20),
            Selection(10),
            Selection(end_ms=10),
            Selection(end_ms=20),
        )
    }
    assert len(names) == 5
    assert "mailboat-redrive-C" in names
    assert all(map(is_position_group, names))
    assert not is_position_group("C")
    assert all(is_position_of(name, "C") for name in names)
    assert not any(is_position_of(name, other) for name in names for other in ("D", "C-", ""))
    assert not is_position_of("mailboat-redrive-C-v2", "C")
