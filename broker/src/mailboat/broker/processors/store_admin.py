"""The store, looked into and tidied up.

    306 CLEAN_EXPIRED_CONSUMEQUEUE   316 CLEAN_UNUSED_TOPIC     329 DELETE_EXPIRED_COMMITLOG
    321 QUERY_CONSUME_QUEUE          354 CHECK_ROCKSDB_CQ_WRITE_PROGRESS

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java and
store/DefaultMessageStore.java @ rocketmq-all-5.3.3.
"""

import asyncio
import contextlib
import logging
from collections.abc import Generator, Iterator
from typing import Final

from mailboat.broker import administration
from mailboat.broker.cold_looks import Looks
from mailboat.broker.context import BrokerContext
from mailboat.errors import BrokerError
from mailboat.protocol.admin_bodies import (
    ConsumeQueueContent,
    ConsumeQueueData,
    encode_consume_queue,
)
from mailboat.protocol.bodies import encode_body
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import (
    RemotingCommand,
    optional_int32,
    optional_str,
    required_int,
    required_int32,
    required_str,
)
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher, Lane
from mailboat.remoting.turns import TURN_S, in_turns, sorted_steps
from mailboat.store.consume_queue import UNIT

_log = logging.getLogger(__name__)

_MAX_UNITS: Final = 10_000
_CHECK_OK: Final = 0  # CheckRocksdbCqWriteResult.CheckStatus.CHECK_OK


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = StoreAdminProcessor(controller)
    dispatcher.register(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, processor.clean_expired_queues)
    dispatcher.register(RequestCode.CLEAN_UNUSED_TOPIC, processor.clean_unused_topics)
    dispatcher.register(RequestCode.DELETE_EXPIRED_COMMITLOG, processor.delete_expired_files)
    dispatcher.register(RequestCode.QUERY_CONSUME_QUEUE, processor.query_consume_queue, Lane.LOOK)
    dispatcher.register(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, processor.check_queue_copy)


class StoreAdminProcessor:
    """Shows queues as they lie on the disk and removes what is not needed."""

    def __init__(self, broker: BrokerContext) -> None:
        """Work on the store of `broker`."""
        self._broker = broker

    async def clean_expired_queues(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Remove what queues hold of removed messages; as a rule that went with the messages."""
        store = self._broker.store
        if not store.queues.is_raising:
            with _disk_refusals("a file of a queue cannot be removed"):
                store.queues.begin_raise(store.commit_log.start)
                while store.queues.is_raising:
                    store.queues.raise_some(TURN_S)
                    await asyncio.sleep(0)
        return command.response(ResponseCode.SUCCESS)

    async def clean_unused_topics(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Remove the queues of topics that are configured no more; their messages expire."""
        # A slave has messages before it knows of their topics: its master tells what is gone.
        self._broker.refuse_changes()
        for topic in await in_turns(self._unused_topics()):
            if not self._is_used(topic):
                _log.info("queues of an unused topic removed topic=%s", topic)
                await administration.forget_topics(self._broker, [topic])
        await self._broker.known_to_replicas()
        return command.response(ResponseCode.SUCCESS)

    def _is_used(self, topic: str) -> bool:
        topics = self._broker.topics
        # What waits for a topic is stored before the topic is in the table.
        is_known = topics.select(topic) is not None or topics.is_being_made(topic)
        return is_known or topics.is_system(topic)

    def _unused_topics(self) -> Generator[None, None, list[str]]:
        unused: set[str] = set()
        for topic, _ in self._broker.store.queue_keys():
            if topic not in unused and not self._is_used(topic):
                unused.add(topic)
            yield
        return (yield from sorted_steps(unused))

    def delete_expired_files(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Let the cleaner remove expired files in its next rounds, whatever hour it is."""
        self._broker.store.cleaner.delete_expired()
        return command.response(ResponseCode.SUCCESS)

    async def query_consume_queue(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return units of a queue: where each message lies in the log, its size and tags code."""
        topic = required_str(command, "topic")
        queue_id = required_int32(command, "queueId")
        index = required_int(command, "index")
        count = optional_int32(command, "count", 0)
        queue = self._broker.store.queues.get(topic, queue_id)
        if queue is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        first, end = queue.min_offset, queue.max_offset
        if not first <= index < max(end, first + 1):
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"Index {index} of {queue_id}@{topic} is not exist! It holds {first} to {end - 1}.",
            )
        count = min(count, _MAX_UNITS)
        looks = Looks(self._broker, connection.peer_address)
        await in_turns(looks.warm(queue, index, count))
        with _disk_refusals(f"queue {queue_id} of topic {topic} cannot be read"):
            units = UNIT.iter_unpack(queue.read_units(index, count))
        content = ConsumeQueueContent(
            max_queue_index=end,
            min_queue_index=first,
            queue_data=[ConsumeQueueData(*unit) for unit in units],
        )
        group = optional_str(command, "consumerGroup")
        subscription = None
        if group:
            subscription = self._broker.consumers.find_subscription(group, topic)
            # RocketMQ shows its bloom filter here, which is null for a tag filter.
            content.filter_data = "null" if subscription else f"{group}@{topic} is not online!"
        return command.response(
            ResponseCode.SUCCESS, body=encode_consume_queue(content, subscription)
        )

    def check_queue_copy(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Answer that the second copy of the queues, which is not kept here, is in order."""
        result = {
            "checkResult": "queues are kept in files only, no need check",
            "checkStatus": _CHECK_OK,
        }
        return command.response(ResponseCode.SUCCESS, body=encode_body(result))


@contextlib.contextmanager
def _disk_refusals(what_failed: str) -> Iterator[None]:
    """Answer one sentence when the disk refuses inside."""
    try:
        yield
    except OSError as error:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR, f"{what_failed}: {error.strerror or error}"
        ) from error
