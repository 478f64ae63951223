"""A message on its way out: compressed, identified, and as the fields of a send request.

Fields of SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): a producer group, b topic, c default
topic, d its queue count, e queue id, f sysFlag, g born timestamp, h flag, i properties, j reconsume
times, k unit mode, l max reconsume times (retry topics only), m batch, n broker name.

Source: apache/rocketmq client/impl/producer/DefaultMQProducerImpl.java (sendKernelImpl) and
remoting/protocol/header/SendMessageRequestHeaderV2.java.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mailboat.client.checks import MAX_BODY_BYTES, check_batch, check_message
from mailboat.client.routes import DEFAULT_TOPIC_QUEUE_NUMS
from mailboat.errors import IllegalMessageError
from mailboat.model.batch import encode_batch
from mailboat.model.compression import compress
from mailboat.model.message import Message
from mailboat.model.message_id import UniqKeyGenerator
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from mailboat.model.properties import MAX_PROPERTIES_BYTES, PropertyName, encode_properties
from mailboat.model.sys_flag import COMPRESSED, COMPRESSION_ZLIB
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import ExtValue, RemotingCommand

COMPRESS_ABOVE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What of a send request does not depend on the queue."""

    code: int
    message_id: str
    body: bytes
    fields: dict[str, ExtValue]

    def to_command(self, queue: MessageQueue, *, oneway: bool = False) -> RemotingCommand:
        """Return the request that sends the message to `queue`."""
        fields = {**self.fields, "e": queue.queue_id, "n": queue.broker_name}
        return RemotingCommand.request(self.code, fields, self.body, oneway=oneway)


def prepare_message(message: Message, group: str, unique_keys: UniqKeyGenerator) -> Outgoing:
    """Check a message and make it ready to be sent.

    Raises:
        IllegalMessageError: a broker would refuse it.
    """
    check_message(message)
    properties = message.all_properties()
    message_id = properties.setdefault(PropertyName.UNIQ_KEY, unique_keys.next())
    retry_fields: dict[str, ExtValue] = {}
    if message.topic.startswith(RETRY_PREFIX):
        # These travel in the header, as the broker counts with them.
        retry_fields["j"] = properties.pop(PropertyName.RECONSUME_TIME, "0")
        retry_fields["l"] = properties.pop(PropertyName.MAX_RECONSUME_TIMES, None)
    text = encode_properties(properties)
    if len(text) > MAX_PROPERTIES_BYTES or len(text.encode()) > MAX_PROPERTIES_BYTES:
        raise IllegalMessageError(
            f"the properties of a message for topic {message.topic} take more than "
            f"{MAX_PROPERTIES_BYTES} bytes; send fewer or shorter ones"
        )
    body, sys_flag = _compress(message.body)
    fields = _fields(group, message.topic, text, sys_flag=sys_flag, flag=message.flag)
    fields |= retry_fields
    return Outgoing(RequestCode.SEND_MESSAGE_V2, message_id, body, fields)


def prepare_batch(
    messages: Sequence[Message], group: str, unique_keys: UniqKeyGenerator
) -> Outgoing:
    """Check messages that travel as one batch and make them ready to be sent.

    Raises:
        IllegalMessageError: a broker would refuse one of them, or all together are too large.
    """
    check_batch(messages)
    next_key, uniq_key = unique_keys.next, PropertyName.UNIQ_KEY
    ids = [message.properties.get(uniq_key) or next_key() for message in messages]
    body = encode_batch(messages, ids)
    if len(body) > MAX_BODY_BYTES:
        raise IllegalMessageError(
            f"a batch of {len(messages)} messages takes {len(body)} bytes; "
            f"at most {MAX_BODY_BYTES} are allowed, so send smaller batches"
        )
    first = messages[0]
    text = encode_properties({PropertyName.WAIT: "true" if first.wait_store_ok else "false"})
    fields = _fields(group, first.topic, text, sys_flag=0, flag=0)
    fields["m"] = True
    return Outgoing(RequestCode.SEND_BATCH_MESSAGE, ",".join(ids), body, fields)


def _fields(
    group: str, topic: str, properties: str, *, sys_flag: int, flag: int
) -> dict[str, ExtValue]:
    return {
        "a": group,
        "b": topic,
        "c": AUTO_CREATE_TOPIC,
        "d": DEFAULT_TOPIC_QUEUE_NUMS,
        "f": sys_flag,
        "g": time.time_ns() // 1_000_000,
        "h": flag,
        "i": properties,
        "j": 0,
        "k": False,
        "m": False,
    }


def _compress(body: bytes) -> tuple[bytes, int]:
    """Return the body as it travels and its sysFlag bits; what does not shrink stays as it is."""
    if len(body) <= COMPRESS_ABOVE_BYTES:
        return body, 0
    compressed = compress(body)
    if len(compressed) >= len(body):
        return body, 0
    return compressed, COMPRESSED | COMPRESSION_ZLIB
