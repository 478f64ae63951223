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
from typing import Final, NamedTuple

from mailboat.client.checks import (
    MAX_BODY_BYTES,
    check_batch,
    check_half_message,
    check_message,
)
from mailboat.client.replies import MESSAGE_TYPE, REPLY
from mailboat.client.routes import DEFAULT_TOPIC_QUEUE_NUMS
from mailboat.errors import ConfigError, IllegalMessageError
from mailboat.model.batch import encode_batch
from mailboat.model.compression import COMPRESSION_TYPES, compress
from mailboat.model.message import Message, MessageExt
from mailboat.model.message_id import UniqKeyGenerator
from mailboat.model.message_queue import MessageQueue
from mailboat.model.names import AUTO_CREATE_TOPIC, RETRY_PREFIX, retry_topic
from mailboat.model.properties import MAX_PROPERTIES_BYTES, PropertyName, encode_properties
from mailboat.model.sys_flag import COMPRESSED, COMPRESSION_TYPE_MASK, TRANSACTION_PREPARED
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import ONEWAY_FLAG, RemotingCommand

COMPRESS_ABOVE_BYTES: Final = 4096
# The producer group of what a consumer publishes itself; Java's consumers use the same.
CONSUMERS_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"


@dataclass(frozen=True, slots=True)
class Compression:
    """Which bodies a producer compresses, and how; `level` None is RocketMQ's level."""

    name: str = "zlib"
    level: int | None = None
    above_bytes: int = COMPRESS_ABOVE_BYTES

    def __post_init__(self) -> None:
        """Refuse a codec that nobody could read.

        Raises:
            ConfigError: the name is not one of zlib, lz4 and zstd.
        """
        if self.name not in COMPRESSION_TYPES:
            known = ", ".join(COMPRESSION_TYPES)
            raise ConfigError("compression", self.name, f"not one of {known}")

    def apply(self, body: bytes) -> tuple[bytes, int]:
        """Return a body as it travels and its sysFlag bits; what does not shrink stays as it is."""
        if len(body) <= self.above_bytes:
            return body, 0
        kind = COMPRESSION_TYPES[self.name]
        compressed = compress(body, kind, self.level)
        if len(compressed) >= len(body):
            return body, 0
        return compressed, COMPRESSED | kind


DEFAULT_COMPRESSION: Final = Compression()
_NO_COMPRESSION: Final = Compression(above_bytes=MAX_BODY_BYTES)


class Outgoing(NamedTuple):
    """What of a send request does not depend on the queue."""

    code: int
    message_id: str
    body: bytes
    fields: dict[str, str]

    def to_command(self, queue: MessageQueue, *, oneway: bool = False) -> RemotingCommand:
        """Return the request that sends the message to `queue`."""
        fields = {**self.fields, "e": str(queue.queue_id), "n": queue.broker_name}
        flag = ONEWAY_FLAG if oneway else 0
        return RemotingCommand(self.code, flag=flag, ext_fields=fields, body=self.body)


def prepare_message(
    message: Message,
    group: str,
    unique_keys: UniqKeyGenerator,
    compression: Compression = DEFAULT_COMPRESSION,
) -> Outgoing:
    """Check a message and make it ready to be sent.

    Raises:
        IllegalMessageError: a broker would refuse it.
    """
    check_message(message)
    properties = message.all_properties()
    message_id = properties.get(PropertyName.UNIQ_KEY)
    if message_id is None:
        message_id = properties[PropertyName.UNIQ_KEY] = unique_keys.next()
    retry_fields: dict[str, str] = {}
    if message.topic.startswith(RETRY_PREFIX):
        # These travel in the header, as the broker counts with them.
        retry_fields["j"] = properties.pop(PropertyName.RECONSUME_TIME, "0")
        if PropertyName.MAX_RECONSUME_TIMES in properties:
            retry_fields["l"] = properties.pop(PropertyName.MAX_RECONSUME_TIMES)
    text = _properties_text(message.topic, properties)
    body, sys_flag = compression.apply(message.body)
    fields = _fields(group, message.topic, text, sys_flag=sys_flag, flag=message.flag)
    fields |= retry_fields
    code = RequestCode.SEND_MESSAGE_V2
    if properties.get(MESSAGE_TYPE) == REPLY:
        code = RequestCode.SEND_REPLY_MESSAGE_V2
    return Outgoing(code, message_id, body, fields)


def prepare_stored_message(
    message: Message, sys_flag: int, group: str, unique_keys: UniqKeyGenerator
) -> Outgoing:
    """Make a message ready whose body is one that was stored, with the sysFlag of that one.

    It travels as it is: nobody knows whether it can be unpacked.

    Raises:
        IllegalMessageError: a broker would refuse it.
    """
    outgoing = prepare_message(message, group, unique_keys, _NO_COMPRESSION)
    bits = sys_flag & (COMPRESSED | COMPRESSION_TYPE_MASK)
    return outgoing._replace(fields=outgoing.fields | {"f": str(bits)})


def prepare_half_message(
    message: Message,
    group: str,
    unique_keys: UniqKeyGenerator,
    compression: Compression = DEFAULT_COMPRESSION,
) -> Outgoing:
    """Check a message that a broker shall keep back until its transaction has ended.

    Raises:
        IllegalMessageError: a broker would refuse it, or it cannot be part of a transaction.
    """
    check_half_message(message)
    properties = message.all_properties()
    message_id = properties.setdefault(PropertyName.UNIQ_KEY, unique_keys.next())
    properties[PropertyName.TRANSACTION_PREPARED] = "true"
    properties[PropertyName.PRODUCER_GROUP] = group
    text = _properties_text(message.topic, properties)
    body, sys_flag = compression.apply(message.body)
    sys_flag |= TRANSACTION_PREPARED
    fields = _fields(group, message.topic, text, sys_flag=sys_flag, flag=message.flag)
    return Outgoing(RequestCode.SEND_MESSAGE_V2, message_id, body, fields)


def prepare_retry(
    message: MessageExt,
    group: str,
    *,
    delay_level: int,
    reconsume_times: int,
    max_reconsume_times: int,
) -> Outgoing:
    """Make a consumed message ready to be sent to its consumer group's retry topic.

    The body travels as it was stored. Brokers that have seen it `max_reconsume_times` store it with
    the group's dead letters.

    Raises:
        IllegalMessageError: the properties became too long.
    """
    topic = retry_topic(group)
    properties = dict(message.properties)
    for name in (PropertyName.TRANSACTION_PREPARED, PropertyName.CRC32):
        properties.pop(name, None)
    properties[PropertyName.RETRY_TOPIC] = message.topic
    properties.setdefault(PropertyName.ORIGIN_MESSAGE_ID, message.message_id)
    properties[PropertyName.DELAY] = str(delay_level)
    text = _properties_text(topic, properties)
    sys_flag = message.sys_flag & (COMPRESSED | COMPRESSION_TYPE_MASK)
    fields = _fields(CONSUMERS_PRODUCER_GROUP, topic, text, sys_flag=sys_flag, flag=message.flag)
    fields |= {"j": str(reconsume_times), "l": str(max_reconsume_times)}
    return Outgoing(RequestCode.SEND_MESSAGE_V2, message.message_id, message.body, fields)


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
    fields["m"] = "true"
    return Outgoing(RequestCode.SEND_BATCH_MESSAGE, ",".join(ids), body, fields)


def _fields(group: str, topic: str, properties: str, *, sys_flag: int, flag: int) -> dict[str, str]:
    return {
        "a": group,
        "b": topic,
        "c": AUTO_CREATE_TOPIC,
        "d": str(DEFAULT_TOPIC_QUEUE_NUMS),
        "f": str(sys_flag),
        "g": str(time.time_ns() // 1_000_000),
        "h": str(flag),
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }


def _properties_text(topic: str, properties: dict[str, str]) -> str:
    text = encode_properties(properties)
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise IllegalMessageError(
            f"the properties of a message for topic {topic} hold what is no text: {error}"
        ) from error
    if size_bytes > MAX_PROPERTIES_BYTES:
        raise IllegalMessageError(
            f"the properties of a message for topic {topic} take more than "
            f"{MAX_PROPERTIES_BYTES} bytes; send fewer or shorter ones"
        )
    return text
