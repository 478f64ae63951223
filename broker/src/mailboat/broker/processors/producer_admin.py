"""Every connected producer: 328 GET_ALL_PRODUCER_INFO.

Source: apache/rocketmq broker/client/ProducerManager.java (getProducerTable) @ rocketmq-all-5.3.3.
"""

from collections.abc import Generator

from mailboat.broker.context import BrokerContext
from mailboat.broker.membership import ClientInfo
from mailboat.disk import ClockPair
from mailboat.disk.real import machine_clocks
from mailboat.protocol.admin_bodies import ProducerInfo, producer_table_slices
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane
from mailboat.remoting.turns import in_turns, joined_in_turns, sorted_steps


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's request."""
    processor = ProducerAdminProcessor(controller)
    dispatcher.register(RequestCode.GET_ALL_PRODUCER_INFO, processor.all_producers, Lane.LISTING)


class ProducerAdminProcessor:
    """Shows the members of all producer groups."""

    def __init__(self, broker: BrokerContext) -> None:
        """Look at the producers of `broker`."""
        self._broker = broker

    async def all_producers(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return the members of every producer group with the time of their last heartbeat."""
        slices = producer_table_slices(await in_turns(self._table()))
        return command.response(ResponseCode.SUCCESS, body=await joined_in_turns(slices))

    def _table(self) -> Generator[None, None, dict[str, list[ProducerInfo]]]:
        # Heartbeats are kept by the monotonic clock, tools subtract from the wall clock.
        clocks = machine_clocks()
        groups = self._broker.producers.groups
        table: dict[str, list[ProducerInfo]] = {}
        for group in (yield from sorted_steps(list(groups))):
            if (members := groups.get(group)) is None:
                continue  # It has ended meanwhile.
            table[group] = []
            for some in members.steps():
                table[group] += [_info(member, clocks) for member in some]
                yield
        return table


def _info(member: ClientInfo, clocks: ClockPair) -> ProducerInfo:
    return ProducerInfo(
        member.client_id,
        f"/{member.connection.peer}",
        member.language,
        member.version,
        clocks.wall_ms_at(member.last_heartbeat),
    )
