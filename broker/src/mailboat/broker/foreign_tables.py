"""The tables of another broker of the same name, taken over: its files, or what it answers.

A broker that continues the log of another one, RocketMQ's or ours, needs what that one had beside
it: topics and groups as they are there, offsets and delivered delayed messages where they are
further. Taken over twice, or in between with a part of it, they are the same.

    tables = read_tables(disk, "/old/store/config")          # of a broker that is stopped
    taken = await in_turns(take_over(tables, topics, groups, offsets, delay))

Large tables take seconds: each step is short. The managers are those of a broker that runs and does
not lead, or have loaded their files; saving them (`persist`, `persist_blocking`) is the caller's.

What may not be here is left out, whichever way it comes (`mailboat.protocol.followed_tables`).

Source: apache/rocketmq broker/slave/SlaveSynchronize.java.
"""

import logging
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from mailboat.broker.delay_progress import DelayProgress
from mailboat.broker.groups import SubscriptionGroupManager
from mailboat.broker.offsets import ConsumerOffsetManager, SharedOffsets
from mailboat.broker.topics import TopicConfigManager
from mailboat.disk import Disk
from mailboat.disk.json_file import JsonFile
from mailboat.model.data_version import DataVersion
from mailboat.model.names import AUTO_CREATE_TOPIC, SYSTEM_GROUPS
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.followed_tables import (
    FollowedDelay,
    FollowedOffsets,
    FollowedTable,
    read_delay_offsets,
    read_groups,
    read_now,
    read_offsets_file,
    read_topics,
)

_log: Final = logging.getLogger(__name__)

_T = TypeVar("_T")

_TAKEN_A_STEP: Final = 200
_ODD_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class ForeignTables:
    """What another broker has; None for a table that is not there."""

    topics: FollowedTable[TopicConfig] | None = None
    groups: FollowedTable[SubscriptionGroupConfig] | None = None
    offsets: FollowedOffsets | None = None
    delay: FollowedDelay | None = None


class Taken(NamedTuple):
    """How much was another one before: topics, groups, groups in topics, delay levels."""

    topics: int = 0
    groups: int = 0
    offsets: int = 0
    delay_levels: int = 0


def read_tables(disk: Disk, config_dir: str) -> ForeignTables:
    """Read topics.json, subscriptionGroup.json, consumerOffset.json and delayOffset.json.

    An entry that may not be here is left out, and one log line a file says so. It takes a while:
    for a thread, which lets others have their turn.

    Raises:
        DamagedStoreError: neither a file nor its previous version can be read.
        OSError: one cannot be read now.
    """

    def read(name: str, reader: Callable[[bytes], Generator[None, None, _T]]) -> _T | None:
        return JsonFile(disk, path(name)).load(lambda content: read_now(reader(content)))

    def path(name: str) -> str:
        return f"{config_dir}/{name}.json"

    tables = ForeignTables(
        read("topics", read_topics),
        read("subscriptionGroup", read_groups),
        read("consumerOffset", read_offsets_file),
        read("delayOffset", read_delay_offsets),
    )
    for name, table in (
        ("topics", tables.topics),
        ("subscriptionGroup", tables.groups),
        ("consumerOffset", tables.offsets),
        ("delayOffset", tables.delay),
    ):
        if table is not None and table.odd:
            _log.warning("entries of %s that are left out: %s", path(name), shown_odd(table.odd))
    return tables


def shown_odd(odd: Collection[str]) -> str:
    """Write the first of what is wrong with entries, for a log line."""
    more = len(odd) - _ODD_SHOWN
    some = [text for text, _ in zip(odd, range(_ODD_SHOWN), strict=False)]
    return "; ".join(some) + (f" and {more} more" if more > 0 else "")


def take_over(
    theirs: ForeignTables,
    topics: TopicConfigManager,
    groups: SubscriptionGroupManager,
    offsets: ConsumerOffsetManager,
    delay: DelayProgress,
) -> Generator[None, None, Taken]:
    """Take over each table that is there: topics and groups if newer, the others by maximum.

    Whoever goes no further than some step may begin anew.
    """
    taken = Taken()
    if theirs.topics is not None and is_newer(theirs.topics.version, topics.data_version):
        taken = taken._replace(topics=(yield from replace_topics(theirs.topics, topics)))
    if theirs.groups is not None and is_newer(theirs.groups.version, groups.data_version):
        taken = taken._replace(groups=(yield from replace_groups(theirs.groups, groups)))
    if theirs.offsets is not None:
        moved = yield from _further_offsets(theirs.offsets, offsets)
        taken = taken._replace(offsets=moved)
    if theirs.delay is not None:
        taken = taken._replace(delay_levels=delay.follow_further(theirs.delay.state))
    return taken


def _further_offsets(
    theirs: FollowedOffsets, offsets: ConsumerOffsetManager
) -> Generator[None, None, int]:
    moved = 0
    for key, queues in theirs.offsets.table.items():
        generation, resets = theirs.generations.get(key, 0), theirs.resets.get(key, {})
        moved += offsets.follow_further(SharedOffsets(key, generation, queues, resets))
        yield
    return moved


def is_newer(theirs: DataVersion, mine: DataVersion) -> bool:
    """Tell whether a table was changed after another one, as RocketMQ compares them.

    One that was never changed is older than any other.
    """

    def key(version: DataVersion) -> tuple[int, int, int]:
        return version.state_version, version.counter, version.timestamp

    is_unchanged = not (mine.counter or mine.state_version)
    return theirs != mine and (is_unchanged or key(theirs) > key(mine))


def replace_topics(
    theirs: FollowedTable[TopicConfig], topics: TopicConfigManager
) -> Generator[None, None, int]:
    """Have the topics of another broker and no others, but for the broker's own; return how many
    were other ones before.

    Raises:
        BrokerError: they do not fit a registration; those that do are taken.
    """
    own = {*topics.system_topics, AUTO_CREATE_TOPIC}
    new: dict[str, TopicConfig] = {}
    for name, config in theirs.table.items():
        yield
        if name not in own and topics.find_shared(name) != config:
            new[name] = config
    gone = [name for name in topics.shared() if not theirs.has(name)]
    # Those that are gone make room.
    for without in _some_of(dict.fromkeys(gone)):
        topics.follow(without, topics.data_version)
        yield
    for some in _some_of(new):
        topics.refuse_too_many(some.values())
        topics.follow(some, topics.data_version)
        yield
    # The version comes last: a table that has it has everything.
    if topics.data_version != theirs.version:
        topics.follow({}, theirs.version)
    return len(new) + len(gone)


def replace_groups(
    theirs: FollowedTable[SubscriptionGroupConfig], groups: SubscriptionGroupManager
) -> Generator[None, None, int]:
    """Have the groups of another broker and no others, but for those that every broker has.

    Returns how many were other ones before.

    Raises:
        BrokerError: they are too many; those for which there is room are taken.
    """
    new: dict[str, SubscriptionGroupConfig] = {}
    for name, config in theirs.table.items():
        yield
        if groups.select(name) != config:
            new[name] = config
    gone = [name for name in groups.table if not theirs.has(name) and name not in SYSTEM_GROUPS]
    for without in _some_of(dict.fromkeys(gone)):
        groups.follow(without, groups.data_version)
        yield
    for some in _some_of(new):
        groups.refuse_too_many(some)
        groups.follow(some, groups.data_version)
        yield
    if groups.data_version != theirs.version:
        groups.follow({}, theirs.version)
    return len(new) + len(gone)


def _some_of(changes: dict[str, _T]) -> Iterator[dict[str, _T]]:
    names = list(changes)
    for begin in range(0, len(names), _TAKEN_A_STEP):
        yield {name: changes[name] for name in names[begin : begin + _TAKEN_A_STEP]}
