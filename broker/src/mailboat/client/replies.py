"""Requests and their replies: a message that asks, and one that comes back past every queue.

The reply goes through a broker to the client that asked, which therefore has to be known to the
brokers as a producer. The broker names its cluster in each message, so the replier finds the reply
topic.

Source: apache/rocketmq client/impl/producer/DefaultMQProducerImpl.java (request),
client/utils/MessageUtil.java and client/impl/ClientRemotingProcessor.java (receiveReplyMessage).
"""

import asyncio
import ipaddress
import logging
import uuid
from typing import Final

from mailboat.errors import IllegalMessageError, RequestTimeoutError
from mailboat.model.hosts import encode_host
from mailboat.model.message import Message, MessageExt
from mailboat.model.properties import PropertyName, decode_properties
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.command import (
    RemotingCommand,
    optional_int,
    optional_str,
    required_int,
    required_str,
)
from mailboat.remoting.connection import Connection

logger = logging.getLogger(__name__)

CORRELATION_ID: Final = "CORRELATION_ID"
TTL: Final = "TTL"
MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY: Final = "reply"
_NO_HOST: Final = bytes(8)


def make_request(message: Message, client_id: str, timeout_s: float) -> tuple[Message, str]:
    """Return the message as a request of this client, and the id that its reply will have."""
    correlation_id = str(uuid.uuid4())
    asking = {
        CORRELATION_ID: correlation_id,
        PropertyName.REPLY_TO_CLIENT: client_id,
        TTL: str(int(timeout_s * 1000)),
    }
    request = Message(
        message.topic,
        message.body,
        message.tags,
        message.keys,
        {**message.properties, **asking},
        message.flag,
        message.wait_store_ok,
        message.delay_level,
    )
    return request, correlation_id


def make_reply(request: MessageExt, body: bytes) -> Message:
    """Return the reply to a message that asks for one.

    Raises:
        IllegalMessageError: it does not ask for one.
    """
    asked = (PropertyName.CLUSTER, CORRELATION_ID, PropertyName.REPLY_TO_CLIENT)
    missing = [name for name in asked if name not in request.properties]
    if missing:
        raise IllegalMessageError(
            f"message {request.message_id} is no request: it has no {' and no '.join(missing)}"
        )
    cluster, correlation_id, client_id = (request.properties[name] for name in asked)
    properties = {
        MESSAGE_TYPE: REPLY,
        CORRELATION_ID: correlation_id,
        PropertyName.REPLY_TO_CLIENT: client_id,
    }
    if TTL in request.properties:
        properties[TTL] = request.properties[TTL]
    return Message(f"{cluster}_REPLY_TOPIC", body, properties=properties)


class PendingReplies:
    """The replies that one client waits for."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        """Wait for nothing yet."""
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def expect(self, correlation_id: str) -> asyncio.Future[MessageExt]:
        """Return what will be the reply with this id."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return future

    def forget(self, correlation_id: str) -> None:
        """Wait no longer for this id."""
        self._waiting.pop(correlation_id, None)

    def process(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Take a reply from a broker (PUSH_REPLY_MESSAGE_TO_CLIENT)."""
        message = _read_reply(command)
        correlation_id = message.properties.get(CORRELATION_ID, "")
        future = self._waiting.pop(correlation_id, None)
        if future is None or future.done():
            logger.warning("reply id=%s comes too late, or nobody asked", correlation_id)
        else:
            future.set_result(message)
        return command.response(ResponseCode.SUCCESS)


async def wait_reply(reply: asyncio.Future[MessageExt], timeout_s: float) -> MessageExt:
    """Return the reply when it comes.

    Raises:
        RequestTimeoutError: it does not come in time.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await reply
    except TimeoutError:
        raise RequestTimeoutError(f"no reply came within {timeout_s:g} s") from None


def _read_reply(command: RemotingCommand) -> MessageExt:
    return MessageExt(
        topic=required_str(command, "topic"),
        body=command.body,
        queue_id=optional_int(command, "queueId", 0),
        queue_offset=0,
        physical_offset=0,
        store_size_bytes=0,
        flag=optional_int(command, "flag", 0),
        sys_flag=required_int(command, "sysFlag"),
        body_crc=0,
        born_timestamp_ms=optional_int(command, "bornTimestamp", 0),
        born_host=_host(optional_str(command, "bornHost")),
        store_timestamp_ms=optional_int(command, "storeTimestamp", 0),
        store_host=_host(optional_str(command, "storeHost")),
        reconsume_times=optional_int(command, "reconsumeTimes", 0),
        prepared_transaction_offset=0,
        properties=decode_properties(optional_str(command, "properties") or ""),
    )


def _host(text: str | None) -> bytes:
    """Read an address as Java prints it (`/10.0.0.1:1234`); zeros for anything else."""
    ip, _, port = (text or "").rpartition("/")[2].rpartition(":")
    try:
        address = ipaddress.ip_address(ip.strip("[]"))
        return encode_host(str(address), int(port))
    except ValueError:
        return _NO_HOST
