"""A running consumer from the inside: the answer to 307 GET_CONSUMER_RUNNING_INFO.

Brokers relay it unread; clients write it, administrators read it.

Source: apache/rocketmq remoting/protocol/body/{ConsumerRunningInfo,ProcessQueueInfo,
ConsumeStatus}.java
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.bodies import convert_body, encode_body
from mailboat.protocol.heartbeat import SubscriptionDataBody
from mailboat.protocol.queue_map import encode_queue_map, loads_object, read_queue_map

PROP_NAMESERVER_ADDR: Final = "PROP_NAMESERVER_ADDR"
PROP_THREADPOOL_CORE_SIZE: Final = "PROP_THREADPOOL_CORE_SIZE"
PROP_CONSUME_ORDERLY: Final = "PROP_CONSUMEORDERLY"
PROP_CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
PROP_CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
PROP_CONSUMER_START_TIMESTAMP: Final = "PROP_CONSUMER_START_TIMESTAMP"


class ProcessQueueInfo(msgspec.Struct, rename="camel", gc=False):
    """What a push consumer holds of one queue."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mi_b: int = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = msgspec.field(default=False, name="droped")
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class ConsumeStatus(msgspec.Struct, gc=False):
    """Rates of one topic: round trips in ms, everything else per second."""

    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: int = msgspec.field(default=0, name="consumeFailedMsgs")


@dataclass(slots=True)
class ConsumerRunningInfo:
    """Settings, subscriptions and progress of one consumer; `properties` use the PROP_ names."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    jstack: str | None = None


def encode_running_info(info: ConsumerRunningInfo) -> bytes:
    """Write the answer to 307."""
    subscriptions = msgspec.convert(
        info.subscription_set, list[SubscriptionDataBody], from_attributes=True
    )
    parts = [
        b'{"mqPopTable":{},"mqTable":',
        encode_queue_map(info.mq_table),
        b',"properties":',
        encode_body(info.properties),
        b',"statusTable":',
        encode_body(info.status_table),
        b',"subscriptionSet":',
        encode_body(subscriptions),
        b',"userConsumerInfo":{}',
    ]
    if info.jstack is not None:
        parts += (b',"jstack":', encode_body(info.jstack))
    return b"".join((*parts, b"}"))


def decode_running_info(body: bytes) -> ConsumerRunningInfo:
    """Read the answer to 307.

    Raises:
        RemoteProtocolError: the body is not a ConsumerRunningInfo.
    """
    fields = loads_object(body)
    queues = read_queue_map(fields.get("mqTable"))
    subscriptions = convert_body(fields.get("subscriptionSet") or [], list[SubscriptionDataBody])
    jstack = fields.get("jstack")
    return ConsumerRunningInfo(
        convert_body(fields.get("properties") or {}, dict[str, str]),
        msgspec.convert(subscriptions, list[SubscriptionData], from_attributes=True),
        {queue: convert_body(value, ProcessQueueInfo) for queue, value in queues.items()},
        convert_body(fields.get("statusTable") or {}, dict[str, ConsumeStatus]),
        jstack if isinstance(jstack, str) else None,
    )
