"""Looking at a store directory without changing it: what is there, and whether it is sound.

Works on directories of mailboat and of RocketMQ, also while a broker uses them.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mailboat.config import MessageStoreConfig
from mailboat.disk import Disk, UnreadableError, read_file
from mailboat.errors import DamagedStoreError
from mailboat.model.message import MessageExt
from mailboat.model.names import SCHEDULE_TOPIC
from mailboat.model.properties import PropertyName, decode_properties
from mailboat.model.record import (
    RecordParts,
    has_damaged_checksum_name,
    to_message,
)
from mailboat.model.tags import tags_code
from mailboat.store.checkpoint import (
    CheckpointTimes,
    Progress,
    read_checkpoint,
    read_flushed_mark,
    read_progress,
)
from mailboat.store.commit_log import CommitLog
from mailboat.store.consume_queue import (
    BLANK_SIZE,
    UNIT,
    UNIT_BYTES,
    stored_queues,
)
from mailboat.store.deleted_topics import DeletedTopics
from mailboat.store.file_pool import FilePool
from mailboat.store.layout import StorePaths, numbered_files, store_paths
from mailboat.store.message_inner import run_inline
from mailboat.store.opening import is_page_cache_intact, was_used_by_another_broker
from mailboat.store.recovery import DamagedRange, Scanner, ScanOverError
from mailboat.store.segment import Segment
from mailboat.store.segment_reader import find_record_at

_DEFAULT_QUEUE_FILE_BYTES: Final = 6_000_000
_MAX_PROBLEMS: Final = 100
_OPEN_FILES: Final = 16
_LOOKS_AGAIN: Final = 3


@dataclass(slots=True)
class QueueReport:
    """What log and ConsumeQueue say about one queue; offsets are -1 where there is nothing."""

    topic: str
    queue_id: int
    records: int = 0
    first_queue_offset: int = -1
    last_queue_offset: int = -1
    units: int = 0
    found: int = 0
    """Records that their units lead to."""


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
        names = numbered_files(disk, self.paths.commit_log)
        sizes = [disk.size(f"{self.paths.commit_log}/{name}") for name in names]
        self.segment_bytes = sizes[0] if sizes else 0
        config = MessageStoreConfig(mapped_file_size_commit_log=max(self.segment_bytes, 65536))
        pool = self._pool = FilePool(disk, _OPEN_FILES)
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
        """Read every record and every ConsumeQueue unit, and compare them with what is known to
        have been durable.

        Raises:
            OSError: a file cannot be read.
        """
        report = StoreReport(
            self.paths.root, self.segment_bytes, len(self._log.segments), self._log.start
        )
        # Before the log, which may grow meanwhile.
        claims = self._claims(report)
        report.is_clean = claims.is_clean
        records = _Records(with_tags=not claims.is_foreign)
        self._scan(report, claims, records)
        beyond = self._check_queues(report, records, is_whole=claims.is_whole)
        if beyond:
            # A broker at work may have stored them meanwhile: a unit comes after its record.
            self._add_new_segments()
            self._scan(report, claims, records)
        report.records = len(records.places)
        records.fill_in(report, claims)
        _check_beyond(report, records, beyond)
        _check_queue_ends(report, is_foreign=claims.is_foreign)
        if claims.is_whole:
            _check_missing_units(report)
        _check_claims(report, claims, records)
        return report

    def _claims(self, report: StoreReport) -> "_Claims":
        disk, paths = self._disk, self.paths
        # RocketMQ knows nothing of our own files, and leaves them as they are.
        is_foreign = was_used_by_another_broker(disk, paths) or not disk.exists(paths.own)
        deleted = DeletedTopics(disk, paths.deleted_topics)
        progress, mark, checkpoint = None, None, CheckpointTimes()
        if not is_foreign:
            deleted.load()
            progress = read_progress(disk, paths.progress)
            try:
                mark = read_flushed_mark(disk, paths.flushed)
            except UnreadableError as exc:
                _add(report, f"{paths.flushed} cannot be read: {exc.strerror}")
        try:
            checkpoint = read_checkpoint(disk, paths.checkpoint)
        except UnreadableError as exc:
            _add(report, f"{paths.checkpoint} cannot be read: {exc.strerror}")
        # A start that dies while it builds derived files anew has left no mark of itself yet.
        is_clean = not disk.exists(paths.abort)
        if not is_foreign:
            is_clean = is_clean and progress is not None and progress.clean
        return _Claims(
            is_foreign,
            is_clean,
            is_page_cache_intact(disk, paths),
            progress,
            mark,
            checkpoint,
            deleted,
        )

    def _scan(self, report: StoreReport, claims: "_Claims", records: "_Records") -> None:
        """Read on from where the log has ended so far.

        A broker at work may store where nothing was yet when it was read, and more behind it, which
        looks like damage: from there the log is read once more.
        """
        start: int | None = max(report.end, self._log.start)
        again: Counter[int] = Counter()
        while start is not None:
            scanner = Scanner(
                self._log,
                claims.mark,
                check_crc=True,
                is_page_cache_intact=claims.is_page_cache_intact,
            )
            scan = scanner.scan(start, records.note)
            report.end, report.torn_bytes = scan.end, scan.torn_bytes
            newest_ms = max(records.last_store_timestamp_ms, scan.last_store_timestamp_ms)
            records.last_store_timestamp_ms = newest_ms
            start = None
            for damaged in scan.damaged:
                at = damaged.physical_offset
                if again[at] < _LOOKS_AGAIN and self._is_good_now(at):
                    again[at] += 1
                    start = at
                    break
                if damaged not in report.damaged:
                    report.damaged.append(damaged)

    def _is_good_now(self, physical_offset: int) -> bool:
        segment = self._log.find(physical_offset)
        return segment is not None and find_record_at(segment, physical_offset) is not None

    def _add_new_segments(self) -> None:
        known = {segment.path for segment in self._log.segments}
        for name in numbered_files(self._disk, self.paths.commit_log):
            path = f"{self.paths.commit_log}/{name}"
            is_whole = path not in known and self._disk.size(path) == self.segment_bytes
            if is_whole and self._log.segments:
                segment = Segment(self._disk, self._pool, path, int(name), self.segment_bytes)
                self._log.segments.append(segment)

    def each_message(self, wants_more: Callable[[MessageExt], bool]) -> None:
        """Hand over every message in the order of the log, until `wants_more` returns False.

        Raises:
            OSError: a file cannot be read, or the call raised it.
        """

        def note(view: memoryview, parts: RecordParts) -> None:
            begin = parts.properties_end - parts.header.size_bytes
            if not wants_more(to_message(view, begin, parts)):
                raise ScanOverError

        with suppress(ScanOverError):
            # A segment at a time: where one ends in damage, the next one is looked at all the same.
            for segment in self._log.segments:
                scanner = Scanner(_OneSegment(segment), None, check_crc=True)
                scanner.scan(segment.start, note)

    def _check_queues(
        self, report: StoreReport, records: "_Records", *, is_whole: bool
    ) -> list["_Beyond"]:
        """Compare all units with the records; return those that point behind the log's end."""
        beyond: list[_Beyond] = []
        for topic, queue_id, path in stored_queues(self._disk, self.paths.consume_queue):
            key = (topic, queue_id)
            queue = report.queues.setdefault(key, QueueReport(*key))
            self._check_queue(report, queue, path, records, beyond, is_whole=is_whole)
        return beyond

    def _check_queue(
        self,
        report: StoreReport,
        queue: QueueReport,
        directory: str,
        records: "_Records",
        beyond: list["_Beyond"],
        *,
        is_whole: bool,
    ) -> None:
        is_in_log = False
        for name in numbered_files(self._disk, directory):
            path = f"{directory}/{name}"
            try:
                data = read_file(self._disk, path)
            except UnreadableError as exc:
                _add(report, f"{path} cannot be read: {exc.strerror}")
                continue
            queue_offset = int(name) // UNIT_BYTES
            whole = len(data) - len(data) % UNIT_BYTES
            for physical_offset, size, code in UNIT.iter_unpack(data[:whole]):
                if size <= 0:
                    if not is_whole:
                        break
                    queue_offset += 1
                    continue
                place = records.place(queue.topic, queue.queue_id, queue_offset, size, code)
                if size != BLANK_SIZE and physical_offset >= report.end:
                    beyond.append(_Beyond(path, physical_offset, place))
                elif size != BLANK_SIZE and (physical_offset >= report.start or is_in_log):
                    is_in_log = True
                    if records.places.get(physical_offset) == place:
                        queue.found += 1
                    else:
                        _add(report, _wrong_unit(path, physical_offset, queue_offset))
                queue_offset += 1
                queue.units = queue_offset


_Place = tuple[str, int, int, int, int]
"""Topic, queue id, queue offset, size and tagsCode of a message."""


class _Beyond(NamedTuple):
    """A ConsumeQueue unit that points to where the log did not go when it was read."""

    path: str
    physical_offset: int
    place: _Place


class _Claims(NamedTuple):
    """What the other files of a directory say of its log."""

    is_foreign: bool
    """RocketMQ had the directory last."""

    is_clean: bool
    is_page_cache_intact: bool
    progress: Progress | None
    mark: int | None
    """The flushed mark."""

    checkpoint: CheckpointTimes
    deleted: DeletedTopics

    @property
    def is_whole(self) -> bool:
        """Tell whether mailboat has closed the directory: then every message has its unit."""
        return self.is_clean and not self.is_foreign


class _Records:
    """The records of the log, as they are read."""

    def __init__(self, *, with_tags: bool) -> None:
        # With enableConsumeQueueExt RocketMQ's units say where the tags are, and not which.
        self._with_tags = with_tags
        self.places: dict[int, _Place] = {}
        """What the unit of the record at each physical offset has to say."""

        self.last_store_timestamp_ms = 0
        self._misnamed: dict[int, DamagedRange] = {}

    def place(
        self, topic: str, queue_id: int, queue_offset: int, size_bytes: int, code: int
    ) -> _Place:
        """Return what is to be the same in a unit and its record."""
        # That of a delayed message says when it is due, which depends on settings.
        is_compared = self._with_tags and topic != SCHEDULE_TOPIC
        return topic, queue_id, queue_offset, size_bytes, code if is_compared else 0

    def note(self, view: memoryview, parts: RecordParts) -> None:
        """Take note of a record."""
        header = parts.header
        topic = str(view[parts.topic_at : parts.topic_end], "utf-8", "replace")
        properties = str(view[parts.properties_at : parts.properties_end], "utf-8", "replace")
        code = tags_code(decode_properties(properties).get(PropertyName.TAGS))
        self.places[header.physical_offset] = self.place(
            topic, header.queue_id, header.queue_offset, header.size_bytes, code
        )
        record = view[parts.properties_end - header.size_bytes : parts.properties_end]
        if has_damaged_checksum_name(record):
            self._misnamed[header.physical_offset] = DamagedRange(
                header.physical_offset, header.size_bytes, "the name of its checksum is damaged"
            )

    def fill_in(self, report: StoreReport, claims: _Claims) -> None:
        """Report what lies in each queue, and the gaps between records of one."""
        report.damaged += self._misnamed.values()
        for physical_offset, (topic, queue_id, queue_offset, *_) in sorted(self.places.items()):
            if claims.deleted.is_gone(topic, physical_offset):
                continue
            key = (topic, queue_id)
            queue = report.queues.setdefault(key, QueueReport(*key))
            if claims.is_foreign and not queue_offset:
                # RocketMQ leaves no note of a topic that it has deleted: this one was made anew.
                queue.records = 0
            expected = queue.last_queue_offset + 1
            if queue.records and queue_offset != expected:
                _add(
                    report,
                    f"{topic} queue {queue_id}: record at {physical_offset} has queue offset "
                    f"{queue_offset} where {expected} was due",
                )
            if not queue.records:
                queue.first_queue_offset = queue_offset
            queue.records += 1
            queue.last_queue_offset = queue_offset


def _check_claims(report: StoreReport, claims: _Claims, records: _Records) -> None:
    """Report what was durable and is not there."""
    progress, checkpoint = claims.progress, claims.checkpoint
    durable = 0 if progress is None else progress.commit_log_offset
    if claims.mark is not None:
        durable = max(durable, claims.mark)
    elif not claims.is_foreign:
        # A replica that takes back what was never confirmed sets the mark back, and not this.
        durable = max(durable, checkpoint.master_flushed_offset)
    if report.end < durable:
        _add(report, f"the log ends at {report.end}, but {durable} bytes of it were durable")
    if report.is_clean and progress is not None and progress.commit_log_start < report.start:
        _add(
            report,
            f"the log begins at {report.start}, but did so at {progress.commit_log_start} when it "
            "was closed",
        )
    # Ours has the time of the last record, flushed or not.
    flushed_ms = checkpoint.physic_ms if claims.is_foreign else 0
    if report.records and records.last_store_timestamp_ms < flushed_ms:
        _add(
            report,
            f"the last record was stored at {records.last_store_timestamp_ms}, but the checkpoint "
            f"says that records up to {flushed_ms} were flushed",
        )


def _check_beyond(report: StoreReport, records: _Records, beyond: list[_Beyond]) -> None:
    """Report units of messages that the log does not have."""
    for unit in beyond:
        topic, queue_id, queue_offset, *_ = unit.place
        if unit.physical_offset >= report.end:
            _add(
                report,
                f"{topic} queue {queue_id}: the log ends at {report.end}, but message "
                f"{queue_offset} was stored at {unit.physical_offset}",
            )
        elif records.places.get(unit.physical_offset) != unit.place:
            _add(report, _wrong_unit(unit.path, unit.physical_offset, queue_offset))


def _check_queue_ends(report: StoreReport, *, is_foreign: bool) -> None:
    """Report ConsumeQueues that end before the log where nothing was going on."""
    for queue in report.queues.values():
        # RocketMQ keeps the records of a topic that it has deleted.
        is_deleted = is_foreign and not queue.units
        if not report.is_clean or is_deleted or not queue.records:
            continue
        if queue.units <= queue.last_queue_offset:
            _add(
                report,
                f"{queue.topic} queue {queue.queue_id}: the ConsumeQueue ends at "
                f"{queue.units}, the log at {queue.last_queue_offset + 1}",
            )


def _check_missing_units(report: StoreReport) -> None:
    """Report messages of a closed store that no unit leads to."""
    for queue in report.queues.values():
        if queue.found < queue.records:
            _add(
                report,
                f"{queue.topic} queue {queue.queue_id}: of {queue.records} records in the log the "
                f"ConsumeQueue leads to {queue.found} only",
            )


def _wrong_unit(path: str, physical_offset: int, queue_offset: int) -> str:
    return (
        f"{path}: unit of queue offset {queue_offset} points at {physical_offset}, where that "
        "message, of its size and tags, is not"
    )


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
        for name in numbered_files(disk, path):
            return disk.size(f"{path}/{name}")
    return _DEFAULT_QUEUE_FILE_BYTES
