"""Consumer groups, asked about and changed.

    200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP       201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    225 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST  352 GET_SUBSCRIPTIONGROUP_CONFIG
    207 DELETE_SUBSCRIPTIONGROUP                  208 GET_CONSUME_STATS
    300 QUERY_TOPIC_CONSUME_BY_WHO                343 QUERY_TOPICS_BY_CONSUMER

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java @ rocketmq-all-5.3.3.
"""

from collections.abc import Generator, Iterable
from itertools import islice
from typing import Final

from mailboat.broker import administration
from mailboat.broker.cold_looks import LOOKS_TOGETHER, Looks, store_timestamp
from mailboat.broker.context import BrokerContext
from mailboat.broker.processors.checks import queues_to_show
from mailboat.errors import BrokerError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.topic import TopicConfig
from mailboat.protocol.admin_bodies import decode_group_configs
from mailboat.protocol.bodies import group_list_slices, topic_list_slices
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import (
    RemotingCommand,
    optional_bool,
    optional_str,
    required_str,
)
from mailboat.protocol.group_table import decode_group_config, encode_group_config
from mailboat.protocol.stats_bodies import ConsumeStats, OffsetWrapper, consume_stats_slices
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane
from mailboat.remoting.turns import Wait, in_turns, joined_in_turns, sorted_steps

STATS_QUEUES_MAX: Final = 100_000
"""Most queues of one answer: those of some more fill a frame."""


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = GroupAdminProcessor(controller)
    dispatcher.register(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, processor.update_group)
    dispatcher.register(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, processor.update_groups
    )
    dispatcher.register(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, processor.get_all, Lane.LISTING
    )
    dispatcher.register(RequestCode.DELETE_SUBSCRIPTIONGROUP, processor.delete_group)
    dispatcher.register(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, processor.get_group)
    dispatcher.register(RequestCode.GET_CONSUME_STATS, processor.consume_stats, Lane.LOOK)
    dispatcher.register(
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, processor.groups_of_topic, Lane.LISTING
    )
    dispatcher.register(
        RequestCode.QUERY_TOPICS_BY_CONSUMER, processor.topics_of_group, Lane.LISTING
    )


class GroupAdminProcessor:
    """Shows and changes the table of groups, and how far they have read."""

    def __init__(self, broker: BrokerContext) -> None:
        """Work on the groups of `broker`."""
        self._broker = broker

    async def update_group(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Make or change a group."""
        await administration.update_group(self._broker, decode_group_config(command.body))
        return command.response(ResponseCode.SUCCESS)

    async def update_groups(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Make or change several groups, all of them or none."""
        await administration.update_groups(self._broker, decode_group_configs(command.body))
        return command.response(ResponseCode.SUCCESS)

    async def delete_group(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Remove a group; version 4 tools ask for its offsets by another name than version 5."""
        await administration.delete_group(
            self._broker,
            required_str(command, "groupName"),
            clean_offset=optional_bool(command, "cleanOffset")
            or optional_bool(command, "removeOffset"),
        )
        return command.response(ResponseCode.SUCCESS)

    async def get_all(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return every group's configuration; without paging fields the answer is complete."""
        body = await joined_in_turns(self._broker.groups.encode())
        return command.response(ResponseCode.SUCCESS, body=body)

    def get_group(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return one group's configuration."""
        group = required_str(command, "group")
        config = self._broker.groups.select(group)
        if config is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"No group in this broker. group: {group}",
            )
        return command.response(ResponseCode.SUCCESS, body=encode_group_config(config))

    async def groups_of_topic(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return the groups that read a topic now or have offsets in it."""
        topic = required_str(command, "topic")
        groups = self._broker.offsets.groups_of(topic)
        groups.update(self._broker.consumers.groups_on_topic(topic))
        in_order = await in_turns(sorted_steps(groups))
        body = await joined_in_turns(group_list_slices(in_order))
        return command.response(ResponseCode.SUCCESS, body=body)

    async def topics_of_group(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return the topics in which a group has offsets."""
        topics = self._broker.offsets.topics_of(required_str(command, "group"))
        in_order = await in_turns(sorted_steps(topics))
        slices = topic_list_slices(in_order, broker_addr=self._broker.address)
        return command.response(ResponseCode.SUCCESS, body=await joined_in_turns(slices))

    async def consume_stats(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return how far a group has read, queue by queue."""
        group = required_str(command, "consumerGroup")
        topics = await in_turns(self._topics_to_show(group, command))
        known = [config for config in map(self._broker.topics.select, topics) if config]
        looks = Looks(self._broker, connection.peer_address)
        stats = await in_turns(consume_stats(self._broker, looks, group, known))
        body = await joined_in_turns(consume_stats_slices(stats))
        return command.response(ResponseCode.SUCCESS, body=body)

    def _topics_to_show(
        self, group: str, command: RemotingCommand
    ) -> Generator[None, None, list[str]]:
        """Return the topics asked for, or all with offsets; members must still subscribe to them.

        A list of topics, which only version 5 tools send, is taken as it is.
        """
        listed = [name for name in (optional_str(command, "topicList") or "").split(";") if name]
        if listed:
            return list(dict.fromkeys(listed))
        topic = optional_str(command, "topic")
        topics = {topic} if topic else self._broker.offsets.topics_of(group)
        members = self._broker.consumers.groups.get(group)
        if members is not None and members.subscriptions:
            topics &= members.subscriptions.keys()
        return (yield from sorted_steps(topics))


def too_many_queues(group: str) -> BrokerError:
    """Return the refusal of an answer that would not fit a frame."""
    return BrokerError(
        ResponseCode.SYSTEM_ERROR,
        f"more than {STATS_QUEUES_MAX} queues up to group {group}: ask for fewer topics or groups",
    )


def consume_stats(
    broker: BrokerContext,
    looks: Looks,
    group: str,
    configs: Iterable[TopicConfig],
    queues: int | None = None,
) -> Generator[Wait | None, None, ConsumeStats]:
    """Return how far a group has read in topics; `queues` replaces their readable queues.

    Yields after each queue.

    Raises:
        BrokerError: SYSTEM_ERROR, the queues are more than a frame can hold.
    """
    stats = ConsumeStats()
    for config in configs:
        if len(stats.offset_table) > STATS_QUEUES_MAX:
            raise too_many_queues(group)
        topic = config.topic_name
        count = config.read_queue_nums if queues is None else queues
        left = iter(queues_to_show(broker, config, count))
        while some := list(islice(left, LOOKS_TOGETHER)):
            read = [max(broker.offsets.query(group, topic, each), 0) for each in some]
            table = broker.store.queues
            places = [(table.get(topic, each), at - 1) for each, at in zip(some, read, strict=True)]
            yield from looks.warm_all(places)
            for queue_id, committed in zip(some, read, strict=True):
                queue = MessageQueue(topic, broker.settings.broker.broker_name, queue_id)
                stats.offset_table[queue] = _progress(broker, group, topic, queue_id, committed)
                yield None
        stats.consume_tps += broker.stats.group_get_tps(topic, group)
    return stats


def _progress(
    broker: BrokerContext, group: str, topic: str, queue_id: int, committed: int
) -> OffsetWrapper:
    store = broker.store
    pulled = broker.offsets.query_pulled(group, topic, queue_id)
    timestamp_ms = store_timestamp(store, topic, queue_id, committed - 1)
    return OffsetWrapper(
        broker_offset=store.max_offset(topic, queue_id),
        consumer_offset=committed,
        last_timestamp=max(timestamp_ms, 0),
        pull_offset=max(committed, pulled),
    )
