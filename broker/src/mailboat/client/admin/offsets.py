"""Offsets of queues and groups: look at them, move a group's, give one group those of another.

A move is planned first: the plan says where the group is in each queue and where it would go on.

Source: apache/rocketmq tools/admin/DefaultMQAdminExtImpl.java (resetOffsetByTimestamp and the
offline way behind it) and tools/command/offset/CloneGroupOffsetCommand.java.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Final

from mailboat.client.admin.cluster import ClusterAdmin
from mailboat.client.admin.groups import GroupAdmin
from mailboat.client.admin.partly import told_partly
from mailboat.client.broker_calls import call
from mailboat.client.instance import ClientInstance
from mailboat.client.queue_offsets import ConsumeFromWhere, QueueOffsets, StartPoint
from mailboat.errors import BrokerError, MailboatError, RouteNotFoundError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import is_retry_or_dlq
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.protocol.queue_map import decode_offset_table
from mailboat.protocol.stats_bodies import decode_consume_stats

RESET_TIMEOUT_S: Final = 10.0
QUEUES_AT_A_TIME: Final = 32
_LATEST: Final = -1
_NEEDS_OFFLINE_WAY: Final = frozenset(
    {ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
)
_FIRST_TO_RESET_ONE_QUEUE: Final = 5
"""Major version; brokers before it take no single queue to reset, and would reset all of them."""


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """Where a group is in one queue, and where it goes on; `before` is None without an offset."""

    queue: MessageQueue
    before: int | None
    after: int
    min_offset: int
    max_offset: int

    @property
    def is_change(self) -> bool:
        """Whether the group goes on at another place than now."""
        return self.before != self.after


class OffsetAdmin:
    """Reads offsets and moves groups."""

    def __init__(self, instance: ClientInstance, groups: GroupAdmin, cluster: ClusterAdmin) -> None:
        """Use the connections of `instance`."""
        self._instance = instance
        self._groups = groups
        self._cluster = cluster
        self._queue_offsets = QueueOffsets(instance.remoting, instance.routes)

    async def minimum(self, queue: MessageQueue) -> int:
        """Return the first offset that a queue still holds."""
        return await self._queue_offsets.minimum(queue)

    async def maximum(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue gets."""
        return await self._queue_offsets.maximum(queue)

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time."""
        return await self._queue_offsets.at_time(queue, timestamp_ms)

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return a group's stored offset, or None."""
        return await self._queue_offsets.committed(group, queue)

    async def commit(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        """Store a group's offset and make sure that the broker has it.

        Raises:
            MailboatError: the broker keeps another offset: after a reset it takes none until a
                member has gone on where the reset says.
        """
        await self._queue_offsets.commit(group, queue, queue_offset)
        kept = await self.committed(group, queue)
        if kept != queue_offset:
            raise MailboatError(
                f"group {group} stays at offset {kept} of {queue}: it was reset, and takes no "
                "other offset until a member has gone on there"
            )

    async def queues(
        self,
        topic: str,
        *,
        broker_name: str | None = None,
        queue_ids: Collection[int] = (),
    ) -> list[MessageQueue]:
        """Return the readable queues of a topic, those of one broker or with these ids if given.

        Raises:
            RouteNotFoundError: nobody knows the topic, or it has no such queue.
        """
        known = await self._instance.routes.read_queues(topic)
        return self._chosen(topic, list(known), broker_name, queue_ids)

    async def _queues_of(
        self, group: str, topic: str, broker_name: str | None, queue_ids: Collection[int]
    ) -> list[MessageQueue]:
        """Return the queues that a group can be moved in: also those that the topic has no more.

        Raises:
            RouteNotFoundError: as `queues`.
        """
        known = set(await self._instance.routes.read_queues(topic))
        one_of_each = {queue.broker_name: queue for queue in known}
        for name, queue in one_of_each.items():
            if broker_name in (None, name):
                known.update(await self._stored_queues(group, queue))
        return self._chosen(topic, sorted(known), broker_name, queue_ids)

    async def _stored_queues(self, group: str, queue: MessageQueue) -> list[MessageQueue]:
        """Return the queues of a topic that a broker shows a group; none where it does not say."""
        try:
            address = await self._instance.routes.master_address(queue)
            fields: dict[str, ExtValue] = {"consumerGroup": group, "topic": queue.topic}
            code = RequestCode.GET_CONSUME_STATS
            response = await call(self._instance.remoting, address, code, fields)
        except MailboatError:
            return []
        found = decode_consume_stats(response.body).offset_table
        return [each for each in found if each.topic == queue.topic]

    def _chosen(
        self,
        topic: str,
        known: list[MessageQueue],
        broker_name: str | None,
        queue_ids: Collection[int],
    ) -> list[MessageQueue]:
        found = [
            queue
            for queue in known
            if broker_name in (None, queue.broker_name)
            and (not queue_ids or queue.queue_id in queue_ids)
        ]
        if not known:
            raise RouteNotFoundError(
                f"topic {topic} has no readable queue; look at its permission with "
                f"'mailboat topic show {topic}'"
            )
        if not found:
            where = f" on broker {broker_name}" if broker_name else ""
            ids = ", ".join(map(str, sorted(queue_ids)))
            which = f"queue {ids}" if queue_ids else "queue"
            places = ", ".join(f"{each.broker_name}/{each.queue_id}" for each in known)
            raise RouteNotFoundError(f"topic {topic} has no {which}{where}; it has {places}")
        return found

    async def plan(
        self,
        group: str,
        topic: str,
        target: StartPoint | int,
        *,
        broker_name: str | None = None,
        queue_ids: Collection[int] = (),
    ) -> list[OffsetMove]:
        """Return where a group would go on; nothing is changed.

        Args:
            group: the group.
            topic: a topic that it consumes.
            target: the beginning, the end or a time; or an offset for each queue named.
            broker_name: only the queues of this broker.
            queue_ids: only the queues with these ids.

        Raises:
            MailboatError: an offset lies outside of a queue.
        """
        queues = await self._queues_of(group, topic, broker_name, queue_ids)
        room = asyncio.Semaphore(QUEUES_AT_A_TIME)

        async def plan_one(queue: MessageQueue) -> OffsetMove:
            async with room:
                return await self._plan_one(group, queue, target)

        return list(await asyncio.gather(*map(plan_one, queues)))

    async def reset(
        self,
        group: str,
        topic: str,
        target: StartPoint | int,
        *,
        broker_name: str | None = None,
        queue_ids: Collection[int] = (),
    ) -> dict[MessageQueue, int]:
        """Let a group go on elsewhere in a topic; return the new offsets. Arguments as for `plan`.

        A group that is online is moved by its broker, which tells the members; for one that is
        offline the offsets are stored directly.

        Raises:
            MailboatError: the group is online and its broker cannot move online groups, or only
                all queues at once.
            PartlyDoneError: a broker failed after others, or some of its queues, were moved.
        """
        queues = await self._queues_of(group, topic, broker_name, queue_ids)
        moved: dict[MessageQueue, int] = {}
        with told_partly("moved", [_place(queue) for queue in queues]) as done:
            for name in sorted({queue.broker_name for queue in queues}):
                own = [queue for queue in queues if queue.broker_name == name]
                async for table in self._reset_broker(
                    group, own, target, one_by_one=isinstance(target, int) or bool(queue_ids)
                ):
                    moved |= table
                    done += [_place(queue) for queue in sorted(table)]
        return dict(sorted(moved.items()))

    async def plan_clone(
        self, source: str, destination: str, topic: str | None = None
    ) -> list[OffsetMove]:
        """Return what `clone` would do; nothing is changed.

        Raises:
            MailboatError: the source has no offset.
        """
        stats = await self._groups.stats(source, topic)
        moves: list[OffsetMove] = []
        for queue in sorted(stats.offset_table):
            if is_retry_or_dlq(queue.topic):
                continue
            after = await self.committed(source, queue)
            if after is not None:
                before = await self.committed(destination, queue)
                first, end = await self._bounds(queue)
                moves.append(OffsetMove(queue, before, after, first, end))
        if not moves:
            where = f" in topic {topic}" if topic else ""
            raise MailboatError(f"group {source} has no offset{where}; there is nothing to clone")
        return moves

    async def clone(
        self, source: str, destination: str, topic: str | None = None
    ) -> list[OffsetMove]:
        """Let a group go on where another one is, in one topic or in all; return the moves.

        Raises:
            MailboatError: the source has no offset, or the destination is online.
            PartlyDoneError: a broker failed after other offsets were stored.
        """
        moves = await self.plan_clone(source, destination, topic)
        await self._check_offline(destination)
        with told_partly("cloned", [str(move.queue) for move in moves]) as done:
            for move in moves:
                await self.commit(destination, move.queue, move.after)
                done.append(str(move.queue))
        return moves

    async def _plan_one(
        self, group: str, queue: MessageQueue, target: StartPoint | int
    ) -> OffsetMove:
        before = await self.committed(group, queue)
        first, end = await self._bounds(queue)
        after = await self._target_of(queue, target, first, end)
        return OffsetMove(queue, before, after, first, end)

    async def _bounds(self, queue: MessageQueue) -> tuple[int, int]:
        return await self.minimum(queue), await self.maximum(queue)

    async def _target_of(
        self, queue: MessageQueue, target: StartPoint | int, first: int, end: int
    ) -> int:
        if isinstance(target, int):
            if not first <= target <= end:
                raise MailboatError(
                    f"offset {target} is outside of queue {queue}, which goes from {first} to "
                    f"{end}; choose one between"
                )
            return target
        if target.where is ConsumeFromWhere.FIRST_OFFSET:
            return first
        if target.where is ConsumeFromWhere.LAST_OFFSET:
            return end
        return await self.at_time(queue, target.timestamp_ms)

    async def _reset_broker(
        self,
        group: str,
        queues: list[MessageQueue],
        target: StartPoint | int,
        *,
        one_by_one: bool,
    ) -> AsyncIterator[dict[MessageQueue, int]]:
        """Move a group in queues of one broker; yield the new offsets as they are made."""
        left = list(queues)
        if not one_by_one:
            assert isinstance(target, StartPoint)
            table = await self._reset_by_broker(group, queues[0], _reset_fields(target))
            if table is not None:
                yield table
                return
        elif await self._takes_single_queues(group, queues[0]):
            for queue in queues:
                first, end = await self._bounds(queue)
                after = await self._target_of(queue, target, first, end)
                fields: dict[str, ExtValue] = {
                    "timestamp": _LATEST,
                    "queueId": queue.queue_id,
                    "offset": after,
                }
                table = await self._reset_by_broker(group, queue, fields)
                if table is None:
                    break
                left.remove(queue)
                yield table
            if not left:
                return
        await self._check_offline(group)
        for queue in left:
            first, end = await self._bounds(queue)
            after = await self._target_of(queue, target, first, end)
            await self.commit(group, queue, after)
            yield {queue: after}

    async def _takes_single_queues(self, group: str, queue: MessageQueue) -> bool:
        """Tell whether the broker of a queue moves single queues, or has to be gone around."""
        address = await self._instance.routes.master_address(queue)
        version = (await self._cluster.runtime_info(address)).get("brokerVersionDesc", "")
        if resets_single_queues(version):
            return True
        if await self._members(group) == 0:
            return False
        raise MailboatError(
            f"broker {queue.broker_name} runs {version or 'no version'}, which cannot move "
            f"single queues of an online group; stop the members of {group} first"
        )

    async def _reset_by_broker(
        self, group: str, queue: MessageQueue, target_fields: dict[str, ExtValue]
    ) -> dict[MessageQueue, int] | None:
        """Ask the broker of a queue to move the group; None where it has to be done directly."""
        fields: dict[str, ExtValue] = {
            "topic": queue.topic,
            "group": group,
            "isForce": True,
            **target_fields,
        }
        address = await self._instance.routes.master_address(queue)
        try:
            response = await call(
                self._instance.remoting,
                address,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                fields,
                timeout_s=RESET_TIMEOUT_S,
            )
        except BrokerError as error:
            if error.code in _NEEDS_OFFLINE_WAY:
                return None
            raise
        return decode_offset_table(response.body)

    async def _check_offline(self, group: str) -> None:
        members = await self._members(group)
        if members:
            raise MailboatError(
                f"group {group} has {members} members online, which would store their own offsets "
                "again; stop them first"
            )

    async def _members(self, group: str) -> int:
        connection = await self._groups.connection(group)
        return 0 if connection is None else len(connection.connection_set)


def resets_single_queues(version: str) -> bool:
    """Tell whether a broker of a version such as `V5_3_3` resets the one queue that it is told."""
    major = version.removeprefix("V").split("_")[0]
    if major.isdigit():
        return int(major) >= _FIRST_TO_RESET_ONE_QUEUE
    return version == "HIGHER_VERSION"


def _place(queue: MessageQueue) -> str:
    return f"{queue.broker_name}/{queue.queue_id}"


def _reset_fields(target: StartPoint) -> dict[str, ExtValue]:
    timestamp_ms = {
        ConsumeFromWhere.FIRST_OFFSET: 0,
        ConsumeFromWhere.LAST_OFFSET: _LATEST,
        ConsumeFromWhere.TIMESTAMP: target.timestamp_ms,
    }[target.where]
    return {"timestamp": timestamp_ms}
