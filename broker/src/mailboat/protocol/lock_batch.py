"""Queues to lock or unlock and those that are locked: 41 LOCK_BATCH_MQ, 42 UNLOCK_BATCH_MQ.

Source: apache/rocketmq remoting/protocol/body/{LockBatchRequestBody,LockBatchResponseBody,
UnlockBatchRequestBody}.java
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mailboat.model.message_queue import MessageQueue, in_order
from mailboat.protocol.bodies import decode_body, decode_request, encode_body, item_slices
from mailboat.protocol.command import Name
from mailboat.protocol.queue_map import MessageQueueBody


@dataclass(slots=True)
class LockBatch:
    """A member of a group and the queues that it wants to lock or to give back."""

    consumer_group: str
    client_id: str
    queues: set[MessageQueue] = field(default_factory=set)
    only_this_broker: bool = False
    """Whether slaves are left out; a broker without slaves has no use for it."""


class _LockBatchBody(msgspec.Struct, rename="camel", gc=False):
    consumer_group: Name
    client_id: Name
    mq_set: list[MessageQueueBody] = []
    only_this_broker: bool = False


class _LockedBody(msgspec.Struct, gc=False):
    queues: list[MessageQueueBody] = msgspec.field(name="lockOKMQSet", default_factory=list)


_lock_batch: Final = msgspec.json.Decoder(_LockBatchBody, strict=False)
_locked: Final = msgspec.json.Decoder(_LockedBody, strict=False)


def encode_lock_batch(batch: LockBatch) -> bytes:
    """Write the body of 41 and 42."""
    return encode_body(
        _LockBatchBody(
            batch.consumer_group,
            batch.client_id,
            _bodies(in_order(batch.queues)),
            batch.only_this_broker,
        )
    )


def decode_lock_batch(body: bytes) -> LockBatch:
    """Read the body of 41 and 42.

    Raises:
        RemoteProtocolError: the body is not a LockBatchRequestBody, or a name in it is too long.
    """
    fields = decode_request(body, _lock_batch)
    return LockBatch(
        fields.consumer_group, fields.client_id, _queues(fields.mq_set), fields.only_this_broker
    )


def decode_lock_names(body: bytes) -> tuple[str, set[str]]:
    """Read of the body of 41 and 42 no more than the group and the topics: that takes a quarter.

    Raises:
        RemoteProtocolError: the body is not a LockBatchRequestBody, or a name in it is too long.
    """
    fields = decode_request(body, _lock_batch)
    return fields.consumer_group, {queue.topic for queue in fields.mq_set}


def encode_locked(queues: Iterable[MessageQueue]) -> bytes:
    """Write the answer to 41: the queues that the member holds now."""
    return b"".join(locked_slices(in_order(queues)))


def locked_slices(queues: Iterable[MessageQueue]) -> Iterator[bytes]:
    """Return what `encode_locked` writes of queues in order, in pieces that take a moment each."""
    yield b'{"lockOKMQSet":['
    yield from item_slices(_bodies(queues))
    yield b"]}"


def decode_locked(body: bytes) -> set[MessageQueue]:
    """Read the answer to 41.

    Raises:
        RemoteProtocolError: the body is not a LockBatchResponseBody.
    """
    return _queues(decode_body(body, _locked).queues)


def _bodies(queues: Iterable[MessageQueue]) -> list[MessageQueueBody]:
    return [MessageQueueBody(queue.broker_name, queue.queue_id, queue.topic) for queue in queues]


def _queues(bodies: Iterable[MessageQueueBody]) -> set[MessageQueue]:
    return {MessageQueue(body.topic, body.broker_name, body.queue_id) for body in bodies}
