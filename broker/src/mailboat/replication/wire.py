"""The frames of the link between replicas as bytes.

A link is one TCP connection to a replica's `haListenPort`. All numbers are big-endian:

    offset  size  field
    0       1     0xB0: no other protocol on this port begins with a bit 7 (RocketMQ's slaves begin
                  with a physical offset)
    1       1     version, 1
    2       1     kind, see `_KINDS`; 0 is `Open`
    3       1     0
    4       4     bytes of the head
    8       4     bytes of the records behind it, 0 but for `Data`
    12      4     CRC32 of the bytes 0 to 11, then of the head; records have their own checksums

The head is the frame as a MessagePack array of its fields, in the order of its class; of `Data`
without `records`. Both sides begin with `Open`, whoever has connected first. Where they have a
secret, each answers with `Proof` before it believes anything else.
"""

import hmac
import struct
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
    Frame,
    Hello,
    Refused,
    Tables,
    TablesKept,
    TakeOver,
    Welcome,
)

FIRST_BYTE: Final = 0xB0
VERSION: Final = 1
PREFIX_BYTES: Final = 16
MOST_RECORD_BYTES: Final = 20 << 20
"""Of one `Data`: more than the largest message."""

_PREFIX: Final = struct.Struct(">BBBxIII")
_CHECKED_BYTES: Final = 12
# Of the largest head: a `Welcome` with very many epochs, `Tables` with a group of very many queues.
_MOST_HEAD_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Open:
    """Who a replica is, and whom it believes to lead: an ordinal, and an epoch (0: nobody).

    `nonce` is another one on each link, empty where this side has no secret.
    `address` is where it listens for other replicas, `client_address` where for clients, and
    `peers` where others listen for replicas, by ordinal.
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
    seen: int
    leader: int
    leader_boot: str
    leader_store_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Proof:
    """That a side knows the secret: see `proof`."""

    mac: bytes


Told = Open | Frame | Tables | TablesKept
"""What a side that is believed may say."""

Message = Proof | Told

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
}
_NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}


# Of offsets, epochs and ordinals (-1: nobody): far from where arithmetic with them would end.
_NUMBER_MAX: Final = 1 << 56
_NUMBER: Final = Annotated[int, msgspec.Meta(ge=-1, le=_NUMBER_MAX)]


def _array_of(kind: type) -> Any:
    types = tuple(
        _NUMBER if field.type is int else field.type
        for field in fields(kind)
        if field.name != "records"
    )
    return tuple.__class_getitem__(types)


_DECODERS: Final = {
    number: msgspec.msgpack.Decoder(_array_of(kind)) for number, kind in _KINDS.items()
}
_NAMES: Final = {
    kind: tuple(field.name for field in fields(kind) if field.name != "records")
    for kind in _KINDS.values()
}
_encode: Final = msgspec.msgpack.Encoder().encode


def encode(message: Message) -> bytes:
    """Return a frame as bytes; of `Data` the head, behind which its records have to follow."""
    kind = type(message)
    head = _encode(tuple(getattr(message, name) for name in _NAMES[kind]))
    records_bytes = 0
    if isinstance(message, Data):
        assert isinstance(message.records, bytes)
        records_bytes = len(message.records)
    prefix = _PREFIX.pack(FIRST_BYTE, VERSION, _NUMBERS[kind], len(head), records_bytes, 0)
    checked = zlib.crc32(head, zlib.crc32(prefix[:_CHECKED_BYTES]))
    return prefix[:_CHECKED_BYTES] + checked.to_bytes(4, "big") + head


def proof(secret: bytes, *, has_connected: bool, own_nonce: str, other_nonce: str) -> Proof:
    """Return what shows the other side that this one knows the secret.

    HMAC-SHA256 of who shows it and both nonces, so that nothing heard before is of use.
    """
    side = "from" if has_connected else "to"
    text = f"mailboat link {side} {own_nonce} {other_nonce}".encode()
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

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes; return the frames that are whole now.

        Raises:
            RemoteProtocolError: they are none; the link is of no more use.
        """
        buffer = self._buffer
        buffer += data
        found: list[Message] = []
        at = 0
        while len(buffer) - at >= PREFIX_BYTES:
            first, version, number, head_bytes, records_bytes, checksum = _PREFIX.unpack_from(
                buffer, at
            )
            if first != FIRST_BYTE or version != VERSION or number not in _KINDS:
                raise RemoteProtocolError(
                    f"a frame of kind {number} in version {version} that begins with {first:#x}; "
                    f"this is a link of version {VERSION} between replicas"
                )
            if head_bytes > _MOST_HEAD_BYTES or records_bytes > MOST_RECORD_BYTES:
                raise RemoteProtocolError(f"a frame of {head_bytes} + {records_bytes} bytes")
            records_at = at + PREFIX_BYTES + head_bytes
            end = records_at + records_bytes
            if len(buffer) < end:
                break
            head = bytes(buffer[at + PREFIX_BYTES : records_at])
            if zlib.crc32(head, zlib.crc32(buffer[at : at + _CHECKED_BYTES])) != checksum:
                raise RemoteProtocolError("a frame has a wrong checksum")
            found.append(_decode(number, head, bytes(buffer[records_at:end])))
            at = end
        del buffer[:at]
        return found


def _decode(number: int, head: bytes, records: bytes) -> Message:
    try:
        values = _DECODERS[number].decode(head)
    except (msgspec.MsgspecError, ValueError) as error:
        raise RemoteProtocolError(f"a frame of kind {number} cannot be read: {error}") from error
    kind = _KINDS[number]
    if kind is Welcome and not all(0 <= n <= _NUMBER_MAX for entry in values[3] for n in entry):
        raise RemoteProtocolError("an epoch of a welcome is out of range")
    if kind is Data:
        values = (*values, records)
    message: Message = kind(*values)
    return message
