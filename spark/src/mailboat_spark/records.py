"""From a pull answer's body to Python lists, one per raw field.

The common record (v1 magic, both hosts IPv4) costs one unpack and a few slices; every other one goes
through `mailboat.model.record`. Both check shape and checksums alike. Properties stay bytes here:
`schema` takes out of them only what the asked columns need.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from isal.isal_zlib import crc32

from mailboat.errors import CorruptRecordError
from mailboat.model.compression import decompress
from mailboat.model.properties import PropertyName
from mailboat.model.record import (
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_HEAD,
    FIXED_BYTES,
    HEAD_V4,
    MAGIC_V1,
    TAIL,
    check_sums,
    locate,
)
from mailboat.model.sys_flag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6

_ANY_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_BODY_AT: Final = HEAD_V4.size
_MASK: Final = 0x7FFFFFFF
# The ten digits of the checksum, which are stored in reverse, within the record's last 20 bytes.
_DIGITS: Final = slice(CRC_PROPERTY_BYTES - 2, CRC_PROPERTY_BYTES - 12, -1)
_TAGS_NAME: Final = PropertyName.TAGS.encode()


@dataclass(slots=True)
class RawRows:
    """Rows decoded so far, as one list per field; all lists have the same length."""

    payloads: list[bytes] = field(default_factory=list)
    properties: list[bytes] = field(default_factory=list)
    queue_offsets: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    reconsume_times: list[int] = field(default_factory=list)
    born_timestamps_ms: list[int] = field(default_factory=list)
    store_timestamps_ms: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.payloads)


def decode_body(
    body: bytes, rows: RawRows, *, end: int, tags: Collection[bytes] = ()
) -> int | None:
    """Append the messages of a pull answer to `rows`; return the first record's queue offset.

    Records at queue offset `end` and after it are left out, and with `tags` those of other tags:
    brokers compare hashes of tags, which may collide.

    Raises:
        CorruptRecordError: the bytes at some position are not a whole record, or a checksum fails.
        IllegalMessageError: a compressed payload cannot be read.
    """
    unpack, length, at, first = HEAD_V4.unpack_from, len(body), 0, None
    add_payload, add_properties = rows.payloads.append, rows.properties.append
    add_offset, add_flag = rows.queue_offsets.append, rows.flags.append
    add_born, add_store = rows.born_timestamps_ms.append, rows.store_timestamps_ms.append
    add_reconsume = rows.reconsume_times.append
    while at < length:
        if length - at < FIXED_BYTES:
            raise CorruptRecordError("received bytes", at, "fewer bytes than a record has")
        (
            size, magic, body_crc, _, flag, queue_offset, _, sys_flag,
            born_ms, _, store_ms, _, reconsume_times, _, body_size,
        ) = unpack(body, at)  # fmt: skip
        stop = at + size
        if magic == MAGIC_V1 and not sys_flag & _ANY_V6:
            payload_end = at + _BODY_AT + body_size
            _check_shape(body, at, payload_end, stop, body_size)
            payload = body[at + _BODY_AT : payload_end]
            _check_sum(body, at, stop, payload, body_crc)
            properties = body[payload_end + 3 + body[payload_end] : stop]
        else:
            payload, properties, store_ms, reconsume_times, stop = _decode_rare(body, at)
        if first is None:
            first = queue_offset
        at = stop
        if queue_offset >= end or (tags and tag_of(properties) not in tags):
            continue
        if sys_flag & COMPRESSED:
            payload = decompress(payload, sys_flag)
        add_payload(payload)
        add_properties(properties)
        add_offset(queue_offset)
        add_flag(flag)
        add_reconsume(reconsume_times)
        add_born(born_ms)
        add_store(store_ms)
    return first


def property_of(properties: bytes, name: bytes) -> bytes | None:
    """Return one property's value out of the stored text, or None; an empty one counts as none."""
    start = 0
    while True:
        at = properties.find(name + b"\x01", start)
        if at < 0:
            return None
        if at == 0 or properties[at - 1] == 2:
            value_at = at + len(name) + 1
            value_end = properties.find(b"\x02", value_at)
            return properties[value_at : value_end if value_end >= 0 else None] or None
        start = at + 1


def tag_of(properties: bytes) -> bytes | None:
    """Return the tag out of the stored properties, or None."""
    return property_of(properties, _TAGS_NAME)


def _check_shape(body: bytes, at: int, payload_end: int, stop: int, body_size: int) -> None:
    if body_size < 0 or stop > len(body) or payload_end + 3 > stop:
        reason = f"record size {stop - at} or body size {body_size} does not fit"
        raise CorruptRecordError("received bytes", at, reason)
    topic_end = payload_end + 1 + body[payload_end]
    if (
        topic_end + 2 > stop
        or topic_end + 2 + (body[topic_end] << 8 | body[topic_end + 1]) != stop
    ):
        reason = "the sizes of the parts do not add up to the record size"
        raise CorruptRecordError("received bytes", at, reason)


def _check_sum(body: bytes, at: int, stop: int, payload: bytes, body_crc: int) -> None:
    tail = body[stop - CRC_PROPERTY_BYTES : stop]
    if tail.startswith(CRC_PROPERTY_HEAD):
        record_crc = crc32(body[at : stop - CRC_PROPERTY_BYTES]) & _MASK
        holds = b"%010d" % record_crc == tail[_DIGITS]
    else:
        holds = crc32(payload) & _MASK == body_crc & _MASK
    if not holds:
        raise CorruptRecordError("received bytes", at, "the checksum does not match the bytes")


def _decode_rare(body: bytes, at: int) -> tuple[bytes, bytes, int, int, int]:
    """Decode a record with a long topic or IPv6 hosts.

    Returns payload, properties, store timestamp, reconsume times, position after the record.
    """
    try:
        parts = locate(body, at, len(body))
        check_sums(body, at, parts)
    except ValueError as exc:
        raise CorruptRecordError("received bytes", at, str(exc)) from exc
    reconsume_times = TAIL.unpack_from(body, parts.body_at - TAIL.size)[0]
    return (
        body[parts.body_at : parts.body_end],
        body[parts.properties_at : parts.properties_end],
        parts.store_timestamp_ms,
        reconsume_times,
        parts.properties_end,
    )
