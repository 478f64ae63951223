"""What the source asks brokers, with retries up to a deadline.

An error in `latestOffset` ends a Spark query at once, and one in a task ends it after a few tries.
A broker that restarts must not do that, so every call here is repeated until it succeeds or its
time is over. Only refusals that cannot change by waiting are raised at once.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias, TypeVar

from mailboat.client import ClientSecurity
from mailboat.client.admin import ClusterAdmin
from mailboat.client.instance import ClientInstance
from mailboat.client.pulling import Puller, PullRequest, PullResult, PullStatus
from mailboat.client.queue_offsets import QueueOffsets as OffsetCalls
from mailboat.client.refusals import is_denied
from mailboat.errors import (
    BrokerError,
    MailboatError,
    RemotingError,
    RouteNotFoundError,
)
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import build_subscription
from mailboat_spark.offsets import PlacedWitness, Witness
from mailboat_spark.planning import QueueBounds, QueueRange
from mailboat_spark.records import witness_of

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
COMMIT_TIMEOUT_S: Final = 3.0
_WITNESSES_AT_A_TIME: Final = 8
# Also what a broker of ours answers that is not the one asked for.
_SERVICE_NOT_AVAILABLE: Final = 14
# SYSTEM_ERROR and SYSTEM_BUSY too: what brokers answer while they start or stop.
RETRIED_CODES: Final = frozenset({1, 2, _SERVICE_NOT_AVAILABLE})
_NO_TOPIC_CODE: Final = 17
# A queue id that the topic does not have: INVALID_PARAMETER, before release 5 SYSTEM_ERROR; the
# remark tells these from other refusals.
_NO_QUEUE_CODES: Final = frozenset({29, 1})
_NO_QUEUE_REMARK: Final = "queueId"
_NO_GROUP_CODE: Final = 26
_HINT: Final = "set failOnDataLoss to false to go on without them"


Place: TypeAlias = tuple[MessageQueue, int]
"""A queue and a queue offset in it."""


class DataLossError(MailboatError):
    """Messages that the query should read are gone."""


class OtherQueueError(MailboatError):
    """What was read came from another broker than the one of the queue; trying again helps."""

    retriable = True


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """A chunk of a queue to pull; `once` stops after one pull, wherever that got to.

    So do bodies of `max_bytes` in sum, because the messages of a chunk may be of any size.
    """

    chunk: QueueRange
    group: str
    tags: str
    batch_size: int
    max_bytes: int
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

    def __init__(self, namesrv: str, security: ClientSecurity) -> None:
        """Prepare a client; call `start` before anything else.

        Raises:
            ConfigError: `namesrv` is not a list of addresses.
        """
        self._namesrv = namesrv
        self._instance = ClientInstance(namesrv, security)
        self._puller = Puller(self._instance.remoting, self._instance.routes)
        self._offsets = OffsetCalls(self._instance.remoting, self._instance.routes)
        self._cluster = ClusterAdmin(self._instance)
        # By group, so that a commit which fails again and again is told of once.
        self._failing_commits: dict[str, set[MessageQueue]] = {}

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
            RouteNotFoundError: no broker had registered a topic before `deadline_s` (of the
                monotonic clock).
            MailboatError: no success before `deadline_s`.
        """

        async def ask(topic: str) -> dict[MessageQueue, QueueBounds]:
            await self._instance.routes.refresh(topic)
            queues = await self._instance.routes.read_queues(topic)
            try:
                found = await asyncio.gather(*(self._bounds(queue) for queue in queues))
            except BrokerError as exc:
                if not has_no_queue(exc):
                    raise
                # The name server learns a little later than the broker what was deleted.
                raise RouteNotFoundError(f"topic {topic} has lost a queue: {exc}") from exc
            return dict(zip(queues, found, strict=True))

        answers = await asyncio.gather(
            *(retry(partial(ask, topic), deadline_s, f"topic {topic}") for topic in topics)
        )
        return {queue: bounds for answer in answers for queue, bounds in answer.items()}

    async def witnesses(
        self, places: Collection[Place], group: str, deadline_s: float
    ) -> dict[Place, Witness]:
        """Return what tells the records at some places from others that may come to lie there.

        A place is left out where no record is to be had: it expired, it is not there yet, the
        broker refuses.

        Raises:
            MailboatError: a broker did not answer before `deadline_s`.
        """
        # Each answer is a whole message.
        gate = asyncio.Semaphore(_WITNESSES_AT_A_TIME)

        async def ask(place: Place) -> Witness | None:
            queue, queue_offset = place
            pull = PullRequest(
                group=group,
                queue=queue,
                queue_offset=queue_offset,
                subscription=build_subscription(queue.topic, None),
                max_messages=1,
            )

            async def attempt() -> Witness | None:
                try:
                    answer = await self._pull_once(pull)
                    if answer.min_offset <= queue_offset < answer.max_offset and not answer.body:
                        # An administrator has reset the group, which its next pull is told once.
                        answer = await self._pull_once(pull)
                except RouteNotFoundError:
                    return None
                return witness_of(answer.body, queue_offset)

            async with gate:
                try:
                    return await retry(attempt, deadline_s, f"{queue} at {queue_offset}")
                except BrokerError as exc:
                    logger.info("%s at %d is not compared: %s", queue, queue_offset, exc)
                    return None

        wanted = list(places)
        found = await asyncio.gather(*map(ask, wanted))
        return {place: witness for place, witness in zip(wanted, found, strict=True) if witness}

    async def compare(
        self, known: Mapping[MessageQueue, PlacedWitness], group: str, deadline_s: float
    ) -> str | None:
        """Look whether queues are still those that were planned; return what is wrong if not.

        RocketMQ's brokers do not mind being asked for another one's queue, so one that has got its
        address is told by its messages only. What is not there any more is not compared.

        Raises:
            OtherQueueError: where the queue's broker is now, the queue is as it was.
            MailboatError: a broker did not answer before `deadline_s`.
        """

        async def others() -> set[MessageQueue]:
            places = {(queue, placed.queue_offset): placed for queue, placed in known.items()}
            found = await self.witnesses(places, group, deadline_s)
            return {place[0] for place in found if found[place] != places[place].witness}

        strange = await others()
        if not strange:
            return None
        for topic in {queue.topic for queue in strange}:
            await retry(partial(self._instance.routes.refresh, topic), deadline_s, f"topic {topic}")
        lasting = sorted(strange & await others())
        if not lasting:
            raise OtherQueueError(
                f"{min(strange)} was read where another broker is by now; it is read again"
            )
        queue = lasting[0]
        return (
            f"{queue} holds another message at {known[queue].queue_offset} than when the batch was "
            "planned: it was made anew, or has become shorter and grown again"
        )

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

    async def commit(
        self, group: str, offsets: Mapping[MessageQueue, int]
    ) -> Collection[MessageQueue]:
        """Store offsets for the group, so that tools see its lag; return the queues that have them.

        The checkpoint is what counts for the query: a commit that fails is logged, and the next one
        makes up for it. Brokers keep offsets of groups that they know only, and a query is no
        member of its group that tells them by heartbeats, so a pull makes the group where it must.
        """
        failures = await self._offsets.commit_all(group, offsets, timeout_s=COMMIT_TIMEOUT_S)
        unknown_at = {
            queue.broker_name: queue
            for queue, exc in failures.items()
            if isinstance(exc, BrokerError) and exc.code == _NO_GROUP_CODE
        }
        made = await asyncio.gather(
            *(self._make_group(group, queue) for queue in unknown_at.values())
        )
        brokers = {name for name, is_made in zip(unknown_at, made, strict=True) if is_made}
        again = {queue: offsets[queue] for queue in failures if queue.broker_name in brokers}
        failures = {
            **{queue: exc for queue, exc in failures.items() if queue not in again},
            **await self._offsets.commit_all(group, again, timeout_s=COMMIT_TIMEOUT_S),
        }
        self._warn_of_commits(group, offsets, failures)
        return offsets.keys() - failures.keys()

    async def fetch(self, request: ChunkRequest, deadline_s: float) -> Chunk:
        """Pull what the broker holds of a chunk.

        Raises:
            DataLossError: something of it is gone, and the request says to fail then.
            MailboatError: no success before `deadline_s`.
        """
        end = request.chunk.end
        result = Chunk(request, reached=request.chunk.start)
        size = 0
        while result.reached < end:
            at = result.reached
            try:
                answer = await self._pull(request, at, deadline_s)
            except _QueueEndedError as exc:
                if request.fail_on_data_loss:
                    raise DataLossError(f"{exc}; {_HINT}") from exc
                logger.warning("%s", exc)
                result.queue_ended = True
                return result
            if answer.status is PullStatus.OFFSET_ILLEGAL:
                result.reached = _after_expired(request, at, answer.min_offset)
            else:
                result.reached = min(max(answer.next_offset, at + 1), end)
                if answer.body:
                    result.bodies.append(answer.body)
                    size += len(answer.body)
            result.first_advance = result.first_advance or result.reached - at
            if request.once or size >= request.max_bytes:
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
                answer = await self._pull_once(pull)
            except (BrokerError, RouteNotFoundError) as exc:
                if isinstance(exc, RouteNotFoundError) or has_no_queue(exc):
                    await self._check_owner(pull, end)
                raise
            is_past_end = answer.status is PullStatus.OFFSET_ILLEGAL and at >= answer.min_offset
            if answer.status is PullStatus.NO_NEW_MSG or is_past_end:
                raise _QueueEndedError(
                    f"{queue} ends at {answer.max_offset}, before the planned offset {end}: "
                    "messages are gone, or the broker has not come back whole"
                )
            return answer

        return await retry(attempt, deadline_s, f"{queue} at {at}")

    async def _pull_once(self, pull: PullRequest) -> PullResult:
        try:
            return await self._puller.pull(pull)
        except (RemotingError, BrokerError) as exc:
            if isinstance(exc, BrokerError) and exc.code != _SERVICE_NOT_AVAILABLE:
                raise
            # The broker may come back at another address.
            await self._instance.routes.refresh(pull.queue.topic)
            raise

    async def _check_owner(self, pull: PullRequest, end: int) -> None:
        """Find out whether a queue is gone, or only out of reach.

        A topic without a route looks the same whether it was deleted or its brokers are away, and
        an address may belong to another broker by now. So the broker of the queue's name, at the
        address that it has now, must itself say that it does not have the queue.

        Raises:
            _QueueEndedError: the queue is gone.
            RouteNotFoundError, RemotingError: its broker is away, or was asked for elsewhere.
        """
        queue = pull.queue
        refusal = await self._refusal_of_master(pull)
        if refusal is not None and has_no_queue(refusal):
            raise _QueueEndedError(
                f"{queue} does not exist any more, messages {pull.queue_offset} to {end - 1} of it "
                f"are gone ({refusal})"
            )
        await self._instance.routes.refresh(queue.topic)
        raise RouteNotFoundError(f"{queue} was asked for where it is not; its master has it")

    async def _make_group(self, group: str, queue: MessageQueue) -> bool:
        """Make a group known to a broker by a pull that brings nothing; tell whether it may be."""
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                pull = PullRequest(
                    group=group,
                    queue=queue,
                    queue_offset=await self._offsets.maximum(queue),
                    subscription=build_subscription(queue.topic, None),
                    max_messages=1,
                )
                refusal = await self._refusal_of_master(pull)
        except (MailboatError, TimeoutError) as exc:
            logger.info("group %s is not made at %s: %s", group, queue.broker_name, exc)
            return False
        return refusal is None or refusal.code != _NO_GROUP_CODE

    async def _refusal_of_master(self, pull: PullRequest) -> BrokerError | None:
        """Pull from the queue's master, wherever it is now; return what it answers but messages."""
        [master, *_] = await self._cluster.masters(broker_name=pull.queue.broker_name)
        answer = await self._instance.remoting.request(
            master.address, pull.to_command(), COMMIT_TIMEOUT_S
        )
        return None if answer.code == 0 else BrokerError(answer.code, answer.remark or "")

    def _warn_of_commits(
        self,
        group: str,
        offsets: Mapping[MessageQueue, int],
        failures: Mapping[MessageQueue, MailboatError],
    ) -> None:
        """Tell of queues whose commits begin to fail."""
        before = self._failing_commits.get(group, set())
        self._failing_commits[group] = (before - offsets.keys()) | failures.keys()
        for queue in sorted(failures.keys() - before)[:1]:
            logger.warning(
                "commit group=%s failed for %d of %d queues, repeated later; %s: %s",
                group,
                len(failures),
                len(offsets),
                queue,
                failures[queue],
            )


class _QueueEndedError(MailboatError):
    retriable = True


def _after_expired(request: ChunkRequest, at: int, minimum: int) -> int:
    """Return where to go on when the broker no longer holds offset `at`."""
    next_at = min(minimum, request.chunk.end)
    text = f"messages {at} to {next_at - 1} of {request.chunk.queue} are gone"
    if request.fail_on_data_loss:
        raise DataLossError(f"{text}; {_HINT}")
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


def has_no_queue(exc: BrokerError) -> bool:
    """Tell whether a broker refused because it does not have the topic or the queue."""
    if exc.code in _NO_QUEUE_CODES:
        return _NO_QUEUE_REMARK in exc.remark
    return exc.code == _NO_TOPIC_CODE


def _may_pass(exc: MailboatError) -> bool:
    if isinstance(exc, BrokerError):
        return exc.code in RETRIED_CODES and not is_denied(exc)
    return exc.retriable
