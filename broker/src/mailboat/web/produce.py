"""Batch produce over HTTP: one request is one RocketMQ batch, stored as a whole or not at all.

The batch goes to the broker's own port over the loopback, as that of any producer would: the same
checks, the same flush, the same answers. What a client can get wrong is refused before.
"""

import ipaddress
import random
from typing import Annotated, Final

import msgspec
from aiohttp import web

from mailboat.broker.controller import BrokerController
from mailboat.client.outgoing import prepare_batch
from mailboat.client.send_result import SendResult, read_send_result
from mailboat.errors import IllegalMessageError
from mailboat.model.message import Message
from mailboat.model.message_id import UniqKeyGenerator
from mailboat.model.message_queue import MessageQueue
from mailboat.model.properties import PropertyName
from mailboat.model.topic import Perm
from mailboat.remoting.client import RemotingClient
from mailboat.web.api import serving_broker
from mailboat.web.context import WebContext
from mailboat.web.replies import read_json, reply

PRODUCER_GROUP: Final = "mailboat-http"
MESSAGES_MAX: Final = 10_000

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

    messages: Annotated[list[MessageBody], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]
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


_decoder: Final = msgspec.json.Decoder(ProduceBody)


def add_routes(app: web.Application, context: WebContext) -> None:
    """Serve batch produce."""
    handler = ProduceHandler(context)
    app.router.add_post("/api/v1/topics/{topic}/messages", handler.produce)
    app.on_cleanup.append(handler.close)


class ProduceHandler:
    """The handler and its connection to the broker's port."""

    def __init__(self, context: WebContext) -> None:
        """Send to the broker of one process; connects with the first request."""
        self._context = context
        self._client = RemotingClient(name="http-produce")
        self._unique_keys = UniqKeyGenerator(ipaddress.IPv4Address("127.0.0.1").packed)

    async def close(self, _: web.Application) -> None:
        """Close the connection."""
        await self._client.close()

    async def produce(self, request: web.Request) -> web.Response:
        """Store the messages of a request."""
        broker = serving_broker(self._context)
        body = await read_json(request, _decoder)
        topic = request.match_info["topic"]
        messages = [_message(topic, index, item) for index, item in enumerate(body.messages)]
        outgoing = prepare_batch(messages, PRODUCER_GROUP, self._unique_keys)
        _check_size(broker, messages)
        name = broker.settings.broker.broker_name
        queue = MessageQueue(topic, name, _queue_id(broker, topic, body.queue_id))
        timeout_s = broker.settings.store.sync_flush_timeout / 1000 + _TIMEOUT_MARGIN_S
        answer = await self._client.request(
            _loopback_address(broker), outgoing.to_command(queue), timeout_s
        )
        return reply(_produced(read_send_result(answer, queue, outgoing.message_id)))


def _message(topic: str, index: int, item: MessageBody) -> Message:
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


def _loopback_address(broker: BrokerController) -> str:
    """Return the broker's port on an address that this process reaches whatever clients are
    told."""
    bound = broker.settings.broker.bind_address
    if bound in ("0.0.0.0", ""):
        return f"127.0.0.1:{broker.port}"
    if ":" in bound:
        return f"[{'::1' if bound == '::' else bound}]:{broker.port}"
    return f"{bound}:{broker.port}"


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
