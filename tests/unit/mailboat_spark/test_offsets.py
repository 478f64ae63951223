import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.model.message_queue import MessageQueue
from mailboat_spark.offsets import (
    OWN_KEYS,
    OffsetFormatError,
    Witness,
    decode_began_ms,
    decode_beginnings,
    decode_offsets,
    decode_witnesses,
    encode_offsets,
    parse_starting_offsets,
)

NAMES = st.text("abz-_019", min_size=1, max_size=5)
OFFSETS = st.dictionaries(
    st.builds(
        MessageQueue, NAMES.filter(lambda name: name not in OWN_KEYS), NAMES, st.integers(0, 12)
    ),
    st.integers(0, 2**63 - 1),
)


def test_the_form_is_the_documented_one():
    """The checkpoint's text is a promise to later releases."""
    offsets = {MessageQueue("orders", "broker-a", 1): 88, MessageQueue("orders", "broker-a", 0): 5}
    text = json.dumps(encode_offsets(offsets))
    assert text == '{"_v": 1, "orders": {"broker-a:0": 5, "broker-a:1": 88}}'


def test_beginnings_stand_beside_the_offsets():
    """Where new queues begin is a key of its own, which earlier checkpoints do not have."""
    old, new = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
    text = json.dumps(encode_offsets({old: 5, new: 88}, {new: 80}))
    assert text == (
        '{"_from": {"orders": {"broker-a:1": 80}}, "_v": 1, '
        '"orders": {"broker-a:0": 5, "broker-a:1": 88}}'
    )
    assert decode_offsets(json.loads(text)) == {old: 5, new: 88}
    assert decode_beginnings(json.loads(text)) == {new: 80}
    assert decode_beginnings({"_v": 1, "orders": {"broker-a:0": 5}}) == {}
    assert json.dumps(encode_offsets({old: 5}, {})) == '{"_v": 1, "orders": {"broker-a:0": 5}}'
    # A checkpoint's text may be given as startingOffsets.
    assert parse_starting_offsets(text, words=()).by_queue == {old: 5, new: 88}
    with pytest.raises(OffsetFormatError, match="_from"):
        decode_beginnings({"_v": 1, "_from": 5})


def test_witnesses_and_the_beginning_stand_beside_the_offsets():
    """What the last message was and since when a query wants messages are keys of their own."""
    queue, other = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 0)
    witnesses = {queue: Witness(1_764_000_000_123, 2**32 - 1)}
    text = json.dumps(encode_offsets({queue: 5, other: 0}, witnesses=witnesses, began_ms=17))
    assert text == (
        '{"_began_ms": 17, "_last": {"orders": {"broker-a:0": [1764000000123, 4294967295]}}, '
        '"_v": 1, "orders": {"broker-a:0": 5, "broker-b:0": 0}}'
    )
    assert decode_offsets(json.loads(text)) == {queue: 5, other: 0}
    assert decode_witnesses(json.loads(text)) == witnesses
    assert decode_began_ms(json.loads(text)) == 17
    earlier = {"_v": 1, "orders": {"broker-a:0": 5}}
    assert decode_witnesses(earlier) == {}
    assert decode_began_ms(earlier) is None
    assert parse_starting_offsets(text, words=()).by_queue == {queue: 5, other: 0}


@pytest.mark.parametrize("witness", [5, [1], [1, 2, 3], [1, "2"], [1, True], None])
def test_a_foreign_witness_is_refused(witness):
    """Nothing is guessed at here either."""
    with pytest.raises(OffsetFormatError, match=r"of orders broker-a:0 is no store time"):
        decode_witnesses({"_v": 1, "_last": {"orders": {"broker-a:0": witness}}})
    with pytest.raises(OffsetFormatError, match="_began_ms"):
        decode_began_ms({"_v": 1, "_began_ms": "yesterday"})


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
