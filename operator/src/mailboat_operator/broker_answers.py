"""What brokers answer: read as far as plans need it, and refused where it has another form.

A broker of another version, or whoever has its address, may answer with anything that is JSON.
"""

from typing import Any

import msgspec

from mailboat_operator.planner.segments import Segment, sum_segments
from mailboat_operator.planner.snapshot import Manifest


class _NameServer(msgspec.Struct):
    """A name server that a broker registers at."""

    address: str = ""
    registered: bool = False
    held_by: str | None = None


class _Broker(msgspec.Struct):
    """GET /api/v1/broker."""

    broker_name: str | None = None
    address: str | None = None
    version: str | None = None
    phase: str | None = None
    name_servers: list[_NameServer] | None = None


class _Volume(msgspec.Struct):
    """A volume of GET /api/v1/retention."""

    capacity_bytes: int
    used_bytes: int
    available_bytes: int
    inodes_total: int | None = None
    inodes_used: int | None = None


class _Reclaimable(msgspec.Struct):
    """What could go of GET /api/v1/retention."""

    expired_bytes: int | None = None


class _Retention(msgspec.Struct):
    """GET /api/v1/retention, without its lists."""

    max_physical_offset: int
    volume: _Volume | None = None
    pressure_percent: int | None = None
    preallocated_bytes: int | None = None
    unread_bytes: int | None = None
    oldest_message_timestamp_ms: int | None = None
    reclaimable: _Reclaimable | None = None
    active: dict[str, bool] | None = None
    refusal: str | None = None


def read_broker(text: bytes) -> Manifest:
    """Read who a broker is."""
    document: Manifest = msgspec.json.decode(text, type=dict[str, Any])
    msgspec.convert(document, _Broker)
    return document


def read_retention(text: bytes) -> Manifest:
    """Read a retention document without ever holding what is not kept.

    Its groups and the whole list of its segments may be megabytes, times the number of brokers.
    """
    parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    segments = msgspec.json.decode(parts.pop("segments", b"[]"), type=list[Segment])
    unread = msgspec.json.decode(parts.pop("unconsumed_deleted", b"[]"), type=list[msgspec.Raw])
    parts.pop("groups", None)
    document = {name: msgspec.json.decode(part) for name, part in parts.items()}
    end = msgspec.convert(document, _Retention).max_physical_offset
    if segments:
        document["segments"] = sum_segments(segments, end)
    return document | {"unconsumed_deleted": bool(unread)}
