"""The frames of the link between replicas as bytes.

A link is one TCP connection to a replica's `haListenPort`. All numbers are big-endian:

    offset  size  field
    0       1     0xB0: no other protocol on this port begins with a bit 7 (RocketMQ's slaves begin
                  with a physical offset)
    1       1     version, 1
    2       1     kind, see `_KINDS`; 0 is `Open`
    3       1     0
    4       4     bytes of the head
    8       4     bytes of the records behind it, 0 but for `Data` and `Fetched`
    12      4     CRC32 of the bytes 0 to 11, then of the head; records have their own checksums

The head is the frame as a MessagePack array of its fields, in the order of its class,
without `records`. Both sides begin with `Open`, whoever has connected first. Where they have a
secret, each answers with `Proof` before it believes anything else.
"""

import hmac
import struct
import sys
import zlib
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final

import msgspec

from mailboat.errors import RemoteProtocolError
from mailboat.replication.frames import (
    Ack,
    Answer,
    Ask,
    Beat,
    Data,
    Fetch,
    Fetched,
    Frame,
    Hello,
    Refused,
    Tables,
    TablesKept,
    TakeOver,
    Welcome,
)
from mailboat.replication.lease import Holder

FIRST_BYTE: Final = 0xB0
VERSION: Final = 1
PREFIX_BYTES: Final = 16
MOST_RECORD_BYTES: Final = 20 << 20
"""Of one frame: more than the largest message."""

_PREFIX: Final = struct.Struct(">BBBxIII")
_CHECKED_BYTES: Final = 12
_MOST_HEAD_BYTES: Final = 64 << 10
# Of texts: names and addresses.
_MOST_CHARACTERS: Final = 512


@dataclass(frozen=True, slots=True)
class Open:
    """Who a replica is, and whom it believes to lead: an ordinal, and an epoch (0: nobody).

    `nonce` is another one on each link, empty where this side has no secret.
    `address` is where it listens for other replicas, `client_address` where for clients, and
    `peers` where others listen for replicas, by ordinal. Both numbers of replicas are as
    configured: who may lead, and what is confirmed, rests on that they are the same everywhere.
    """

    nonce: str
    group: str
    ordinal: int
    store_id: str
    boot: str
    address: str
    client_address: str
    peers: dict[int, str]
    segment_bytes: int
    total_replicas: int
    in_sync_replicas: int
    seen: int
    leader: int
    leader_boot: str
    leader_store_id: str
    epoch: int

    @property
    def me(self) -> Holder:
        """Which run of which replica says so: always the same one on a link."""
        return Holder(self.ordinal, self.store_id, self.boot)


@dataclass(frozen=True, slots=True)
class Proof:
    """That a side knows the secret: see `proof`."""

    mac: bytes


Bulk = Data | Fetched
"""Frames behind which records follow."""

Told = Open | Frame | Tables | TablesKept | Fetch | Fetched
"""What a side that is believed may say."""

Message = Proof | Told


def newest_epoch(message: Message) -> int:
    """Return the newest epoch that a side could make another one believe in, 0 if none."""
    match message:
        case Open(seen=seen, epoch=epoch) | Answer(seen=seen, last_epoch=epoch):
            return max(seen, epoch)
        case Ask(epoch=epoch, known=known):
            return max(epoch, known)
        case Hello(seen=epoch) | Refused(seen=epoch) | Welcome(epoch=epoch) | Beat(epoch=epoch):
            return epoch
        case _:
            return 0  # These count under an epoch that is known already.


_KINDS: Final[dict[int, type]] = {
    0: Open,
    1: Hello,
    2: Welcome,
    3: Refused,
    4: Data,
    5: Beat,
    6: Ack,
    7: Ask,
    8: Answer,
    9: Proof,
    10: TakeOver,
    11: Tables,
    12: TablesKept,
    13: Fetch,
    14: Fetched,
}
_NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}
_BULK_NUMBERS: Final = {_NUMBERS[Data], _NUMBERS[Fetched]}

# With very many epochs, and with a group of very many queues.
_MOST_HEAD_BYTES_OF: Final = {_NUMBERS[Welcome]: 1 << 20, _NUMBERS[Tables]: 16 << 20}

# Of offsets, epochs and ordinals (-1: nobody): far from where arithmetic with them would end.
_NUMBER_MAX: Final = 1 << 56
_NUMBER: Final = Annotated[int, msgspec.Meta(ge=-1, le=_NUMBER_MAX)]
_TEXT: Final = Annotated[str, msgspec.Meta(max_length=_MOST_CHARACTERS)]
_CHECKED: Final[dict[Any, Any]] = {
    int: _NUMBER,
    str: _TEXT,
    dict[int, str]: dict.__class_getitem__((_NUMBER, _TEXT)),
}


def _array_of(kind: type) -> Any:
    types = tuple(
        _CHECKED.get(field.type, field.type) for field in fields(kind) if field.name != "records"
    )
    return tuple.__class_getitem__(types)


_DECODERS: Final = {
    number: msgspec.msgpack.Decoder(_array_of(kind)) for number, kind in _KINDS.items()
}
_NAMES: Final = {
    kind: tuple(field.name for field in fields(kind) if field.name != "records")
    for kind in _KINDS.values()
}
_EPOCHS_AT: Final = {
    kind: names.index("epochs") for kind, names in _NAMES.items() if "epochs" in names
}
_encode: Final = msgspec.msgpack.Encoder().encode


def encode(message: Message) -> bytes:
    """Return a frame as bytes; of a `Bulk` the head, behind which its records have to follow."""
    kind = type(message)
    head = _encode(tuple(getattr(message, name) for name in _NAMES[kind]))
    records_bytes = 0
    if isinstance(message, Bulk):
        assert isinstance(message.records, bytes)
        records_bytes = len(message.records)
    prefix = _PREFIX.pack(FIRST_BYTE, VERSION, _NUMBERS[kind], len(head), records_bytes, 0)
    checked = zlib.crc32(head, zlib.crc32(prefix[:_CHECKED_BYTES]))
    return prefix[:_CHECKED_BYTES] + checked.to_bytes(4, "big") + head


def proof(secret: bytes, *, has_connected: bool, own: Open, other_nonce: str) -> Proof:
    """Return what shows the other side that this one, which has said `own`, knows the secret.

    HMAC-SHA256 of who shows it, of all that it says of itself, its own nonce among that, and of the
    other side's nonce: so nothing heard before is of use, nor does it show anything of anybody
    else, as for whoever sends a replica its own proof back.
    """
    side = "from" if has_connected else "to"
    text = f"mailboat link {side} {other_nonce} ".encode() + encode(own)
    return Proof(hmac.digest(secret, text, "sha256"))


class Decoder:
    """Cuts what arrives on one link into frames."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._buffer = bytearray()

    @property
    def buffered_bytes(self) -> int:
        """How much has arrived of a frame that is not whole."""
        return len(self._buffer)

    def feed(self, data: bytes, most: int = sys.maxsize) -> list[Message]:
        """Take bytes; return the frames that are whole now, the first ones of more than `most`.

        Raises:
            RemoteProtocolError: they are none; the link is of no more use.
        """
        if not self._buffer:
            found, taken_bytes = _cut(data, most)
            self._buffer += data[taken_bytes:] if taken_bytes else data
            return found
        self._buffer += data
        found, taken_bytes = _cut(self._buffer, most)
        del self._buffer[:taken_bytes]
        return found


def _cut(data: bytes | bytearray, most: int) -> tuple[list[Message], int]:
    """Return the whole frames that bytes begin with, `most` at most, and how many bytes these are.

    Raises:
        RemoteProtocolError: they are none.
    """
    found: list[Message] = []
    at = 0
    with memoryview(data) as view:
        while len(view) - at >= PREFIX_BYTES and len(found) < most:
            first, version, number, head_bytes, records_bytes, checksum = _PREFIX.unpack_from(
                view, at
            )
            if first != FIRST_BYTE:
                name = "HTTP" if bytes(view[at : at + 5]) == b"HTTP/" else "another protocol"
                raise RemoteProtocolError(
                    f"it speaks {name} and not that of replicas, whose frames begin with "
                    f"{FIRST_BYTE:#x}"
                )
            if version != VERSION or number not in _KINDS:
                raise RemoteProtocolError(
                    f"a frame of kind {number} in version {version}; this is a link of version "
                    f"{VERSION} between replicas"
                )
            most_head_bytes = _MOST_HEAD_BYTES_OF.get(number, _MOST_HEAD_BYTES)
            most_record_bytes = MOST_RECORD_BYTES if number in _BULK_NUMBERS else 0
            if head_bytes > most_head_bytes or records_bytes > most_record_bytes:
                raise RemoteProtocolError(f"a frame of {head_bytes} + {records_bytes} bytes")
            records_at = at + PREFIX_BYTES + head_bytes
            end = records_at + records_bytes
            if len(view) < end:
                break
            head = bytes(view[at + PREFIX_BYTES : records_at])
            if zlib.crc32(head, zlib.crc32(view[at : at + _CHECKED_BYTES])) != checksum:
                raise RemoteProtocolError("a frame has a wrong checksum")
            found.append(_decode(number, head, bytes(view[records_at:end])))
            at = end
    return found, at


def _decode(number: int, head: bytes, records: bytes) -> Message:
    try:
        values = _DECODERS[number].decode(head)
    except (msgspec.MsgspecError, ValueError) as error:
        raise RemoteProtocolError(f"a frame of kind {number} cannot be read: {error}") from error
    kind = _KINDS[number]
    place = _EPOCHS_AT.get(kind)
    if place is not None and not all(0 <= n <= _NUMBER_MAX for e in values[place] for n in e):
        raise RemoteProtocolError("an epoch is out of range")
    if kind is Welcome and not values[place]:
        raise RemoteProtocolError("a welcome without an epoch")
    if kind in (Data, Fetched):
        values = (*values, records)
    message: Message = kind(*values)
    return message
