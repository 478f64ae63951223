"""Whether this process does its work: one truth for the probes and for the metrics."""

import asyncio
import time
from collections.abc import Callable, Iterator

from mailboat_operator.leader import LeaderElector
from mailboat_operator.watch import WatchClock
from mailboat_operator.work_queue import WorkQueue

MOST_LAG_S = 5.0
LONGEST_TURN_S = 600.0
LEASE_SILENCE_S = 90.0
_TICK_S = 0.5
_LAG_REMEMBERED_S = 15.0


class LoopLag:
    """How late the event loop runs what is due; the worst of the last seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Measure nothing before `run`."""
        self._monotonic = monotonic
        self._due_s = monotonic() + _TICK_S
        self._worst: tuple[float, float] = (0.0, monotonic())

    @property
    def seconds(self) -> float:
        """The lag, also while the loop is stuck right now."""
        now_s = self._monotonic()
        worst_s, seen_s = self._worst
        remembered_s = worst_s if now_s - seen_s <= _LAG_REMEMBERED_S else 0.0
        return max(remembered_s, now_s - self._due_s, 0.0)

    async def run(self) -> None:
        """Measure for ever."""
        while True:
            self._due_s = self._monotonic() + _TICK_S
            await asyncio.sleep(_TICK_S)
            now_s = self._monotonic()
            late_s = max(0.0, now_s - self._due_s)
            worst_s, seen_s = self._worst
            if late_s >= worst_s or now_s - seen_s > _LAG_REMEMBERED_S:
                self._worst = (late_s, now_s)


class Health:
    """Puts together what /livez and /readyz say."""

    def __init__(
        self,
        elector: LeaderElector,
        lag: LoopLag,
        *,
        deaf_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """A replica begins as a standby: it watches nothing and works on nothing."""
        self._elector = elector
        self._lag = lag
        self._deaf_s = deaf_s
        self._monotonic = monotonic
        self._clock: WatchClock | None = None
        self._queue: WorkQueue | None = None
        self._dead_task: str | None = None
        self._is_synced = False
        self._waits_for: str | None = None

    def waits(self, what: str) -> None:
        """This replica holds the Lease, and has to wait for something before it can act."""
        self._waits_for = what

    def leads(self, clock: WatchClock, queue: WorkQueue) -> None:
        """From now on this replica must also watch and work."""
        self._clock, self._queue = clock, queue

    def synced(self) -> None:
        """Everything has been listed and is watched."""
        self._is_synced = True

    def task_died(self, name: str) -> None:
        """A task that must never end has ended."""
        self._dead_task = name

    def complaints(self) -> list[str]:
        """Why the process should be started anew; empty if it is well."""
        return list(self._complaints())

    def readiness(self) -> tuple[bool, str]:
        """Whether this replica does what it should, and what that is."""
        if self._clock is None:
            return True, "standby" if self._waits_for is None else f"waits for {self._waits_for}"
        if not self._is_synced:
            return False, "listing and beginning to watch"
        return True, "leader"

    def _complaints(self) -> Iterator[str]:
        lag_s = self._lag.seconds
        if lag_s > MOST_LAG_S:
            yield f"the event loop is {lag_s:.1f} s late"
        if self._dead_task is not None:
            yield f"the task `{self._dead_task}` has ended"
        silent_s = self._monotonic() - self._elector.last_answer_s
        if silent_s > LEASE_SILENCE_S:
            yield f"the API server has not answered about the Lease for {silent_s:.0f} s"
        if self._clock is not None:
            for (kind, namespace), silent_s in self._clock.silences():
                if silent_s > self._deaf_s:
                    where = f" in {namespace}" if namespace is not None else ""
                    yield f"the watch of {kind}{where} is deaf for {silent_s:.0f} s"
        if self._queue is not None:
            for key, began_s in self._queue.in_progress.items():
                turn_s = self._monotonic() - began_s
                if turn_s > LONGEST_TURN_S:
                    yield f"the work on {key} has lasted {turn_s:.0f} s"
