"""From a pull answer's body to Python lists, one per raw field.

The compiled core, where it is installed, takes apart what is whole and not compressed. Otherwise
the common record (v1 magic, both hosts IPv4) costs one unpack and a few slices; every other one
goes through `mailboat.model.record`. All check shape and checksums alike. Properties stay bytes
here: `schema` takes out of them only what the asked columns need.
"""

import struct
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from isal.isal_zlib import crc32

from mailboat.errors import CorruptRecordError, IllegalMessageError
from mailboat.model import compiled
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
from mailboat_spark.offsets import Witness

_ANY_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_BODY_AT: Final = HEAD_V4.size
_MASK: Final = 0x7FFFFFFF
_NO_LIMIT: Final = 1 << 62
# The end of a record that has a checksum, back to front: a separator, and the digits in order.
_CRC_REVERSED: Final = slice(-1, -12, -1)

# Of the bytes before the body only what a column or a check needs: size, magic, body CRC, flag,
# queue offset, sysFlag, born and store timestamp, reconsume times, body size. Hosts, queue id and
# the two other offsets are passed over, which saves time.
_HEAD: Final = struct.Struct(">iIi4xiq8xiq8xq8xi8xi")
assert _HEAD.size == HEAD_V4.size
# Places in a head, which is what `_HEAD` unpacks to.
HEAD_FLAG: Final = 3
HEAD_QUEUE_OFFSET: Final = 4
HEAD_BORN_MS: Final = 6
HEAD_STORE_MS: Final = 7
HEAD_RECONSUME_TIMES: Final = 8


@dataclass(slots=True)
class RawRows:
    """Rows decoded so far: payload, properties as stored, and fixed fields, one list each."""

    payloads: list[bytes] = field(default_factory=list)
    properties: list[bytes] = field(default_factory=list)
    heads: list[tuple[Any, ...]] = field(default_factory=list)
    packed: list[tuple[int, str]] = field(default_factory=list)
    """Queue offset and reason of each payload that cannot be unpacked and is kept as stored."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.payloads)

    def add(
        self, payloads: list[bytes], properties: list[bytes], heads: list[tuple[Any, ...]]
    ) -> None:
        """Add rows by their columns."""
        self.payloads += payloads
        self.properties += properties
        self.heads += heads


class OffsetRun(NamedTuple):
    """The queue offsets seen in one answer: from `start` up to, and without, `end`."""

    start: int
    end: int
    rows: int


class DecodedPart(NamedTuple):
    """What one call decoded of an answer."""

    run: OffsetRun
    size_bytes: int
    """Of the records, and of their payloads where these were unpacked."""
    body_at: int
    """Where in the answer's body the next record begins."""


# A few KiB may unpack to 16 MiB, so it begins at `body_at` and stops at a record's end once it has
# unpacked `max_bytes`: all that was decoded is then below that and one message more.
def decode_body(
    body: bytes,
    rows: RawRows,
    *,
    end: int,
    body_at: int = 0,
    max_bytes: int = _NO_LIMIT,
    tags: frozenset[bytes] = frozenset(),
) -> DecodedPart:
    """Append messages of a pull answer to `rows`; return which queue offsets were seen.

    Records at queue offset `end` and after it are left out, and with `tags` those of other tags:
    brokers compare hashes of tags, which may collide.

    Raises:
        CorruptRecordError: the bytes at some position are not a whole record, or a checksum fails.
    """
    unpack, length, at = _HEAD.unpack_from, len(body), body_at
    first, last, seen, unpacked_bytes = 0, -1, 0, 0
    while at < length and unpacked_bytes < max_bytes:
        if compiled.decode_rows is not None:
            payloads, texts, heads, found, at = compiled.decode_rows(body, at, end, tags)
            rows.add(payloads, texts, heads)
            if found[2]:
                first, last, seen = first if seen else found[0], found[1], seen + found[2]
            if at == length:
                break
        if length - at < FIXED_BYTES:
            raise _corrupt(at, "fewer bytes than a record has")
        head = unpack(body, at)
        size, magic, body_crc, _, queue_offset, sys_flag, _, _, _, body_size = head
        if magic == MAGIC_V1 and not sys_flag & _ANY_V6:
            payload_at = at + _BODY_AT
            payload_end = payload_at + body_size
            stop = at + size
            if body_size < 0 or stop > length or payload_end + 3 > stop:
                raise _corrupt(at, f"record size {size} or body size {body_size} does not fit")
            properties_at = payload_end + 3 + body[payload_end]
            if (
                properties_at > stop
                or properties_at + (body[properties_at - 2] << 8 | body[properties_at - 1]) != stop
            ):
                raise _corrupt(at, "the sizes of the parts do not add up to the record size")
            payload = body[payload_at:payload_end]
            properties = body[properties_at:stop]
            # The checksum of the whole record, where it has one, is its last property.
            if properties[-CRC_PROPERTY_BYTES:].startswith(CRC_PROPERTY_HEAD):
                record_crc = crc32(body[at : stop - CRC_PROPERTY_BYTES]) & _MASK
                holds = b"\x02%010d" % record_crc == properties[_CRC_REVERSED]
            else:
                holds = crc32(payload) & _MASK == body_crc & _MASK
            if not holds:
                raise _corrupt(at, "the checksum does not match the bytes")
            at = stop
        else:
            payload, properties, head, at = _decode_rare(body, at)
        if queue_offset >= end:
            continue
        if not seen:
            first = queue_offset
        last, seen = queue_offset, seen + 1
        if tags and property_of(properties, _TAGS_MARKER) not in tags:
            continue
        if sys_flag & COMPRESSED:
            payload = _unpack(payload, sys_flag, queue_offset, rows)
            unpacked_bytes += len(payload)
        rows.add([payload], [properties], [head])
    run = OffsetRun(first, last + 1, seen)
    return DecodedPart(run, at - body_at + unpacked_bytes, at)


def _unpack(payload: bytes, sys_flag: int, queue_offset: int, rows: RawRows) -> bytes:
    """Return a payload unpacked; note one that is not compressed as its flag says.

    Such a one is what its producer sent, and no later read would find it better.
    """
    try:
        return decompress(payload, sys_flag)
    except IllegalMessageError as exc:
        rows.packed.append((queue_offset, str(exc)))
        return payload


def witness_of(body: bytes, queue_offset: int) -> Witness | None:
    """Return what tells the first record of a pull answer from others at its queue offset.

    None if the answer begins with something else than the record of that queue offset.
    """
    try:
        parts = locate(body, 0, len(body))
    except ValueError:
        return None
    if parts.header.queue_offset != queue_offset:
        return None
    return Witness(parts.store_timestamp_ms, crc32(body[: parts.header.size_bytes]))


def property_marker(name: str) -> bytes:
    """Return what `property_of` looks for: a property's name and the separator behind it."""
    return name.encode() + b"\x01"


def property_of(properties: bytes, marker: bytes) -> bytes | None:
    """Return one property's value out of the stored text, or None; an empty one counts as none."""
    at = properties.find(marker)
    while at > 0 and properties[at - 1] != 2:
        at = properties.find(marker, at + 1)
    if at < 0:
        return None
    value_at = at + len(marker)
    value_end = properties.find(b"\x02", value_at)
    return properties[value_at : value_end if value_end >= 0 else None] or None


def property_values(texts: list[bytes], name: str) -> list[bytes | None]:
    """Return one property's value out of each stored text, as `property_of` does."""
    if compiled.property_values is not None:
        return compiled.property_values(texts, name.encode())
    marker = property_marker(name)
    return [property_of(text, marker) for text in texts]


_TAGS_MARKER: Final = property_marker(PropertyName.TAGS)


def _decode_rare(body: bytes, at: int) -> tuple[bytes, bytes, tuple[Any, ...], int]:
    """Decode a record with a long topic or IPv6 hosts.

    Returns payload, properties, head, and the position after the record.
    """
    try:
        parts = locate(body, at, len(body))
        check_sums(body, at, parts)
    except ValueError as exc:
        raise _corrupt(at, str(exc)) from exc
    header = parts.header
    head = (
        header.size_bytes,
        header.magic,
        header.body_crc,
        header.flag,
        header.queue_offset,
        header.sys_flag,
        header.born_timestamp_ms,
        parts.store_timestamp_ms,
        TAIL.unpack_from(body, parts.body_at - TAIL.size)[0],
        parts.body_end - parts.body_at,
    )
    payload = body[parts.body_at : parts.body_end]
    return payload, body[parts.properties_at : parts.properties_end], head, parts.properties_end


def _corrupt(position: int, reason: str) -> CorruptRecordError:
    return CorruptRecordError("received bytes", position, reason)
