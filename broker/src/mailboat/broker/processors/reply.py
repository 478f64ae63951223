"""Replies: 324 SEND_REPLY_MESSAGE and 325, handed on as 326 PUSH_REPLY_MESSAGE_TO_CLIENT.

A reply goes straight to the client that waits for it, which has to be a connected producer of this
broker. The answer tells the replier whether it arrived. What is stored besides is for the record.

Source: apache/rocketmq broker/processor/ReplyMessageProcessor.java @ rocketmq-all-5.3.3.
"""

import logging
import time
from collections.abc import Mapping
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.broker.membership import ClientInfo
from mailboat.broker.processors.checks import require_own_name
from mailboat.broker.processors.send_rules import chosen_queue_id, created_topic, refuse_topic
from mailboat.broker.stored_message import stored_form
from mailboat.errors import (
    BrokerError,
    ConnectionLostError,
    LocalProtocolError,
    PeerBusyError,
    RequestTimeoutError,
)
from mailboat.model.message_id import encode_offset_message_id
from mailboat.model.properties import PropertyName, decode_properties
from mailboat.model.sys_flag import CLIENT_BITS
from mailboat.model.tags import tags_code
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.send_header import SendFields, send_request
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane
from mailboat.store.message_inner import MessageInner, PutStatus

_log = logging.getLogger(__name__)

_PUSH_TIMEOUT_S: Final = 10.0
_NOT_STORED: Final = "0"


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = ReplyMessageProcessor(controller)
    dispatcher.register(RequestCode.SEND_REPLY_MESSAGE, processor.reply, Lane.RELAY)
    dispatcher.register(RequestCode.SEND_REPLY_MESSAGE_V2, processor.reply, Lane.RELAY)


class ReplyMessageProcessor:
    """Hands replies on to the clients that wait for them."""

    def __init__(self, broker: BrokerContext) -> None:
        """Work for one broker."""
        self._broker = broker

    async def reply(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Push a reply to the client named by REPLY_TO_CLIENT, store it, tell how that went."""
        config = self._broker.settings.broker
        ext_fields: dict[str, ExtValue] = {
            "MSG_REGION": config.region_id,
            "TRACE_ON": config.trace_on,
        }
        fields = send_request(command).fields
        fields.sys_flag &= CLIENT_BITS
        try:
            queue_id = await self._check(fields)
        except BrokerError as error:
            return command.response(error.code, error.remark, ext_fields)
        properties = decode_properties(fields.properties)
        properties[PropertyName.MESSAGE_REGION] = config.region_id
        properties[PropertyName.TRACE_ON] = "true" if config.trace_on else "false"
        code, remark = ResponseCode.SUCCESS, None
        try:
            await self._push(connection, fields, properties, command.body)
        except BrokerError as error:
            code, remark = error.code, error.remark
        ext_fields |= {"msgId": _NOT_STORED, "queueId": queue_id, "queueOffset": 0}
        if code == ResponseCode.SUCCESS and config.store_reply_message_enable:
            message = _message(connection, fields, queue_id, properties, command.body)
            is_durable = await self._store(message)
            if message.status == PutStatus.PUT_OK:
                store_host = self._broker.store.commit_log.store_host
                ext_fields["msgId"] = encode_offset_message_id(store_host, message.physical_offset)
                ext_fields["queueOffset"] = message.queue_offset
            if not is_durable:
                code = ResponseCode.FLUSH_DISK_TIMEOUT
        return command.response(code, remark, ext_fields)

    async def _check(self, fields: SendFields) -> int:
        """Return the queue for a reply; raise BrokerError where there is none."""
        require_own_name(self._broker, fields.broker_name)
        refuse_topic(fields.topic)
        topics = self._broker.topics
        config = topics.select(fields.topic)
        if config is None:
            self._broker.refuse_messages()
            config = await created_topic(topics, fields).wait()
        return chosen_queue_id(fields, config)

    async def _push(
        self,
        connection: Connection,
        fields: SendFields,
        properties: Mapping[str, str],
        body: bytes,
    ) -> None:
        """Hand a reply to its client and wait until it has taken it; raise BrokerError if not."""
        client_id = properties.get(PropertyName.REPLY_TO_CLIENT)
        if client_id is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"reply message properties[{PropertyName.REPLY_TO_CLIENT}] is null",
            )
        client = self._broker.producers.find_client(client_id)
        if client is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"push reply message fail, channel of <{client_id}> not found.",
            )
        request = self._push_request(connection, fields, properties, body)
        problem = await _deliver(client, request)
        if problem is not None:
            _log.info("reply not taken client=%s: %s", client_id, problem)
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"push reply message to {client_id} fail: {problem}"
            )

    def _push_request(
        self,
        connection: Connection,
        fields: SendFields,
        properties: Mapping[str, str],
        body: bytes,
    ) -> RemotingCommand:
        now_ms = int(time.time() * 1000)
        told = {**properties, PropertyName.PUSH_REPLY_TIME: str(now_ms)}
        return RemotingCommand.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            {
                "producerGroup": fields.producer_group,
                "topic": fields.topic,
                "defaultTopic": fields.default_topic,
                "defaultTopicQueueNums": fields.default_topic_queue_nums,
                "queueId": fields.queue_id,
                "sysFlag": fields.sys_flag,
                "bornTimestamp": fields.born_timestamp_ms,
                "flag": fields.message_flag,
                "properties": stored_form(told).decode(),
                "reconsumeTimes": fields.reconsume_times,
                "unitMode": fields.unit_mode,
                "bornHost": connection.peer,
                "storeHost": self._broker.address,
                "storeTimestamp": now_ms,
            },
            body,
        )

    async def _store(self, message: MessageInner) -> bool:
        """Store a reply; tell whether it is as durable as the broker's setting asks.

        A reply that cannot be stored has reached its client all the same: that is no failure.
        """
        store = self._broker.store
        if not 0 < len(message.body) <= self._broker.settings.store.max_message_size:
            return True
        store.put_messages([message])
        if message.status != PutStatus.PUT_OK:
            self._broker.stats.record_put_failed()
            _log.info("reply not stored topic=%s status=%d", message.topic, message.status)
            return True
        self._broker.stats.record_put(message.topic, 1, message.size_bytes)
        if not store.holds_back or not message.wait_store_ok:
            return True
        return not await self._broker.flush.settled()


async def _deliver(client: ClientInfo, request: RemotingCommand) -> str | None:
    """Hand a reply to a client; return what went wrong."""
    try:
        answer = await client.connection.request(request, _PUSH_TIMEOUT_S)
    except (RequestTimeoutError, ConnectionLostError, PeerBusyError, LocalProtocolError) as error:
        return str(error)
    if answer.code != ResponseCode.SUCCESS:
        return f"it answered CODE: {answer.code}  DESC: {answer.remark}"
    return None


def _message(
    connection: Connection,
    fields: SendFields,
    queue_id: int,
    properties: Mapping[str, str],
    body: bytes,
) -> MessageInner:
    return MessageInner(
        fields.topic,
        queue_id,
        body,
        stored_form(properties),
        tags_code(properties.get(PropertyName.TAGS)),
        properties.get(PropertyName.UNIQ_KEY),
        properties.get(PropertyName.KEYS),
        fields.message_flag,
        fields.sys_flag,
        fields.born_timestamp_ms,
        connection.peer_host,
        fields.reconsume_times,
        wait_store_ok=properties.get(PropertyName.WAIT) != "false",
    )
