"""Promises of mailboat.protocol.followed_tables: large tables of another broker, in short steps."""

import gc
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

from mailboat.errors import RemoteProtocolError
from mailboat.protocol.delay_offsets import DelayOffsets, encode_delay_offsets
from mailboat.protocol.followed_tables import (
    read_delay_offsets,
    read_groups,
    read_now,
    read_offsets,
    read_offsets_file,
    read_topics,
)

_COUNT = 40_000
_QUEUES = ",".join(f"{queue_id}:7" for queue_id in range(16))
_OFFSETS = ",\n".join(f'"t{number}@g{number}":{{{_QUEUES}}}' for number in range(_COUNT))
_TOPICS = ",".join(f'"t{number}":{{"topicName":"t{number}"}}' for number in range(_COUNT))
_GROUPS = ",".join(f'"g{number}":{{"groupName":"g{number}"}}' for number in range(_COUNT))

Reader = Callable[[bytes], Generator[None, None, Any]]


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (read_topics, f'{{"topicConfigTable":{{{_TOPICS}}}}}'),
        (read_groups, f'{{"subscriptionGroupTable":{{{_GROUPS}}}}}'),
        (read_offsets, f'{{"offsetTable":{{{_OFFSETS}}}}}'),
        (read_offsets_file, f'{{"offsetTable":{{{_OFFSETS}}}}}'),
    ],
    ids=["topics", "groups", "offsets", "offsets file"],
)
def test_no_step_takes_long(reader: Reader, text: str) -> None:
    """Of 40,000 entries: a thread keeps the interpreter's lock for as long as one takes."""
    steps = reader(text.encode())
    longest_s, count = 0.0, 0
    # A look at all objects of this test process is not what is measured.
    gc.disable()
    try:
        while True:
            begin_s = time.thread_time()
            next(steps, None)
            step_s = time.thread_time() - begin_s
            longest_s, count = max(longest_s, step_s), count + 1
            if steps.gi_frame is None:
                break
    finally:
        gc.enable()
    assert count > _COUNT
    assert longest_s < 0.05


def test_the_file_of_a_broker_of_ours_is_read() -> None:
    """With the ranges of levels, and the delays that it was written under."""
    table = DelayOffsets(
        {1: 3, 2: 7}, mailboat_delay_level="1s 5s", mailboat_ranges={1: [(3, 5), (9, None)]}
    )
    found = read_now(read_delay_offsets(encode_delay_offsets(table)))
    assert found.state == table
    assert found.odd == []


def test_generations_and_resets_are_read() -> None:
    """They are beside the offsets; what is no number says nothing."""
    content = b"""{"offsetTable":{"T@G":{0:3}},"resetOffsetTable":{"T@G":{0:1}},
        "generationTable":{"T@G":5,"T@H":"x"},"takenOffsetTable":{"T@G":{0:9}}}"""
    found = read_now(read_offsets_file(content))
    assert found.offsets.table == {"T@G": {0: 3}}
    assert found.resets == {"T@G": {0: 1}}
    assert found.generations == {"T@G": 5}
    assert [text.partition(":")[0] for text in found.odd] == ["'T@H'"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"offsetTable":3}'])
@pytest.mark.parametrize("reader", [read_offsets_file, read_delay_offsets])
def test_what_is_no_table_is_refused(reader: Reader, content: bytes) -> None:
    """Damage is not taken for an empty table."""
    with pytest.raises(RemoteProtocolError):
        read_now(reader(content))
