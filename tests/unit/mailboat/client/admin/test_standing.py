"""What a group's offset and subscription say of a message."""

import pytest

from mailboat.client.admin.standing import ConsumeState, compare
from mailboat.model.message import MessageExt
from mailboat.model.subscription import SubscriptionData, build_subscription
from mailboat.protocol.client_connections import ClientConnection, ConsumerConnection

HOST = bytes(8)


def message(tags: str | None = None) -> MessageExt:
    """Return the message at offset 5."""
    properties = {} if tags is None else {"TAGS": tags}
    return MessageExt("T", b"x", 0, 5, 0, 0, 0, 0, 0, 0, HOST, 0, HOST, 0, 0, properties)


def online(expression: str = "*", model: str = "CLUSTERING", kind: str = "TAG"):
    """Return a group with one member."""
    subscription = (
        build_subscription("T", expression)
        if kind == "TAG"
        else SubscriptionData("T", expression, expression_type=kind)
    )
    return ConsumerConnection(
        [ClientConnection("c")], {"T": subscription}, "CONSUME_PASSIVELY", model
    )


@pytest.mark.parametrize(
    ("committed", "expected"),
    [
        (0, ConsumeState.NOT_CONSUMED),
        (5, ConsumeState.NOT_CONSUMED),
        (6, ConsumeState.CONSUMED),
        (None, ConsumeState.UNKNOWN),
    ],
)
def test_an_offset_is_the_next_message(committed: int | None, expected: ConsumeState):
    """A group at offset 5 has not consumed the message there; at 6 it has."""
    assert compare(message(), committed, None) is expected


def test_a_member_without_an_offset_has_consumed_nothing():
    """A group that is online stores its first offset when it has consumed something."""
    assert compare(message(), None, online()) is ConsumeState.NOT_CONSUMED


def test_tags_that_the_group_leaves_out():
    """Behind the offset, a message of another tag was filtered and not consumed."""
    assert compare(message("a"), 6, online("a || b")) is ConsumeState.CONSUMED
    assert compare(message("c"), 6, online("a || b")) is ConsumeState.FILTERED
    assert compare(message(), 6, online("a || b")) is ConsumeState.FILTERED
    assert compare(message("c"), 6, online("*")) is ConsumeState.CONSUMED
    assert compare(message("c"), 5, online("a")) is ConsumeState.NOT_CONSUMED
    assert compare(message("c"), 6, online("x > 1", kind="SQL92")) is ConsumeState.CONSUMED


def test_broadcasting_groups_keep_their_offsets():
    """What brokers hold says nothing of members that each read everything."""
    group = online(model="BROADCASTING")
    assert compare(message(), 6, group) is ConsumeState.BROADCAST
