"""Messages as programs see them."""

from mailboat.model.message import Message
from mailboat.model.properties import PropertyName


def test_tags_keys_and_wait_travel_as_properties() -> None:
    """The program's own properties stay beside them and are not changed."""
    own = {"k": "v"}
    message = Message("T", b"", tags="TagA", keys=["k1", "k2"], properties=own)
    assert message.all_properties() == {
        "k": "v",
        PropertyName.TAGS: "TagA",
        PropertyName.KEYS: "k1 k2",
        PropertyName.WAIT: "true",
    }
    assert own == {"k": "v"}


def test_no_tag_and_no_keys_are_no_properties() -> None:
    """Empty values would be dropped by every reader."""
    assert Message("T", b"", tags="", keys=[]).all_properties() == {"WAIT": "true"}


def test_a_message_can_ask_not_to_wait() -> None:
    """WAIT=false asks for an answer before the flush."""
    assert Message("T", b"", keys="a b", wait_store_ok=False).all_properties() == {
        "KEYS": "a b",
        "WAIT": "false",
    }


def test_delay_travels_as_a_property() -> None:
    """The level is a text as all properties are; without a delay there is none."""
    assert Message("T", b"", delay_level=18).all_properties() == {"DELAY": "18", "WAIT": "true"}
    assert Message("T", b"", delay_level=0).all_properties() == {"WAIT": "true"}
