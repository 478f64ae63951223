"""What groups read: 303 QUERY_CONSUME_TIME_SPAN, 345 QUERY_SUBSCRIPTION_BY_CONSUMER.

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java @ rocketmq-all-5.3.3.
"""

import time
from collections.abc import Generator
from functools import partial

from mailboat.broker.cold_looks import Looks, store_timestamp
from mailboat.broker.context import BrokerContext
from mailboat.broker.processors.checks import require_topic
from mailboat.errors import BrokerError
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, required_str
from mailboat.protocol.consumer_bodies import (
    QueueTimeSpan,
    encode_group_subscription,
    encode_time_spans,
)
from mailboat.protocol.queue_map import MessageQueueBody
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane
from mailboat.remoting.turns import Wait, in_turns


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = ConsumerAdminProcessor(controller)
    dispatcher.register(RequestCode.QUERY_CONSUME_TIME_SPAN, processor.time_span, Lane.LOOK)
    dispatcher.register(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, processor.subscription)


class ConsumerAdminProcessor:
    """Shows what groups read and how old it is."""

    def __init__(self, broker: BrokerContext) -> None:
        """Look at the groups of `broker`."""
        self._broker = broker

    async def time_span(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return for each queue of a topic the age of what a group has read."""
        topic = required_str(command, "topic")
        group = required_str(command, "group")
        config = require_topic(self._broker, topic)
        self._require_group(group)
        looks = Looks(self._broker, connection.peer_address)
        spans = await in_turns(self._spans(looks, group, topic, config.write_queue_nums))
        return command.response(ResponseCode.SUCCESS, body=encode_time_spans(spans))

    def subscription(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return what a group's connected members subscribe to in a topic."""
        topic = required_str(command, "topic")
        group = required_str(command, "group")
        self._require_group(group)
        found = self._broker.consumers.find_subscription(group, topic)
        body = encode_group_subscription(group, topic, found)
        return command.response(ResponseCode.SUCCESS, body=body)

    def _spans(
        self, looks: Looks, group: str, topic: str, queues: int
    ) -> Generator[Wait | None, None, list[QueueTimeSpan]]:
        spans = []
        for queue_id in range(queues):
            spans.append((yield from self._span(looks, group, topic, queue_id)))
            yield None
        return spans

    def _span(
        self, looks: Looks, group: str, topic: str, queue_id: int
    ) -> Generator[Wait | None, None, QueueTimeSpan]:
        store = self._broker.store
        time_ms = partial(store_timestamp, store, topic, queue_id)
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        committed = self._broker.offsets.query(group, topic, queue_id)
        queue = store.queues.get(topic, queue_id)
        unread = max(committed, low)
        yield from looks.warm_all((queue, at) for at in (low, high - 1, committed - 1, unread))
        first_ms, last_ms, unread_ms = map(time_ms, (low, high - 1, unread))
        read_ms = time_ms(committed - 1) if committed > 0 else first_ms
        span = QueueTimeSpan(
            MessageQueueBody(self._broker.settings.broker.broker_name, queue_id, topic),
            min_time_stamp=first_ms,
            max_time_stamp=last_ms,
            consume_time_stamp=read_ms,
        )
        if committed < high and unread_ms >= 0:
            span.delay_time = max(int(time.time() * 1000) - unread_ms, 0)
        return span

    def _require_group(self, group: str) -> None:
        if self._broker.groups.select(group) is None and not self._broker.offsets.topics_of(group):
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {group} does not exist on this broker",
            )
