"""What both ways of storing a send go by: properties with a meaning, limits, hashes of tags.

Source: apache/rocketmq broker/processor/AbstractSendMessageProcessor.java (msgCheck).
"""

from typing import Final

from mailboat.model.properties import MAX_PROPERTIES_BYTES, PropertyName
from mailboat.model.tags import tags_code

# The checksum property, and the separator that it may need, go on top.
MAX_STORED_PROPERTIES_BYTES: Final = MAX_PROPERTIES_BYTES - 21
# Properties that only this broker may set, or that must not be stored.
SERVER_OWNED: Final = frozenset(
    {
        PropertyName.MESSAGE_REGION,
        PropertyName.TRACE_ON,
        PropertyName.CLUSTER,
        PropertyName.POP_CK,
        PropertyName.CRC32,
        PropertyName.DELIVER_MS,
        PropertyName.DELAY_MS,
    }
)
# What these ask for is not built yet: to take the message as an ordinary one would be a lie.
UNSUPPORTED: Final = frozenset({"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
# Messages with these are parked in a topic of the broker first.
PARKED: Final = frozenset({PropertyName.DELAY, PropertyName.TRANSACTION_PREPARED})
RARE_PROPERTIES: Final = SERVER_OWNED | UNSUPPORTED | PARKED
RARE_NAMES: Final = frozenset(name.encode() for name in RARE_PROPERTIES)
_TAG_CACHE_SIZE: Final = 65536


class TagsCodes(dict[str, int]):
    """Remembers the tagsCode of tags; a tag that is not there yet is hashed."""

    def __missing__(self, tag: str) -> int:
        """Hash a tag and remember it, for a bounded number of tags."""
        if len(self) >= _TAG_CACHE_SIZE:
            self.clear()
        code = self[tag] = tags_code(tag)
        return code
