"""Offsets of groups and bounds of queues.

    14 QUERY_CONSUMER_OFFSET       15 UPDATE_CONSUMER_OFFSET   43 GET_ALL_CONSUMER_OFFSET
    29 SEARCH_OFFSET_BY_TIMESTAMP  30 GET_MAX_OFFSET           31 GET_MIN_OFFSET
    32 GET_EARLIEST_MSG_STORETIME

Where RocketMQ answers an unknown topic or queue with success and an offset, mailboat refuses.

Source: apache/rocketmq broker/processor/ConsumerManageProcessor.java and AdminBrokerProcessor.java
@ rocketmq-all-5.3.3.
"""

from collections.abc import Awaitable

from mailboat.broker.cold_looks import Looks, Steps
from mailboat.broker.context import BrokerContext
from mailboat.broker.offsets import UNKNOWN_OFFSET, refuse_own_group
from mailboat.broker.processors.checks import (
    has_queue,
    require_queue,
    require_topic,
)
from mailboat.errors import BrokerError
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import (
    RemotingCommand,
    optional_bool,
    optional_str,
    required_int,
    required_int32,
    required_str,
)
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane
from mailboat.remoting.turns import first_turn, in_turns, joined_in_turns


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = OffsetProcessor(controller)
    dispatcher.register(RequestCode.QUERY_CONSUMER_OFFSET, processor.query, Lane.MEMBER)
    dispatcher.register(RequestCode.UPDATE_CONSUMER_OFFSET, processor.update, Lane.MEMBER)
    dispatcher.register(RequestCode.GET_ALL_CONSUMER_OFFSET, processor.get_all, Lane.LISTING)
    dispatcher.register(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, processor.search_by_timestamp, Lane.LOOK
    )
    dispatcher.register(RequestCode.GET_MAX_OFFSET, processor.max_offset)
    dispatcher.register(RequestCode.GET_MIN_OFFSET, processor.min_offset)
    dispatcher.register(
        RequestCode.GET_EARLIEST_MSG_STORETIME, processor.earliest_store_time, Lane.LOOK
    )


class OffsetProcessor:
    """Reads and writes committed offsets, reads the store's bounds."""

    def __init__(self, broker: BrokerContext) -> None:
        """Work on the offsets and the store of `broker`."""
        self._broker = broker

    def query(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Return a group's committed offset.

        Without one, a young queue reads as 0, so that a new group misses nothing: nothing has
        expired, and its first message is recent or yet to come, as release 4.9 has it. Otherwise
        the client's own start rule applies. (Release 5 answers 22 for an empty queue. What is
        stored before the client's next question, which is for the end, is then skipped.)
        """
        group, topic, queue_id = _queue_of_group(command)
        queue_offset = self._broker.offsets.query(group, topic, queue_id)
        if queue_offset != UNKNOWN_OFFSET or not optional_bool(command, "setZeroIfNotFound", True):
            return self._committed(command, queue_offset)
        looks = Looks(self._broker, connection.peer_address)
        steps = self._start_of_young_queue(looks, topic, queue_id)
        start = first_turn(steps)
        if start is None:
            return self._young_start(command, steps)
        return self._committed(command, start)

    async def _young_start(self, command: RemotingCommand, steps: Steps) -> RemotingCommand:
        start = await in_turns(steps)
        # Another member may have committed meanwhile.
        committed = self._broker.offsets.query(*_queue_of_group(command))
        return self._committed(command, start if committed == UNKNOWN_OFFSET else committed)

    def _committed(self, command: RemotingCommand, queue_offset: int) -> RemotingCommand:
        group, topic, queue_id = _queue_of_group(command)
        if queue_offset == UNKNOWN_OFFSET:
            # Ours: a new group that begins at the end need not ask again, and so skips nothing.
            is_known = has_queue(self._broker, topic, queue_id)
            end = self._broker.store.max_offset(topic, queue_id)
            return command.response(
                ResponseCode.QUERY_NOT_FOUND,
                f"Not found, group {group} has no offset yet in queue {queue_id} of topic {topic}",
                {"maxOffset": end} if is_known else None,
            )
        return command.response(ResponseCode.SUCCESS, None, {"offset": queue_offset})

    def update(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Commit a group's offset, forward or back.

        Negatives are ignored, and so is everything while a reset waits for the group's next pull.
        What lies beyond the queue's end is refused: whoever commits it read another log, and the
        group would skip what comes.
        """
        group = required_str(command, "consumerGroup")
        topic = required_str(command, "topic")
        queue_id = required_int32(command, "queueId")
        queue_offset = required_int(command, "commitOffset")
        refuse_own_group(group)
        if self._broker.groups.select(group) is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!"
            )
        require_topic(self._broker, topic)
        require_queue(self._broker, topic, queue_id)
        if self._broker.offsets.is_reset(group, topic, queue_id):
            return command.response(ResponseCode.SUCCESS, "Offset has been previously reset")
        store = self._broker.store
        end = store.max_offset(topic, queue_id)
        if not self._broker.is_leading:
            # Of what it has, a slave does not know at once that its master has shown it.
            end = store.queues.next_offset(topic, queue_id)
        if queue_offset > end:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"commitOffset {queue_offset} is beyond the end of queue {queue_id} of topic "
                f"{topic}, whose next message gets {end}; the offset of group {group} is unchanged",
            )
        self._broker.offsets.commit(group, topic, queue_id, queue_offset)
        return command.response(ResponseCode.SUCCESS)

    async def get_all(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return every committed offset."""
        body = await joined_in_turns(self._broker.offsets.encode())
        return command.response(ResponseCode.SUCCESS, body=body)

    def max_offset(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the offset that a queue's next message gets."""
        topic, queue_id = self._queue(command)
        return self._offset(command, self._broker.store.max_offset(topic, queue_id))

    def min_offset(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the offset of a queue's oldest message."""
        topic, queue_id = self._queue(command)
        return self._offset(command, self._broker.store.min_offset(topic, queue_id))

    async def search_by_timestamp(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return the offset of the first message stored at a time or later."""
        topic, queue_id = self._queue(command)
        timestamp_ms = required_int(command, "timestamp")
        upper = (optional_str(command, "boundaryType") or "").upper() == "UPPER"
        looks = Looks(self._broker, connection.peer_address)
        steps = looks.offset_by_time(topic, queue_id, timestamp_ms, upper=upper)
        return self._offset(command, await in_turns(steps))

    async def earliest_store_time(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return when a queue's oldest message was stored, -1 if it has none."""
        topic, queue_id = self._queue(command)
        looks = Looks(self._broker, connection.peer_address)
        first = self._broker.store.min_offset(topic, queue_id)
        timestamp_ms = await in_turns(looks.timestamp(topic, queue_id, first))
        return command.response(ResponseCode.SUCCESS, None, {"timestamp": timestamp_ms})

    def _start_of_young_queue(self, looks: Looks, topic: str, queue_id: int) -> Steps:
        store = self._broker.store
        if not has_queue(self._broker, topic, queue_id) or store.min_offset(topic, queue_id):
            return UNKNOWN_OFFSET
        queue = store.queues.get(topic, queue_id)
        if store.warming.is_hot(queue, 0):
            return 0
        yield from looks.warm(queue, 0)
        try:
            first = store.physical_position(topic, queue_id, 0)
        except OSError:
            return UNKNOWN_OFFSET
        if store.min_offset(topic, queue_id):
            return UNKNOWN_OFFSET  # It went meanwhile.
        return 0 if first is None or store.warming.is_hot_at(first) else UNKNOWN_OFFSET

    def _queue(self, command: RemotingCommand) -> tuple[str, int]:
        topic = required_str(command, "topic")
        queue_id = required_int32(command, "queueId")
        require_queue(self._broker, topic, queue_id)
        return topic, queue_id

    def _offset(self, command: RemotingCommand, queue_offset: int) -> RemotingCommand:
        return command.response(ResponseCode.SUCCESS, None, {"offset": queue_offset})


def _queue_of_group(command: RemotingCommand) -> tuple[str, str, int]:
    """Return group, topic and queue id of a request."""
    group, topic = required_str(command, "consumerGroup"), required_str(command, "topic")
    return group, topic, required_int32(command, "queueId")
