"""Who is connected, and questions to connected consumers.

    38 GET_CONSUMER_LIST_BY_GROUP     203 GET_CONSUMER_CONNECTION_LIST
    204 GET_PRODUCER_CONNECTION_LIST  307 GET_CONSUMER_RUNNING_INFO

Source: apache/rocketmq broker/processor/ConsumerManageProcessor.java and AdminBrokerProcessor.java
@ rocketmq-all-5.3.3.
"""

from collections.abc import Iterable
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.broker.membership import ClientInfo
from mailboat.errors import BrokerError, ConnectionLostError, RequestTimeoutError
from mailboat.protocol.bodies import encode_consumer_id_list
from mailboat.protocol.client_connections import (
    ClientConnection,
    ConsumerConnection,
    encode_consumer_connection,
    encode_producer_connection,
)
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, required_str
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher

_RELAY_TIMEOUT_S: Final = 10.0


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = ClientAdminProcessor(controller)
    dispatcher.register(RequestCode.GET_CONSUMER_LIST_BY_GROUP, processor.consumer_list)
    dispatcher.register(RequestCode.GET_CONSUMER_CONNECTION_LIST, processor.consumer_connections)
    dispatcher.register(RequestCode.GET_PRODUCER_CONNECTION_LIST, processor.producer_connections)
    dispatcher.register(RequestCode.GET_CONSUMER_RUNNING_INFO, processor.consumer_running_info)


class ClientAdminProcessor:
    """Shows the members of groups and relays to them."""

    def __init__(self, broker: BrokerContext) -> None:
        """Look at the clients of `broker`."""
        self._broker = broker

    def consumer_list(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the ids of a group's members, among which clients share out the queues."""
        group = required_str(command, "consumerGroup")
        info = self._broker.consumers.groups.get(group)
        if info is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        body = encode_consumer_id_list(info.client_ids())
        return command.response(ResponseCode.SUCCESS, body=body)

    def consumer_connections(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return a group's members with their addresses, versions and subscriptions."""
        group = required_str(command, "consumerGroup")
        info = self._broker.consumers.groups.get(group)
        if info is None:
            raise BrokerError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online"
            )
        body = encode_consumer_connection(
            ConsumerConnection(
                _connections(info.members),
                info.subscriptions,
                info.consume_type,
                info.message_model,
                info.consume_from_where,
            )
        )
        return command.response(ResponseCode.SUCCESS, body=body)

    def producer_connections(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return a producer group's members with their addresses and versions."""
        group = required_str(command, "producerGroup")
        members = self._broker.producers.groups.get(group)
        if members is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        body = encode_producer_connection(_connections(members))
        return command.response(ResponseCode.SUCCESS, body=body)

    async def consumer_running_info(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Ask a consumer about itself and return its answer as it is."""
        group = required_str(command, "consumerGroup")
        client_id = required_str(command, "clientId")
        info = self._broker.consumers.groups.get(group)
        member = None if info is None else info.find_member(client_id)
        if member is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
            )
        relayed = RemotingCommand.request(command.code, command.ext_fields, command.body)
        try:
            answer = await member.connection.request(relayed, _RELAY_TIMEOUT_S)
        except RequestTimeoutError as error:
            raise BrokerError(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{group}> <{client_id}> Timeout: {error}",
            ) from error
        except ConnectionLostError as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}>: {error}"
            ) from error
        return command.response(answer.code, answer.remark, answer.ext_fields, answer.body)


def _connections(members: Iterable[ClientInfo]) -> list[ClientConnection]:
    return [
        ClientConnection(member.client_id, member.connection.peer, member.language, member.version)
        for member in members
    ]
