"""Messages as programs see them: one to send, one as it was stored.

Source: apache/rocketmq common/message/Message.java and MessageExt.java.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from mailboat.model.compression import decompress
from mailboat.model.hosts import format_host
from mailboat.model.message_id import encode_offset_message_id
from mailboat.model.properties import PropertyName


@dataclass(slots=True)
class Message:
    """A message to send.

    `keys` are index keys (a text of keys joined by spaces, or a sequence); `properties` are the
    program's own; `wait_store_ok=False` asks for an answer before the flush (`WAIT=false`);
    `delay_level` has the broker deliver the message later, by its table of delays (1 is 1 s, 3 is
    10 s, 18 is 2 h, unless it is configured otherwise; 0 is at once).

    Example:
        Message("orders", b"...", tags="new", keys=["order-7"], delay_level=3)
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | Sequence[str] | None = None
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    wait_store_ok: bool = True
    delay_level: int = 0

    def all_properties(self) -> dict[str, str]:
        """Return the properties that travel with the message, tags and keys among them."""
        properties = dict(self.properties)
        if self.tags:
            properties[PropertyName.TAGS] = self.tags
        if self.keys:
            keys = self.keys if isinstance(self.keys, str) else " ".join(self.keys)
            properties[PropertyName.KEYS] = keys
        if self.delay_level:
            properties[PropertyName.DELAY] = str(self.delay_level)
        properties[PropertyName.WAIT] = "true" if self.wait_store_ok else "false"
        return properties


class MessageExt(msgspec.Struct, gc=False):
    """A message as it was stored; `body` is as stored, `payload()` is what the producer gave."""

    topic: str
    body: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size_bytes: int
    flag: int
    sys_flag: int
    body_crc: int
    born_timestamp_ms: int
    born_host: bytes
    store_timestamp_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    properties: dict[str, str]

    @property
    def tags(self) -> str | None:
        """The tag, if the message has one."""
        return self.properties.get(PropertyName.TAGS)

    @property
    def keys(self) -> str | None:
        """The index keys joined by spaces, if there are any."""
        return self.properties.get(PropertyName.KEYS)

    @property
    def unique_key(self) -> str | None:
        """The id that the producer gave."""
        return self.properties.get(PropertyName.UNIQ_KEY)

    @property
    def message_id(self) -> str:
        """The producer's id, or the broker's where there is none."""
        return self.unique_key or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id: its address and the physical offset."""
        return encode_offset_message_id(self.store_host, self.physical_offset)

    @property
    def born_address(self) -> str:
        """The producer's `ip:port`."""
        return format_host(self.born_host)

    @property
    def store_address(self) -> str:
        """The broker's `ip:port`."""
        return format_host(self.store_host)

    def payload(self) -> bytes:
        """Return the body, decompressed where it was compressed.

        Raises:
            IllegalMessageError: the compressed body is broken or too large.
        """
        return decompress(self.body, self.sys_flag)
