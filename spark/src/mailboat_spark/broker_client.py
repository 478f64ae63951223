"""What the source asks brokers, with retries up to a deadline.

An error in `latestOffset` ends a Spark query at once, and one in a task ends it after a few tries. A
broker that restarts must not do that, so every call here is repeated until it succeeds or its time is
over. Only refusals that cannot change by waiting are raised at once.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from mailboat.client.instance import ClientInstance
from mailboat.client.pulling import Puller, PullRequest, PullResult, PullStatus
from mailboat.client.queue_offsets import QueueOffsets as OffsetCalls
from mailboat.errors import BrokerError, MailboatError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import build_subscription
from mailboat_spark.planning import QueueBounds

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
COMMIT_TIMEOUT_S: Final = 3.0
# SYSTEM_ERROR, SYSTEM_BUSY and SERVICE_NOT_AVAILABLE: what brokers answer while they start or stop.
RETRIED_CODES: Final = frozenset({1, 2, 14})


class DataLossError(MailboatError):
    """Messages that the query should read are gone."""


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """Offsets `start` up to `end` of one queue, to be pulled at most `batch_size` at a time."""

    queue: MessageQueue
    start: int
    end: int
    group: str
    tags: str
    batch_size: int
    fail_on_data_loss: bool


@dataclass(slots=True)
class Chunk:
    """What was pulled: the answers' bodies in order, each with the offset it was asked at."""

    request: ChunkRequest
    bodies: list[tuple[int, bytes]] = field(default_factory=list)
    first_advance: int = 0
    """How many offsets the first pull covered; tells how much a broker gives at a time."""


class BrokerClient:
    """A client for one event loop."""

    def __init__(self, namesrv: str) -> None:
        """Prepare a client; call `start` before anything else.

        Raises:
            ConfigError: `namesrv` is not a list of addresses.
        """
        self._namesrv = namesrv
        self._instance = ClientInstance(namesrv)
        self._puller = Puller(self._instance.remoting, self._instance.routes)
        self._offsets = OffsetCalls(self._instance.remoting, self._instance.routes)

    async def start(self) -> None:
        """Begin; brokers are connected when they are first asked for something."""
        await self._instance.start()

    async def close(self) -> None:
        """Close the connections."""
        await self._instance.close()

    async def bounds(
        self, topics: Iterable[str], deadline_s: float
    ) -> dict[MessageQueue, QueueBounds]:
        """Return what the topics' queues hold; the queues are asked for anew.

        Raises:
            MailboatError: no success before `deadline_s` (of the monotonic clock).
        """

        async def ask(topic: str) -> dict[MessageQueue, QueueBounds]:
            await self._instance.routes.refresh(topic)
            queues = await self._instance.routes.read_queues(topic)
            found = await asyncio.gather(*(self._bounds(queue) for queue in queues))
            return dict(zip(queues, found, strict=True))

        answers = await asyncio.gather(
            *(retry(lambda topic=topic: ask(topic), deadline_s, topic) for topic in topics)  # type: ignore[misc]
        )
        return {queue: bounds for answer in answers for queue, bounds in answer.items()}

    async def committed(
        self, group: str, queues: Iterable[MessageQueue], deadline_s: float
    ) -> dict[MessageQueue, int]:
        """Return the group's stored offsets; queues without one are left out.

        Raises:
            MailboatError: no success before `deadline_s`.
        """
        wanted = list(queues)

        async def ask() -> list[int | None]:
            return await asyncio.gather(
                *(self._offsets.committed(group, queue) for queue in wanted)
            )

        found = await retry(ask, deadline_s, f"offsets of group {group}")
        return {
            queue: stored for queue, stored in zip(wanted, found, strict=True) if stored is not None
        }

    async def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets for the group, so that tools see its lag.

        The checkpoint is what counts for the query: a commit that fails is logged, and the next one
        makes up for it.
        """
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                await asyncio.gather(
                    *(
                        self._offsets.commit(group, queue, queue_offset)
                        for queue, queue_offset in offsets.items()
                    )
                )
        except (MailboatError, TimeoutError) as exc:
            logger.warning("commit group=%s failed, repeated with the next batch: %s", group, exc)

    async def fetch(self, request: ChunkRequest, deadline_s: float) -> Chunk:
        """Pull all that the broker holds of a chunk.

        Raises:
            DataLossError: something of it is gone, and the request says to fail then.
            MailboatError: no success before `deadline_s`.
        """
        chunk = Chunk(request)
        at = request.start
        while at < request.end:
            result = await self._pull(request, at, deadline_s)
            if result.status is PullStatus.OFFSET_ILLEGAL:
                next_at = _after_illegal(request, at, result)
            else:
                next_at = max(result.next_offset, at + 1)
                if result.body:
                    chunk.bodies.append((at, result.body))
            chunk.first_advance = chunk.first_advance or next_at - at
            at = next_at
        return chunk

    async def _bounds(self, queue: MessageQueue) -> QueueBounds:
        minimum, maximum = await asyncio.gather(
            self._offsets.minimum(queue), self._offsets.maximum(queue)
        )
        return QueueBounds(min(minimum, maximum), maximum)

    async def _pull(self, request: ChunkRequest, at: int, deadline_s: float) -> PullResult:
        """Pull at one offset; the batch was planned, so what is not there yet must come back."""
        pull = PullRequest(
            group=request.group,
            queue=request.queue,
            queue_offset=at,
            subscription=build_subscription(request.queue.topic, request.tags),
            max_messages=min(request.batch_size, request.end - at),
        )

        async def attempt() -> PullResult:
            result = await self._puller.pull(pull)
            if result.max_offset < request.end and (
                result.status is PullStatus.NO_NEW_MSG or result.next_offset <= at
            ):
                raise _EndMissingError(
                    f"{request.queue} ends at {result.max_offset}, before the planned end "
                    f"{request.end}: messages are gone, or their broker has not come back whole"
                )
            return result

        try:
            return await retry(attempt, deadline_s, f"{request.queue} at {at}")
        except _EndMissingError as exc:
            raise DataLossError(str(exc)) from exc


class _EndMissingError(MailboatError):
    retriable = True


def _after_illegal(request: ChunkRequest, at: int, result: PullResult) -> int:
    """Return where to go on when the broker no longer holds offset `at`."""
    if request.fail_on_data_loss:
        raise DataLossError(
            f"messages {at} to {min(result.min_offset, request.end) - 1} of {request.queue} are "
            f"gone, it begins at {result.min_offset}; set failOnDataLoss to false to go on "
            "without them"
        )
    next_at = min(max(result.min_offset, at + 1), request.end)
    logger.warning("messages %d to %d of %s are gone", at, next_at - 1, request.queue)
    return next_at


async def retry(
    action: Callable[[], Awaitable[_Result]], deadline_s: float, subject: str
) -> _Result:
    """Repeat `action` until it succeeds; at least one try is made.

    Raises:
        MailboatError: waiting cannot help, or the monotonic clock has passed `deadline_s`.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await action()
        except MailboatError as exc:
            if not _may_pass(exc) or time.monotonic() + pause_s > deadline_s:
                raise
            logger.info("%s: %s; tried again in %.2f s", subject, exc, pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


def _may_pass(exc: MailboatError) -> bool:
    if isinstance(exc, BrokerError):
        return exc.code in RETRIED_CODES
    return exc.retriable
