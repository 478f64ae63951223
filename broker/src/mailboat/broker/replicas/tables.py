"""The tables beside the log as replicas tell each other: entries by key, in MessagePack."""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol, TypeVar

import msgspec

from mailboat.broker.groups import SubscriptionGroupManager
from mailboat.broker.journal import Journal
from mailboat.broker.offsets import ConsumerOffsetManager, SharedOffsets
from mailboat.broker.queue_locks import QueueLockManager
from mailboat.broker.topics import TopicConfigManager
from mailboat.model.data_version import DataVersion
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig

_T = TypeVar("_T", bound=Hashable)


class Kind(IntEnum):
    """Which table a frame is about."""

    ALL = 0
    """Of no table: all of them have been sent."""

    DELETIONS = 1
    TOPICS = 2
    GROUPS = 3
    LOCKS = 4
    OFFSETS = 5
    DELAY = 6
    COMMITS = 7
    """What clients have committed at a follower."""


class Table(Protocol):
    """One table; `journal` has the keys of what changed."""

    @property
    def kind(self) -> Kind:
        """Which one it is."""
        ...

    @property
    def is_awaited(self) -> bool:
        """Whether answers wait until other replicas have a change."""
        ...

    journal: Journal

    def keys(self) -> list[str]:
        """Return the keys of all entries."""
        ...

    def encode(self, keys: Sequence[str]) -> bytes:
        """Return entries as they are now; those that are gone as such."""
        ...

    def follow(self, body: bytes) -> list[str]:
        """Take over entries, and return their keys.

        Raises:
            msgspec.MsgspecError: it is something else.
        """
        ...

    def remove(self, keys: Sequence[str]) -> None:
        """Remove entries that the master does not have."""
        ...

    def persist(self) -> Awaitable[None]:
        """Make the table durable; raises OSError."""
        ...


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.msgpack.Decoder(kind).decode


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_topics: Final = _decoder(tuple[DataVersion, dict[str, TopicConfig | None]])
_decode_groups: Final = _decoder(tuple[DataVersion, dict[str, SubscriptionGroupConfig | None]])
_decode_locks: Final = _decoder(dict[str, list[tuple[str, int, str]]])
_decode_offsets: Final = _decoder(tuple[DataVersion, list[SharedOffsets]])
decode_commits: Final[Callable[[bytes], list[SharedOffsets]]] = _decoder(list[SharedOffsets])
decode_deletions: Final[Callable[[bytes], dict[str, int]]] = _decoder(dict[str, int])


def encode_entries(entries: object) -> bytes:
    """Return what `decode_commits` and `decode_deletions` read."""
    return _encode(entries)


class TopicsTable:
    """The topics."""

    kind: Final = Kind.TOPICS
    is_awaited: Final = True

    def __init__(self, topics: TopicConfigManager, journal: Journal) -> None:
        """Have the manager note what it changes."""
        self._topics = topics
        self.journal = topics.journal = journal

    def keys(self) -> list[str]:
        """Return the names."""
        return self._topics.shared()

    def encode(self, keys: Sequence[str]) -> bytes:
        """Return topics."""
        topics = self._topics
        return _encode((topics.data_version, {name: topics.find_shared(name) for name in keys}))

    def follow(self, body: bytes) -> list[str]:
        """Take topics over."""
        version, configs = _decode_topics(body)
        self._topics.follow(configs, version)
        return [*configs]

    def remove(self, keys: Sequence[str]) -> None:
        """Remove topics."""
        self._topics.follow(dict.fromkeys(keys), self._topics.data_version)

    def persist(self) -> Awaitable[None]:
        """Save the topics."""
        return self._topics.persist()


class GroupsTable:
    """The consumer groups."""

    kind: Final = Kind.GROUPS
    is_awaited: Final = True

    def __init__(self, groups: SubscriptionGroupManager, journal: Journal) -> None:
        """Have the manager note what it changes."""
        self._groups = groups
        self.journal = groups.journal = journal

    def keys(self) -> list[str]:
        """Return the names."""
        return list(self._groups.table)

    def encode(self, keys: Sequence[str]) -> bytes:
        """Return groups."""
        groups = self._groups
        return _encode((groups.data_version, {name: groups.table.get(name) for name in keys}))

    def follow(self, body: bytes) -> list[str]:
        """Take groups over."""
        version, configs = _decode_groups(body)
        self._groups.follow(configs, version)
        return [*configs]

    def remove(self, keys: Sequence[str]) -> None:
        """Remove groups."""
        self._groups.follow(dict.fromkeys(keys), self._groups.data_version)

    def persist(self) -> Awaitable[None]:
        """Save the groups."""
        return self._groups.persist()


class LocksTable:
    """Who holds which queues, by group."""

    kind: Final = Kind.LOCKS
    is_awaited: Final = True

    def __init__(self, locks: QueueLockManager, journal: Journal) -> None:
        """Have the manager note what it changes."""
        self._locks = locks
        self.journal = locks.journal = journal

    def keys(self) -> list[str]:
        """Return the groups."""
        return self._locks.groups()

    def encode(self, keys: Sequence[str]) -> bytes:
        """Return the holders of groups."""
        return _encode({group: self._locks.holders(group) for group in keys})

    def follow(self, body: bytes) -> list[str]:
        """Take holders over."""
        found = _decode_locks(body)
        for group, holders in found.items():
            self._locks.follow(group, holders)
        return [*found]

    def remove(self, keys: Sequence[str]) -> None:
        """Forget the holders of groups."""
        for group in keys:
            self._locks.follow(group, ())

    def persist(self) -> Awaitable[None]:
        """Save the holders."""
        return self._locks.persist()


class OffsetsTable:
    """How far groups have read, by topic and group."""

    kind: Final = Kind.OFFSETS
    is_awaited: Final = False

    def __init__(self, offsets: ConsumerOffsetManager, journal: Journal) -> None:
        """Have the manager note what it changes."""
        self._offsets = offsets
        self.journal = offsets.journal = journal

    def keys(self) -> list[str]:
        """Return "TOPIC@GROUP" of all."""
        return self._offsets.shared()

    def encode(self, keys: Sequence[str]) -> bytes:
        """Return offsets."""
        offsets = self._offsets
        return _encode((offsets.data_version, [offsets.find_shared(key) for key in keys]))

    def follow(self, body: bytes) -> list[str]:
        """Take offsets over."""
        version, found = _decode_offsets(body)
        for shared in found:
            self._offsets.follow(shared)
        self._offsets.data_version = version
        return [shared.key for shared in found]

    def remove(self, keys: Sequence[str]) -> None:
        """Forget offsets, but what clients have committed here."""
        taken = {shared.key for shared in self._offsets.taken()}
        for key in keys:
            if key not in taken:
                self._offsets.follow(SharedOffsets(key, 0, {}, {}))

    def persist(self) -> Awaitable[None]:
        """Save the offsets."""
        return self._offsets.persist()
