"""The workers: each takes a key, has a turn taken, and sees to the next one."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from mailboat.errors import MailboatError
from mailboat_operator.apply import StoppingError
from mailboat_operator.kinds import ResourceKey
from mailboat_operator.kube_api import ConflictError, NotFoundError
from mailboat_operator.leader import NotLeaderError
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.reconciler import StepsFailedError
from mailboat_operator.work_queue import QueueClosedError, WorkQueue

logger = logging.getLogger(__name__)


class Controller:
    """Runs a number of workers on one queue until it is closed."""

    def __init__(
        self,
        queue: WorkQueue,
        reconcile: Callable[[ResourceKey], Awaitable[float | None]],
        metrics: OperatorMetrics,
        *,
        workers: int,
    ) -> None:
        """`reconcile` takes a turn and says when the next one is due."""
        self._queue = queue
        self._reconcile = reconcile
        self._metrics = metrics
        self._workers = workers

    async def run(self) -> None:
        """Work until the queue is closed and what was begun has ended.

        Raises:
            NotLeaderError: this replica must not write any more.
        """
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"worker {number}")

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except QueueClosedError:
                return
            began_s = time.monotonic()
            result = "error"
            try:
                result = await self._turn(key)
            finally:
                self._queue.done(key)
                self._metrics.reconcile_total.labels(key.kind, result).inc()
                self._metrics.reconcile_duration.labels(key.kind).observe(
                    time.monotonic() - began_s
                )

    async def _turn(self, key: ResourceKey) -> str:
        try:
            again_after_s = await self._reconcile(key)
        except StoppingError as error:
            logger.info("%s", error)
            return "stopped"
        except NotLeaderError:
            raise
        except (ConflictError, NotFoundError) as error:
            # The cache was behind; the watch brings what changed, so soon is early enough.
            pause_s = self._queue.add_failed(key)
            logger.info("%s: changed meanwhile, again in %.1f s: %s", key, pause_s, error)
            return "conflict"
        except StepsFailedError as error:
            pause_s = self._queue.add_failed(key)
            if error.again_after_s is not None:
                # What fails waits ever longer; what the other steps wait for does not.
                pause_s = min(pause_s, error.again_after_s)
                self._queue.add_after(key, pause_s)
            logger.info("%s; again in %.1f s", error, pause_s)
            return "failed"
        except MailboatError as error:
            pause_s = self._queue.add_failed(key)
            logger.warning("%s: %s; again in %.1f s", key, error, pause_s)
            return "failed"
        except Exception:
            # A mistake in a planner must not stop the other resources, nor hide itself.
            pause_s = self._queue.add_failed(key)
            logger.exception("%s: unexpected error; again in %.1f s", key, pause_s)
            return "error"
        self._queue.succeeded(key)
        if again_after_s is not None:
            self._queue.add_after(key, again_after_s)
        return "done"
