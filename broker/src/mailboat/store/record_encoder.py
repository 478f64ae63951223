"""From a message to the bytes of its record, and what a record may be.

The layout is in `mailboat.model.record`. A record says itself how long its hosts are, whatever the
message said of them, and ends with the checksum property over all of it.

Source: apache/rocketmq store/CommitLog.java (MessageExtEncoder) @ rocketmq-all-5.3.3.
"""

import struct
from typing import Final

from isal.isal_zlib import crc32

from mailboat.model.names import MAX_RETRY_TOPIC_LENGTH, MAX_TOPIC_LENGTH, is_retry_or_dlq
from mailboat.model.properties import MAX_PROPERTIES_BYTES
from mailboat.model.record import (
    CRC_PROPERTY_BYTES,
    FILLER_BYTES,
    FIXED_BYTES,
    HEAD,
    HEAD_V4,
    IPV6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    TAIL,
    crc_property,
)
from mailboat.model.sys_flag import (
    ANY_HOST_V6,
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_PREPARED,
)
from mailboat.store.message_inner import MessageInner

_CRC_MASK: Final = 0x7FFFFFFF
_LENGTH: Final = struct.Struct(">H")
_SEPARATOR: Final = 2
_EXTRA_RECORD_BYTES: Final = 64 * 1024
# What is smaller breaks no limit on bodies, properties or records.
_SURELY_LEGAL_BYTES: Final = 8192
_V4_HOST_BYTES: Final = 8


class RecordEncoder:
    """Measures and encodes the messages of one broker."""

    def __init__(
        self, store_host: bytes, max_body_bytes: int, segment_bytes: int, *, append_crc: bool
    ) -> None:
        """Encode for a broker at `store_host` (8 or 20 bytes) and segments of `segment_bytes`."""
        self._store_host = store_host
        self._segment_bytes = segment_bytes
        self._crc_bytes = CRC_PROPERTY_BYTES if append_crc else 0
        self._is_store_v6 = len(store_host) != _V4_HOST_BYTES
        # Without the length byte of the topic, which the field brings.
        self._fixed_bytes = FIXED_BYTES - 1 + self._crc_bytes
        self._fixed_bytes += IPV6_EXTRA_BYTES if self._is_store_v6 else 0
        self._topics: dict[str, tuple[int, bytes]] = {}
        self._max_body_bytes = max_body_bytes

    def size(self, message: MessageInner) -> int:
        """Return the bytes of a message's record, 0 if it breaks a limit and has none."""
        properties = message.properties
        size = len(message.body) + len(properties) + self._fixed_bytes
        size += len(self._topic_field(message.topic)[1])
        if len(message.born_host) != _V4_HOST_BYTES:
            size += IPV6_EXTRA_BYTES
        if self._crc_bytes and properties and properties[-1] != _SEPARATOR:
            size += 1
        if message.sys_flag & TRANSACTION_PREPARED:
            return 0
        return size if size <= _SURELY_LEGAL_BYTES or self._is_legal(message, size) else 0

    def encode(
        self,
        message: MessageInner,
        size_bytes: int,
        queue_offset: int,
        physical_offset: int,
        store_timestamp_ms: int,
    ) -> bytes:
        """Return the record of a message whose `size` is `size_bytes`."""
        body, properties, born_host = message.body, message.properties, message.born_host
        magic, topic = self._topic_field(message.topic)
        if self._crc_bytes and properties and properties[-1] != _SEPARATOR:
            properties += b"\x02"
        if self._is_store_v6 or len(born_host) != _V4_HOST_BYTES:
            head = self._head_v6(
                message, size_bytes, magic, queue_offset, physical_offset, store_timestamp_ms
            )
        else:
            head = HEAD_V4.pack(
                size_bytes,
                magic,
                crc32(body) & _CRC_MASK,
                message.queue_id,
                message.flag,
                queue_offset,
                physical_offset,
                message.sys_flag & ~ANY_HOST_V6,
                message.born_timestamp_ms,
                born_host,
                store_timestamp_ms,
                self._store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                len(body),
            )
        length = _LENGTH.pack(len(properties) + self._crc_bytes)
        record = b"".join((head, body, topic, length, properties))
        return record + crc_property(record) if self._crc_bytes else record

    def _topic_field(self, topic: str) -> tuple[int, bytes]:
        """Return the magic of records of a topic and the topic with its length before it."""
        try:
            return self._topics[topic]
        except KeyError:
            data = topic.encode()
            if len(data) <= MAX_TOPIC_LENGTH:
                entry = (MAGIC_V1, bytes((len(data),)) + data)
            else:
                # Version 2 has one length byte more; the size counts the field as a whole.
                entry = (MAGIC_V2, len(data).to_bytes(2, "big") + data)
            self._topics[topic] = entry
            return entry

    def _head_v6(
        self,
        message: MessageInner,
        size_bytes: int,
        magic: int,
        queue_offset: int,
        physical_offset: int,
        store_timestamp_ms: int,
    ) -> bytes:
        """Pack what comes before the body when a host is IPv6."""
        flags = message.sys_flag & ~ANY_HOST_V6
        flags |= BORN_HOST_V6 if len(message.born_host) != _V4_HOST_BYTES else 0
        flags |= STORE_HOST_V6 if self._is_store_v6 else 0
        crc = crc32(message.body) & _CRC_MASK
        place = (message.queue_id, message.flag, queue_offset, physical_offset)
        return b"".join(
            (
                HEAD.pack(size_bytes, magic, crc, *place, flags, message.born_timestamp_ms),
                message.born_host,
                store_timestamp_ms.to_bytes(8, "big"),
                self._store_host,
                TAIL.pack(
                    message.reconsume_times, message.prepared_transaction_offset, len(message.body)
                ),
            )
        )

    def _is_legal(self, message: MessageInner, size_bytes: int) -> bool:
        topic = message.topic
        limit = MAX_RETRY_TOPIC_LENGTH if is_retry_or_dlq(topic) else MAX_TOPIC_LENGTH
        closing_bytes = self._crc_bytes + 1 if self._crc_bytes else 0
        return (
            len(message.body) <= self._max_body_bytes
            and len(message.properties) + closing_bytes <= MAX_PROPERTIES_BYTES
            and len(self._topic_field(topic)[1]) - 1 <= limit
            and size_bytes <= self._max_body_bytes + _EXTRA_RECORD_BYTES
            and size_bytes + FILLER_BYTES <= self._segment_bytes
        )
