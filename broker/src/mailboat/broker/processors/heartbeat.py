"""Clients come, stay and go: 34 HEART_BEAT, 35 UNREGISTER_CLIENT, 46 CHECK_CLIENT_CONFIG.

Source: apache/rocketmq broker/processor/ClientManageProcessor.java @ rocketmq-all-5.3.3.
"""

import asyncio
import logging
from collections.abc import Awaitable, Generator
from dataclasses import dataclass
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.broker.membership import ClientInfo
from mailboat.broker.sql_filters import check_expression_type
from mailboat.errors import BrokerError
from mailboat.model.subscription import (
    EXPRESSION_SQL92,
    EXPRESSION_TAG,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, optional_str, required_str
from mailboat.protocol.heartbeat import (
    ConsumerData,
    HeartbeatData,
    decode_check_client_config,
    decode_heartbeat,
)
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane
from mailboat.remoting.turns import first_turn, in_turns

_log = logging.getLogger(__name__)

MAX_GROUPS: Final = 1_000
"""Most consumer and producer groups of one client."""

MAX_SUBSCRIPTIONS: Final = 2_000
"""Most topics that one member of a group subscribes to: all are taken over in one turn."""

_TOPIC_SYS_FLAG_UNIT_SUB = 0x2


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = ClientManageProcessor(controller)
    dispatcher.register(RequestCode.HEART_BEAT, processor.heartbeat, Lane.MEMBER)
    dispatcher.register(RequestCode.UNREGISTER_CLIENT, processor.unregister, Lane.MEMBER)
    dispatcher.register(RequestCode.CHECK_CLIENT_CONFIG, processor.check_client_config)


@dataclass(slots=True)
class _Taken:
    """What came of a heartbeat."""

    topics_changed: bool = False
    refused: int = 0
    """How many groups the client could not join, or not with these subscriptions."""

    code: int = ResponseCode.SUCCESS
    remark: str = ""

    def refuse(self, error: BrokerError) -> None:
        """Note that a group is refused, and why the first one was."""
        self.refused += 1
        if self.refused == 1:
            self.code, self.remark = error.code, error.remark

    def answer(self, command: RemotingCommand) -> RemotingCommand:
        """Tell the client."""
        if not self.refused:
            return command.response(ResponseCode.SUCCESS)
        return command.response(
            self.code,
            f"request HEART_BEAT: {self.refused} of its groups are not registered: {self.remark}",
        )


_Taking = Generator[None, None, _Taken]


class ClientManageProcessor:
    """Keeps the tables of clients up to date."""

    def __init__(self, broker: BrokerContext) -> None:
        """Work on the tables of `broker`."""
        self._broker = broker

    def heartbeat(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Register a client with all its groups.

        A new consumer group gets its retry topic. That is known to the name servers before the
        answer goes out, since the client asks for its route next.
        """
        data = decode_heartbeat(command.body)
        if not data.client_id:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, "request HEART_BEAT: the body has no 'clientID'"
            )
        if len(data.consumer_data_set) + len(data.producer_data_set) > MAX_GROUPS:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"request HEART_BEAT: client {data.client_id} has more than {MAX_GROUPS} groups; "
                "divide them among several clients",
            )
        client = ClientInfo(connection, data.client_id, command.language, command.version)
        work = self._take(client, data, command.asked_by)
        taken = first_turn(work)
        if taken is None:
            return self._take_rest(command, work)
        if taken.topics_changed:
            return self._answer_when_known(command, taken)
        return taken.answer(command)

    async def _take_rest(self, command: RemotingCommand, work: _Taking) -> RemotingCommand:
        taken = await in_turns(work)
        if taken.topics_changed:
            return await self._answer_when_known(command, taken)
        return taken.answer(command)

    def _take(self, client: ClientInfo, data: HeartbeatData, asker: str) -> _Taking:
        """Register a client with its groups, one by one.

        One that is refused keeps the others from nothing: members must not be lost for it.
        """
        taken = _Taken()
        for consumer in data.consumer_data_set:
            if client.connection.is_closed:
                # Nobody would take it out of its groups again.
                return taken
            try:
                taken.topics_changed |= self._take_consumer(client, consumer, asker)
            except BrokerError as error:
                taken.refuse(error)
            yield
        for producer in data.producer_data_set:
            if client.connection.is_closed:
                return taken
            try:
                self._broker.producers.register(client, producer.group_name)
            except BrokerError as error:
                taken.refuse(error)
            yield
        return taken

    def _take_consumer(self, client: ClientInfo, consumer: ConsumerData, asker: str) -> bool:
        """Register a client with a consumer group; return whether topics were made.

        Raises:
            BrokerError: it subscribes to too many topics, members take up as much as they may, or
                the user who asks has made as many groups as it may; nothing was made.
        """
        groups, group = self._broker.groups, consumer.group_name
        if len(consumer.subscription_data_set) > MAX_SUBSCRIPTIONS:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"group {group} subscribes to {len(consumer.subscription_data_set)} topics, at "
                f"most {MAX_SUBSCRIPTIONS} are allowed; divide them among several groups",
            )
        known = groups.select(group)
        maker = client.connection.peer_address
        if known is None and groups.why_not_made(group, maker) is not None:
            # Its pulls are refused with the reason.
            return False
        if self._broker.quotas is not None:
            self._broker.quotas.refuse_group(asker, group)
        is_changed = self._broker.consumers.register(
            client, consumer, notify=known is None or known.notify_consumer_ids_changed_enable
        )
        config = groups.find(group, maker)
        assert config is not None
        self._compile_filters(consumer, maker)
        return self._create_retry_topic(consumer, config, is_news=is_changed)

    def unregister(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Let a client leave a producer group, a consumer group or both."""
        client_id = required_str(command, "clientID")
        producer_group = optional_str(command, "producerGroup")
        if producer_group:
            self._broker.producers.unregister(producer_group, connection, client_id)
        consumer_group = optional_str(command, "consumerGroup")
        if consumer_group:
            config = self._broker.groups.select(consumer_group)
            self._broker.consumers.unregister(
                consumer_group,
                connection,
                client_id,
                notify=config is None or config.notify_consumer_ids_changed_enable,
            )
        return command.response(ResponseCode.SUCCESS)

    def check_client_config(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Say whether the broker can filter as a subscription wants."""
        if command.body:
            wanted = decode_check_client_config(command.body).subscription_data
            if wanted.expression_type not in ("", EXPRESSION_TAG):
                check_expression_type(wanted.expression_type, self._broker.settings.broker)
                return self._check_sql(connection, command, wanted.sub_string)
        return command.response(ResponseCode.SUCCESS)

    async def _check_sql(
        self, connection: Connection, command: RemotingCommand, expression: str
    ) -> RemotingCommand:
        await self._broker.sql_filters.check(expression, connection.peer_address)
        return command.response(ResponseCode.SUCCESS)

    def _compile_filters(self, consumer: ConsumerData, host: str) -> None:
        """Have SQL92 expressions ready for the first pull, and say which are wrong."""
        if not self._broker.settings.broker.enable_property_filter:
            return
        for subscription in consumer.subscription_data_set:
            if subscription.expression_type == EXPRESSION_SQL92:
                self._compile_filter(consumer.group_name, subscription, host)

    def _compile_filter(self, group: str, subscription: SubscriptionData, host: str) -> None:
        filters, expression = self._broker.sql_filters, subscription.sub_string

        def report() -> None:
            try:
                filters.find(expression)
            except BrokerError as error:
                _log.warning(
                    "bad subscription group=%s topic=%s: %s",
                    group,
                    subscription.topic,
                    error.remark,
                )

        try:
            if filters.find(expression) is None and not filters.is_waiting(expression):
                # One report is enough, however often heartbeats come until then.
                filters.compile(expression, report, host)
        except BrokerError:
            # Known to be wrong, or too many wait: its pulls are told.
            return

    def _create_retry_topic(
        self, consumer: ConsumerData, config: SubscriptionGroupConfig, *, is_news: bool
    ) -> bool:
        topics = self._broker.topics
        subscribed = (
            topics.select(subscription.topic) for subscription in consumer.subscription_data_set
        )
        try:
            return topics.create_retry_topic(
                consumer.group_name,
                queue_nums=config.retry_queue_nums,
                order=any(topic is not None and topic.order for topic in subscribed),
                topic_sys_flag=_TOPIC_SYS_FLAG_UNIT_SUB if consumer.unit_mode else 0,
            )
        except BrokerError as error:
            # The group may consume all the same; what it sends back is refused with the reason.
            level = logging.WARNING if is_news else logging.DEBUG
            _log.log(level, "a consumer group has no retry topic: %s", error.remark)
            return False

    async def _answer_when_known(self, command: RemotingCommand, taken: _Taken) -> RemotingCommand:
        _, *results = await asyncio.gather(
            self._broker.registration.register_now(),
            self._broker.topics.persist(),
            self._broker.groups.persist(),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, OSError):
                # A full disk must not keep consumers out: they are what drains it.
                _log.warning("a new consumer group is not saved yet: %s", result)
        return taken.answer(command)
