"""The tables of another broker, read an entry at a time and checked: what is odd is left out.

Each reader is a generator that does little at a time; its value is what it has read. What a broker
answers and what it keeps in `config` are alike:

    21 GET_ALL_TOPIC_CONFIG, topics.json       201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    43 GET_ALL_CONSUMER_OFFSET,                    subscriptionGroup.json
       consumerOffset.json                     45 GET_ALL_DELAY_OFFSET, delayOffset.json

RocketMQ refuses a table with a value of another type as a whole and takes any number; here every
sound entry is taken, and what is here under the name of another one stays.

Source: apache/rocketmq broker/slave/SlaveSynchronize.java @ rocketmq-all-5.3.3.
"""

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Generic, TypeVar

import msgspec

from mailboat.config.store import check_delay_levels
from mailboat.errors import IllegalMessageError, RemoteProtocolError
from mailboat.model.data_version import DataVersion
from mailboat.model.names import check_group, check_topic
from mailboat.model.stored_configs import (
    INT64_MAX,
    MAX_QUEUE_NUMS,
    check_group_name,
    fit_group_config,
    fit_topic_config,
    shown,
)
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import FILTER_TYPES, TopicConfig
from mailboat.protocol.bodies import DataVersionBody, decode_body
from mailboat.protocol.delay_offsets import DelayOffsets
from mailboat.protocol.group_table import decode_group_config
from mailboat.protocol.table_entries import Entry, table_entries
from mailboat.protocol.topic_table import decode_topic_config

_T = TypeVar("_T")

_SHOWN_CHARACTERS: Final = 64
_SEPARATOR: Final = "@"
_VERSION_FIELDS: Final = frozenset(("counter", "timestamp", "stateVersion"))
# Java writes numbers that are keys without quotes, which the lenient reader takes its time for.
_BARE_KEY: Final = re.compile(rb"([{,]\s*)(-?[0-9]+)(?=\s*:)")
_LEVEL: Final = re.compile("[1-9][0-9]{0,4}", re.ASCII)
_number: Final = msgspec.json.Decoder(int, strict=False)
_text: Final = msgspec.json.Decoder(str)
_ranges: Final = msgspec.json.Decoder(list[tuple[int, int | None]], strict=False)
_queues: Final = msgspec.json.Decoder(dict[int, int], strict=False)
_version: Final = msgspec.json.Decoder(DataVersionBody, strict=False)


@dataclass(slots=True)
class FollowedTable(Generic[_T]):
    """The sound entries of a table, and what is wrong with the others, for people."""

    table: dict[str, _T] = field(default_factory=dict)
    version: DataVersion = field(default_factory=DataVersion)
    odd: list[str] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)
    """What the table has under names that may be some here: it is not gone there."""

    def has(self, name: str) -> bool:
        """Tell whether there is an entry, sound or odd."""
        return name in self.table or name in self.left_out


@dataclass(slots=True)
class FollowedOffsets:
    """A consumerOffset.json: offsets by "TOPIC@GROUP" and queue, and what only ours has."""

    offsets: FollowedTable[dict[int, int]]
    resets: dict[str, dict[int, int]]
    generations: dict[str, int]
    odd: list[str]


@dataclass(slots=True)
class FollowedDelay:
    """The sound part of how far delay levels are delivered, and what is wrong with the rest."""

    state: DelayOffsets
    odd: list[str]


@dataclass(slots=True)
class _Member(Generic[_T]):
    """A member of the object that is a table."""

    read: Callable[[str, bytes, list[str]], _T]
    found: FollowedTable[_T] = field(default_factory=FollowedTable)
    is_there: bool = False

    def take(self, entry: Entry) -> None:
        """Take an entry, or leave it out; one without a key says that there is such a table."""
        self.is_there = self.is_there or bool(entry.key) or entry.value == b"{}"
        if not entry.key:
            return
        found = self.found
        try:
            found.table[entry.key] = self.read(entry.key, entry.value, found.odd)
        except (RemoteProtocolError, IllegalMessageError) as error:
            found.odd.append(f"{entry.key[:_SHOWN_CHARACTERS]!r}: {error}")
            found.left_out.add(entry.key)


def read_topics(body: bytes) -> Generator[None, None, FollowedTable[TopicConfig]]:
    """Read topics by their names; raises RemoteProtocolError if it is no table."""
    return _read_one(body, "topicConfigTable", _topic)


def read_groups(body: bytes) -> Generator[None, None, FollowedTable[SubscriptionGroupConfig]]:
    """Read consumer groups by their names; raises RemoteProtocolError if it is no table."""
    return _read_one(body, "subscriptionGroupTable", _group)


def read_offsets(body: bytes) -> Generator[None, None, FollowedTable[dict[int, int]]]:
    """Read offsets by "TOPIC@GROUP" and queue; raises RemoteProtocolError if it is no table."""
    return _read_one(body, "offsetTable", _offsets)


def read_offsets_file(content: bytes) -> Generator[None, None, FollowedOffsets]:
    """Read a consumerOffset.json, Java's or ours; raises RemoteProtocolError if it is none."""
    offsets, resets, generations = _Member(_offsets), _Member(_offsets), _Member(_generation)
    members: dict[str, _Member[Any]] = {
        "offsetTable": offsets,
        "resetOffsetTable": resets,
        "generationTable": generations,
    }
    offsets.found.version = yield from _read(content, "offsetTable", members, {})
    odd = [text for member in members.values() for text in member.found.odd]
    return FollowedOffsets(offsets.found, resets.found.table, generations.found.table, odd)


def read_delay_offsets(body: bytes) -> Generator[None, None, FollowedDelay]:
    """Read how far each delay level is delivered, and the ranges that only our file has; raises
    RemoteProtocolError if it is no table.

    A level of which the ranges are odd is delivered from its first parked message on.
    """
    levels, ranges = _Member(_delivered), _Member(_parked)
    texts = {"mailboatDelayLevel": b""}
    members: dict[str, _Member[Any]] = {"offsetTable": levels, "mailboatRanges": ranges}
    version = yield from _read(body, "offsetTable", members, texts)
    odd = levels.found.odd + ranges.found.odd
    text = None
    if value := texts["mailboatDelayLevel"]:
        try:
            text = _delay_level(value)
        except RemoteProtocolError as error:
            odd.append(f"mailboatDelayLevel: {error}")
    state = DelayOffsets(
        {int(level): queue_offset for level, queue_offset in levels.found.table.items()},
        version,
        text,
        {
            int(level): found
            for level, found in ranges.found.table.items()
            if level in levels.found.table
        },
    )
    return FollowedDelay(state, odd)


def read_now(reader: Generator[None, None, _T]) -> _T:
    """Read a table in one go; raises as its reader does."""
    while True:
        try:
            next(reader)
        except StopIteration as done:
            found: _T = done.value
            return found


def _read_one(
    body: bytes, name: str, read: Callable[[str, bytes, list[str]], _T]
) -> Generator[None, None, FollowedTable[_T]]:
    """Read one table; what `read` refuses is left out.

    Raises:
        RemoteProtocolError: there is no such table.
    """
    member = _Member(read)
    member.found.version = yield from _read(body, name, {name: member}, {})
    return member.found


def _read(
    body: bytes,
    needed: str,
    members: Mapping[str, _Member[Any]],
    texts: dict[str, bytes],
) -> Generator[None, None, DataVersion]:
    """Read tables into `members`, and into `texts` what it names; return the version.

    Raises:
        RemoteProtocolError: the table that is `needed` is not there.
    """
    version: dict[str, bytes] = {}
    for entry in table_entries(body):
        member = members.get(entry.member)
        if member is not None:
            member.take(entry)
        elif entry.member == "dataVersion" and entry.key in _VERSION_FIELDS:
            version[entry.key] = entry.value
        elif entry.member in texts:
            texts[entry.member] = entry.value
        yield
    if not members[needed].is_there:
        raise RemoteProtocolError(f"it has no {needed}")
    text = b",".join(b'"%b":%b' % (key.encode(), value) for key, value in version.items())
    fields = decode_body(b"{%b}" % text, _version)
    return DataVersion(fields.counter, fields.timestamp, fields.state_version)


def _topic(name: str, value: bytes, odd: list[str]) -> TopicConfig:
    check_topic(name)
    config = decode_topic_config(value)
    _check_same(name, config.topic_name)
    if config.topic_filter_type not in FILTER_TYPES:
        raise RemoteProtocolError(f"topicFilterType {config.topic_filter_type[:32]!r}")
    odd += [f"topic {name} gets {change}" for change in fit_topic_config(name, config) or ()]
    return config


def _group(name: str, value: bytes, odd: list[str]) -> SubscriptionGroupConfig:
    check_group_name(name)
    config = decode_group_config(value)
    _check_same(name, config.group_name)
    odd += [f"group {name} gets {change}" for change in fit_group_config(name, config) or ()]
    return config


def _offsets(key: str, value: bytes, odd: list[str]) -> dict[int, int]:
    topic, _separator, group = key.partition(_SEPARATOR)
    check_topic(topic)
    check_group(group)
    queues = decode_body(_BARE_KEY.sub(rb'\1"\2"', value), _queues)
    sound = {
        queue_id: queue_offset
        for queue_id, queue_offset in queues.items()
        if 0 <= queue_id < MAX_QUEUE_NUMS and 0 <= queue_offset <= INT64_MAX
    }
    if len(sound) < len(queues):
        queue_id = next(queue_id for queue_id in queues if queue_id not in sound)
        problem = f"queue {shown(queue_id)} at {shown(queues[queue_id])}"
        if not sound:
            raise RemoteProtocolError(problem)
        odd.append(f"{key!r}: {problem}")
    return sound


def _generation(_key: str, value: bytes, _odd: list[str]) -> int:
    return _between(0, decode_body(value, _number), INT64_MAX)


def _delivered(level: str, value: bytes, _odd: list[str]) -> int:
    _check_level(level)
    return _between(0, decode_body(value, _number), INT64_MAX)


def _parked(level: str, value: bytes, _odd: list[str]) -> list[tuple[int, int | None]]:
    _check_level(level)
    found = decode_body(value, _ranges)
    # As they are written: in order, and all but the last with an end.
    bounds = [0, *(at for begin_end in found for at in begin_end if at is not None), INT64_MAX]
    ends = [end for _, end in found]
    if not ends or ends[-1] is not None or None in ends[:-1]:
        raise RemoteProtocolError("its ranges have other ends than those that are parked")
    if any(before > after for before, after in pairwise(bounds)):
        raise RemoteProtocolError("its ranges are not in order")
    return found


def _delay_level(value: bytes) -> str:
    text = decode_body(value, _text)
    if problem := check_delay_levels(text):
        raise RemoteProtocolError(f"{text[:_SHOWN_CHARACTERS]!r} {problem}")
    return text


def _check_level(level: str) -> None:
    # Each has a queue.
    if _LEVEL.fullmatch(level) is None or int(level) > MAX_QUEUE_NUMS:
        raise RemoteProtocolError("it is no delay level")


def _between(lowest: int, value: int, highest: int) -> int:
    if not lowest <= value <= highest:
        raise RemoteProtocolError(f"{shown(value)} is not within {lowest} to {highest}")
    return value


def _check_same(name: str, own_name: str) -> None:
    if own_name != name:
        raise RemoteProtocolError(f"it calls itself {own_name[:_SHOWN_CHARACTERS]!r}")
