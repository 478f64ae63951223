"""Offsets of queues and groups: look at them, move a group's.

Source: apache/rocketmq tools/admin/DefaultMQAdminExtImpl.java (resetOffsetByTimestamp and the
offline way behind it).
"""

from typing import Final

from mailboat.client.admin.groups import GroupAdmin
from mailboat.client.broker_calls import call
from mailboat.client.instance import ClientInstance
from mailboat.client.queue_offsets import ConsumeFromWhere, QueueOffsets, StartPoint
from mailboat.errors import BrokerError, MailboatError
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue
from mailboat.protocol.queue_map import decode_offset_table

RESET_TIMEOUT_S: Final = 10.0
_LATEST: Final = -1
_NEEDS_OFFLINE_WAY: Final = frozenset(
    {ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
)


class OffsetAdmin:
    """Reads offsets and moves groups."""

    def __init__(self, instance: ClientInstance, groups: GroupAdmin) -> None:
        """Use the connections of `instance`."""
        self._instance = instance
        self._groups = groups
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

    async def reset(self, group: str, topic: str, target: StartPoint) -> dict[MessageQueue, int]:
        """Let a group go on at the beginning, the end or a time of a topic; return the new offsets.

        A group that is online is moved by its broker, which tells the members; for one that is
        offline the offsets are stored directly.

        Raises:
            MailboatError: the group is online and its broker cannot move online groups.
        """
        queues = await self._instance.routes.read_queues(topic)
        moved: dict[MessageQueue, int] = {}
        for broker_name in sorted({queue.broker_name for queue in queues}):
            own = [queue for queue in queues if queue.broker_name == broker_name]
            table = await self._reset_by_broker(group, own[0], target)
            moved |= await self._reset_directly(group, own, target) if table is None else table
        return dict(sorted(moved.items()))

    async def _reset_by_broker(
        self, group: str, queue: MessageQueue, target: StartPoint
    ) -> dict[MessageQueue, int] | None:
        """Ask the broker of a queue to move the group; None where it has to be done directly."""
        timestamp_ms = {
            ConsumeFromWhere.FIRST_OFFSET: 0,
            ConsumeFromWhere.LAST_OFFSET: _LATEST,
            ConsumeFromWhere.TIMESTAMP: target.timestamp_ms,
        }[target.where]
        fields: dict[str, ExtValue] = {
            "topic": queue.topic,
            "group": group,
            "timestamp": timestamp_ms,
            "isForce": True,
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

    async def _reset_directly(
        self, group: str, queues: list[MessageQueue], target: StartPoint
    ) -> dict[MessageQueue, int]:
        connection = await self._groups.connection(group)
        if connection is not None and connection.connection_set:
            raise MailboatError(
                f"group {group} has {len(connection.connection_set)} members online, which would "
                "store their own offsets again; stop them first"
            )
        moved: dict[MessageQueue, int] = {}
        for queue in queues:
            moved[queue] = await self._queue_offsets.start_of(queue, target)
            await self._queue_offsets.commit(group, queue, moved[queue])
        return moved
