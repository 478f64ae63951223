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
from collections.abc import Awaitable, Generator, Mapping
from dataclasses import dataclass
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.broker.membership import ClientInfo, ConsumerGroupInfo, MemberTable
from mailboat.broker.processors.checks import require_topic
from mailboat.broker.record_reads import record_at
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
from mailboat.protocol.bodies import consumer_id_list_slices
from mailboat.protocol.client_connections import (
    ClientConnection,
    ConsumerConnection,
    consumer_connection_slices,
    producer_connection_slices,
)
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand, optional_str, required_str
from mailboat.protocol.consumer_bodies import consumer_status_slices, decode_client_status
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane
from mailboat.remoting.turns import first_turn, in_turns, joined_in_turns, listed_steps
from mailboat.security.signing import SIGNER_FIELDS

_log = logging.getLogger(__name__)

_RELAY_TIMEOUT_S: Final = 10.0
_STATUS_TIMEOUT_S: Final = 5.0
_STATUS_MAX_BYTES: Final = 131_072  # Some 1,700 queues that one member reads of a topic.
_STATUS_MAX_BYTES_OF_ALL: Final = 4 * 1024 * 1024
_STATUS_MAX_MEMBERS: Final = 1_000


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = ClientAdminProcessor(controller)
    dispatcher.register(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, processor.consumer_list, Lane.LISTING
    )
    dispatcher.register(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, processor.consumer_connections, Lane.LISTING
    )
    dispatcher.register(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, processor.producer_connections, Lane.LISTING
    )
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

    def consumer_list(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Return the ids of a group's members, among which clients share out the queues."""
        group = required_str(command, "consumerGroup")
        info = self._broker.consumers.groups.get(group)
        if info is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        work = _id_list(info)
        body = first_turn(work)
        if body is None:
            return _answer_in_turns(command, work)
        return command.response(ResponseCode.SUCCESS, body=body)

    async def consumer_connections(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return a group's members with their addresses, versions and subscriptions."""
        group = required_str(command, "consumerGroup")
        info = self._broker.consumers.groups.get(group)
        if info is None:
            raise BrokerError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online"
            )
        members = await in_turns(_connections(info.members))
        slices = consumer_connection_slices(
            ConsumerConnection(
                members,
                info.subscriptions,
                info.consume_type,
                info.message_model,
                info.consume_from_where,
            )
        )
        return command.response(ResponseCode.SUCCESS, body=await joined_in_turns(slices))

    async def producer_connections(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return a producer group's members with their addresses and versions."""
        group = required_str(command, "producerGroup")
        members = self._broker.producers.groups.get(group)
        if members is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        slices = producer_connection_slices(await in_turns(_connections(members)))
        return command.response(ResponseCode.SUCCESS, body=await joined_in_turns(slices))

    async def consumer_running_info(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Ask a consumer about itself and return its answer as it is."""
        return await self._relay(command, command.ext_fields, command.body)

    async def consume_directly(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Have a consumer process one stored message now and return what came of it."""
        topic = optional_str(command, "topic")
        if topic:
            require_topic(self._broker, topic)
        record = await self._record(required_str(command, "msgId"), connection.peer_address)
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
        members = _to_be_asked(self._broker.consumers.groups.get(group), client_id)
        if not members:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{group}]"
                + (f" with the client id {client_id}" if client_id else ""),
            )
        room = _Room(_STATUS_MAX_BYTES_OF_ALL)
        answers = await asyncio.gather(*(_status(member, topic, group, room) for member in members))
        if room.left_bytes < 0:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"what the {len(members)} consumers of group {group} say of {topic} has more than "
                f"{_STATUS_MAX_BYTES_OF_ALL} bytes; ask one of them, by clientAddr",
            )
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
        body = await joined_in_turns(consumer_status_slices(table))
        return command.response(ResponseCode.SUCCESS, body=body)

    async def _record(self, message_id: str, host: str) -> bytes:
        """Return a stored message by its offset message id; raise BrokerError without one."""
        try:
            place = decode_offset_message_id(message_id)
        except IllegalMessageError as error:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        record = await record_at(self._broker, place.physical_offset, host)
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


@dataclass(slots=True)
class _Room:
    """How many bytes the members' answers may still have together."""

    left_bytes: int


def _to_be_asked(info: ConsumerGroupInfo | None, client_id: str | None) -> list[ClientInfo]:
    """Return the member with an id, without an id all of them.

    Raises:
        BrokerError: they are too many to be asked at once.
    """
    if info is None:
        return []
    if client_id:
        member = info.find_member(client_id)
        return [] if member is None else [member]
    if len(info.members) > _STATUS_MAX_MEMBERS:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"group {info.group} has {len(info.members)} consumers, at most "
            f"{_STATUS_MAX_MEMBERS} are asked at once; ask one of them, by clientAddr",
        )
    return info.listed_members()


async def _status(
    member: ClientInfo, topic: str, group: str, room: _Room
) -> dict[MessageQueue, int] | None:
    """Ask one member how far it has read a topic; None when it does not say, or there is no room
    for what it says."""
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
            room.left_bytes -= len(answer.body)
            return decode_client_status(answer.body) if room.left_bytes >= 0 else None
        else:
            reason = answer.remark or f"it answers {answer.code}"
    except (RequestTimeoutError, ConnectionLostError, PeerBusyError, RemoteProtocolError) as error:
        reason = str(error)
    _log.info("no status group=%s client=%s: %s", group, member.client_id, reason)
    return None


def _id_list(info: ConsumerGroupInfo) -> Generator[None, None, bytes]:
    client_ids = yield from info.client_ids()
    return b"".join((yield from listed_steps(consumer_id_list_slices(client_ids))))


async def _answer_in_turns(
    command: RemotingCommand, work: Generator[None, None, bytes]
) -> RemotingCommand:
    return command.response(ResponseCode.SUCCESS, body=await in_turns(work))


def _connections(members: MemberTable) -> Generator[None, None, list[ClientConnection]]:
    connections = []
    for some in members.steps():
        connections += [
            ClientConnection(
                member.client_id, member.connection.peer, member.language, member.version
            )
            for member in some
        ]
        yield
    return connections
