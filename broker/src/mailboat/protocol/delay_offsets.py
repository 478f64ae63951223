"""How far each delay level is delivered: the body of request 45 and delayOffset.json.

RocketMQ knows one offset a level. Two more fields, which its readers pass over, hold what an offset
cannot say: the table of delays that the file was written under, and the levels of which several
ranges are still parked.

Source: apache/rocketmq broker/schedule/DelayOffsetSerializeWrapper.java @ rocketmq-all-5.3.3.
"""

import re
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mailboat.model.data_version import DataVersion
from mailboat.protocol.bodies import DataVersionBody, decode_body, encode_body

_BARE_KEY: Final = re.compile(rb"([{,]\s*)([0-9]+)(?=\s*:)")


@dataclass(slots=True)
class DelayOffsets:
    """Queue offsets by level.

    `ranges` has [begin, end) of what is parked, in order, for levels with more than one range; the
    end of the last is None.
    """

    offset_table: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    mailboat_delay_level: str | None = None
    mailboat_ranges: dict[int, list[tuple[int, int | None]]] = field(default_factory=dict)


class _Body(msgspec.Struct, rename="camel"):
    data_version: DataVersionBody = msgspec.field(default_factory=DataVersionBody)
    offset_table: dict[int, int] = msgspec.field(default_factory=dict)
    mailboat_delay_level: str | msgspec.UnsetType = msgspec.UNSET
    mailboat_ranges: dict[int, list[tuple[int, int | None]]] | msgspec.UnsetType = msgspec.UNSET


_decoder: Final = msgspec.json.Decoder(_Body, strict=False)


def encode_delay_offsets(table: DelayOffsets) -> bytes:
    """Write the table; RocketMQ's fields are always there, ours where they say something."""
    version = msgspec.convert(table.data_version, DataVersionBody, from_attributes=True)
    body = _Body(version, table.offset_table)
    if table.mailboat_delay_level is not None:
        body.mailboat_delay_level = table.mailboat_delay_level
    if table.mailboat_ranges:
        body.mailboat_ranges = table.mailboat_ranges
    return encode_body(body)


def decode_delay_offsets(content: bytes) -> DelayOffsets:
    """Read the table; Java writes the levels without quotes.

    Raises:
        RemoteProtocolError: it is not such a table.
    """
    if _BARE_KEY.search(content):
        content = _BARE_KEY.sub(rb'\1"\2"', content)
    body = decode_body(content, _decoder)
    level, ranges = body.mailboat_delay_level, body.mailboat_ranges
    return DelayOffsets(
        body.offset_table,
        msgspec.convert(body.data_version, DataVersion, from_attributes=True),
        None if isinstance(level, msgspec.UnsetType) else level,
        {} if isinstance(ranges, msgspec.UnsetType) else ranges,
    )
