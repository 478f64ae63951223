"""How name servers keep the queues of an ordered topic."""

from mailboat.client.admin.topics import decode_order, encode_order


def test_queues_of_ordered_topics():
    """`broker:queues` joined by semicolons, as RocketMQ's updateOrderConf takes them."""
    text = "broker-a:8;broker-b:4"
    assert encode_order({"broker-b": 4, "broker-a": 8}) == text
    assert decode_order(text) == {"broker-a": 8, "broker-b": 4}
    assert decode_order("host:10911:2;x;:3;y:;") == {"host:10911": 2}
    assert (encode_order({}), decode_order("")) == ("", {})
