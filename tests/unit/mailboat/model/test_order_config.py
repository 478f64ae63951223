"""Promises of mailboat.model.order_config."""

import pytest

from mailboat.errors import IllegalMessageError
from mailboat.model.order_config import check_order, decode_order, encode_order


def test_queues_of_ordered_topics():
    """`broker:queues` joined by semicolons, as RocketMQ's updateOrderConf takes them."""
    text = "broker-a:8;broker-b:4"
    assert encode_order({"broker-b": 4, "broker-a": 8}) == text
    assert decode_order(text) == {"broker-a": 8, "broker-b": 4}
    assert decode_order("host:10911:2;x;:3;y:;") == {"host:10911": 2}
    assert (encode_order({}), decode_order("")) == ("", {})


@pytest.mark.parametrize("text", ["", "a:0", "broker-a:8;broker-b:10000", "host:10911:2;"])
def test_what_is_read_whole_may_be_kept(text):
    """A name may hold a colon."""
    check_order(text)


@pytest.mark.parametrize(
    "text",
    ["a", ":3", "a:", "a:-1", "a:10001", "a:3000000000", f"a:{'9' * 5000}", "a:1;b:x", "a:²"],
)
def test_what_is_no_order_configuration_is_refused(text):
    """A client would use other queues than somebody has meant."""
    with pytest.raises(IllegalMessageError, match="write broker-a:8;broker-b:8"):
        check_order(text)
