"""Messages by key and by id: 12 QUERY_MESSAGE, 33 VIEW_MESSAGE_BY_ID.

Source: apache/rocketmq broker/processor/QueryMessageProcessor.java @ rocketmq-all-5.3.3.
"""

from collections.abc import Iterable
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.errors import BrokerError
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import (
    RemotingCommand,
    optional_bool,
    required_int,
    required_int32,
    required_str,
)
from mailboat.protocol.frame import FRAME_MAX_BYTES, HEADER_MAX_BYTES
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher

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

    def query_message(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the messages of a topic with a key, or with a unique key."""
        topic = required_str(command, "topic")
        key = required_str(command, "key")
        max_num = required_int32(command, "maxNum")
        begin_ms = required_int(command, "beginTimestamp")
        end_ms = required_int(command, "endTimestamp")
        if optional_bool(command, "_UNIQUE_KEY_QUERY"):
            max_num = self._broker.settings.store.default_query_max_num
        result = self._broker.store.query_message(
            topic, key, min(max_num, _MAX_MESSAGES), begin_ms, end_ms
        )
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
        return command.response(
            ResponseCode.SUCCESS, None, ext_fields, b"".join(_that_fit(result.records))
        )

    def view_message_by_id(
        self, _connection: Connection, command: RemotingCommand
    ) -> RemotingCommand:
        """Return the message at a physical offset."""
        physical_offset = required_int(command, "offset")
        record = self._broker.store.look_message_by_offset(physical_offset)
        if record is None:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"can not find message by the offset, {physical_offset}",
            )
        return command.response(ResponseCode.SUCCESS, body=record)


def _that_fit(records: Iterable[bytes]) -> list[bytes]:
    """Return as many records as one frame takes; sixty-four of 4 MiB would break it."""
    taken = []
    size_bytes = 0
    for record in records:
        size_bytes += len(record)
        if size_bytes > _MAX_BODY_BYTES:
            break
        taken.append(record)
    return taken
