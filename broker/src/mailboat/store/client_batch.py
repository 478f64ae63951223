"""The messages of one client batch on their way into the store, kept as columns.

They share topic, queue, hosts and times; what differs is a list for each field. No object is made
for a message, and each step handles a column with a few calls. The records are those that the same
messages get one by one (`CommitLog.append_together`), byte for byte.
"""

from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import add, and_
from struct import Struct
from typing import Final

import msgspec
from isal.isal_zlib import crc32

from mailboat.model.record import (
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_HEAD,
    FIXED_BYTES,
    IPV6_EXTRA_BYTES,
    TAIL,
)
from mailboat.model.rows import cut_rows, pack_rows
from mailboat.model.sys_flag import ANY_HOST_V6, BORN_HOST_V6, STORE_HOST_V6
from mailboat.store.message_inner import PutStatus

_CRC_MASK: Final = 0x7FFFFFFF
_LENGTH: Final = Struct(">H")
# size, magic, body crc, queue id, flag, queue offset, physical offset, then what all records of the
# batch have in common (sysFlag to prepared transaction offset), body size
_HEAD_V4: Final = Struct(">iIiiiqq48si")
_HEAD_ONE_V6: Final = Struct(">iIiiiqq60si")
_HEAD_BOTH_V6: Final = Struct(">iIiiiqq72si")
_HEADS: Final = {48: _HEAD_V4, 60: _HEAD_ONE_V6, 72: _HEAD_BOTH_V6}
_SYS_FLAG_AND_BORN: Final = Struct(">iq")
# Written backwards, because the digits of a record's checksum are.
_CRC_PROPERTY_REVERSED: Final = b"\x02%010d" + CRC_PROPERTY_HEAD[::-1]


class ClientBatch(msgspec.Struct, gc=False):
    """Messages to store together; the store fills in the fields from `status` on.

    A message's properties are its `before`, its `after` (`text_sizes` has the bytes of both) and
    the `suffix`, common to all; together they are a text that ends with a separator. `unique_keys`
    has one key for each message, `keys` (empty, or one for each message) has its further keys
    joined by spaces; both are UTF-8.
    """

    topic: str
    queue_id: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    reconsume_times: int
    wait_store_ok: bool
    flags: Sequence[int]
    bodies: Sequence[bytes]
    befores: Sequence[bytes]
    afters: Sequence[bytes]
    text_sizes: Sequence[int]
    suffix: bytes
    tags_codes: Sequence[int]
    unique_keys: Sequence[bytes]
    keys: Sequence[bytes]
    status: int = PutStatus.NOT_TRIED
    queue_offset: int = -1
    sizes: list[int] = []
    physical_offsets: list[int] = []

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.bodies)

    @property
    def size_bytes(self) -> int:
        """The bytes of all records, once `measure` has been called."""
        return sum(self.sizes)

    def measure(self, topic_field_bytes: int, store_host: bytes, *, append_crc: bool) -> None:
        """Work out the sizes of the records."""
        fixed = FIXED_BYTES - 1 + topic_field_bytes + len(self.suffix)
        fixed += CRC_PROPERTY_BYTES if append_crc else 0
        fixed += IPV6_EXTRA_BYTES if len(self.born_host) != 8 else 0
        fixed += IPV6_EXTRA_BYTES if len(store_host) != 8 else 0
        variable = map(add, map(len, self.bodies), self.text_sizes)
        self.sizes = list(map(add, variable, repeat(fixed)))

    def place(self, physical_offset: int, queue_offset: int) -> int:
        """Let the first record begin there; return where the last one ends."""
        *self.physical_offsets, end = accumulate(self.sizes, initial=physical_offset)
        self.queue_offset = queue_offset
        return end

    def encode(
        self,
        magic: int,
        topic_field: bytes,
        store_host: bytes,
        store_timestamp_ms: int,
        *,
        append_crc: bool,
    ) -> list[bytes]:
        """Return the bytes of the records, in pieces; `place` has been called."""
        bodies, text_sizes = self.bodies, self.text_sizes
        shared = self._shared_fields(store_host, store_timestamp_ms)
        heads = map(
            _HEADS[len(shared)].pack,
            self.sizes,
            repeat(magic),
            map(and_, map(crc32, bodies), repeat(_CRC_MASK)),
            repeat(self.queue_id),
            self.flags,
            range(self.queue_offset, self.queue_offset + len(bodies)),
            self.physical_offsets,
            repeat(shared),
            map(len, bodies),
        )
        # Topic and properties size stand between body and properties.
        further = len(self.suffix) + (CRC_PROPERTY_BYTES if append_crc else 0)
        fields = {size: topic_field + _LENGTH.pack(size + further) for size in set(text_sizes)}
        middles = map(fields.__getitem__, text_sizes)
        texts = (self.befores, self.afters, repeat(self.suffix))
        records = list(map(b"".join, zip(heads, bodies, middles, *texts, strict=False)))
        if not append_crc:
            return records
        crcs = list(map(and_, map(crc32, records), repeat(_CRC_MASK)))
        crcs.reverse()
        checksums = (_CRC_PROPERTY_REVERSED * len(records) % tuple(crcs))[::-1]
        parts: list[bytes] = [b""] * (2 * len(records))
        parts[0::2] = records
        parts[1::2] = cut_rows(f"{CRC_PROPERTY_BYTES}s", CRC_PROPERTY_BYTES, checksums)
        return parts

    def _shared_fields(self, store_host: bytes, store_timestamp_ms: int) -> bytes:
        """Return the bytes from sysFlag to the prepared transaction offset."""
        sys_flag = self.sys_flag & ~ANY_HOST_V6
        sys_flag |= BORN_HOST_V6 if len(self.born_host) != 8 else 0
        sys_flag |= STORE_HOST_V6 if len(store_host) != 8 else 0
        return b"".join(
            (
                _SYS_FLAG_AND_BORN.pack(sys_flag, self.born_timestamp_ms),
                self.born_host,
                store_timestamp_ms.to_bytes(8, "big"),
                store_host,
                TAIL.pack(self.reconsume_times, 0, 0)[:12],
            )
        )

    def units(self) -> bytes:
        """Return the ConsumeQueue units of the messages."""
        return pack_rows("qiq", self.physical_offsets, self.sizes, self.tags_codes)

    def refuse(self, status: int) -> None:
        """Note that nothing of the batch is stored."""
        self.status = status
        self.queue_offset = -1
        self.physical_offsets = []
