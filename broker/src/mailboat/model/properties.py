"""Message properties and their text form.

The text is `name 0x01 value 0x02` repeated, UTF-8; the last 0x02 may be missing. Readers drop an
entry that has no separator, no name or no value.

Source: apache/rocketmq common/message/MessageDecoder.java (messageProperties2String,
string2messageProperties) and MessageConst.java.
"""

from collections.abc import Mapping
from typing import Final

from mailboat.errors import IllegalMessageError

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
MAX_PROPERTIES_BYTES: Final = 32767


class PropertyName:
    """Names that RocketMQ reserves."""

    KEYS: Final = "KEYS"
    TAGS: Final = "TAGS"
    WAIT: Final = "WAIT"
    DELAY: Final = "DELAY"
    UNIQ_KEY: Final = "UNIQ_KEY"
    RETRY_TOPIC: Final = "RETRY_TOPIC"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QUEUE_ID: Final = "REAL_QID"
    TRANSACTION_PREPARED: Final = "TRAN_MSG"
    PRODUCER_GROUP: Final = "PGROUP"
    MIN_OFFSET: Final = "MIN_OFFSET"
    MAX_OFFSET: Final = "MAX_OFFSET"
    ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
    RECONSUME_TIME: Final = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
    MESSAGE_REGION: Final = "MSG_REGION"
    TRACE_ON: Final = "TRACE_ON"
    CLUSTER: Final = "CLUSTER"
    REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
    PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
    POP_CK: Final = "POP_CK"
    INNER_NUM: Final = "INNER_NUM"
    INNER_BASE: Final = "INNER_BASE"
    CRC32: Final = "__CRC32#"
    DELIVER_MS: Final = "MAILBOAT_DELIVER_MS"
    DELAY_MS: Final = "MAILBOAT_DELAY_MS"


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return the text form, with a closing separator after every entry.

    Raises:
        IllegalMessageError: a name is empty, or a name or value holds a separator character.
    """
    entries = [f"{name}\x01{value}\x02" for name, value in properties.items() if name and value]
    text = "".join(entries)
    # Each entry has one of each: where that is all, no name or value holds any.
    if len(entries) == text.count("\x01") == text.count("\x02") == len(properties):
        return text
    parts: list[str] = []
    for name, value in properties.items():
        text = f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}"
        if not name or text.count("\x01") != 1 or text.count("\x02") != 1:
            raise IllegalMessageError(
                f"property {name!r}: names and values must not be empty or hold the characters "
                "U+0001 and U+0002; remove them"
            )
        if value:
            parts.append(text)
    return "".join(parts)


def decode_properties(text: str) -> dict[str, str]:
    """Return the entries of a text form; broken entries are dropped, a later name wins."""
    properties: dict[str, str] = {}
    for entry in text.split(PROPERTY_SEPARATOR):
        name, separator, value = entry.partition(NAME_VALUE_SEPARATOR)
        if separator and name and value:
            properties[name] = value
    return properties
