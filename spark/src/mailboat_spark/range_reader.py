"""Reading ranges of queues with several pulls on the way at a time.

RocketMQ brokers give 32 messages or 256 KiB per pull by default, however many are asked for; mailboat
brokers can be set to give more. A range is cut into chunks as large as a pull turns out to bring, and a
few chunks are on their way while earlier ones are decoded.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

import pyarrow as pa

from mailboat.model.subscription import SUBSCRIBE_ALL, build_subscription
from mailboat_spark.batches import BatchBuilder
from mailboat_spark.broker_client import Chunk, ChunkRequest, DataLossError
from mailboat_spark.client_thread import ClientThread
from mailboat_spark.options import SourceOptions
from mailboat_spark.planning import QueueRange


def read_ranges(
    thread: ClientThread, options: SourceOptions, ranges: Iterable[QueueRange], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of `ranges` as Arrow batches, each range in order.

    Raises:
        DataLossError: messages are gone, and `failOnDataLoss` is on.
        MailboatError: a broker did not answer within `retryTimeoutMs`, or its answer is damaged.
    """
    tags = frozenset(tag.encode() for tag in build_subscription("-", options.tags).tags_set)
    builder = BatchBuilder(
        schema, max_rows=options.arrow_batch_rows, max_bytes=options.arrow_batch_bytes, tags=tags
    )
    for chunk in _ChunkPipeline(thread, options, ranges):
        request = chunk.request
        expected = request.start
        for asked_at, body in chunk.bodies:
            first = builder.add(request.queue, body, end=request.end)
            if options.tags == SUBSCRIBE_ALL and options.fail_on_data_loss:
                # Without a filter, offsets follow each other without a gap.
                _check_gap(request, expected=asked_at, found=first)
            yield from builder.take_full()
    yield from builder.take_rest()


def _check_gap(request: ChunkRequest, *, expected: int, found: int | None) -> None:
    if found is not None and found != expected:
        raise DataLossError(
            f"messages {expected} to {found - 1} of {request.queue} are missing; "
            "set failOnDataLoss to false to go on without them"
        )


class _ChunkPipeline:
    """Iterates over the chunks of some ranges in order, fetching ahead."""

    def __init__(
        self, thread: ClientThread, options: SourceOptions, ranges: Iterable[QueueRange]
    ) -> None:
        self._thread = thread
        self._options = options
        self._chunk_size = options.pull_batch_size
        self._requests = self._cut(ranges)
        self._on_the_way: deque[Future[Chunk]] = deque()

    def __iter__(self) -> Iterator[Chunk]:
        try:
            # One pull first: it tells how much the broker gives at a time.
            self._fetch_next()
            while self._on_the_way:
                chunk = self._on_the_way.popleft().result()
                if chunk.first_advance:
                    self._chunk_size = min(chunk.first_advance, self._options.pull_batch_size)
                while len(self._on_the_way) < self._options.pulls_in_flight:
                    if not self._fetch_next():
                        break
                yield chunk
        finally:
            for future in self._on_the_way:
                future.cancel()

    def _fetch_next(self) -> bool:
        request = next(self._requests, None)
        if request is None:
            return False
        deadline_s = time.monotonic() + self._options.retry_timeout_ms / 1000
        self._on_the_way.append(
            self._thread.submit(self._thread.client.fetch(request, deadline_s))
        )
        return True

    def _cut(self, ranges: Iterable[QueueRange]) -> Iterator[ChunkRequest]:
        for queue_range in ranges:
            at = queue_range.start
            while at < queue_range.end:
                end = min(at + self._chunk_size, queue_range.end)
                yield ChunkRequest(
                    queue=queue_range.queue,
                    start=at,
                    end=end,
                    group=self._options.group,
                    tags=self._options.tags,
                    batch_size=self._options.pull_batch_size,
                    fail_on_data_loss=self._options.fail_on_data_loss,
                )
                at = end
