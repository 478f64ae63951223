"""The IndexFiles of a store: adding keys, finding messages by key, dropping old files.

What is stored waits in a backlog first: `build` turns it into entries, a search and a checkpoint
before they look. Where that fails, the keys of all messages from the `gap` on are missing until
they are read from the CommitLog again (`mailboat.store.opening.index_from`).

Source: apache/rocketmq store/index/IndexService.java @ rocketmq-all-5.3.3.
"""

import contextlib
import errno
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from mailboat.disk import Disk, UnreadableError
from mailboat.model.tags import unsigned_text_hash
from mailboat.store.file_pool import FilePool
from mailboat.store.index_backlog import (
    STEP_BYTES,
    IndexBacklog,
    Indexed,
    IndexRows,
)
from mailboat.store.index_file import IndexFile, index_file_bytes
from mailboat.store.index_rows import ROW, index_hash

# Entries kept in memory before they go to the file: enough to make one call worth it.
_WRITE_BYTES: Final = 256 * 1024
# Where keys come faster than `write_some`: what one write takes without keeping others waiting.
_MOST_PENDING_BYTES: Final = 1024 * 1024
# What a send that finds the backlog full builds of it; one message may take as long again.
_FULL_SLICE_S: Final = 0.02
_NAME_DIGITS: Final = 17

log = logging.getLogger(__name__)


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
        self._backlog = IndexBacklog()
        self._record_key_bytes = 0
        self._saves: list[Callable[[], None]] = []
        self.files: list[IndexFile] = []
        self.dropped: list[str] = []
        """Paths of files that are out of the index and still on the disk, oldest first."""

        self.gap: int | None = None
        """Physical offset of the first record whose keys are missing because of a failed call."""

    def put_messages(self, messages: Sequence[Indexed], store_timestamp_ms: int) -> None:
        """Take over messages of one store time, to be indexed soon; there is at least one.

        They come in the order of the log and stay as they are. Behind a gap they are not kept.
        """
        if self.gap is None:
            self._backlog.add_messages(messages, store_timestamp_ms)
            self._build_if_full()

    def put_rows(self, rows: bytes, physical_offset: int, store_timestamp_ms: int) -> None:
        """Take over keys that are hashed, as `put_messages` does messages.

        Args:
            rows: an `index_rows.ROW` for each key, in the order of the log.
            physical_offset: of the first message.
            store_timestamp_ms: of all of them.
        """
        if self.gap is None:
            self._backlog.add_rows(rows, physical_offset, store_timestamp_ms)
            self._build_if_full()

    def put_record(self, record: Indexed, store_timestamp_ms: int) -> None:
        """Take over a record that was read back from the CommitLog, even behind a gap.

        Raises:
            OSError: as `build` does.
        """
        self._backlog.add_messages((record,), store_timestamp_ms)
        self._record_key_bytes += len(record.keys or "")
        # Whoever reads records looks at the clock behind each: a few made of keys are long enough.
        if self._backlog.is_full or self._record_key_bytes > STEP_BYTES:
            self._record_key_bytes = 0
            self.build()

    @property
    def has_backlog(self) -> bool:
        """Messages wait to be indexed."""
        return self._backlog.count > 0

    def _build_if_full(self) -> None:
        backlog = self._backlog
        if not backlog.is_full:
            return
        until_s = self._disk.monotonic() + _FULL_SLICE_S
        with contextlib.suppress(OSError):
            while backlog.is_full:
                self._put(backlog.take(self._begin_ms()))
                if self._disk.monotonic() >= until_s:
                    break
        if backlog.is_beyond_bounds:
            log.warning("the index is behind: messages have too many keys")
            self.stop_waiting()

    def build_for_search(self, slice_s: float = math.inf) -> None:
        """Do as `build`; where that fails there is a gap, and what lies behind is not found."""
        with contextlib.suppress(OSError):
            self.build(slice_s)

    def has_all_below(self, physical_offset: int) -> bool:
        """Tell whether nothing below a physical offset waits."""
        return not self._backlog.count or self._backlog.begin() >= physical_offset

    def build(self, slice_s: float = math.inf) -> None:
        """Index what waits, oldest first, for so many seconds; by default all of it.

        Raises:
            OSError: a new file could not be created; `gap` says from where on keys are missing.
        """
        backlog = self._backlog
        until_s = self._disk.monotonic() + slice_s
        while backlog.count:
            self._put(backlog.take(self._begin_ms()))
            if self._disk.monotonic() >= until_s:
                break

    def _begin_ms(self) -> int | None:
        """Return the store time with which the file of the next entry begins, None for theirs."""
        if self.files and self.files[-1].entry_count and self.files[-1].room > 0:
            return self.files[-1].begin_timestamp_ms
        return None

    def _put(self, step: IndexRows) -> None:
        rows, first_ms, newest_ms = step
        while rows:
            try:
                file = self._current()
                fitting_bytes = file.room * ROW.size
                file.put(rows[:fitting_bytes], first_ms, newest_ms)
                if file.pending_bytes >= _MOST_PENDING_BYTES:
                    # Where that fails they wait in memory, and `write_some` tells.
                    with contextlib.suppress(OSError):
                        file.write_entries()
            except OSError as exc:
                self.stop(ROW.unpack_from(rows)[1], exc)
                raise
            rows = rows[fitting_bytes:]

    def stop(self, physical_offset: int, error: OSError) -> None:
        """Note that keys are missing from a record on, and let go of all that waits."""
        if self.gap is None:
            log.warning("index stops physical_offset=%d: %s", physical_offset, error)
        self.gap = physical_offset
        self._backlog.clear()

    def stop_waiting(self) -> None:
        """Turn what waits into a gap: whoever handed it over could not go on."""
        if self._backlog.count:
            self.gap = self._backlog.begin()
            self._backlog.clear()

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

        Their names stay until `forget_dropped`.
        """
        while len(self.files) > 1 and self.files[0].end_physical_offset < physical_offset:
            file = self.files.pop(0)
            file.close()
            self.dropped.append(file.path)

    def forget_dropped(self, paths: list[str]) -> None:
        """Note that dropped files are gone from the disk."""
        self.dropped = [dropped for dropped in self.dropped if dropped not in paths]

    def close(self) -> None:
        """Close the files; what is only in memory is dropped."""
        for file in self.files:
            file.close()
        self.files = []
        self._saves = []
        self._backlog.clear()


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
