"""Batch produce over HTTP: one request is one RocketMQ batch, stored as a whole or not at all.

The batch takes the way of any producer's behind the broker's port: the same checks, the same flush,
the same answers, and the caller's address in the records. What a client can get wrong is refused
before.
"""

import asyncio
import ipaddress
import random
from typing import Annotated, Final

import msgspec
from aiohttp import web

from mailboat.broker.controller import BrokerController
from mailboat.broker.processors.send_rules import MAX_BATCH_KEYS, MAX_BATCH_PROPERTIES
from mailboat.client.outgoing import prepare_batch
from mailboat.client.send_result import SendResult, read_send_result
from mailboat.errors import IllegalMessageError, RequestTimeoutError
from mailboat.model.batch import MAX_BATCH_MESSAGES
from mailboat.model.hosts import encode_host
from mailboat.model.message import Message
from mailboat.model.message_id import UniqKeyGenerator
from mailboat.model.message_queue import MessageQueue
from mailboat.model.properties import MAX_PROPERTIES_BYTES, PropertyName
from mailboat.model.topic import Perm
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder
from mailboat.protocol.send_header import send_request
from mailboat.remoting.turns import in_turns
from mailboat.web.api import serving_broker
from mailboat.web.context import WebContext
from mailboat.web.lag import Steps
from mailboat.web.permissions import CALLER
from mailboat.web.replies import decode_part, read_json, reply

PRODUCER_GROUP: Final = "mailboat-http"

# A record has 32 KiB of properties, and JSON up to six bytes for each byte of them.
_MOST_PART_BYTES: Final = 6 * MAX_PROPERTIES_BYTES
_TIMEOUT_MARGIN_S: Final = 3.0
_RESERVED: Final = frozenset(
    value for name, value in vars(PropertyName).items() if not name.startswith("_")
)


class MessageBody(msgspec.Struct, forbid_unknown_fields=True):
    """One message: `body` is text, `body_base64` bytes; exactly one of them is there."""

    body: str | None = None
    body_base64: bytes | None = None
    tags: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}


class ProduceBody(msgspec.Struct, forbid_unknown_fields=True):
    """Messages for one queue of a topic; without `queue_id` the broker chooses the queue."""

    messages: Annotated[
        list[MessageBody], msgspec.Meta(min_length=1, max_length=MAX_BATCH_MESSAGES)
    ]
    queue_id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None


class _RawMessageBody(msgspec.Struct, forbid_unknown_fields=True):
    """One message; what it may have very many of as it came."""

    body: str | None = None
    body_base64: bytes | None = None
    tags: str | None = None
    keys: msgspec.Raw = msgspec.Raw(b"[]")
    properties: msgspec.Raw = msgspec.Raw(b"{}")


class _RawProduceBody(msgspec.Struct, forbid_unknown_fields=True):
    messages: Annotated[
        list[_RawMessageBody], msgspec.Meta(min_length=1, max_length=MAX_BATCH_MESSAGES)
    ]
    queue_id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None


class StoredMessage(msgspec.Struct):
    """Where one message is stored."""

    message_id: str
    offset_message_id: str
    queue_offset: int


class ProducedBody(msgspec.Struct):
    """What became of the batch; SEND_OK and FLUSH_DISK_TIMEOUT mean what they mean to producers."""

    status: str
    queue_id: int
    messages: list[StoredMessage]


_decoder: Final = msgspec.json.Decoder(_RawProduceBody)
_keys: Final = msgspec.json.Decoder(list[str])
_properties: Final = msgspec.json.Decoder(dict[str, str])


def add_routes(app: web.Application, context: WebContext) -> None:
    """Serve batch produce."""
    handler = ProduceHandler(context)
    app.router.add_post("/api/v1/topics/{topic}/messages", handler.produce)


class _Caller:
    """Who sends the batch, as the broker sees it: a `mailboat.broker.dispatcher.Asker`."""

    def __init__(self, peer_host: bytes) -> None:
        self.peer_host = peer_host
        self.answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()

    def write(self, data: bytes) -> None:
        if not self.answer.done():  # else it was waited for long enough
            [frame] = FrameDecoder().feed(data)
            self.answer.set_result(decode_command(frame))


class ProduceHandler:
    """The handler."""

    def __init__(self, context: WebContext) -> None:
        """Give messages to the broker of one process."""
        self._context = context
        self._unique_keys = UniqKeyGenerator(ipaddress.IPv4Address("127.0.0.1").packed)

    async def produce(self, request: web.Request) -> web.Response:
        """Store the messages of a request."""
        broker = serving_broker(self._context)
        most_bytes = broker.settings.broker.http_max_request_bytes
        body = await read_json(request, _decoder, most_bytes)
        topic = request.match_info["topic"]
        messages = await in_turns(_messages(topic, body.messages))
        outgoing = prepare_batch(messages, PRODUCER_GROUP, self._unique_keys)
        _check_size(broker, messages)
        name = broker.settings.broker.broker_name
        queue = MessageQueue(topic, name, _queue_id(broker, topic, body.queue_id))
        command = outgoing.to_command(queue)
        user = request.get(CALLER)
        if broker.quotas is not None and user is not None:
            size_bytes = sum(len(message.body) for message in messages)
            broker.quotas.publish_by_http(user, topic, len(messages), size_bytes)
        caller = _Caller(_peer_host(request))
        timeout_s = broker.settings.store.sync_flush_timeout / 1000 + _TIMEOUT_MARGIN_S
        try:
            async with asyncio.timeout(timeout_s):
                await broker.take_send(caller, send_request(command), command.body)
                answer = await caller.answer
        except TimeoutError as error:
            raise RequestTimeoutError(f"no answer within {timeout_s:g} s") from error
        return reply(_produced(read_send_result(answer, queue, outgoing.message_id)))


def _peer_host(request: web.Request) -> bytes:
    """Return the caller's address as records hold it.

    Raises:
        ConnectionResetError: the caller is gone.
    """
    peername = None if request.transport is None else request.transport.get_extra_info("peername")
    if peername is None:
        raise ConnectionResetError
    return encode_host(peername[0], peername[1])


def _messages(topic: str, items: list[_RawMessageBody]) -> Steps[list[Message]]:
    """Read messages one by one, and no more properties and keys than a batch may have."""
    messages: list[Message] = []
    properties = keys = 0
    for index, item in enumerate(items):
        message = _message(topic, index, item)
        messages.append(message)
        properties += len(message.properties)
        keys += len(message.keys or ())
        if properties > MAX_BATCH_PROPERTIES or keys > MAX_BATCH_KEYS:
            raise IllegalMessageError(
                f"the messages up to {index} have {properties} properties and {keys} keys; at most "
                f"{MAX_BATCH_PROPERTIES} and {MAX_BATCH_KEYS} are taken in one request"
            )
        yield
    return messages


def _message(topic: str, index: int, raw: _RawMessageBody) -> Message:
    name = f"message {index}"
    item = MessageBody(
        raw.body,
        raw.body_base64,
        raw.tags,
        decode_part(raw.keys, _keys, f"keys of {name}", _MOST_PART_BYTES),
        decode_part(raw.properties, _properties, f"properties of {name}", _MOST_PART_BYTES),
    )
    if (item.body is None) == (item.body_base64 is None):
        raise IllegalMessageError(f"message {index} needs either body or body_base64")
    reserved = _RESERVED.intersection(item.properties)
    if reserved:
        raise IllegalMessageError(
            f"message {index} sets the property {min(reserved)}, which is reserved;"
            " tags and keys have fields of their own"
        )
    body = item.body_base64 if item.body is None else item.body.encode()
    assert body is not None
    return Message(topic, body, tags=item.tags, keys=item.keys, properties=item.properties)


def _check_size(broker: BrokerController, messages: list[Message]) -> None:
    limit = broker.settings.store.max_message_size
    for index, message in enumerate(messages):
        if len(message.body) > limit:
            raise IllegalMessageError(
                f"the body of message {index} has {len(message.body)} bytes; at most {limit} are"
                " allowed here (maxMessageSize)"
            )


def _queue_id(broker: BrokerController, topic: str, wanted: int | None) -> int:
    """Check or choose the queue; a topic that the send will make has the queues it will get."""
    config = broker.topics.select(topic)
    settings = broker.settings.broker
    if config is None:
        if not settings.auto_create_topic_enable:
            raise web.HTTPNotFound(text=f"there is no topic {topic}; create it first")
        count = 1
    elif not config.perm & settings.broker_permission & Perm.WRITE:
        raise web.HTTPForbidden(text=f"topic {topic} takes no messages here")
    else:
        count = config.write_queue_nums
    if wanted is None:
        return random.randrange(count)
    if wanted >= count:
        raise IllegalMessageError(f"topic {topic} has the queues 0 to {count - 1}, not {wanted}")
    return wanted


def _produced(result: SendResult) -> ProducedBody:
    message_ids = result.message_id.split(",")
    offset_ids = result.offset_message_id.split(",")
    return ProducedBody(
        status=result.status.value,
        queue_id=result.message_queue.queue_id,
        messages=[
            StoredMessage(message_id, offset_id, result.queue_offset + index)
            for index, (message_id, offset_id) in enumerate(
                zip(message_ids, offset_ids, strict=True)
            )
        ],
    )
