"""The broker about itself: 28 GET_BROKER_RUNTIME_INFO.

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java (prepareRuntimeInfo)
@ rocketmq-all-5.3.3.
"""

from contextlib import suppress
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.broker.record_reads import record_at
from mailboat.errors import BrokerError
from mailboat.protocol.bodies import encode_kv_table
from mailboat.protocol.codes import VERSION, RequestCode, ResponseCode, version_name
from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.store.message_store import MessageStore

# Thread pools, the timer wheel and the page cache lock do not exist here; version 4 and 5 tools
# print their numbers and stumble over missing ones.
_ALWAYS_ZERO: Final = {
    "sendThreadPoolQueueSize": "0",
    "sendThreadPoolQueueCapacity": "0",
    "sendThreadPoolQueueHeadWaitTimeMills": "0",
    "pullThreadPoolQueueSize": "0",
    "pullThreadPoolQueueCapacity": "0",
    "pullThreadPoolQueueHeadWaitTimeMills": "0",
    "queryThreadPoolQueueSize": "0",
    "queryThreadPoolQueueCapacity": "0",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "ackThreadPoolQueueSize": "0",
    "ackThreadPoolQueueCapacity": "0",
    "ackThreadPoolQueueHeadWaitTimeMills": "0",
    "litePullThreadPoolQueueSize": "0",
    "litePullThreadPoolQueueCapacity": "0",
    "litePullThreadPoolQueueHeadWaitTimeMills": "0",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "pageCacheLockTimeMills": "0",
    "putMessageEntireTimeMax": "0",
    "putLatency99": "0.00",
    "putLatency999": "0.00",
    "getMessageEntireTimeMax": "0",
    "dispatchMaxBuffer": "0",
    "remainTransientStoreBufferNumbs": "0",
    "startAcceptSendRequestTimeStamp": "0",
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
}

_KIB: Final = 1024
_UNITS: Final = "KMGTPE"


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = AdminBrokerProcessor(controller)
    dispatcher.register(RequestCode.GET_BROKER_RUNTIME_INFO, processor.get_runtime_info)


class AdminBrokerProcessor:
    """Shows counters."""

    def __init__(self, broker: BrokerContext) -> None:
        """Look at `broker`."""
        self._broker = broker

    async def get_runtime_info(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return counters and the store's state under RocketMQ's names, all as text."""
        store = self._broker.store
        for oldest in store.commit_log.segments[:1]:
            if not (
                store.cleaner.times.knows_first(oldest) or store.warming.is_hot_at(oldest.start)
            ):
                with suppress(BrokerError):  # The time is read once more then, and not known.
                    await record_at(self._broker, oldest.start, connection.peer_address)
        return command.response(
            ResponseCode.SUCCESS, body=encode_kv_table(runtime_info(self._broker))
        )


def runtime_info(broker: BrokerContext) -> dict[str, str]:
    """Return what GET_BROKER_RUNTIME_INFO answers."""
    return {
        **_ALWAYS_ZERO,
        **_store_info(broker.store),
        **broker.stats.runtime_info(),
        # Whether messages are delivered later and transactions checked here.
        "brokerActive": str(broker.is_leading).lower(),
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": version_name(VERSION),
    }


def _store_info(store: MessageStore) -> dict[str, str]:
    state = store.state()
    usage = store.retention.usage
    total, free = (usage.capacity_bytes, usage.available_bytes) if usage is not None else (0, 0)
    disk_ratio = str((state.disk_used_percent or 0) / 100)
    return {
        "commitLogDirCapacity": f"Total : {_readable(total)}, Free : {_readable(free)}.",
        "commitLogMaxOffset": str(state.max_physical_offset),
        "commitLogMinOffset": str(state.min_physical_offset),
        "commitLogDiskRatio": disk_ratio,
        "consumeQueueDiskRatio": disk_ratio,
        "dispatchBehindBytes": str(state.dispatch_behind_bytes),
        "remainHowManyDataToFlush": _readable(state.unflushed_bytes),
        "earliestMessageTimeStamp": str(_earliest_store_timestamp_ms(store)),
        "putMessageDistributeTime": store.commit_log.write_times.spelled(),
    }


def _earliest_store_timestamp_ms(store: MessageStore) -> int:
    """Return the store time of the oldest message in the log, -1 if it is empty or damaged."""
    segments = store.commit_log.segments
    first_ms = store.cleaner.times.first_ms(segments[0]) if segments else None
    return -1 if first_ms is None else first_ms


def _readable(size_bytes: int) -> str:
    """Spell a size as RocketMQ does: "2.7 KiB"."""
    if size_bytes < _KIB:
        return f"{size_bytes} B"
    power = min((size_bytes.bit_length() - 1) // 10, len(_UNITS))
    return f"{size_bytes / _KIB**power:.1f} {_UNITS[power - 1]}iB"
