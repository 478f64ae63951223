"""The IndexFiles of a store: adding keys, finding messages by key, dropping old files.

Source: apache/rocketmq store/index/IndexService.java @ rocketmq-all-5.3.3.
"""

import contextlib
import errno
import logging
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from mailboat.disk import Disk, UnreadableError
from mailboat.model.tags import unsigned_hashes, unsigned_text_hash
from mailboat.store.file_pool import FilePool
from mailboat.store.index_file import IndexFile, index_file_bytes, index_hash

# Entries kept in memory before they go to the file: enough to make one call worth it.
_WRITE_BYTES: Final = 256 * 1024
_NAME_DIGITS: Final = 17
_ROW: Final = struct.Struct("=Iq")

log = logging.getLogger(__name__)


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


class IndexService:
    """All index files, oldest first; the last one takes new keys."""

    def __init__(
        self, disk: Disk, pool: FilePool, directory: str, slot_count: int, max_entries: int
    ) -> None:
        """Build an empty index in `directory`, with files that are open in `pool`."""
        self._disk = disk
        self._pool = pool
        self._directory = directory
        self._slot_count = slot_count
        self._max_entries = max_entries
        self._topic_hashes: dict[str, int] = {}
        self._saves: list[Callable[[], None]] = []
        self.files: list[IndexFile] = []
        self.dropped: list[str] = []
        """Paths of files that are out of the index and still on the disk, oldest first."""

    def put_messages(self, messages: Sequence[Indexed], store_timestamp_ms: int) -> None:
        """Index messages of one store time under their unique keys and their other keys.

        Raises:
            OSError: a new file could not be created; the keys of the last messages are missing.
        """
        by_topic: dict[str, list[Indexed]] = {}
        for message in messages:
            try:
                by_topic[message.topic].append(message)
            except KeyError:
                by_topic[message.topic] = [message]
        for topic, of_topic in by_topic.items():
            seed = self._seed(topic)
            hashes, offsets = _hash_keys(of_topic, seed)
            self._put(hashes, offsets, store_timestamp_ms)

    def put_rows(self, rows: bytes, store_timestamp_ms: int) -> None:
        """Index keys by rows of their unsigned hash (4 bytes) and physical offset (8 bytes).

        Numbers are in the machine's order, without padding; all have one store time.

        Raises:
            OSError: a new file could not be created; the last keys are missing.
        """
        if rows:
            hashes, offsets = zip(*_ROW.iter_unpack(rows), strict=True)
            self._put(list(hashes), list(offsets), store_timestamp_ms)

    def _put(self, hashes: list[int], offsets: list[int], store_timestamp_ms: int) -> None:
        while hashes:
            file = self._current()
            room = file.room
            file.put_all(hashes[:room], offsets[:room], store_timestamp_ms)
            hashes, offsets = hashes[room:], offsets[room:]

    def _seed(self, topic: str) -> int:
        try:
            return self._topic_hashes[topic]
        except KeyError:
            seed = self._topic_hashes[topic] = unsigned_text_hash(topic + "#")
            return seed

    def _current(self) -> IndexFile:
        if self.files:
            last = self.files[-1]
            if last.room > 0:
                return last
            self._save_later(last.seal())
        return self._create()

    def _create(self) -> IndexFile:
        self._disk.make_dirs(self._directory)
        name = file_name(self._disk.wall_ms(), self.newest_name)
        path = f"{self._directory}/{name}"
        if self._disk.exists(path):
            # Not one of `files`: left by an attempt whose clean-up failed too.
            self._disk.unlink(path)
        fd = self._disk.open(path, create=True)
        try:
            self._disk.ftruncate(fd, index_file_bytes(self._slot_count, self._max_entries))
        except OSError:
            self._disk.close(fd)
            self._disk.unlink(path)
            raise
        self._pool.add(path, fd)
        file = IndexFile(self._disk, self._pool, path, self._slot_count, self._max_entries)
        self.files.append(file)
        self._saves.append(file.sync)
        return file

    def _save_later(self, save: Callable[[], None] | None) -> None:
        if save is not None:
            self._saves.append(save)

    def write_some(self) -> None:
        """Write gathered entries once there are enough of them.

        Raises:
            OSError: they are still in memory; the call may be repeated.
        """
        if self.files and self.files[-1].pending_bytes >= _WRITE_BYTES:
            self.files[-1].write_entries()

    def snapshot(self) -> list[Callable[[], None]]:
        """Return calls that make everything indexed so far durable; they may run on any thread.

        Raises:
            OSError: the call may be repeated.
        """
        if self.files:
            self._save_later(self.files[-1].snapshot())
        saves, self._saves = self._saves, []
        return saves

    def save_again(self, saves: list[Callable[[], None]]) -> None:
        """Take back calls of a snapshot that could not all be made; the next one begins with them.

        They are in order, so that a newer copy of a file is written after an older one.
        """
        self._saves = saves + self._saves

    @property
    def newest_name(self) -> str:
        """Name of the file that takes new keys, empty when there is none."""
        return self.files[-1].path.rpartition("/")[2] if self.files else ""

    @property
    def entry_counts(self) -> list[int]:
        """Entries of each file, oldest first."""
        return [file.entry_count for file in self.files]

    @property
    def end_timestamp_ms(self) -> int:
        """Store time of the newest indexed message."""
        return self.files[-1].end_timestamp_ms if self.files else 0

    @property
    def end_physical_offset(self) -> int:
        """Physical offset of the newest indexed message."""
        return self.files[-1].end_physical_offset if self.files else 0

    def search(
        self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int
    ) -> Callable[[FilePool], list[int]]:
        """Return a call that finds the physical offsets of messages that may carry a key.

        It may run on any thread, with a pool of its own, and gives the newest first. Only the hash
        is compared: the caller checks topic and key in the record. A damaged file is left out.
        It raises OSError where a file cannot be read now.
        """
        key_hash = index_hash(unsigned_text_hash(f"{topic}#{key}"))
        chains = [
            file.chain(key_hash)
            for file in reversed(self.files)
            if file.begin_timestamp_ms <= end_ms and file.end_timestamp_ms >= begin_ms
        ]
        disk = self._disk

        def find(pool: FilePool) -> list[int]:
            found: list[int] = []
            for chain in chains:
                wanted = (key_hash, limit - len(found), begin_ms, end_ms)
                try:
                    found += chain.find(disk, pool.get(chain.path), *wanted)
                except FileNotFoundError:
                    # Expired meanwhile.
                    continue
                except UnreadableError as exc:
                    log.error("damaged index file path=%s: %s", chain.path, exc)
                if len(found) >= limit:
                    break
            return found

        return find

    def load(
        self,
        newest_name: str,
        entry_counts: list[int],
        physical_offset: int,
        *,
        log_start: int,
        check_slots: bool,
    ) -> bool:
        """Open the files; tell whether they are what was durable at a physical offset.

        Files newer than `newest_name` are dropped: their keys are indexed anew. Those wholly below
        `log_start` are dropped as well, which a crash may have kept from being unlinked.
        `check_slots` looks through the newest file's slots, which a crash may have left half
        written.
        """
        if not self._disk.exists(self._directory):
            return not newest_name
        size = index_file_bytes(self._slot_count, self._max_entries)
        for name in self._disk.listdir(self._directory):
            path = f"{self._directory}/{name}"
            if self._disk.is_dir(path):
                continue
            if name > newest_name or len(name) != _NAME_DIGITS or not name.isdigit():
                self._disk.unlink(path)
                continue
            if self._disk.size(path) != size:
                return False
            file = IndexFile(self._disk, self._pool, path, self._slot_count, self._max_entries)
            self.files.append(file)
            file.load()
        self.drop_below(log_start)
        if self.newest_name != newest_name or self.entry_counts[:-1] != entry_counts[:-1]:
            return False
        if not self.files:
            return True
        newest = self.files[-1]
        if newest.entry_count == entry_counts[-1] and not check_slots:
            return True
        return newest.rewind(entry_counts[-1], physical_offset)

    def clear(self) -> None:
        """Delete all files.

        Raises:
            OSError: some of them are still there.
        """
        self.close()
        if self._disk.exists(self._directory):
            for name in self._disk.listdir(self._directory):
                if not self._disk.is_dir(f"{self._directory}/{name}"):
                    self._disk.unlink(f"{self._directory}/{name}")
        self.dropped = []

    def drop_below(self, physical_offset: int) -> None:
        """Drop files whose every message lies below the CommitLog's start.

        Their names stay until `unlink_dropped`.
        """
        while len(self.files) > 1 and self.files[0].end_physical_offset < physical_offset:
            file = self.files.pop(0)
            file.close()
            self.dropped.append(file.path)

    def unlink_dropped(self, paths: list[str]) -> None:
        """Remove dropped files from the disk.

        Raises:
            OSError: some are still there; the call may be repeated.
        """
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)
            self.dropped = [dropped for dropped in self.dropped if dropped != path]

    def close(self) -> None:
        """Close the files; what is only in memory is dropped."""
        for file in self.files:
            file.close()
        self.files = []
        self._saves = []


def file_name(now_ms: int, newest: str) -> str:
    """Return the name of a new file: the time in UTC, but always behind the newest name.

    A name is 17 digits, yyyyMMddHHmmssSSS; readers go by their order alone. So a clock or a zone
    that went back counts on from the newest name, whether or not that is a time.

    Raises:
        OSError: there is no later name.
    """
    seconds, millis = divmod(max(now_ms, 0), 1000)
    try:
        name = time.strftime("%Y%m%d%H%M%S", time.gmtime(seconds)).zfill(14) + f"{millis:03d}"
    except (OverflowError, ValueError, OSError):
        name = ""
    if len(name) != _NAME_DIGITS:
        name = "99991231235959999"
    following = f"{int(newest or 0) + 1:0{_NAME_DIGITS}d}"
    if len(following) != _NAME_DIGITS:
        raise OSError(errno.EOVERFLOW, f"no IndexFile can come after {newest}; remove index/")
    return max(name, following)


def _hash_keys(messages: list[Indexed], seed: int) -> tuple[list[int], list[int]]:
    """Return the unsigned hashes of all keys of messages, and the physical offset of each."""
    unique_keys: list[bytes] = []
    offsets: list[int] = []
    keys: list[bytes] = []
    places: list[int] = []
    for message in messages:
        if message.unique_key:
            unique_keys.append(message.unique_key.encode())
            offsets.append(message.physical_offset)
        if message.keys:
            keys.append(message.keys.encode())
            places.append(message.physical_offset)
    if not keys:
        return unsigned_hashes(unique_keys, seed), offsets
    single_keys, places = _split_keys(keys, places)
    hashes = unsigned_hashes(unique_keys, seed) + unsigned_hashes(single_keys, seed)
    return hashes, offsets + places


def _split_keys(keys: Sequence[bytes], offsets: list[int]) -> tuple[Sequence[bytes], list[int]]:
    """Split what holds several keys; RocketMQ does so at single spaces only."""
    if all(keys) and b" " not in b"".join(keys):
        return keys, offsets
    pairs = [
        (key, offset)
        for joined, offset in zip(keys, offsets, strict=True)
        for key in joined.split(b" ")
        if key
    ]
    return [key for key, _ in pairs], [offset for _, offset in pairs]
