"""What brokers answer: read as far as plans need it, and refused where it has another form.

A broker of another version, or whoever has its address, may answer with anything that is JSON.
"""

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from mailboat_operator.planner.segments import Count, Number, Segment, sum_segments
from mailboat_operator.planner.snapshot import Manifest

_Queues: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
_Name: TypeAlias = Annotated[str, Meta(max_length=253)]
"""As long as the status takes it."""


class _NameServer(msgspec.Struct):
    """A name server that a broker registers at."""

    address: Annotated[str, Meta(max_length=1024)] = ""
    registered: bool = False
    held_by: Annotated[str, Meta(max_length=1024)] | None = None


class _Tls(msgspec.Struct):
    """What a broker shows by TLS."""

    valid_from_timestamp_ms: Number
    valid_until_timestamp_ms: Number
    problem: Annotated[str, Meta(max_length=4096)] = ""


class _Broker(msgspec.Struct):
    """GET /api/v1/broker."""

    broker_name: _Name | None = None
    address: Annotated[str, Meta(max_length=1024)] | None = None
    version: _Name | None = None
    phase: _Name | None = None
    name_servers: list[_NameServer] | None = None
    tls: _Tls | None = None


class _Volume(msgspec.Struct):
    """A volume of GET /api/v1/retention."""

    capacity_bytes: Count
    used_bytes: Count
    available_bytes: Count
    inodes_total: Count | None = None
    inodes_used: Count | None = None


class _Reclaimable(msgspec.Struct):
    """What could go of GET /api/v1/retention."""

    expired_bytes: Count | None = None


class _Retention(msgspec.Struct):
    """GET /api/v1/retention, without its lists."""

    max_physical_offset: Number
    volume: _Volume | None = None
    pressure_percent: Number | None = None
    preallocated_bytes: Count | None = None
    unread_bytes: Number | None = None
    oldest_message_timestamp_ms: Number | None = None
    reclaimable: _Reclaimable | None = None
    active: dict[str, bool] | None = None
    refusal: str | None = None


class _Peer(msgspec.Struct):
    """Another replica in GET /api/v1/replica."""

    ordinal: _Queues
    lag_bytes: Count | None = None


class _Lease(msgspec.Struct):
    """What a replica knows of its group's Lease."""

    trouble: str = ""
    endpoints_trouble: str = ""


class _Replica(msgspec.Struct):
    """GET /api/v1/replica, as far as it is looked at."""

    ordinal: _Queues
    end: Number
    role: Annotated[str, Meta(max_length=32)]
    store_id: Annotated[str, Meta(max_length=64, pattern="^[0-9A-Za-z-]*$")] = ""
    epoch: Number = 0
    seen: Number = 0
    keeps_all: bool = False
    alarm: str = ""
    write_trouble: str = ""
    diverged_bytes: Count = 0
    lease: _Lease | None = None
    peers: list[_Peer] = []


class _User(msgspec.Struct):
    """GET /api/v1/users/{user}."""

    revision: Annotated[str, Meta(max_length=255)]


class _Queue(msgspec.Struct):
    """A queue of GET /api/v1/topics/{topic}."""

    queue_id: _Queues
    min_offset: Number
    max_offset: Number


class _Topic(msgspec.Struct):
    """GET /api/v1/topics/{topic}."""

    read_queue_nums: _Queues
    write_queue_nums: _Queues
    perm: Number
    queues: list[_Queue] | None = None
    incarnation: str | None = None


class _DeclaredTopic(msgspec.Struct):
    """A topic of GET /api/v1/declarations/topics, as far as it is looked at."""

    topic_name: str


class _DeclaredGroup(msgspec.Struct):
    """A consumer group of GET /api/v1/declarations/groups, as far as it is looked at."""

    group_name: str


class _Declared(msgspec.Struct):
    """A page of either; one of the two is there."""

    topics: list[_DeclaredTopic] | None = None
    groups: list[_DeclaredGroup] | None = None
    next: str | None = None


class _Made(msgspec.Struct):
    """What POST /api/v1/declarations has made."""

    topics: Count = 0
    groups: Count = 0


def read_topic(text: bytes) -> Manifest:
    """Read what a broker knows of a topic."""
    return _read(text, _Topic)


def read_declared(text: bytes) -> Manifest:
    """Read a page of topics or consumer groups."""
    return _read(text, _Declared)


def read_made(text: bytes) -> Manifest:
    """Read how many topics and groups were made."""
    return _read(text, _Made)


def read_user(text: bytes) -> Manifest:
    """Read which state of a user counts."""
    return _read(text, _User)


def read_broker(text: bytes) -> Manifest:
    """Read who a broker is."""
    return _read(text, _Broker)


def read_replica(text: bytes) -> Manifest:
    """Read what a replica says of itself; what is not looked at is left out."""
    said: Manifest = msgspec.to_builtins(msgspec.json.decode(text, type=_Replica))
    return said


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


def _read(text: bytes, form: type[msgspec.Struct]) -> Manifest:
    """Read a document as it is, if it has this form."""
    document: Manifest = msgspec.json.decode(text, type=dict[str, Any])
    msgspec.convert(document, form)
    return document
