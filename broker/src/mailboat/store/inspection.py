"""Looking at a store directory without changing it: what is there, and whether it is sound.

Works on directories of mailboat and of RocketMQ, also while a broker uses them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from mailboat.config import MessageStoreConfig
from mailboat.disk import Disk, UnreadableError, read_file
from mailboat.errors import DamagedStoreError
from mailboat.model.message import MessageExt
from mailboat.model.record import RecordParts, to_message
from mailboat.store.checkpoint import read_progress
from mailboat.store.commit_log import CommitLog
from mailboat.store.consume_queue import (
    BLANK_SIZE,
    UNIT,
    UNIT_BYTES,
    queue_files,
    stored_queues,
)
from mailboat.store.file_pool import FilePool
from mailboat.store.layout import StorePaths, store_paths
from mailboat.store.message_inner import run_inline
from mailboat.store.recovery import DamagedRange, Scanner
from mailboat.store.segment import Segment

_DEFAULT_QUEUE_FILE_BYTES: Final = 6_000_000
_MAX_PROBLEMS: Final = 100
_OPEN_FILES: Final = 16


@dataclass(slots=True)
class QueueReport:
    """What log and ConsumeQueue say about one queue; offsets are -1 where there is nothing."""

    topic: str
    queue_id: int
    records: int = 0
    first_queue_offset: int = -1
    last_queue_offset: int = -1
    units: int = 0


@dataclass(slots=True)
class StoreReport:
    """What a look at a directory found; `problems` are sentences, at most a hundred."""

    path: str
    segment_bytes: int
    segments: int
    start: int
    end: int = 0
    records: int = 0
    torn_bytes: int = 0
    is_clean: bool = False
    damaged: list[DamagedRange] = field(default_factory=list)
    queues: dict[tuple[str, int], QueueReport] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Nothing is damaged or contradicts itself."""
        return not self.problems and not self.damaged


class StoreInspector:
    """A store directory opened for reading only."""

    def __init__(self, disk: Disk, root: str, commit_log: str | None = None) -> None:
        """Open the segments below `root`.

        Raises:
            DamagedStoreError: there is no store, or its segments differ in size.
            OSError: a file cannot be read.
        """
        self._disk = disk
        self.paths: StorePaths = store_paths(root, commit_log)
        if not disk.is_dir(self.paths.commit_log):
            raise DamagedStoreError(f"{root} is not a store directory: it has no commitlog folder")
        names = [name for name in disk.listdir(self.paths.commit_log) if name.isdigit()]
        sizes = [disk.size(f"{self.paths.commit_log}/{name}") for name in names]
        self.segment_bytes = sizes[0] if sizes else 0
        config = MessageStoreConfig(mapped_file_size_commit_log=max(self.segment_bytes, 65536))
        pool = FilePool(disk, _OPEN_FILES)
        self._log = CommitLog(config, disk, pool, self.paths.commit_log, bytes(8), run_inline)
        for name, size in zip(names, sizes, strict=True):
            path = f"{self.paths.commit_log}/{name}"
            if size != self.segment_bytes:
                raise DamagedStoreError(
                    f"{path} has {size} bytes where the first segment has {self.segment_bytes}; "
                    "restore the file"
                )
            self._log.segments.append(Segment(disk, pool, path, int(name), size))

    @property
    def log(self) -> CommitLog:
        """The segments; nobody has looked yet where the log ends."""
        return self._log

    def close(self) -> None:
        """Close the files."""
        self._log.close()

    def check(self) -> StoreReport:
        """Read every record and every ConsumeQueue unit.

        Raises:
            OSError: a file cannot be read.
        """
        report = StoreReport(
            self.paths.root, self.segment_bytes, len(self._log.segments), self._log.start
        )
        progress = read_progress(self._disk, self.paths.progress)
        report.is_clean = not self._disk.exists(self.paths.abort)
        places: dict[int, tuple[str, int, int]] = {}

        def note(view: memoryview, parts: RecordParts) -> None:
            header = parts.header
            topic = str(view[parts.topic_at : parts.topic_end], "utf-8", "replace")
            key = (topic, header.queue_id)
            queue = report.queues.setdefault(key, QueueReport(*key))
            expected = queue.last_queue_offset + 1
            if queue.records and header.queue_offset != expected:
                _add(
                    report,
                    f"{topic} queue {header.queue_id}: record at {header.physical_offset} has "
                    f"queue offset {header.queue_offset} where {expected} was due",
                )
            if not queue.records:
                queue.first_queue_offset = header.queue_offset
            queue.records += 1
            queue.last_queue_offset = header.queue_offset
            places[header.physical_offset] = (*key, header.queue_offset)

        scan = Scanner(self._log, None, check_crc=True).scan(self._log.start, note)
        report.end, report.records = scan.end, scan.records
        report.torn_bytes, report.damaged = scan.torn_bytes, scan.damaged
        if progress is not None and scan.end < progress.commit_log_offset:
            _add(
                report,
                f"the log ends at {scan.end}, but {progress.commit_log_offset} bytes were durable",
            )
        self._check_queues(report, places)
        return report

    def messages(self) -> Iterator[MessageExt]:
        """Yield every message in the order of the log.

        Raises:
            OSError: a file cannot be read.
        """
        # A segment at a time: the scan hands records over by a call, a caller wants to iterate.
        for segment in self._log.segments:
            found: list[MessageExt] = []
            scanner = Scanner(_OneSegment(segment), None, check_crc=True)
            scanner.scan(
                segment.start,
                lambda view, parts, found=found: found.append(  # type: ignore[misc]
                    to_message(view, parts.properties_end - parts.header.size_bytes, parts)
                ),
            )
            yield from found

    def _check_queues(self, report: StoreReport, places: dict[int, tuple[str, int, int]]) -> None:
        for topic, queue_id, path in stored_queues(self._disk, self.paths.consume_queue):
            key = (topic, queue_id)
            queue = report.queues.setdefault(key, QueueReport(*key))
            self._check_queue(report, queue, path, places)
        for queue in report.queues.values():
            if queue.records and report.is_clean and queue.units <= queue.last_queue_offset:
                _add(
                    report,
                    f"{queue.topic} queue {queue.queue_id}: the ConsumeQueue ends at "
                    f"{queue.units}, the log at {queue.last_queue_offset + 1}",
                )

    def _check_queue(
        self,
        report: StoreReport,
        queue: QueueReport,
        directory: str,
        places: dict[int, tuple[str, int, int]],
    ) -> None:
        for name in queue_files(self._disk, directory):
            path = f"{directory}/{name}"
            try:
                data = read_file(self._disk, path)
            except UnreadableError as exc:
                _add(report, f"{path} cannot be read: {exc.strerror}")
                continue
            queue_offset = int(name) // UNIT_BYTES
            whole = len(data) - len(data) % UNIT_BYTES
            for physical_offset, size, _ in UNIT.iter_unpack(data[:whole]):
                if size <= 0:
                    break
                place = (queue.topic, queue.queue_id, queue_offset)
                if size != BLANK_SIZE and report.start <= physical_offset < report.end:
                    if places.get(physical_offset) != place:
                        _add(
                            report,
                            f"{path}: unit of queue offset {queue_offset} points at "
                            f"{physical_offset}, where that message is not",
                        )
                queue_offset += 1
                queue.units = queue_offset


class _OneSegment:
    """As much of a CommitLog as a scan of one segment needs."""

    def __init__(self, segment: Segment) -> None:
        self.segments = [segment]

    def find(self, physical_offset: int) -> Segment | None:
        segment = self.segments[0]
        return segment if segment.start <= physical_offset < segment.end else None


def _add(report: StoreReport, problem: str) -> None:
    if len(report.problems) < _MAX_PROBLEMS:
        report.problems.append(problem)


def queue_file_bytes(disk: Disk, paths: StorePaths) -> int:
    """Return the size of the directory's ConsumeQueue files, the default where there are none."""
    for _, _, path in stored_queues(disk, paths.consume_queue):
        for name in queue_files(disk, path):
            return disk.size(f"{path}/{name}")
    return _DEFAULT_QUEUE_FILE_BYTES
