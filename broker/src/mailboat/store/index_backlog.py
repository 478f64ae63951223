"""Messages that are visible and whose keys are not in the index yet, in the order of the log.

A send only leaves its messages here, with one call for all that were stored together; hashing their
keys, the larger part of what the index costs, is done for many rounds at once.

Source: apache/rocketmq store/index/IndexService.java (buildIndex, putKey) for which keys there are.
"""

from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct, iter_unpack
from typing import Final, NamedTuple, Protocol

from mailboat.model.tags import unsigned_hashes, unsigned_text_hash

ROW: Final = Struct("=Iq")
"""A key that is hashed already: unsigned hash of `topic#key`, physical offset; native order."""

BACKLOG_MESSAGES: Final = 2048
"""More are not kept waiting: about what the index takes in five milliseconds."""

BACKLOG_BYTES: Final = 8 * 1024 * 1024
"""Nor so much of the log: what waits is in memory, bodies and all."""

# Enough to make columns pay, few enough to look at the clock in between. Messages may be made of
# keys, a thousand of them in a millisecond, so a step is bounded by their bytes as well.
_CHUNK: Final = 256
_CHUNK_KEY_BYTES: Final = 16 * 1024
_PLACE: Final = itemgetter(1)


class Indexed(Protocol):
    """What the index wants to know of a message."""

    @property
    def topic(self) -> str:
        """The topic."""
        ...

    @property
    def unique_key(self) -> str | None:
        """The producer's id."""
        ...

    @property
    def keys(self) -> str | None:
        """Further keys, joined by spaces."""
        ...

    @property
    def physical_offset(self) -> int:
        """Where the record lies."""
        ...


class IndexedRecord(NamedTuple):
    """A record read back from the CommitLog."""

    topic: str
    unique_key: str | None
    keys: str | None
    physical_offset: int


class IndexRows(NamedTuple):
    """Keys in the order of the log, each by its unsigned hash, with the place of its message.

    The messages' store times, from `first_ms` to `last_ms`, lie in one second of the file.
    """

    hashes: list[int]
    physical_offsets: list[int]
    first_ms: int
    last_ms: int


class _Round(NamedTuple):
    """Messages that were stored together, or the rows of their keys."""

    source: Sequence[Indexed] | bytes
    size: int
    physical_offset: int
    store_timestamp_ms: int


class IndexBacklog:
    """A queue of rounds; `count` says how many messages and rows wait in it."""

    def __init__(self) -> None:
        """Begin empty."""
        self._rounds: deque[_Round] = deque()
        # How many of the oldest round have been taken out.
        self._taken = 0
        self._seeds: dict[str, int] = {}
        self.count = 0

    @property
    def is_full(self) -> bool:
        """More waits than memory should be spent on."""
        if self.count > BACKLOG_MESSAGES:
            return True
        rounds = self._rounds
        return (
            len(rounds) > 1 and rounds[-1].physical_offset - rounds[0].physical_offset
        ) > BACKLOG_BYTES

    def add_messages(self, messages: Sequence[Indexed], store_timestamp_ms: int) -> None:
        """Take over messages of one store time; there is at least one."""
        count = len(messages)
        self._rounds.append(
            _Round(messages, count, messages[0].physical_offset, store_timestamp_ms)
        )
        self.count += count

    def add_rows(self, rows: bytes, physical_offset: int, store_timestamp_ms: int) -> None:
        """Take over keys that are hashed: a `ROW` for each, in the order of the log.

        `physical_offset` is that of the first message.
        """
        count = len(rows) // ROW.size
        if count:
            self._rounds.append(_Round(rows, count, physical_offset, store_timestamp_ms))
            self.count += count

    def begin(self) -> int:
        """Return a physical offset: all keys of messages below it have been taken out.

        At least one message waits.
        """
        source, _, physical_offset, _ = self._rounds[0]
        if not self._taken:
            return physical_offset
        if isinstance(source, bytes):
            return int(ROW.unpack_from(source, self._taken * ROW.size)[1])
        return source[self._taken].physical_offset

    def clear(self) -> None:
        """Forget all."""
        self._rounds.clear()
        self._taken = self.count = 0

    def take(self, begin_ms: int | None) -> IndexRows:
        """Take out the oldest messages, as many as make one step; at least one waits.

        Entries say in seconds since the file's begin when their messages were stored, so the step
        ends with such a second.

        Args:
            begin_ms: store time with which the file begins, None where these begin it.
        """
        rounds = self._rounds
        first_ms = last_ms = rounds[0].store_timestamp_ms
        begin_ms = first_ms if begin_ms is None else begin_ms
        end_ms = first_ms + 1000 - (first_ms - begin_ms) % 1000
        columns = _Columns(self._seed)
        room = _CHUNK
        while room > 0 and rounds:
            source, count, _, store_timestamp_ms = rounds[0]
            # The clock of another broker, whose log this is, may have gone back.
            if not end_ms - 1000 <= store_timestamp_ms < end_ms:
                break
            start = self._taken
            stop = columns.add(source, start, min(start + room, count))
            if stop > start:
                last_ms = store_timestamp_ms
            room -= stop - start
            self.count -= stop - start
            if stop < count:
                self._taken = stop
                break
            rounds.popleft()
            self._taken = 0
        return IndexRows(*columns.rows(), first_ms, last_ms)

    def _seed(self, topic: str) -> int:
        try:
            return self._seeds[topic]
        except KeyError:
            seed = self._seeds[topic] = unsigned_text_hash(topic + "#")
            return seed


class _OfTopic(NamedTuple):
    """Keys of one topic, each with the place of its message."""

    unique_keys: list[bytes]
    unique_places: list[int]
    keys: list[bytes]
    places: list[int]


class _Columns:
    """What several rounds have of keys, gathered by topic, as keys of one topic share a hash."""

    def __init__(self, seed: Callable[[str], int]) -> None:
        self._seed = seed
        self._topics: dict[str, _OfTopic] = {}
        self._hashes: list[int] = []
        self._places: list[int] = []
        self._key_bytes = 0

    def _of(self, topic: str) -> _OfTopic:
        try:
            return self._topics[topic]
        except KeyError:
            of_topic = self._topics[topic] = _OfTopic([], [], [], [])
            return of_topic

    def add(self, source: Sequence[Indexed] | bytes, start: int, stop: int) -> int:
        """Add what a round has from `start` on; return where that ended, `stop` at the latest."""
        if isinstance(source, bytes):
            for row in iter_unpack(ROW.format, source[start * ROW.size : stop * ROW.size]):
                self._hashes.append(row[0])
                self._places.append(row[1])
            return stop
        messages = source if stop - start == len(source) else source[start:stop]
        for number, message in enumerate(messages, start):
            unique_key, keys = message.unique_key, message.keys
            key_bytes = len(unique_key or "") + len(keys or "")
            if self._key_bytes and self._key_bytes + key_bytes > _CHUNK_KEY_BYTES:
                return number
            self._key_bytes += key_bytes
            of_topic = self._of(message.topic)
            if unique_key:
                of_topic.unique_keys.append(unique_key.encode())
                of_topic.unique_places.append(message.physical_offset)
            if keys:
                of_topic.keys.append(keys.encode())
                of_topic.places.append(message.physical_offset)
        return stop

    def rows(self) -> tuple[list[int], list[int]]:
        """Return hashes and places of all keys: of one message the unique key first."""
        hashes, places = self._hashes, self._places
        parts = 1 if hashes else 0
        for topic, (unique_keys, unique_places, keys, key_places) in self._topics.items():
            seed = self._seed(topic)
            if unique_keys:
                parts += 1
                hashes += unsigned_hashes(unique_keys, seed)
                places += unique_places
            if keys:
                parts += 1
                single_keys, key_places = _split_keys(keys, key_places)
                hashes += unsigned_hashes(single_keys, seed)
                places += key_places
        if parts > 1:
            # Stable, so that those of one message stay in their order.
            pairs = sorted(zip(hashes, places, strict=True), key=_PLACE)
            hashes, places = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return hashes, places


def _split_keys(keys: list[bytes], places: list[int]) -> tuple[list[bytes], list[int]]:
    """Split what holds several keys; RocketMQ does so at single spaces only."""
    if all(keys) and b" " not in b"".join(keys):
        return keys, places
    pairs = [
        (key, place)
        for joined, place in zip(keys, places, strict=True)
        for key in joined.split(b" ")
        if key
    ]
    return [key for key, _ in pairs], [place for _, place in pairs]
