"""How the query is: fed by Spark's events and by the brokers, read by metrics and probes."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from pyspark import StatusTracker
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from mailboat.errors import MailboatError
from mailboat.model.message_queue import MessageQueue
from mailboat_spark.client_thread import ClientThread
from mailboat_spark.job.metrics import JobMetrics, lag_by_topic
from mailboat_spark.offsets import QueueOffsets, decode_offsets
from mailboat_spark.planning import QueueBounds

logger = logging.getLogger(__name__)

_LAG_DEADLINE_S: Final = 5.0


class JobState:
    """Where the job is, and when the query last gave a sign of life; used by several threads."""

    def __init__(self, metrics: JobMetrics, *, liveness_timeout_s: float) -> None:
        """Begin before the query does."""
        self.metrics = metrics
        self.rows = 0
        self.batches = 0
        self.terminated = threading.Event()
        self._liveness_timeout_s = liveness_timeout_s
        self._lock = threading.Lock()
        self._offsets: QueueOffsets = {}
        self._knows_start = False
        self._alive_at_s = time.monotonic()
        self._phase = "starting"

    def begin(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Note that the query starts, after `offsets` of the checkpoint (none in a new one)."""
        self._move_to(offsets)
        self._sign_of_life()

    def batch_ended(self, progress: Any) -> None:
        """Note Spark's report of a trigger that ran a batch."""
        rows, batch_id = progress.numInputRows, progress.batchId
        duration_ms = progress.batchDuration or 0
        self.metrics.batch(batch_id, rows, duration_ms)
        with self._lock:
            self.rows += rows
            self.batches += rows > 0
        self._move_to(decode_offsets(json.loads(progress.sources[0].endOffset)))
        self._sign_of_life(phase="running")
        if rows:
            logger.info("batch %d: %d rows in %d ms", batch_id, rows, duration_ms)

    def idle(self) -> None:
        """Note a trigger that found nothing to do."""
        self._sign_of_life(phase="running")

    def task_ended(self) -> None:
        """Note that the running batch has got on."""
        self._sign_of_life()

    def stopping(self) -> None:
        """Note that the end was asked for."""
        self._sign_of_life(phase="stopping")

    def ready_reason(self) -> str | None:
        """Return why the job is not ready, None when it is."""
        return None if self._phase == "running" else f"the job is {self._phase}"

    def dead_reason(self) -> str | None:
        """Return why only a restart helps, None while the job lives."""
        silent_s = time.monotonic() - self._alive_at_s
        if silent_s <= self._liveness_timeout_s:
            return None
        return f"no batch, no task and no idle trigger for {silent_s:.0f} s"

    def lag_answered(self, answer: "Future[dict[MessageQueue, QueueBounds]]") -> None:
        """Take the brokers' answer about what they hold."""
        try:
            bounds = answer.result()
        except MailboatError as exc:
            logger.info("the lag is unknown: %s", exc)
            self.metrics.lag_failed()
            return
        with self._lock:
            if self._knows_start:
                self.metrics.lag(lag_by_topic(bounds, self._offsets))

    def _move_to(self, offsets: Mapping[MessageQueue, int]) -> None:
        with self._lock:
            self._offsets |= offsets
            self._knows_start = self._knows_start or bool(offsets)
        self.metrics.offsets(offsets)

    def _sign_of_life(self, phase: str | None = None) -> None:
        self._alive_at_s = time.monotonic()
        self.metrics.alive(time.time())
        # What is stopping does not become ready again.
        if phase is not None and self._phase != "stopping":
            self._phase = phase


class JobListener(StreamingQueryListener):
    """Spark's events, for one query's `JobState`."""

    def __init__(self, state: JobState) -> None:
        """Tell `state`."""
        self._state = state

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A trigger ran."""
        self._state.batch_ended(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """A trigger found nothing."""
        self._state.idle()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """All events before the end have been told."""
        self._state.terminated.set()


class LagSampler:
    """Asks the brokers now and then how far their queues go, without waiting for the answer."""

    def __init__(
        self, client: ClientThread, topics: tuple[str, ...], state: JobState, interval_s: float
    ) -> None:
        """Ask for `topics` every `interval_s` at most."""
        self._client = client
        self._topics = topics
        self._state = state
        self._interval_s = interval_s
        self._next_s = 0.0
        self._pending: Future[dict[MessageQueue, QueueBounds]] | None = None

    def poll(self) -> None:
        """Ask if it is time to."""
        now_s = time.monotonic()
        if now_s < self._next_s or (self._pending is not None and not self._pending.done()):
            return
        self._next_s = now_s + self._interval_s
        self._pending = self._client.submit(self._bounds(now_s + _LAG_DEADLINE_S))
        self._pending.add_done_callback(self._state.lag_answered)

    async def _bounds(self, deadline_s: float) -> dict[MessageQueue, QueueBounds]:
        """Ask topic by topic: one that is gone must not hide the lag of the others."""
        client = self._client.client
        answers = await asyncio.gather(
            *(client.bounds((topic,), deadline_s) for topic in self._topics),
            return_exceptions=True,
        )
        found: dict[MessageQueue, QueueBounds] = {}
        failures = []
        for answer in answers:
            if isinstance(answer, BaseException):
                failures.append(answer)
            else:
                found |= answer
        for failure in failures:
            if not found or not isinstance(failure, MailboatError):
                raise failure
            logger.info("the lag of a topic is unknown: %s", failure)
            self._state.metrics.lag_failed()
        return found


class TaskWatch:
    """Looks whether tasks of the running batch end, so that a long batch is not taken for dead."""

    def __init__(self, tracker: StatusTracker, state: JobState) -> None:
        """Look at all that this Spark runs."""
        self._tracker = tracker
        self._state = state
        self._seen: dict[int, int] = {}

    def poll(self) -> None:
        """Look once."""
        now = ended_tasks(self._tracker)
        if has_advanced(self._seen, now):
            self._state.task_ended()
        self._seen = now


def ended_tasks(tracker: StatusTracker) -> dict[int, int]:
    """Return how many tasks of each running stage are done, those that failed not counted."""
    stages = (tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds())
    # A stage may end between the two questions.
    return {stage.stageId: stage.numCompletedTasks for stage in stages if stage is not None}


def has_advanced(before: Mapping[int, int], now: Mapping[int, int]) -> bool:
    """Tell whether a task has ended between two looks at the running stages.

    That a stage begins says nothing: a broken one may be begun again and again.
    """
    return any(ended > before.get(stage_id, 0) for stage_id, ended in now.items())
