"""Flushes the CommitLog: every half second, or for the senders that wait for it.

One thread syncs, nothing else: while a sync runs, further senders gather, and one more sync serves
them all. A sender that has waited for `syncFlushTimeout`, or whose flush failed, is told
FLUSH_DISK_TIMEOUT, which says that the outcome is unknown.

Source: apache/rocketmq store/CommitLog.java (GroupCommitService, FlushRealTimeService).
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from mailboat.broker.supervisor import Supervisor, TaskProgress
from mailboat.protocol.codes import ResponseCode
from mailboat.store.flush import FlushJob
from mailboat.store.message_store import MessageStore

log = logging.getLogger(__name__)

_CHECK_S: Final = 0.25
# What one turn shows and answers of all that has waited for a disk that hung.
_SLICE_S: Final = 0.005

Flushed = Callable[[bool], None]
"""Called with True once the bytes are durable, with False when that is not known in time."""


Settled = Callable[[int], None]
"""Called with SUCCESS once the bytes are as safe as messages are promised to be here, otherwise
with a code that says that the outcome is unknown."""


class _Waiter(NamedTuple):
    end: int
    deadline: float
    done: Flushed


class _SettledWaiter(NamedTuple):
    end: int
    deadline: float
    done: Settled


class FlushService:
    """Drives the store's flushes on the event loop."""

    def __init__(
        self, store: MessageStore, *, interval_s: float, timeout_s: float, replicas_timeout_s: float
    ) -> None:
        """Flush at least every `interval_s`; a waiter waits `timeout_s` at most.

        Where it waits for other replicas, and not for a flush, `replicas_timeout_s`.
        """
        self._store = store
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._waiters: deque[_Waiter] = deque()
        self._settled_waiters: deque[_SettledWaiter] = deque()
        self._replicas_timeout_s = replicas_timeout_s
        self._is_begin_due = self._is_release_due = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_changed = False
        self._is_closed = False
        self.on_flushed: Callable[[], None] = lambda: None
        """Called when more of the log is durable."""

    def start(self, supervisor: Supervisor) -> None:
        """Begin the periodic flush."""
        supervisor.start("flush", self._run)

    def configure(self, *, interval_s: float, timeout_s: float) -> None:
        """Follow other settings, from the next flush and the next waiter on."""
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._is_changed = True

    def wait(self, end: int, done: Flushed) -> None:
        """Call `done` once everything before the physical offset `end` is durable."""
        self._waiters.append(_Waiter(end, self._loop.time() + self._timeout_s, done))
        self.begin_soon()

    def wait_settled(self, end: int, done: Settled) -> None:
        """Call `done` once everything before the physical offset `end` may be answered."""
        timeout_s = self._timeout_s if self._store.is_sync_flush else self._replicas_timeout_s
        self._settled_waiters.append(_SettledWaiter(end, self._loop.time() + timeout_s, done))
        self.settle_soon()

    def settle_soon(self) -> None:
        """Flush as soon as the reads of this round of the loop have been stored, if it matters."""
        if self._store.is_sync_flush:
            self.begin_soon()

    def settle(self) -> None:
        """Show and answer what has become settled: it is flushed, other replicas have it.

        That of some milliseconds now, the rest in the next rounds of the loop.
        """
        is_all_shown = self._store.settle(_SLICE_S)
        ends_at_s = time.perf_counter() + _SLICE_S
        waiters, is_holding_below = self._settled_waiters, self._store.dispatch.is_holding_below
        settled_offset = self._store.settled_offset
        has_failed = self._store.commit_log.failure is not None
        while waiters and time.perf_counter() < ends_at_s:
            end = waiters[0].end
            if end <= settled_offset and not is_holding_below(end):
                waiters.popleft().done(ResponseCode.SUCCESS)
            elif has_failed and end > self._store.certain_offset:
                waiters.popleft().done(ResponseCode.FLUSH_DISK_TIMEOUT)
            else:
                break
        has_more = waiters and (waiters[0].end <= settled_offset or has_failed)
        if (has_more or not is_all_shown) and not self._is_release_due:
            self._is_release_due = True
            self._loop.call_soon(self._settle_on)

    def _settle_on(self) -> None:
        self._is_release_due = False
        if self._store.is_open:
            self.settle()

    async def flushed(self) -> None:
        """Return once everything that is written now is durable.

        Raises:
            OSError: it is not known to be in time.
        """
        done: asyncio.Future[bool] = self._loop.create_future()
        end = self._store.commit_log.end
        self.wait(end, lambda ok: None if done.done() else done.set_result(ok))
        if not await done:
            raise OSError("the log is not flushed in time")

    async def settled(self) -> int:
        """Return SUCCESS once all that is written now may be answered, or the code that says that
        the outcome is unknown."""
        done: asyncio.Future[int] = self._loop.create_future()
        end = self._store.commit_log.end
        self.wait_settled(end, lambda code: None if done.done() else done.set_result(code))
        return await done

    def begin_soon(self) -> None:
        """Flush as soon as the reads of this round of the loop have been stored."""
        if not self._is_begin_due and self._idle.is_set():
            self._is_begin_due = True
            self._loop.call_soon(self._begin)

    async def drain(self) -> None:
        """Flush until nobody waits any more."""
        while (
            self._waiters
            or self._is_release_due
            or (self._settled_waiters and self._store.is_sync_flush)
        ):
            self._begin()
            await self._idle.wait()
            await asyncio.sleep(0)
        await self._idle.wait()

    async def close(self) -> None:
        """Begin no flush any more, and wait for the one that runs, however long the disk takes.

        The store closes its files after that, and counts for clean what is flushed then.
        """
        self._is_closed = True
        await self._idle.wait()
        self._thread.shutdown()

    def _begin(self) -> None:
        self._is_begin_due = False
        job = None if self._is_closed else self._store.begin_flush()
        if job is None:
            self._release()
            return
        self._idle.clear()
        future = self._thread.submit(job.run)
        future.add_done_callback(lambda ended: self._tell_loop(job, ended))

    def _tell_loop(self, job: FlushJob, ended: Future[None]) -> None:
        self._loop.call_soon_threadsafe(self._finish, job, ended.exception())

    def _finish(self, job: FlushJob, error: BaseException | None) -> None:
        self._idle.set()
        self._store.flusher.finish(job, error)
        self.on_flushed()
        self._release()
        if self._waiters or (self._store.is_sync_flush and self._store.flusher.unflushed_bytes):
            self._begin()

    def _release(self) -> None:
        self.settle()
        waiters = self._waiters
        flushed_offset = self._store.flushed_offset
        while waiters and waiters[0].end <= flushed_offset:
            waiters.popleft().done(True)
        if waiters and self._store.commit_log.failure is not None:
            self._waiters = deque()
            for waiter in waiters:
                waiter.done(False)

    async def _run(self, progress: TaskProgress) -> None:
        next_flush = self._loop.time()
        while True:
            # A disk that hangs is no reason to restart: senders are told, and it may come back.
            progress.beat()
            now = self._loop.time()
            if self._is_changed:
                self._is_changed = False
                next_flush = min(next_flush, now + self._interval_s)
            if now >= next_flush:
                next_flush = now + self._interval_s
                self.begin_soon()
            while self._waiters and self._waiters[0].deadline <= now:
                self._waiters.popleft().done(False)
            is_all = self._give_up(now)
            await asyncio.sleep(min(_CHECK_S, max(next_flush - now, 0.001)) if is_all else 0)

    def _give_up(self, now_s: float) -> bool:
        """Answer some of those whose time is up; tell whether it was all of them."""
        ends_at_s = time.perf_counter() + _SLICE_S
        waiters, certain_offset = self._settled_waiters, self._store.certain_offset
        # Those of what is certain have their answers soon, whatever the time is.
        while waiters and waiters[0].deadline <= now_s and waiters[0].end > certain_offset:
            if time.perf_counter() > ends_at_s:
                return False
            waiter = waiters.popleft()
            is_flushed = not self._store.is_sync_flush or self._store.flushed_offset >= waiter.end
            waiter.done(
                ResponseCode.FLUSH_SLAVE_TIMEOUT if is_flushed else ResponseCode.FLUSH_DISK_TIMEOUT
            )
        return True
