"""The text form of properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.errors import IllegalMessageError
from mailboat.model.properties import PropertyName, decode_properties, encode_properties

_TEXT = st.text(st.characters(exclude_characters="\x01\x02"), max_size=20)


def test_the_last_separator_is_optional() -> None:
    """RocketMQ 4 leaves it out, RocketMQ 5 writes it; both are read alike."""
    expected = {"k": "v", "WAIT": "true", "TAGS": "TagA"}
    assert decode_properties("k\x01v\x02WAIT\x01true\x02TAGS\x01TagA") == expected
    assert decode_properties("k\x01v\x02WAIT\x01true\x02TAGS\x01TagA\x02") == expected


def test_the_form_that_is_written() -> None:
    """Name, 0x01, value, 0x02, and again."""
    assert encode_properties({"k": "v", "TAGS": "TagA"}) == "k\x01v\x02TAGS\x01TagA\x02"
    assert encode_properties({}) == ""


def test_an_entry_without_value_is_left_out() -> None:
    """Readers drop it, so it is not written."""
    assert encode_properties({"a": "", "b": "1"}) == "b\x011\x02"


@pytest.mark.parametrize(
    "properties",
    [
        {"a\x01": "1"}, {"a": "1\x01"}, {"a\x02": "1"}, {"a": "\x02"}, {"": "1"}, {"": ""},
        {"a\x01": ""},
        # As many separators as entries have, but in the wrong ones.
        {"a": "", "b": "x\x02c\x01y"},
        {"": "", "b": "x\x02c\x01y"},
    ],
)  # fmt: skip
def test_separators_and_empty_names_are_refused(properties: dict[str, str]) -> None:
    """They would come back as other properties."""
    with pytest.raises(IllegalMessageError, match=r"U\+0001 and U\+0002"):
        encode_properties(properties)


@pytest.mark.parametrize(
    "text", ["", "\x02", "\x01", "a", "a\x01", "\x01b", "a\x01\x02", "\x02\x02"]
)
def test_broken_entries_are_dropped(text: str) -> None:
    """No separator, no name or no value: no property."""
    assert decode_properties(text) == {}


def test_a_later_entry_wins() -> None:
    """As in Java's map."""
    assert decode_properties("a\x011\x02a\x012\x02") == {"a": "2"}


@given(st.dictionaries(_TEXT.filter(bool), _TEXT))
def test_round_trip(properties: dict[str, str]) -> None:
    """What is written is read back, but for entries without value."""
    expected = {name: value for name, value in properties.items() if value}
    assert decode_properties(encode_properties(properties)) == expected


@given(st.text(st.sampled_from("ab\x01\x02"), max_size=30))
def test_any_text_is_read(text: str) -> None:
    """No text raises, and nothing that is read is empty."""
    for name, value in decode_properties(text).items():
        assert name
        assert value


def test_names_are_those_of_rocketmq() -> None:
    """A misspelt name would be a property of the user."""
    assert PropertyName.CRC32 == "__CRC32#"
    assert PropertyName.REAL_QUEUE_ID == "REAL_QID"
    assert PropertyName.TRANSACTION_PREPARED == "TRAN_MSG"
    assert PropertyName.PRODUCER_GROUP == "PGROUP"
    assert PropertyName.MESSAGE_REGION == "MSG_REGION"
