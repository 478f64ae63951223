import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.model.message_queue import MessageQueue
from mailboat_spark.offsets import OffsetFormatError, decode_offsets, encode_offsets

NAMES = st.text("abz-_019", min_size=1, max_size=5)
OFFSETS = st.dictionaries(
    st.builds(MessageQueue, NAMES.filter(lambda name: name != "_v"), NAMES, st.integers(0, 12)),
    st.integers(0, 2**63 - 1),
)


def test_the_form_is_the_documented_one():
    """The checkpoint's text is a promise to later releases."""
    offsets = {MessageQueue("orders", "broker-a", 1): 88, MessageQueue("orders", "broker-a", 0): 5}
    text = json.dumps(encode_offsets(offsets))
    assert text == '{"_v": 1, "orders": {"broker-a:0": 5, "broker-a:1": 88}}'


@given(OFFSETS, st.randoms())
def test_equal_offsets_are_equal_text(offsets, random):
    """Spark compares text, and runs empty batches for ever when the order of keys changes."""
    items = list(offsets.items())
    random.shuffle(items)
    assert json.dumps(encode_offsets(dict(items))) == json.dumps(encode_offsets(offsets))


@given(OFFSETS)
def test_offsets_survive_the_checkpoint(offsets):
    """What was written to JSON and read again is the same."""
    assert decode_offsets(json.loads(json.dumps(encode_offsets(offsets)))) == offsets


def test_a_broker_name_may_hold_colons():
    """The queue id is what stands behind the last colon."""
    queue = MessageQueue("t", "host:1", 3)
    assert decode_offsets(encode_offsets({queue: 1})) == {queue: 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"t": {"b:0": 1}}', "version None"),
        ('{"_v": 2, "t": {"b:0": 1}}', "version 2"),
        ('{"_v": 1, "t": 5}', "topic t"),
        ('{"_v": 1, "t": {"b:x": 1}}', "b:x"),
        ('{"_v": 1, "t": {":0": 1}}', ":0"),
        ('{"_v": 1, "t": {"b:0": -1}}', "-1"),
        ('{"_v": 1, "t": {"b:0": true}}', "True"),
        ('{"_v": 1, "t": {"b:0": "1"}}', "'1'"),
    ],
)
def test_a_foreign_checkpoint_is_refused(text, reason):
    """Offsets of another form are never guessed at."""
    with pytest.raises(OffsetFormatError, match=reason):
        decode_offsets(json.loads(text))
