"""What brokers ask a push consumer on behalf of administrators.

    220 RESET_CONSUMER_CLIENT_OFFSET     go on at other offsets
    221 GET_CONSUMER_STATUS_FROM_CLIENT  how far each queue is finished
    307 GET_CONSUMER_RUNNING_INFO        settings, subscriptions, what is held of each queue

Source: apache/rocketmq client/impl/ClientRemotingProcessor.java.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from mailboat.client.process_queue import ProcessQueue
from mailboat.client.queue_locks import QueueLocks
from mailboat.errors import BrokerError
from mailboat.model.message_queue import MessageQueue
from mailboat.model.subscription import SubscriptionData
from mailboat.protocol.codes import VERSION, RequestCode, ResponseCode, version_name
from mailboat.protocol.command import RemotingCommand, required_str
from mailboat.protocol.heartbeat import CONSUME_PASSIVELY
from mailboat.protocol.queue_map import decode_offset_table, encode_queue_map
from mailboat.protocol.running_info import (
    PROP_CLIENT_VERSION,
    PROP_CONSUME_ORDERLY,
    PROP_CONSUME_TYPE,
    PROP_CONSUMER_START_TIMESTAMP,
    PROP_NAMESERVER_ADDR,
    PROP_THREADPOOL_CORE_SIZE,
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
    encode_running_info,
)
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Processor

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A push consumer at one moment."""

    namesrv: str
    started_ms: int
    concurrency: int
    subscriptions: list[SubscriptionData]
    process_queues: dict[MessageQueue, ProcessQueue]
    order: bool
    locks: QueueLocks | None


class ConsumerStatusProcessors:
    """Answers brokers for the push consumer of one group."""

    __slots__ = ("_group", "_move_queue", "_status")

    def __init__(
        self,
        group: str,
        status: Callable[[], ConsumerStatus],
        move_queue: Callable[[MessageQueue, int], Awaitable[None]],
    ) -> None:
        """Answer from `status`; `move_queue` makes the consumer go on at another offset."""
        self._group = group
        self._status = status
        self._move_queue = move_queue

    def register(self, handle: Callable[[int, Processor], None]) -> None:
        """Register a processor for each request with `handle`."""
        handle(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._reset_offsets)
        handle(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._offsets)
        handle(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info)

    async def _reset_offsets(self, connection: Connection, command: RemotingCommand) -> None:
        self._check_group(required_str(command, "group"))
        topic = required_str(command, "topic")
        for queue, queue_offset in decode_offset_table(command.body).items():
            if queue.topic == topic:
                await self._move_queue(queue, queue_offset)

    def _offsets(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._check_group(required_str(command, "group"))
        topic = required_str(command, "topic")
        table = {
            queue: held.commit_offset
            for queue, held in self._status().process_queues.items()
            if queue.topic == topic
        }
        body = b'{"messageQueueTable":' + encode_queue_map(table) + b"}"
        return command.response(ResponseCode.SUCCESS, body=body)

    def _running_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._check_group(required_str(command, "consumerGroup"))
        status = self._status()
        info = ConsumerRunningInfo(
            properties={
                PROP_NAMESERVER_ADDR: status.namesrv,
                PROP_THREADPOOL_CORE_SIZE: str(status.concurrency),
                PROP_CONSUME_ORDERLY: "true" if status.order else "false",
                PROP_CONSUME_TYPE: CONSUME_PASSIVELY,
                PROP_CLIENT_VERSION: version_name(VERSION),
                PROP_CONSUMER_START_TIMESTAMP: str(status.started_ms),
            },
            subscription_set=status.subscriptions,
            mq_table={
                queue: _process_queue_info(held, status.locks)
                for queue, held in status.process_queues.items()
            },
            status_table={data.topic: ConsumeStatus() for data in status.subscriptions},
        )
        return command.response(ResponseCode.SUCCESS, body=encode_running_info(info))

    def _check_group(self, group: str) -> None:
        if group != self._group:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"group {group} has no consumer in this client"
            )


def _process_queue_info(held: ProcessQueue, locks: QueueLocks | None) -> ProcessQueueInfo:
    age_ms = None if locks is None else locks.granted_ms_ago(held.queue)
    return ProcessQueueInfo(
        commit_offset=held.commit_offset,
        cached_msg_min_offset=held.commit_offset if len(held) else 0,
        cached_msg_max_offset=held.commit_offset + held.span if len(held) else 0,
        cached_msg_count=len(held),
        cached_msg_size_in_mi_b=held.bytes_held // _MIB,
        locked=locks is not None and locks.is_held(held.queue),
        last_lock_timestamp=0 if age_ms is None else time.time_ns() // 1_000_000 - age_ms,
        dropped=held.dropped,
    )
