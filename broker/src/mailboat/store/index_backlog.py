"""Messages that are visible and whose keys are not in the index yet, in the order of the log.

A send only leaves its messages here, with one call for all that were stored together; hashing their
keys, the larger part of what the index costs, is done for many rounds at once.

Source: apache/rocketmq store/index/IndexService.java (buildIndex, putKey) for which keys there are.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from mailboat.model.tags import unsigned_text_hash
from mailboat.store.index_rows import ROW, key_rows

BACKLOG_MESSAGES: Final = 2048
"""More are not kept waiting: about what the index takes in five milliseconds."""

BACKLOG_BYTES: Final = 8 * 1024 * 1024
"""Nor so much of the log: what waits is in memory, bodies and all."""

# Messages made of keys come faster than they are indexed: so many times as much may wait.
_MOST_TIMES: Final = 2

# Rows and characters of keys that make one step: less than a millisecond even in Python. Only a
# message made of keys is more.
STEP_BYTES: Final = 16 * 1024


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
    """Keys in the order of the log, as `index_rows.ROW` packs them: of a message the unique first.

    The store times of their messages lie in one second of the file: `first_ms` is that of the
    first, `newest_ms` the greatest. Messages without keys count for neither: which of them share a
    step is chance.
    """

    rows: bytes
    first_ms: int
    newest_ms: int


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
        return self._log_bytes > BACKLOG_BYTES

    @property
    def is_beyond_bounds(self) -> bool:
        """So much waits that no more can be kept."""
        return self._log_bytes > _MOST_TIMES * BACKLOG_BYTES

    @property
    def _log_bytes(self) -> int:
        rounds = self._rounds
        return rounds[-1].physical_offset - rounds[0].physical_offset if rounds else 0

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
        first_ms = newest_ms = end_ms = 0
        has_keys = False
        pieces: list[bytes] = []
        room_bytes = STEP_BYTES
        while room_bytes > 0 and rounds:
            source, count, _, store_timestamp_ms = rounds[0]
            if not has_keys:
                first_ms = newest_ms = store_timestamp_ms
                passed_ms = 0 if begin_ms is None else (first_ms - begin_ms) % 1000
                end_ms = first_ms + 1000 - passed_ms
            # The clock of another broker, whose log this is, may have gone back.
            elif not end_ms - 1000 <= store_timestamp_ms < end_ms:
                break
            start = stop = self._taken
            first_piece = len(pieces)
            if isinstance(source, bytes):
                stop = min(start - -room_bytes // ROW.size, count)
                pieces.append(source[start * ROW.size : stop * ROW.size])
                room_bytes -= len(pieces[-1])
            else:
                while stop < count and room_bytes > 0:
                    message = source[stop]
                    pieces.append(self._rows_of(message))
                    key_bytes = len(message.unique_key or "") + len(message.keys or "")
                    room_bytes -= len(pieces[-1]) + key_bytes
                    stop += 1
            if any(pieces[first_piece:]):
                has_keys = True
                newest_ms = max(newest_ms, store_timestamp_ms)
            self.count -= stop - start
            self._taken = stop
            if stop < count:
                break
            rounds.popleft()
            self._taken = 0
        return IndexRows(b"".join(pieces), first_ms, newest_ms)

    def _rows_of(self, message: Indexed) -> bytes:
        topic = message.topic
        try:
            seed = self._seeds[topic]
        except KeyError:
            seed = self._seeds[topic] = unsigned_text_hash(topic + "#")
        return key_rows(seed, message.unique_key, message.keys, message.physical_offset)
