"""Where a group goes on reading, set by administrators.

    222 INVOKE_BROKER_TO_RESET_OFFSET (and the push 220 RESET_CONSUMER_CLIENT_OFFSET)
    308 QUERY_CORRECTION_OFFSET        314 CLONE_GROUP_OFFSET

A reset changes the offsets here and is noticed by the group's next pulls; with
`useServerSideResetOffset=false` the connected members are told to change theirs, as RocketMQ 4
does it.

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java and
broker/client/net/Broker2Client.java (resetOffset) @ rocketmq-all-5.3.3. There 308 deletes the
offsets of the groups that it is asked to leave out; here it leaves them out.
"""

import logging
from collections.abc import Generator, Iterable
from itertools import chain
from typing import Final

from mailboat.broker.cold_looks import Looks, Steps
from mailboat.broker.context import BrokerContext
from mailboat.broker.offsets import UNKNOWN_OFFSET, refuse_own_group
from mailboat.broker.processors.checks import queues_to_show, require_queue, require_topic
from mailboat.errors import BrokerError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import retry_topic
from mailboat.model.sys_flag import PULL_COMMIT_OFFSET
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import (
    RemotingCommand,
    optional_bool,
    optional_int,
    optional_int32,
    optional_str,
    required_bool,
    required_int,
    required_str,
)
from mailboat.protocol.consumer_bodies import encode_correction_offsets, offset_list_slices
from mailboat.protocol.queue_map import offset_table_slices
from mailboat.protocol.send_header import PullFields
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane
from mailboat.remoting.turns import (
    Wait,
    in_turns,
    joined_in_turns,
    listed_steps,
    sorted_steps,
)
from mailboat.store.lookup import GetResult, GetStatus

_log = logging.getLogger(__name__)

_TO_THE_END: Final = -1
_CPP: Final = "CPP"
_NO_CORRECTION: Final = (1 << 63) - 1


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = OffsetResetProcessor(controller)
    dispatcher.register(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, processor.reset, Lane.LOOK)
    dispatcher.register(RequestCode.QUERY_CORRECTION_OFFSET, processor.correction_offsets)
    dispatcher.register(RequestCode.CLONE_GROUP_OFFSET, processor.clone)


def take_reset(broker: BrokerContext, fields: PullFields) -> GetResult | None:
    """Return what a pull finds instead of messages when its queue was reset, None otherwise."""
    topic, queue_id = fields.topic, fields.queue_id
    has_commit = fields.sys_flag & PULL_COMMIT_OFFSET
    target = broker.offsets.take_reset(
        fields.consumer_group,
        topic,
        queue_id,
        fields.queue_offset,
        fields.commit_offset if has_commit else None,
    )
    if target is None:
        return None
    low, high = broker.store.min_offset(topic, queue_id), broker.store.max_offset(topic, queue_id)
    return GetResult(GetStatus.OFFSET_TOO_SMALL, target, low, high, [], 0, 0)


class OffsetResetProcessor:
    """Changes the offsets of groups."""

    def __init__(self, broker: BrokerContext) -> None:
        """Work on the offsets of `broker`."""
        self._broker = broker

    async def reset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Set a group back or forward in a topic, by time or in one queue by offset."""
        self._broker.refuse_changes()
        topic = required_str(command, "topic")
        group = required_str(command, "group")
        timestamp_ms = required_int(command, "timestamp")
        is_forced = required_bool(command, "isForce")
        refuse_own_group(group)
        _log.info(
            "reset of offsets asked for peer=%s topic=%s group=%s timestamp=%d",
            connection.peer,
            topic,
            group,
            timestamp_ms,
        )
        looks = Looks(self._broker, connection.peer_address)
        if self._broker.settings.broker.use_server_side_reset_offset:
            targets = await in_turns(self._targets(looks, command, topic, group, timestamp_ms))
            self._broker.refuse_changes()  # Another one may lead since.
            await in_turns(self._reset(group, topic, targets))
            self._wake_pulls(topic, targets)
            await self._save(group)
        else:
            targets = await in_turns(
                self._targets_of_members(looks, topic, group, timestamp_ms, is_forced=is_forced)
            )
            await in_turns(self._push(command, topic, group, targets))
        body = await joined_in_turns(offset_table_slices(targets))
        return command.response(ResponseCode.SUCCESS, body=body)

    async def clone(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Give a group the offsets of another one, in one topic or in all.

        Its retry topic is left out, and unless it counts as offline, so are topics that its members
        no longer subscribe to.
        """
        self._broker.refuse_changes()
        source = required_str(command, "srcGroup")
        target = required_str(command, "destGroup")
        topic = optional_str(command, "topic")
        refuse_own_group(target)
        broker = self._broker
        topics = {topic} if topic else broker.offsets.topics_of(source) - {retry_topic(source)}
        if topic:
            require_topic(broker, topic)
        if not broker.offsets.topics_of(source) and broker.groups.select(source) is None:
            raise _no_group(source)
        if broker.quotas is not None:
            broker.quotas.refuse_group(command.asked_by, target)
        if broker.groups.find(target, connection.peer_address) is None:
            raise _no_group(target)
        members = broker.consumers.groups.get(source)
        if not optional_bool(command, "offline") and members is not None and members.subscriptions:
            topics &= members.subscriptions.keys()
        await in_turns(self._clone(source, target, topics))
        _log.info("offsets cloned source=%s target=%s topics=%d", source, target, len(topics))
        await self._save(target)
        return command.response(ResponseCode.SUCCESS)

    def _clone(
        self, source: str, target: str, topics: Iterable[str]
    ) -> Generator[None, None, None]:
        for name in (yield from sorted_steps(topics)):
            if self._broker.topics.select(name) is not None:
                self._broker.offsets.clone(source, target, name)
            yield

    async def correction_offsets(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return how far the slowest group has read each queue of a topic.

        Where that is further than the group to compare with, the answer is the largest int64.
        """
        topic = required_str(command, "topic")
        compared = required_str(command, "compareGroup")
        left_out = set((optional_str(command, "filterGroups") or "").split(","))
        require_topic(self._broker, topic)
        slowest = await in_turns(self._slowest(topic, left_out))
        for queue_id, queue_offset in self._broker.offsets.queues(compared, topic).items():
            if slowest.get(queue_id, UNKNOWN_OFFSET) > queue_offset:
                slowest[queue_id] = _NO_CORRECTION
        return command.response(ResponseCode.SUCCESS, body=encode_correction_offsets(slowest))

    def _slowest(self, topic: str, left_out: set[str]) -> Generator[None, None, dict[int, int]]:
        """Return how far the slowest group has read each queue."""
        offsets, store = self._broker.offsets, self._broker.store
        slowest: dict[int, int] = {}
        for group in offsets.groups_of(topic) - left_out:
            for queue_id, queue_offset in offsets.queues(group, topic).items():
                if queue_offset >= store.min_offset(topic, queue_id):
                    known = slowest.get(queue_id, queue_offset)
                    slowest[queue_id] = min(known, queue_offset)
            yield
        return slowest

    # -- reset on the server ----------------------------------------------------------------------

    def _targets(
        self, looks: Looks, command: RemotingCommand, topic: str, group: str, timestamp_ms: int
    ) -> Generator[Wait | None, None, dict[MessageQueue, int]]:
        """Return where each queue goes; raise BrokerError for what is not there."""
        config = require_topic(self._broker, topic)
        if self._broker.groups.select(group) is None:
            raise _no_group(group)
        queue_id = optional_int32(command, "queueId", -1)
        if queue_id < 0:
            targets = {}
            for each in queues_to_show(self._broker, config, config.read_queue_nums):
                found = yield from self._by_time(looks, topic, each, timestamp_ms)
                targets[self._queue(topic, each)] = found
                yield None
            return targets
        require_queue(self._broker, topic, queue_id)
        queue_offset = optional_int(command, "offset", -1)
        if queue_offset == -1:
            queue_offset = yield from self._by_time(looks, topic, queue_id, timestamp_ms)
        else:
            low = self._broker.store.min_offset(topic, queue_id)
            high = self._broker.store.max_offset(topic, queue_id)
            if not low <= queue_offset <= high:
                raise BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {queue_offset} not in consume queue range [{low}-{high}]",
                )
        return {self._queue(topic, queue_id): queue_offset}

    def _reset(
        self, group: str, topic: str, targets: dict[MessageQueue, int]
    ) -> Generator[None, None, None]:
        for queue, queue_offset in targets.items():
            self._broker.offsets.reset(group, topic, queue.queue_id, queue_offset)
            yield

    def _by_time(self, looks: Looks, topic: str, queue_id: int, timestamp_ms: int) -> Steps:
        if timestamp_ms < 0:
            return self._broker.store.max_offset(topic, queue_id)
        return (yield from looks.offset_by_time(topic, queue_id, timestamp_ms))

    def _wake_pulls(self, topic: str, queues: dict[MessageQueue, int]) -> None:
        """Let pulls that wait for messages notice the reset now."""
        notify = self._broker.store.dispatch.on_arrival
        if notify is not None:
            table = self._broker.store.queues
            found = (table.get(topic, queue.queue_id) for queue in queues)
            notify([queue for queue in found if queue is not None])

    # -- reset by the members ---------------------------------------------------------------------

    def _targets_of_members(
        self, looks: Looks, topic: str, group: str, timestamp_ms: int, *, is_forced: bool
    ) -> Generator[Wait | None, None, dict[MessageQueue, int]]:
        """Return where the members are to go; unless forced, only backwards."""
        config = require_topic(self._broker, topic)
        targets = {}
        for queue_id in range(config.write_queue_nums):
            if timestamp_ms == _TO_THE_END:
                wanted = self._broker.store.max_offset(topic, queue_id)
            else:
                wanted = yield from looks.offset_by_time(topic, queue_id, timestamp_ms)
            committed = self._broker.offsets.query(group, topic, queue_id)
            if committed == UNKNOWN_OFFSET:
                raise BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    f"The consumer group <{group}> not exist: it has no offset in queue "
                    f"{queue_id} of topic {topic}",
                )
            keeps = not is_forced and wanted >= committed
            targets[self._queue(topic, queue_id)] = committed if keeps else wanted
            yield None
        return targets

    def _push(
        self, command: RemotingCommand, topic: str, group: str, targets: dict[MessageQueue, int]
    ) -> Generator[None, None, None]:
        """Send each member of a group where it is to go, a member with each step.

        Raises:
            BrokerError: CONSUMER_NOT_ONLINE, it has none.
        """
        timestamp = required_str(command, "timestamp")
        fields = {"topic": topic, "group": group, "timestamp": timestamp, "isForce": "true"}
        members = self._broker.consumers.groups.get(group)
        if members is None:
            raise BrokerError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} "
                f"Timestamp: {timestamp}",
            )
        # Each form is written once: there may be thousands of queues and of members.
        bodies: dict[bool, bytes] = {}
        for member in chain.from_iterable(members.members.steps()):
            is_cpp = _CPP in (member.language, command.language)
            body = bodies.get(is_cpp)
            if body is None:
                slices = offset_list_slices(targets) if is_cpp else offset_table_slices(targets)
                body = bodies[is_cpp] = b"".join((yield from listed_steps(slices)))
            code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            member.connection.send_oneway(RemotingCommand.request(code, fields, body))
            yield

    # -- both -------------------------------------------------------------------------------------

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker.settings.broker.broker_name, queue_id)

    async def _save(self, group: str) -> None:
        try:
            await self._broker.offsets.persist()
        except OSError as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"the offsets of group {group} are changed, but that could not be saved "
                f"({error.strerror or error}) and would be lost with a restart; saving is tried "
                "again every few seconds",
            ) from error
        await self._broker.known_to_replicas()


def _no_group(group: str) -> BrokerError:
    return BrokerError(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist on this broker"
    )
