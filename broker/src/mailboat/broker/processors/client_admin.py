"""Who is connected, and questions to connected consumers.

    38 GET_CONSUMER_LIST_BY_GROUP     203 GET_CONSUMER_CONNECTION_LIST
    204 GET_PRODUCER_CONNECTION_LIST  223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    307 GET_CONSUMER_RUNNING_INFO     309 CONSUME_MESSAGE_DIRECTLY

The last three are asked of the clients themselves, 223 as 221 GET_CONSUMER_STATUS_FROM_CLIENT.

Source: apache/rocketmq broker/processor/ConsumerManageProcessor.java, AdminBrokerProcessor.java
and broker/client/net/Broker2Client.java @ rocketmq-all-5.3.3.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.broker.membership import ClientInfo
from mailboat.broker.processors.checks import require_topic
from mailboat.errors import (
    BrokerError,
    ConnectionLostError,
    IllegalMessageError,
    PeerBusyError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from mailboat.model.message_id import decode_offset_message_id
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.bodies import encode_consumer_id_list
from mailboat.protocol.client_connections import (
    ClientConnection,
    ConsumerConnection,
    encode_consumer_connection,
    encode_producer_connection,
)
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, optional_str, required_str
from mailboat.protocol.consumer_bodies import decode_client_status, encode_consumer_status
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane
from mailboat.security.signing import SIGNER_FIELDS

_log = logging.getLogger(__name__)

_RELAY_TIMEOUT_S: Final = 10.0
_STATUS_TIMEOUT_S: Final = 5.0
_STATUS_MAX_BYTES: Final = 131_072  # Some 1,700 queues that one member reads of a topic.


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = ClientAdminProcessor(controller)
    dispatcher.register(RequestCode.GET_CONSUMER_LIST_BY_GROUP, processor.consumer_list)
    dispatcher.register(RequestCode.GET_CONSUMER_CONNECTION_LIST, processor.consumer_connections)
    dispatcher.register(RequestCode.GET_PRODUCER_CONNECTION_LIST, processor.producer_connections)
    dispatcher.register(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, processor.consumer_status, Lane.RELAY
    )
    dispatcher.register(
        RequestCode.GET_CONSUMER_RUNNING_INFO, processor.consumer_running_info, Lane.RELAY
    )
    dispatcher.register(
        RequestCode.CONSUME_MESSAGE_DIRECTLY, processor.consume_directly, Lane.RELAY
    )


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
        return await self._relay(command, command.ext_fields, command.body)

    async def consume_directly(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Have a consumer process one stored message now and return what came of it."""
        topic = optional_str(command, "topic")
        if topic:
            require_topic(self._broker, topic)
        record = self._record(required_str(command, "msgId"))
        broker_name = self._broker.settings.broker.broker_name
        return await self._relay(command, {**command.ext_fields, "brokerName": broker_name}, record)

    async def consumer_status(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Ask a group's members, or one of them, how far they have read a topic."""
        topic = required_str(command, "topic")
        group = required_str(command, "group")
        client_id = optional_str(command, "clientAddr")
        require_topic(self._broker, topic)
        info = self._broker.consumers.groups.get(group)
        members = [] if info is None else info.listed_members()
        if client_id:
            members = [member for member in members if member.client_id == client_id]
        if not members:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{group}]"
                + (f" with the client id {client_id}" if client_id else ""),
            )
        answers = await asyncio.gather(*(_status(member, topic, group) for member in members))
        table = {
            member.client_id: offsets
            for member, offsets in zip(members, answers, strict=True)
            if offsets is not None
        }
        if not table:
            raise BrokerError(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"none of {len(members)} consumers of group {group} said how far it has read "
                f"{topic} within {_STATUS_TIMEOUT_S:g} s",
            )
        return command.response(ResponseCode.SUCCESS, body=encode_consumer_status(table))

    def _record(self, message_id: str) -> bytes:
        """Return a stored message by its offset message id; raise BrokerError without one."""
        try:
            place = decode_offset_message_id(message_id)
        except IllegalMessageError as error:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        record = self._broker.store.look_message_by_offset(place.physical_offset)
        if record is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"can not find message by the offset, {place.physical_offset}",
            )
        return record

    async def _relay(
        self, command: RemotingCommand, ext_fields: Mapping[str, str], body: bytes
    ) -> RemotingCommand:
        """Hand a request on to the member that it names; return its answer as it is."""
        group = required_str(command, "consumerGroup")
        client_id = required_str(command, "clientId")
        info = self._broker.consumers.groups.get(group)
        member = None if info is None else info.find_member(client_id)
        if member is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
            )
        # The asker's signature is for us: whoever has it could send the same in its name.
        told = {name: text for name, text in ext_fields.items() if name not in SIGNER_FIELDS}
        relayed = RemotingCommand.request(command.code, told, body)
        try:
            answer = await member.connection.request(relayed, _RELAY_TIMEOUT_S)
        except RequestTimeoutError as error:
            raise BrokerError(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{group}> <{client_id}> Timeout: {error}",
            ) from error
        except (ConnectionLostError, PeerBusyError) as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}>: {error}"
            ) from error
        return command.response(answer.code, answer.remark, answer.ext_fields, answer.body)


async def _status(member: ClientInfo, topic: str, group: str) -> dict[MessageQueue, int] | None:
    """Ask one member how far it has read a topic; None when it does not say."""
    request = RemotingCommand.request(
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": topic, "group": group}
    )
    try:
        answer = await member.connection.request(request, _STATUS_TIMEOUT_S)
        if len(answer.body) > _STATUS_MAX_BYTES:
            reason = (
                f"its answer has {len(answer.body)} bytes, at most {_STATUS_MAX_BYTES} are read"
            )
        elif answer.code == ResponseCode.SUCCESS:
            return decode_client_status(answer.body)
        else:
            reason = answer.remark or f"it answers {answer.code}"
    except (RequestTimeoutError, ConnectionLostError, PeerBusyError, RemoteProtocolError) as error:
        reason = str(error)
    _log.info("no status group=%s client=%s: %s", group, member.client_id, reason)
    return None


def _connections(members: Iterable[ClientInfo]) -> list[ClientConnection]:
    return [
        ClientConnection(member.client_id, member.connection.peer, member.language, member.version)
        for member in members
    ]
