"""Reading ranges of queues with several pulls on the way at a time.

RocketMQ brokers give 32 messages or 256 KiB per pull by default, however many are asked for;
mailboat brokers can be set to give more. A range is cut into chunks as large as a pull turns out to
bring, and a few chunks are on their way while earlier ones are decoded. Messages may become larger
all at once, so a chunk also ends at `arrowBatchBytes`: what is left of it is fetched next.
"""

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future

import pyarrow as pa

from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SUBSCRIBE_ALL, build_subscription
from mailboat_spark.batches import BatchBuilder
from mailboat_spark.broker_client import Chunk, ChunkRequest, DataLossError
from mailboat_spark.client_thread import ClientThread
from mailboat_spark.offsets import PlacedWitness
from mailboat_spark.options import SourceOptions
from mailboat_spark.planning import QueueRange
from mailboat_spark.records import OffsetRun

logger = logging.getLogger(__name__)


def read_ranges(
    thread: ClientThread,
    options: SourceOptions,
    ranges: Iterable[QueueRange],
    schema: pa.Schema,
    witnesses: Mapping[MessageQueue, PlacedWitness],
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of `ranges` as Arrow batches, each range in order.

    The end comes only after the queues were found to be those that `witnesses` were seen in.

    Raises:
        DataLossError: messages are gone, and `failOnDataLoss` is on.
        OtherQueueError: a broker was taken for another one; a new try finds the right one.
        MailboatError: a broker did not answer within `retryTimeoutMs`, or its answer is damaged.
    """
    tags = frozenset(tag.encode() for tag in build_subscription("-", options.tags).tags_set)
    builder = BatchBuilder(
        schema, max_rows=options.arrow_batch_rows, max_bytes=options.arrow_batch_bytes, tags=tags
    )
    # Without a filter, offsets follow each other without a gap; with one, gaps are normal.
    must_be_whole = options.tags == SUBSCRIBE_ALL and options.fail_on_data_loss
    for chunk in _ChunkPipeline(thread, options, ranges):
        planned = chunk.request.chunk
        expected = planned.start
        for body in chunk.bodies:
            body_at = 0
            while body_at < len(body):
                part = builder.add(
                    planned.queue, body, body_at=body_at, start=expected, end=planned.end
                )
                body_at = part.body_at
                if must_be_whole and part.run.rows:
                    expected = _check_run(planned.queue, expected, part.run)
                else:
                    expected = max(expected, part.run.end)
                yield from builder.take_full()
        if must_be_whole:
            _check_run(planned.queue, expected, OffsetRun(chunk.reached, chunk.reached, 0))
    if witnesses:
        deadline_s = time.monotonic() + options.retry_timeout_ms / 1000
        text = thread.run(thread.client.compare(witnesses, options.group, deadline_s))
        if text is not None and options.fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss to false to go on with what there is")
        if text is not None:
            logger.warning("%s", text)
    yield from builder.take_rest()


def _check_run(queue: MessageQueue, expected: int, run: OffsetRun) -> int:
    """Return the offset after a run, which must begin at `expected` and have no gap."""
    if run.start != expected or run.end - run.start != run.rows:
        raise DataLossError(
            f"messages of {queue} are missing or doubled between {expected} and {run.end}: "
            f"{run.rows} came, from {run.start} on; "
            "set failOnDataLoss to false to go on with what there is"
        )
    return run.end


class _ChunkPipeline:
    """Iterates over the chunks of some ranges in order, fetching ahead."""

    def __init__(
        self, thread: ClientThread, options: SourceOptions, ranges: Iterable[QueueRange]
    ) -> None:
        self._thread = thread
        self._options = options
        self._left = deque(ranges)
        self._chunk_size = options.pull_batch_size
        self._on_the_way: deque[Future[Chunk]] = deque()

    def __iter__(self) -> Iterator[Chunk]:
        try:
            # One pull first: it tells how much the broker gives at a time.
            self._fetch_next(once=True)
            while self._on_the_way:
                chunk = self._on_the_way.popleft().result()
                self._learn(chunk)
                while self._left and len(self._on_the_way) < self._options.pulls_in_flight:
                    self._fetch_next()
                yield chunk
        finally:
            for future in self._on_the_way:
                future.cancel()

    def _learn(self, chunk: Chunk) -> None:
        planned = chunk.request.chunk
        if chunk.first_advance < planned.size:
            self._chunk_size = max(1, chunk.first_advance)
        else:
            self._chunk_size = min(self._chunk_size * 2, self._options.pull_batch_size)
        if chunk.queue_ended:
            while self._left and self._left[0].queue == planned.queue:
                self._left.popleft()
        elif chunk.reached < planned.end:
            rest = QueueRange(planned.queue, chunk.reached, planned.end)
            if self._on_the_way:
                # These lie behind the rest, which keeps its place before them.
                self._on_the_way.appendleft(self._submit(rest))
            else:
                self._left.appendleft(rest)

    def _fetch_next(self, *, once: bool = False) -> None:
        if not self._left:
            return
        whole = self._left.popleft()
        middle = min(whole.start + self._chunk_size, whole.end)
        if middle < whole.end:
            self._left.appendleft(QueueRange(whole.queue, middle, whole.end))
        chunk = QueueRange(whole.queue, whole.start, middle)
        self._on_the_way.append(self._submit(chunk, once=once))

    def _submit(self, chunk: QueueRange, *, once: bool = False) -> Future[Chunk]:
        request = ChunkRequest(
            chunk=chunk,
            group=self._options.group,
            tags=self._options.tags,
            batch_size=self._options.pull_batch_size,
            max_bytes=self._options.arrow_batch_bytes,
            fail_on_data_loss=self._options.fail_on_data_loss,
            once=once,
        )
        deadline_s = time.monotonic() + self._options.retry_timeout_ms / 1000
        return self._thread.submit(self._thread.client.fetch(request, deadline_s))
