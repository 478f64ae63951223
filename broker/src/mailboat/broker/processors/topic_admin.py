"""Topics, asked about and changed.

    17 UPDATE_AND_CREATE_TOPIC   18 UPDATE_AND_CREATE_TOPIC_LIST   21 GET_ALL_TOPIC_CONFIG
    202 GET_TOPIC_STATS_INFO     215 DELETE_TOPIC_IN_BROKER        351 GET_TOPIC_CONFIG
    305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java @ rocketmq-all-5.3.3.
"""

from collections.abc import Generator
from itertools import islice

from mailboat.broker import administration
from mailboat.broker.cold_looks import LOOKS_TOGETHER, Looks, store_timestamp
from mailboat.broker.context import BrokerContext
from mailboat.broker.processors.checks import require_topic
from mailboat.errors import BrokerError, IllegalMessageError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.topic import FILTER_TYPES, TopicConfig
from mailboat.model.topic_attributes import alter_attributes
from mailboat.protocol.admin_bodies import decode_topic_configs
from mailboat.protocol.bodies import encode_topic_list
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import (
    RemotingCommand,
    optional_bool,
    optional_int32,
    optional_str,
    required_int32,
    required_str,
)
from mailboat.protocol.stats_bodies import TopicOffset, topic_stats_slices
from mailboat.protocol.topic_table import encode_topic_config
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane
from mailboat.remoting.turns import Wait, in_turns, joined_in_turns


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = TopicAdminProcessor(controller)
    dispatcher.register(RequestCode.UPDATE_AND_CREATE_TOPIC, processor.update_topic)
    dispatcher.register(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, processor.update_topics)
    dispatcher.register(RequestCode.GET_ALL_TOPIC_CONFIG, processor.get_all, Lane.LISTING)
    dispatcher.register(RequestCode.GET_TOPIC_STATS_INFO, processor.topic_stats, Lane.LOOK)
    dispatcher.register(RequestCode.DELETE_TOPIC_IN_BROKER, processor.delete_topic)
    dispatcher.register(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, processor.system_topics)
    dispatcher.register(RequestCode.GET_TOPIC_CONFIG, processor.get_topic)


class TopicAdminProcessor:
    """Shows and changes the table of topics."""

    def __init__(self, broker: BrokerContext) -> None:
        """Work on the topics of `broker`."""
        self._broker = broker

    async def update_topic(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Make or change a topic."""
        topic = required_str(command, "topic")
        filter_type = optional_str(command, "topicFilterType")
        config = TopicConfig(
            topic,
            read_queue_nums=required_int32(command, "readQueueNums"),
            write_queue_nums=required_int32(command, "writeQueueNums"),
            perm=required_int32(command, "perm"),
            topic_filter_type=FILTER_TYPES[0] if filter_type is None else filter_type,
            topic_sys_flag=optional_int32(command, "topicSysFlag", 0),
            order=optional_bool(command, "order"),
            attributes=self._attributes(topic, optional_str(command, "attributes") or ""),
        )
        await administration.update_topic(self._broker, config)
        return command.response(ResponseCode.SUCCESS)

    async def update_topics(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Make or change several topics, all of them or none."""
        configs = decode_topic_configs(command.body)
        for config in configs:
            changes = (
                name if name.startswith("-") else f"{name}={value}"
                for name, value in config.attributes.items()
            )
            config.attributes = self._attributes(config.topic_name, ",".join(changes))
        await administration.update_topics(self._broker, configs)
        return command.response(ResponseCode.SUCCESS)

    async def delete_topic(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Remove a topic."""
        await administration.delete_topic(self._broker, required_str(command, "topic"))
        return command.response(ResponseCode.SUCCESS)

    async def get_all(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return every topic's configuration; without paging fields the answer is complete."""
        body = await joined_in_turns(self._broker.topics.encode())
        return command.response(ResponseCode.SUCCESS, body=body)

    def get_topic(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return one topic's configuration."""
        config = require_topic(self._broker, required_str(command, "topic"))
        return command.response(ResponseCode.SUCCESS, body=encode_topic_config(config))

    def system_topics(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the names of the broker's own topics."""
        body = encode_topic_list(self._broker.topics.system_topics)
        return command.response(ResponseCode.SUCCESS, body=body)

    async def topic_stats(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return the bounds of each of a topic's queues."""
        config = require_topic(self._broker, required_str(command, "topic"))
        looks = Looks(self._broker, connection.peer_address)
        table = await in_turns(self._all_bounds(looks, config))
        put_tps = self._broker.stats.topic_put_tps(config.topic_name)
        body = await joined_in_turns(topic_stats_slices(table, put_tps))
        return command.response(ResponseCode.SUCCESS, body=body)

    def _all_bounds(
        self, looks: Looks, config: TopicConfig
    ) -> Generator[Wait | None, None, dict[MessageQueue, TopicOffset]]:
        topic, broker_name = config.topic_name, self._broker.settings.broker.broker_name
        table = {}
        store = self._broker.store
        left = iter(range(max(config.read_queue_nums, config.write_queue_nums)))
        while some := list(islice(left, LOOKS_TOGETHER)):
            ends = {queue_id: store.max_offset(topic, queue_id) for queue_id in some}
            yield from looks.warm_all(
                (store.queues.get(topic, queue_id), end - 1) for queue_id, end in ends.items()
            )
            for queue_id, end in ends.items():
                time_ms = store_timestamp(store, topic, queue_id, end - 1) if end else 0
                bounds = TopicOffset(store.min_offset(topic, queue_id), end, time_ms)
                table[MessageQueue(topic, broker_name, queue_id)] = bounds
                yield None
        return table

    def _attributes(self, topic: str, changes: str) -> dict[str, str]:
        known = self._broker.topics.select(topic)
        try:
            return alter_attributes(None if known is None else known.attributes, changes)
        except IllegalMessageError as error:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"topic {topic}: {error}") from error
