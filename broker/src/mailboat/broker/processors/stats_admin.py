"""What was sent and read how fast: 315 VIEW_BROKER_STATS_DATA, 317 GET_BROKER_CONSUME_STATS.

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java (ViewBrokerStatsData,
fetchAllConsumeStatsInBroker) and store/stats/BrokerStatsManager.java @ rocketmq-all-5.3.3.
"""

from collections.abc import Generator
from typing import Final

from mailboat.broker.cold_looks import Looks
from mailboat.broker.context import BrokerContext
from mailboat.broker.processors.group_admin import STATS_QUEUES_MAX, consume_stats, too_many_queues
from mailboat.broker.stats import FlowCounter, Span
from mailboat.errors import BrokerError
from mailboat.protocol.admin_bodies import (
    BrokerStatsData,
    StatsItem,
    consume_stats_list_slices,
    encode_broker_stats,
)
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, required_bool, required_str
from mailboat.protocol.stats_bodies import ConsumeStats
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane
from mailboat.remoting.turns import Wait, in_turns, joined_in_turns, sorted_steps

_OF_TOPIC: Final = ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")
_OF_GROUP: Final = ("GROUP_GET_NUMS", "GROUP_GET_SIZE")
_SENT_BACK: Final = "SNDBCK_PUT_NUMS"
_OF_BROKER: Final = ("BROKER_PUT_NUMS", "BROKER_GET_NUMS")
_NAMES: Final = (*_OF_TOPIC, *_OF_GROUP, _SENT_BACK, *_OF_BROKER)


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = StatsAdminProcessor(controller)
    dispatcher.register(RequestCode.VIEW_BROKER_STATS_DATA, processor.broker_stats)
    dispatcher.register(
        RequestCode.GET_BROKER_CONSUME_STATS, processor.all_consume_stats, Lane.LOOK
    )


class StatsAdminProcessor:
    """Shows counters of topics and groups."""

    def __init__(self, broker: BrokerContext) -> None:
        """Look at the counters of `broker`."""
        self._broker = broker

    def broker_stats(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return one counter over the last minute, hour and day."""
        name, key = required_str(command, "statsName"), required_str(command, "statsKey")
        flow = self._flow(name, key)
        if flow is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{name}> <{key}> not exist: it counts from the first message on, and "
                f"the names are {', '.join(_NAMES)}",
            )
        now = self._broker.stats.now()
        of_size = name.endswith("SIZE")
        stats = BrokerStatsData(
            stats_minute=_item(flow, "minute", now, of_size=of_size),
            stats_hour=_item(flow, "hour", now, of_size=of_size),
            stats_day=_item(flow, "day", now, of_size=of_size),
        )
        return command.response(ResponseCode.SUCCESS, body=encode_broker_stats(stats))

    async def all_consume_stats(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return how far every group has read, topic by topic."""
        only_ordered = required_bool(command, "isOrder")
        looks = Looks(self._broker, connection.peer_address)
        stats = await in_turns(self._of_all_groups(looks, only_ordered=only_ordered))
        body = await joined_in_turns(consume_stats_list_slices(self._broker.address, stats))
        return command.response(ResponseCode.SUCCESS, body=body)

    def _flow(self, name: str, key: str) -> FlowCounter | None:
        stats, (topic, _, group) = self._broker.stats, key.rpartition("@")
        if name in _OF_TOPIC:
            return stats.topic_flows().get(key)
        if name in _OF_GROUP:
            return stats.group_flows().get((topic, group))
        if name == _SENT_BACK:
            return stats.sent_back_flows().get((topic, group))
        if name in _OF_BROKER and key == self._broker.settings.broker.broker_cluster_name:
            return stats.all_flows()[_OF_BROKER.index(name)]
        return None

    def _of_all_groups(
        self, looks: Looks, *, only_ordered: bool
    ) -> Generator[Wait | None, None, dict[str, list[ConsumeStats]]]:
        stats: dict[str, list[ConsumeStats]] = {}
        queues = 0
        for group in (yield from sorted_steps(list(self._broker.groups.table))):
            stats[group] = yield from self._of_group(looks, group, only_ordered=only_ordered)
            queues += sum(len(each.offset_table) for each in stats[group])
            if queues > STATS_QUEUES_MAX:
                raise too_many_queues(group)
            yield None
        return stats

    def _of_group(
        self, looks: Looks, group: str, *, only_ordered: bool
    ) -> Generator[Wait | None, None, list[ConsumeStats]]:
        broker = self._broker
        members = broker.consumers.groups.get(group)
        topics = broker.offsets.topics_of(group)
        if members is not None and members.subscriptions:
            topics &= members.subscriptions.keys()
        found = []
        for topic in sorted(topics):
            config = broker.topics.select(topic)
            if config is not None and (config.order or not only_ordered):
                queues = config.write_queue_nums
                stats = yield from consume_stats(broker, looks, group, [config], queues)
                found.append(stats)
        return found


def _item(flow: FlowCounter, span: Span, now: float, *, of_size: bool) -> StatsItem:
    counted = flow.counted(span, now)
    total = counted.size_bytes if of_size else counted.messages
    return StatsItem(
        total,
        total / counted.seconds if counted.seconds > 0 else 0.0,
        total / counted.messages if counted.messages else 0.0,
    )
