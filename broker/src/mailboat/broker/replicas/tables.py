"""The tables beside the log as replicas tell each other: entries by key, in MessagePack."""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Annotated, Any, Final, Protocol, TypeVar

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

WEIGHT_A_FRAME: Final = 1_000
"""Of entries as `Table.weigh` says, each 1 at least: a millisecond's work at the leader, some at a
follower. Deletions, which come by themselves, are few."""

COMMITS_A_FRAME: Final = 1_000
"""Offsets that were committed at a follower: some milliseconds' work at the leader."""

# Their keys have names of at most some 400 bytes, by each of which an offset stands at least.
_COMMITS_MOST_BYTES: Final = 512 << 10
_CONFIG_WEIGHT: Final = 5
_OFFSETS_A_WEIGHT: Final = 5


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

    def weigh(self, key: str) -> int:
        """Return how much an entry is, in about fifty bytes each."""
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
_FEW: Final = msgspec.Meta(max_length=WEIGHT_A_FRAME)
_Topics = Annotated[dict[str, TopicConfig | None], _FEW]
_Groups = Annotated[dict[str, SubscriptionGroupConfig | None], _FEW]
_Locks = Annotated[dict[str, list[tuple[str, int, str]]], _FEW]
_Offsets = Annotated[list[SharedOffsets], _FEW]
_decode_topics: Final = _decoder(tuple[DataVersion, _Topics])
_decode_groups: Final = _decoder(tuple[DataVersion, _Groups])
_decode_locks: Final = _decoder(_Locks)
_decode_offsets: Final = _decoder(tuple[DataVersion, _Offsets])
_decode_commits: Final[Callable[[bytes], list[SharedOffsets]]] = _decoder(_Offsets)
decode_deletions: Final[Callable[[bytes], dict[str, int]]] = _decoder(dict[str, int])


def encode_entries(entries: object) -> bytes:
    """Return what `decode_deletions` reads."""
    return _encode(entries)


def encode_commits(taken: Iterable[SharedOffsets]) -> Iterator[bytes]:
    """Yield what `decode_commits` reads: some offsets each, those of one group maybe in several."""
    some: list[SharedOffsets] = []
    room = COMMITS_A_FRAME
    for key, generation, queues, _ in taken:
        offsets = list(queues.items())
        for begin in range(0, len(offsets), COMMITS_A_FRAME):
            part = dict(offsets[begin : begin + COMMITS_A_FRAME])
            if len(part) > room:
                yield _encode(some)
                some, room = [], COMMITS_A_FRAME
            some.append(SharedOffsets(key, generation, part, {}))
            room -= len(part)
    if some:
        yield _encode(some)


def decode_commits(body: bytes) -> list[SharedOffsets]:
    """Return what was committed at a follower.

    Raises:
        msgspec.MsgspecError: it is something else.
        ValueError: it is more than a follower says at once.
    """
    if len(body) > _COMMITS_MOST_BYTES:
        raise ValueError(f"{len(body)} bytes of commits")
    found = _decode_commits(body)
    count = sum(len(shared.queues) + len(shared.resets) for shared in found)
    if count > COMMITS_A_FRAME:
        raise ValueError(f"{count} commits")
    return found


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

    def weigh(self, _key: str) -> int:
        """Return how much a topic is."""
        return _CONFIG_WEIGHT

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

    def weigh(self, _key: str) -> int:
        """Return how much a group is."""
        return _CONFIG_WEIGHT

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

    def weigh(self, key: str) -> int:
        """Return how much the holders of a group are."""
        return 1 + self._locks.held(key)

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
        """Return "TOPIC@GROUP" of all that others may be told of."""
        offsets = self._offsets
        return [key for key in offsets.shared() if offsets.has_begun(key)]

    def weigh(self, key: str) -> int:
        """Return how much the offsets of a group in a topic are."""
        return 1 + self._offsets.held(key) // _OFFSETS_A_WEIGHT

    def encode(self, keys: Sequence[str]) -> bytes:
        """Return offsets."""
        offsets = self._offsets
        found = [
            offsets.find_shared(key) if offsets.has_begun(key) else SharedOffsets(key, 0, {}, {})
            for key in keys
        ]
        return _encode((offsets.data_version, found))

    def follow(self, body: bytes) -> list[str]:
        """Take offsets over."""
        version, found = _decode_offsets(body)
        for shared in found:
            self._offsets.follow(shared)
        self._offsets.data_version = version
        return [shared.key for shared in found]

    def remove(self, keys: Sequence[str]) -> None:
        """Forget offsets, but of groups that were new when they committed here."""
        for key in keys:
            if not self._offsets.is_new(key):
                self._offsets.follow(SharedOffsets(key, 0, {}, {}))

    def persist(self) -> Awaitable[None]:
        """Save the offsets."""
        return self._offsets.persist()
