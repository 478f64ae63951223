"""The reader of `spark.readStream`.

One object lives on the driver for the life of a query and plans; copies of it, made before the
query began, read on the workers. What holds everything together is that reading is a pure function
of queue, start and end: Spark logs these before a batch and repeats the batch after a crash.

Order of calls per batch: latestOffset(start), reportLatestOffset, commit(end of the batch before),
partitions(start, end), read. Spark never calls `commit` for the last batch of an AvailableNow run
and calls `stop` only sometimes; the `start` of `latestOffset` is always the end of a finished
batch, so the group's offsets are stored there as well. Where the group has no offset yet it gets
the place that the query begins at: a first batch may take longer than messages are kept that nobody
seems to need.

Spark logs where a batch ends, not where it starts. For the first batch it asks `initialOffset`
anew, before it reads and again when it repeats the batch, and "the latest" is another place by
then. So the reader answers the same for its life, and a planned end holds the beginnings of all
queues that no finished batch has read.

An offset says where, not what. A broker that lost the end of its log (ASYNC_FLUSH and a power cut)
and a topic made anew give numbers out again, and once the queue is long enough the number alone
looks right. So a planned end also holds a witness of the last message of each queue, and who goes
on from there looks whether that message is still the one before.

Stopping a query interrupts its batch. A driver that wants to end between batches makes the file
that `stopFile` names: from then on no batch begins.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from mailboat.errors import MailboatError, RouteNotFoundError
from mailboat.model.message_queue import MessageQueue
from mailboat_spark.broker_client import DataLossError
from mailboat_spark.client_thread import ClientThread, shared_client
from mailboat_spark.group_offsets import GroupOffsets
from mailboat_spark.offsets import (
    OffsetJson,
    PlacedWitness,
    QueueOffsets,
    Witness,
    Witnesses,
    decode_began_ms,
    decode_beginnings,
    decode_offsets,
    decode_witnesses,
    encode_offsets,
)
from mailboat_spark.options import SourceOptions
from mailboat_spark.planning import QueueBounds, QueueRange, admit, plan_tasks
from mailboat_spark.start_offsets import resolve_offsets
from mailboat_spark.tasks import QueueRangesPartition, read_partition

logger = logging.getLogger(__name__)


class MailboatStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches and reads them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Keep what is needed; nothing is connected, because this object is pickled."""
        self._options = options
        self._schema = schema
        self._bounds: dict[MessageQueue, QueueBounds] = {}
        self._bounds_at_s: float | None = None
        self._available_now: QueueOffsets | None = None
        # Why, by topic that no broker has.
        self._absent: dict[str, str] = {}
        self._initial: QueueOffsets | None = None
        self._began_ms: int | None = None
        # The end that this object planned last: what it says was seen a moment ago.
        self._planned: OffsetJson = {}
        self._group = GroupOffsets(options)

    # Planning, on the driver.

    def initialOffset(self) -> OffsetJson:
        """Return where a new query starts."""
        if self._initial is None:
            asked = self._options.starting_offsets
            bounds = self._fresh_bounds()
            if self._absent:
                # There is no place yet that such a topic could keep.
                raise RouteNotFoundError(next(iter(self._absent.values())))
            committed = self._run_committed(bounds) if asked.kind == "group" else {}
            self._initial = resolve_offsets(asked, bounds, committed, option="startingOffsets")
            if asked.kind == "latest":
                self._began_ms = time.time_ns() // 1_000_000
        self._group.begin(self._initial)
        return encode_offsets(self._initial, began_ms=self._began_ms)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `maxOffsetsPerTrigger`, or no limit."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the queues end now; the query stops there."""
        bounds = self._fresh_bounds()
        self._available_now = {queue: bound.maximum for queue, bound in bounds.items()}

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> OffsetJson:
        """Return the end of the next batch."""
        starts = decode_offsets(start)
        self._group.store(starts)
        if self._options.stop_file and os.path.exists(self._options.stop_file):
            return dict(start)
        bounds = self._recent_bounds()
        ends = {queue: bound.maximum for queue, bound in bounds.items()}
        if self._available_now is not None:
            known = self._available_now
            ends = {queue: min(end, known[queue]) for queue, end in ends.items() if queue in known}
        unknown = ends.keys() - starts.keys()
        is_groups = unknown and self._options.starting_offsets.kind == "group"
        # A broker that was away when the query began has its group's offsets, too.
        of_group = self._run_committed(unknown) if is_groups else {}
        wanted = {**starts, **of_group}
        self._check_start(wanted, bounds)
        # What is gone (and may be, else the check has raised) counts for no limit.
        all_starts = {queue: max(wanted.get(queue, 0), bounds[queue].minimum) for queue in ends}
        new = {queue: all_starts[queue] for queue in unknown}
        began_ms = decode_began_ms(start)
        not_begun = {queue: new[queue] for queue in unknown - of_group.keys()}
        self._check_new(not_begun, starts, began_ms)
        self._group.begin(new)
        limit_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # Queues whose broker is away for the moment keep their place.
        planned = {**starts, **admit(all_starts, ends, limit_rows)}
        if planned == starts:
            # The very same text, with the beginnings that it may hold: there is nothing to do.
            return dict(start)
        self._planned = encode_offsets(
            planned,
            {**new, **starts} if starts == self._initial else new,
            witnesses=self._compare(decode_witnesses(start), starts, planned),
            began_ms=began_ms,
        )
        return self._planned

    def reportLatestOffset(self) -> OffsetJson:
        """Return where the queues end, for Spark's progress report."""
        bounds = self._recent_bounds()
        return encode_offsets({queue: bound.maximum for queue, bound in bounds.items()})

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> list[QueueRangesPartition]:
        """Share the batch out among tasks; new queues begin where `end` says."""
        if end != self._planned:
            # An earlier process planned it, and the queues may have become others since.
            for place in (start, end):
                self._compare(decode_witnesses(place), decode_offsets(place), {})
        starts = {**decode_offsets(start), **decode_beginnings(end)}
        ends = decode_offsets(end)
        # An end that an earlier release logged does not say it: these begin at their minimum.
        new = ends.keys() - starts.keys()
        # Pulls at offsets that are gone would be answered one by one, so they are left out here.
        moved = new if self._options.fail_on_data_loss else ends.keys()
        if moved:
            bounds = self._recent_bounds()
            for queue in moved & bounds.keys():
                starts[queue] = max(starts.get(queue, 0), bounds[queue].minimum)
        ranges = [QueueRange(queue, starts.get(queue, 0), ends[queue]) for queue in ends]
        tasks = plan_tasks(ranges, self._options.min_partitions)
        witnesses = {
            queue: PlacedWitness(ends[queue] - 1, witness)
            for queue, witness in decode_witnesses(end).items()
            if queue in ends
        }
        return [QueueRangesPartition(task, witnesses) for task in tasks]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Store the group's offsets after a finished batch."""
        self._group.store(decode_offsets(end))

    def stop(self) -> None:
        """Do nothing: the client belongs to the process, which ends with the query."""

    # Reading, on a worker.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return read_partition(self._options, self._schema, partition)

    # Behind the scenes.

    def _fresh_bounds(self) -> dict[MessageQueue, QueueBounds]:
        """Ask what the topics hold; without failOnDataLoss, absent topics are left out."""
        client = self._client()
        answers = {
            # A topic that was waited for in vain is looked for once.
            topic: client.submit(
                client.client.bounds([topic], 0 if topic in self._absent else self._deadline_s())
            )
            for topic in self._options.topics
        }
        bounds: dict[MessageQueue, QueueBounds] = {}
        for topic, answer in answers.items():
            try:
                bounds |= answer.result()
                self._absent.pop(topic, None)
            except MailboatError as exc:
                if topic in self._absent:
                    continue
                if self._options.fail_on_data_loss or not isinstance(exc, RouteNotFoundError):
                    raise
                self._absent[topic] = str(exc)
                logger.warning("%s; what the query has read of it stays noted", exc)
        self._bounds, self._bounds_at_s = bounds, time.monotonic()
        return bounds

    def _recent_bounds(self) -> dict[MessageQueue, QueueBounds]:
        """Return bounds of at most `offsetFetchIntervalMs` ago.

        An idle query with the default trigger asks a hundred times a second.
        """
        interval_s = self._options.offset_fetch_interval_ms / 1000
        if self._bounds_at_s is None or time.monotonic() - self._bounds_at_s > interval_s:
            return self._fresh_bounds()
        return self._bounds

    def _check_start(
        self, starts: QueueOffsets, bounds: Mapping[MessageQueue, QueueBounds]
    ) -> None:
        """Find messages that expired, or a topic that was made anew, before they were read."""
        for queue, start in starts.items():
            bound = bounds.get(queue)
            if bound is None or bound.minimum <= start <= bound.maximum:
                continue
            self._lose(
                f"{queue} holds offsets {bound.minimum} to {bound.maximum}, "
                f"and the query goes on at {start}: messages are gone"
            )

    def _compare(self, known: Witnesses, starts: QueueOffsets, planned: QueueOffsets) -> Witnesses:
        """Find queues with other messages before `starts` than were read; know those of `planned`.

        Returns the witnesses of `planned`. A queue that stands still is not asked for anything.
        """
        moved = {
            queue: queue_offset
            for queue, queue_offset in planned.items()
            if queue_offset != starts.get(queue)
        }
        before = {
            queue: (queue, starts[queue] - 1)
            for queue in known.keys() & starts.keys()
            if queue in moved or not planned
        }
        last = {queue: (queue, end - 1) for queue, end in moved.items() if end > 0}
        places = {*before.values(), *last.values()}
        if not places:
            return known
        client = self._client()
        group = self._options.group
        found = client.run(client.client.witnesses(places, group, self._deadline_s()))
        for queue, place in sorted(before.items()):
            if place in found and found[place] != known[queue]:
                self._lose(
                    f"{queue} holds another message at {place[1]} than it did, stored at "
                    f"{_utc(found[place])} and not at {_utc(known[queue])}: it has become shorter "
                    f"or was made anew, and messages before {starts[queue]} may be unread"
                )
        return {
            **{queue: witness for queue, witness in known.items() if queue not in moved},
            **{queue: found[place] for queue, place in last.items() if place in found},
        }

    def _check_new(self, new: QueueOffsets, starts: QueueOffsets, began_ms: int | None) -> None:
        """Find messages that expired in a queue before the query learned of the queue.

        A topic that is new to the query as a whole begins at what is there, and so does a broker,
        which may just have been away when the query began. Of a query that takes only what was
        stored after it began, a queue may have been hidden then (fewer read queues): what is older
        was never wanted.
        """
        topics = {queue.topic for queue in starts}
        brokers = {(queue.topic, queue.broker_name) for queue in starts}
        for queue, start in sorted(new.items()):
            if start == 0 or queue.topic not in topics:
                continue
            text = f"{queue} is new to the query and holds offsets from {start} on"
            known = (queue.topic, queue.broker_name) in brokers
            if known and not self._is_older(queue, start, began_ms):
                self._lose(f"{text}: messages 0 to {start - 1} are gone")
            else:
                logger.warning("%s", text)

    def _is_older(self, queue: MessageQueue, queue_offset: int, began_ms: int | None) -> bool:
        """Tell whether a message, and so all before it, was stored before the query began."""
        if began_ms is None:
            return False
        client = self._client()
        place = (queue, queue_offset)
        asked = client.client.witnesses([place], self._options.group, self._deadline_s())
        found = client.run(asked).get(place)
        return found is not None and found.store_timestamp_ms < began_ms

    def _lose(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss to false to go on without them")
        logger.warning("%s", text)

    def _run_committed(self, queues: Iterable[MessageQueue]) -> QueueOffsets:
        client = self._client()
        return client.run(client.client.committed(self._options.group, queues, self._deadline_s()))

    def _client(self) -> ClientThread:
        return shared_client(self._options.namesrv, self._options.access)

    def _deadline_s(self) -> float:
        return time.monotonic() + self._options.retry_timeout_ms / 1000


def _utc(witness: Witness) -> str:
    """Return when a record was stored, for people; brokers may have stored any number."""
    try:
        moment = datetime.fromtimestamp(witness.store_timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{witness.store_timestamp_ms} ms"
    return moment.isoformat(timespec="milliseconds")
