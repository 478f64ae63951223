"""What the store of a stopped broker has beyond the end of the log here, taken over.

A master that was stopped, RocketMQ's or ours, may not have sent its last bytes; its folder has
them. They are put behind the log of a replica that follows nobody, once the end of that was found
to be the same in both, and so are the tables (`mailboat.broker.foreign_tables`). Nothing is changed
in that folder.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Final, NamedTuple

from mailboat.broker.foreign_tables import Taken, read_tables, take_over
from mailboat.broker.replicas.group import ReplicaGroup
from mailboat.broker.replicas.replica_file import ReplicaFile
from mailboat.broker.replicas.shared_tables import Managers
from mailboat.disk import Disk
from mailboat.errors import BrokerError, DamagedStoreError, MailboatError, StoreBusyError
from mailboat.remoting.turns import in_turns
from mailboat.replication.durable import Durable
from mailboat.replication.java_ha import Overlap
from mailboat.store.commit_log import CommitLog
from mailboat.store.inspection import StoreInspector
from mailboat.store.layout import StorePaths
from mailboat.store.recovery import Scanner
from mailboat.store.replica_log import LogPiece, read_piece

_log: Final = logging.getLogger(__name__)

_PIECE_BYTES: Final = 256 << 10
# Of the end of the log here, and as much more as it takes to have a record's head. Those of two
# masters that wrote on by themselves differ in their times.
_COMPARED_BYTES: Final = 1 << 20


class ImportRefusedError(MailboatError):
    """A store is not taken over; the text says why."""


class Imported(NamedTuple):
    """What was taken over: bytes of the log, which ends at `end` now, and of the tables."""

    size_bytes: int
    end: int
    torn_bytes: int
    """Behind the end of the other log, of a record that is not whole."""

    tables: Taken


class _Source(NamedTuple):
    """A stopped store: its log, from where on it is to be taken up to where it ends, and what it
    says as one of our replicas."""

    log: CommitLog
    begin: int
    end: int
    torn_bytes: int
    durable: Durable | None


class StoreImport:
    """The takeover of one store."""

    def __init__(
        self, disk: Disk, root: str, segment_bytes: int, managers: Managers, group: ReplicaGroup
    ) -> None:
        """Take over the store below `root` as a replica of a group; `disk` only reads."""
        self._disk = disk
        self._root = root
        self._segment_bytes = segment_bytes
        self._managers = managers
        self._group = group
        self._replica_log = managers.store.replica

    async def run(self, flushed: Callable[[], Awaitable[None]]) -> Imported:
        """Take over the log, then the tables; all of it is durable on return.

        Raises:
            ImportRefusedError: nothing, or not all of it, was taken over; the text says why.
            StoreError: the store is in use, or damaged.
            OSError: a file cannot be read or written.
        """
        self._refuse_unless_idle()
        with contextlib.ExitStack() as stack:
            source = await asyncio.to_thread(self._open, stack)
            self._check_epochs(source)
            size_bytes = await self._take_log(source)
            await flushed()
            tables = await asyncio.to_thread(read_tables, self._disk, f"{self._root}/config")
            managers = self._managers
            steps = take_over(
                tables,
                managers.topics,
                managers.groups,
                managers.offsets,
                managers.schedule.progress,
            )
            try:
                taken = await in_turns(self._while_idle(steps))
            except BrokerError as error:
                raise ImportRefusedError(f"its tables are taken in part: {error.remark}") from error
            for table in (managers.topics, managers.groups, managers.offsets, managers.schedule):
                await table.persist()
        end = self._replica_log.end
        _log.info("imported path=%s size_bytes=%d end=%d %s", self._root, size_bytes, end, taken)
        return Imported(size_bytes, end, source.torn_bytes, taken)

    def _refuse_unless_idle(self) -> None:
        group = self._group
        if group.replica.is_leading:
            raise ImportRefusedError("it leads its group: only a slave takes over a store")
        if group.is_following:
            raise ImportRefusedError(
                "it follows the master of its group, whose log it has: stop that one first"
            )

    # -- on a thread ----------------------------------------------------------------------------

    def _open(self, stack: contextlib.ExitStack) -> _Source:
        """Open the store and find where its log ends, once both were found to be the same."""
        inspector = StoreInspector(self._disk, self._root)
        stack.callback(inspector.close)
        stack.enter_context(_locked(self._disk, inspector.paths))
        log = inspector.log
        if log.segments and inspector.segment_bytes != self._segment_bytes:
            raise ImportRefusedError(
                f"its segments have {inspector.segment_bytes} bytes, and mappedFileSizeCommitLog "
                f"is {self._segment_bytes} here: they must be equal"
            )
        start = log.start if self._replica_log.is_empty else self._compare(log)
        report = Scanner(log, None, check_crc=True).scan(start, lambda _view, _parts: None)
        if report.damaged:
            first = report.damaged[0]
            raise DamagedStoreError(
                f"{self._root} is damaged at {first.physical_offset} ({first.reason}); what lies "
                "behind that cannot be taken over"
            )
        durable = ReplicaFile(self._disk, inspector.paths.replica).read()
        return _Source(log, start, report.end, report.torn_bytes, durable)

    def _compare(self, log: CommitLog) -> int:
        """Compare the end of the log here with the same place of the other one; return it."""
        begin, mine = self._replica_log.tail_job(_COMPARED_BYTES)()
        end = begin + len(mine)
        segment = log.find(begin)
        if segment is None:
            raise ImportRefusedError(
                f"the log here ends at {end}, and its log begins at {log.start}: it does not go on "
                "where this one ends"
            )
        overlap = Overlap(mine, begin, segment.end)
        try:
            overlap.take(segment.read(begin - segment.start, len(mine)))
        except ValueError as error:
            raise ImportRefusedError(
                f"from {begin} to {end} it has another log than this replica, or less of it: they "
                "have diverged, and nothing of it is taken over"
            ) from error
        return end

    # -- on the loop ----------------------------------------------------------------------------

    def _check_epochs(self, source: _Source) -> None:
        """Refuse a log of other epochs than those here."""
        mine = self._group.replica.durable
        theirs = source.durable or Durable("")
        if (mine.epochs, mine.group) == (theirs.epochs, theirs.group):
            return
        if mine.epochs and not theirs.epochs:
            raise ImportRefusedError(
                "the log here was written by a master of ours, and that one is of no group"
            )
        if theirs.epochs:
            raise ImportRefusedError(
                "it belongs to a replica that has followed or led in other epochs than this one: "
                "let it join the group again instead"
            )

    def _while_idle(self, steps: Generator[None, None, Taken]) -> Generator[None, None, Taken]:
        """Take steps; whoever has begun to lead meanwhile has tables of its own."""
        while True:
            self._refuse_unless_idle()
            try:
                next(steps)
            except StopIteration as done:
                taken: Taken = done.value
                return taken
            yield

    async def _take_log(self, source: _Source) -> int:
        """Append what the log here does not have; return how many bytes."""
        log, at = self._replica_log, source.begin
        if log.is_empty and log.end != at and at < source.end:
            log.begin_at(at)
        is_confirmed = source.durable is None or not source.durable.epochs
        while at < source.end:
            piece = await asyncio.to_thread(_read, source, at)
            self._refuse_unless_idle()
            if log.end != at:
                raise ImportRefusedError(f"somebody else has written to the log at {at}")
            try:
                log.follow(piece.records, at)
            except ValueError as error:
                raise DamagedStoreError(f"{self._root} at {at}: {error}") from error
            at = log.end
            self._group.followed(at, is_confirmed=is_confirmed)
        return at - source.begin


def _read(source: _Source, physical_offset: int) -> LogPiece:
    segment = source.log.find(physical_offset)
    assert segment is not None
    return read_piece(segment, physical_offset, source.end, _PIECE_BYTES)


@contextlib.contextmanager
def _locked(disk: Disk, paths: StorePaths) -> Iterator[None]:
    """Keep brokers away from a store meanwhile; a folder that no broker has had needs no lock.

    Raises:
        StoreBusyError: one has it open.
        OSError: its lock cannot be taken.
    """
    if not disk.exists(paths.lock):
        yield
        return
    try:
        release = disk.lock(paths.lock, "")
    except BlockingIOError as error:
        raise StoreBusyError(f"{paths.root} is in use by a broker: stop it first") from error
    try:
        yield
    finally:
        release()
