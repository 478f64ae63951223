"""Messages by key and by id: 12 QUERY_MESSAGE, 33 VIEW_MESSAGE_BY_ID.

Source: apache/rocketmq broker/processor/QueryMessageProcessor.java @ rocketmq-all-5.3.3.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from mailboat.broker.blocking_calls import SEARCHES_MAX, SEARCHES_MAX_PER_ADDRESS
from mailboat.broker.context import BrokerContext
from mailboat.broker.record_reads import record_at
from mailboat.errors import BrokerError
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import (
    ExtValue,
    RemotingCommand,
    optional_bool,
    required_int,
    required_int32,
    required_str,
)
from mailboat.protocol.frame import FRAME_MAX_BYTES, HEADER_MAX_BYTES
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.store.key_search import KeyQuery, QueryResult

_MAX_MESSAGES: Final = 64  # MessageStoreConfig.maxMsgsNumBatch
_MAX_BODY_BYTES: Final = FRAME_MAX_BYTES - HEADER_MAX_BYTES - 8


def register(dispatcher: Dispatcher, controller: BrokerContext) -> None:
    """Answer this module's requests."""
    processor = QueryMessageProcessor(controller)
    dispatcher.register(RequestCode.QUERY_MESSAGE, processor.query_message)
    dispatcher.register(RequestCode.VIEW_MESSAGE_BY_ID, processor.view_message_by_id)


class QueryMessageProcessor:
    """Finds single messages in the store."""

    def __init__(self, broker: BrokerContext) -> None:
        """Search the store of `broker`."""
        self._broker = broker
        self._searches: Counter[str] = Counter()

    async def query_message(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | None:
        """Return the messages of a topic with a key, or with a unique key: the newest that fit."""
        topic = required_str(command, "topic")
        key = required_str(command, "key")
        max_num = required_int32(command, "maxNum")
        begin_ms = required_int(command, "beginTimestamp")
        end_ms = required_int(command, "endTimestamp")
        if optional_bool(command, "_UNIQUE_KEY_QUERY"):
            max_num = self._broker.settings.store.default_query_max_num
        query = KeyQuery(topic, key, min(max_num, _MAX_MESSAGES), _MAX_BODY_BYTES, begin_ms, end_ms)
        address = connection.peer_address
        if self._searches[address] >= SEARCHES_MAX_PER_ADDRESS:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]{SEARCHES_MAX_PER_ADDRESS} queries by key of {address} wait, try again "
                "later",
            )
        self._searches[address] += 1
        try:
            result = await self._search(query)
        finally:
            self._searches[address] -= 1
            if not self._searches[address]:
                del self._searches[address]
        ext_fields = {
            "indexLastUpdateTimestamp": result.index_last_update_timestamp_ms,
            "indexLastUpdatePhyoffset": result.index_last_update_physical_offset,
        }
        if not result.records:
            return command.response(
                ResponseCode.QUERY_NOT_FOUND,
                f"can not find message with key {key} in topic {topic}, "
                "maybe the time range is not correct",
                ext_fields,
            )
        if sum(map(len, result.records)) <= connection.write_high_water_bytes:
            body = b"".join(result.records)
            return command.response(ResponseCode.SUCCESS, None, ext_fields, body)
        _write(connection, command, ext_fields, result.records)
        return None

    async def _search(self, query: KeyQuery) -> QueryResult:
        """Have a query answered by another thread; a key may be that of every message."""
        if not self._broker.store_threads.can_search:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]{SEARCHES_MAX} queries by key wait, try again later",
            )
        ended: asyncio.Future[QueryResult] = asyncio.get_running_loop().create_future()

        def done(result: QueryResult | None, error: BaseException | None) -> None:
            if ended.done():
                return
            if result is not None:
                ended.set_result(result)
            elif error is not None:
                ended.set_exception(error)

        self._broker.store.search(query, done)
        try:
            return await ended
        except OSError as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"the index or the log cannot be read: {error}"
            ) from error

    async def view_message_by_id(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return the message at a physical offset."""
        physical_offset = required_int(command, "offset")
        record = await record_at(self._broker, physical_offset, connection.peer_address)
        if record is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"can not find message by the offset, {physical_offset}",
            )
        return command.response(ResponseCode.SUCCESS, body=record)


def _write(
    connection: Connection,
    command: RemotingCommand,
    ext_fields: Mapping[str, ExtValue],
    records: Sequence[bytes],
) -> None:
    """Write an answer of many bytes without another copy of them: a frame takes 16 MB."""
    if command.is_oneway:
        return
    answer = command.response(ResponseCode.SUCCESS, None, ext_fields)
    connection.write(answer.encode_head(sum(map(len, records))))
    for record in records:
        connection.write(record)
