"""What the source asks brokers, with retries up to a deadline.

An error in `latestOffset` ends a Spark query at once, and one in a task ends it after a few tries.
A broker that restarts must not do that, so every call here is repeated until it succeeds or its
time is over. Only refusals that cannot change by waiting are raised at once.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from mailboat.client.instance import ClientInstance
from mailboat.client.pulling import Puller, PullRequest, PullResult, PullStatus
from mailboat.client.queue_offsets import QueueOffsets as OffsetCalls
from mailboat.errors import BrokerError, MailboatError, RemotingError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import build_subscription
from mailboat_spark.planning import QueueBounds, QueueRange

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
    """A chunk of a queue to pull; `once` stops after one pull, wherever that got to."""

    chunk: QueueRange
    group: str
    tags: str
    batch_size: int
    fail_on_data_loss: bool
    once: bool = False


@dataclass(slots=True)
class Chunk:
    """What was pulled of a chunk: the answers' bodies in order, up to the offset `reached`."""

    request: ChunkRequest
    reached: int
    bodies: list[bytes] = field(default_factory=list)
    first_advance: int = 0
    """How many offsets the first pull covered; tells how much a broker gives at a time."""
    queue_ended: bool = False
    """The queue holds nothing from `reached` on, although the chunk was planned."""


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
            *(retry(partial(ask, topic), deadline_s, f"topic {topic}") for topic in topics)
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

    async def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> bool:
        """Store offsets for the group, so that tools see its lag; tell whether all are stored.

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
            return False
        return True

    async def fetch(self, request: ChunkRequest, deadline_s: float) -> Chunk:
        """Pull what the broker holds of a chunk.

        Raises:
            DataLossError: something of it is gone, and the request says to fail then.
            MailboatError: no success before `deadline_s`.
        """
        end = request.chunk.end
        result = Chunk(request, reached=request.chunk.start)
        while result.reached < end:
            at = result.reached
            try:
                answer = await self._pull(request, at, deadline_s)
            except _QueueEndedError as exc:
                if request.fail_on_data_loss:
                    raise DataLossError(str(exc)) from exc
                logger.warning("%s", exc)
                result.queue_ended = True
                return result
            if answer.status is PullStatus.OFFSET_ILLEGAL:
                result.reached = _after_expired(request, at, answer.min_offset)
            else:
                result.reached = min(max(answer.next_offset, at + 1), end)
                if answer.body:
                    result.bodies.append(answer.body)
            result.first_advance = result.first_advance or result.reached - at
            if request.once:
                break
        return result

    async def _bounds(self, queue: MessageQueue) -> QueueBounds:
        minimum, maximum = await asyncio.gather(
            self._offsets.minimum(queue), self._offsets.maximum(queue)
        )
        return QueueBounds(min(minimum, maximum), maximum)

    async def _pull(self, request: ChunkRequest, at: int, deadline_s: float) -> PullResult:
        """Pull at one offset.

        The chunk was there when the batch was planned, so what is missing now may come back.
        """
        queue, end = request.chunk.queue, request.chunk.end
        pull = PullRequest(
            group=request.group,
            queue=queue,
            queue_offset=at,
            subscription=build_subscription(queue.topic, request.tags),
            max_messages=min(request.batch_size, end - at),
        )

        async def attempt() -> PullResult:
            try:
                answer = await self._puller.pull(pull)
            except RemotingError:
                # The broker may come back at another address.
                await self._instance.routes.refresh(queue.topic)
                raise
            is_past_end = answer.status is PullStatus.OFFSET_ILLEGAL and at >= answer.min_offset
            if answer.status is PullStatus.NO_NEW_MSG or is_past_end:
                raise _QueueEndedError(
                    f"{queue} ends at {answer.max_offset}, before the planned offset {end}: "
                    "messages are gone, or the broker has not come back whole"
                )
            return answer

        return await retry(attempt, deadline_s, f"{queue} at {at}")


class _QueueEndedError(MailboatError):
    retriable = True


def _after_expired(request: ChunkRequest, at: int, minimum: int) -> int:
    """Return where to go on when the broker no longer holds offset `at`."""
    next_at = min(minimum, request.chunk.end)
    text = f"messages {at} to {next_at - 1} of {request.chunk.queue} are gone"
    if request.fail_on_data_loss:
        raise DataLossError(f"{text}; set failOnDataLoss to false to go on without them")
    logger.warning("%s", text)
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
