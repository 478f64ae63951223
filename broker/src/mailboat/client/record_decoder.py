"""Fast decoding of a pull answer's body.

`mailboat.model.record` decodes one record with every case in the open. Where the compiled core is
installed, it takes the records apart up to the first that is not right. Otherwise, and from there
on, the common case (v1 magic, both hosts IPv4) is one loop with one unpack per record, about three
times as fast as the model, and every other record goes through that. All check the same things.
"""

from itertools import starmap
from typing import Final

from isal.isal_zlib import crc32

from mailboat.errors import CorruptRecordError
from mailboat.model import compiled
from mailboat.model.message import MessageExt
from mailboat.model.record import (
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_HEAD,
    FIXED_BYTES,
    HEAD_V4,
    MAGIC_V1,
    decode_record,
)
from mailboat.model.sys_flag import BORN_HOST_V6, STORE_HOST_V6

_ANY_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_BODY_AT: Final = HEAD_V4.size
_MASK: Final = 0x7FFFFFFF
# The end of a record that has a checksum, back to front: a separator, and the digits in order.
_CRC_REVERSED: Final = slice(CRC_PROPERTY_BYTES - 1, CRC_PROPERTY_BYTES - 12, -1)


def decode_messages(body: bytes) -> list[MessageExt]:
    """Return the messages of records that lie back to back, checksums verified.

    Raises:
        CorruptRecordError: the bytes at some position are not a whole record, or a checksum fails.
    """
    if compiled.decode_records is None:
        return decode_messages_from(body, 0)
    rows, at = compiled.decode_records(body)
    messages = list(starmap(MessageExt, rows))
    return messages if at == len(body) else messages + decode_messages_from(body, at)


def decode_messages_from(body: bytes, at: int) -> list[MessageExt]:
    """Return the messages of the records from a position on; the definition of the above."""
    messages: list[MessageExt] = []
    topics: dict[bytes, str] = {}
    unpack, append, end = HEAD_V4.unpack_from, messages.append, len(body)
    while at < end:
        if end - at < FIXED_BYTES:
            raise _corrupt(at, "fewer bytes than a record has")
        (
            size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag,
            born_ms, born_host, store_ms, store_host, reconsume_times, prepared, body_size,
        ) = unpack(body, at)  # fmt: skip
        if magic != MAGIC_V1 or sys_flag & _ANY_V6:
            message, at = decode_record(body, at)
            append(message)
            continue
        stop = at + size
        payload_at = at + _BODY_AT
        payload_end = payload_at + body_size
        if body_size < 0 or stop > end or payload_end + 3 > stop:
            raise _corrupt(at, f"record size {size} or body size {body_size} does not fit")
        topic_end = payload_end + 1 + body[payload_end]
        properties_at = topic_end + 2
        if (
            properties_at > stop
            or properties_at + (body[topic_end] << 8 | body[topic_end + 1]) != stop
        ):
            raise _corrupt(at, "the sizes of the parts do not add up to the record size")
        payload = body[payload_at:payload_end]
        if not _checksum_holds(body, at, stop, payload, body_crc):
            raise _corrupt(at, "the checksum does not match the bytes")
        raw_topic = body[payload_end + 1 : topic_end]
        topic = topics.get(raw_topic)
        if topic is None:
            topic = topics[raw_topic] = raw_topic.decode("utf-8", "replace")
        properties: dict[str, str] = {}
        for entry in body[properties_at:stop].decode("utf-8", "replace").split("\x02"):
            name, _, value = entry.partition("\x01")
            if value and name:
                properties[name] = value
        append(
            MessageExt(
                topic, payload, queue_id, queue_offset, physical_offset, size, flag, sys_flag,
                body_crc, born_ms, born_host, store_ms, store_host, reconsume_times, prepared,
                properties,
            )
        )  # fmt: skip
        at = stop
    return messages


def _checksum_holds(body: bytes, at: int, stop: int, payload: bytes, body_crc: int) -> bool:
    tail = body[stop - CRC_PROPERTY_BYTES : stop]
    if tail.startswith(CRC_PROPERTY_HEAD):
        record_crc = crc32(body[at : stop - CRC_PROPERTY_BYTES]) & _MASK
        return b"\x02%010d" % record_crc == tail[_CRC_REVERSED]
    return crc32(payload) & _MASK == body_crc & _MASK


def _corrupt(position: int, reason: str) -> CorruptRecordError:
    return CorruptRecordError("received bytes", position, reason)
