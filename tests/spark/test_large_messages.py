"""Messages whose size changes all at once, against a real broker and without Java."""

from __future__ import annotations

import time

import pytest
from reader_calls import noise, stream

from mailboat.client import Message
from mailboat_spark.broker_client import ChunkRequest
from mailboat_spark.client_thread import shared_client
from mailboat_spark.planning import QueueRange

BODY_BYTES = 300_000


def fill(cluster, topic, small, large):
    """Send small messages, then large ones, of which a broker gives one per pull."""
    [queue] = cluster.create_topic(topic, 1)
    cluster.send(queue, [Message(topic, b"%d" % n) for n in range(small)])
    body = noise(BODY_BYTES)
    for number in range(large):
        cluster.send_one(queue, Message(topic, b"%d-" % number + body))
    return queue


def test_a_chunk_ends_at_its_bytes(cluster, topic):
    """A chunk is as many messages as a pull brought before, and these may be small by chance."""
    queue = fill(cluster, topic, small=4, large=12)
    request = ChunkRequest(
        chunk=QueueRange(queue, 0, 16),
        group="g",
        tags="*",
        batch_size=32,
        max_bytes=1_000_000,
        fail_on_data_loss=True,
    )
    client = shared_client(cluster.namesrv)
    chunk = client.run(client.client.fetch(request, time.monotonic() + 15))
    # Four small ones and the first of the large ones that make it a million bytes.
    assert chunk.reached == 8
    assert 1_000_000 <= sum(map(len, chunk.bodies)) < 1_000_000 + BODY_BYTES + 1000


@pytest.mark.parametrize("in_flight", ["1", "4"])
def test_what_is_left_of_a_chunk_comes_before_the_next(cluster, topic, in_flight):
    """Chunks that are cut short lose nothing and stay in order, with others on their way."""
    fill(cluster, topic, small=70, large=40)
    reader = stream(cluster, topic, pullsInFlight=in_flight, arrowBatchBytes="700000")
    start = reader.initialOffset()
    end = {"_v": 1, topic: {"broker-a:0": 110}}
    [partition] = reader.partitions(start, end)
    batches = list(reader.read(partition))
    assert [n for b in batches for n in b.column("queue_offset").to_pylist()] == list(range(110))
    assert max(batch.nbytes for batch in batches) < 700_000 + BODY_BYTES + 10_000
