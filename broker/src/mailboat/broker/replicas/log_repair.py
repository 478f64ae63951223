"""Damage in the log of a replica is put back from another one, and others get what is good here.

Two replicas have the same bytes as far as their epochs agree (`mailboat.replication.epochs`). What
is damaged at one is asked for at another one, a piece at a time, checked, and put back
(`mailboat.store.mending`): by a master as by a slave, and only below what is confirmed. Damage is
known from three sides: a start has found it and left a note, a reader meets it, or a follower gets
no further for it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from mailboat.broker.blocking_calls import on_thread
from mailboat.broker.replicas.link import Link
from mailboat.broker.supervisor import TaskProgress
from mailboat.disk import Disk
from mailboat.replication.epochs import consistent_end
from mailboat.replication.frames import Fetch, Fetched
from mailboat.replication.replica import Replica
from mailboat.store.consume_queue import ConsumeQueue
from mailboat.store.mending import LogMending, NotedRange, OtherRecordError, PutBack
from mailboat.store.message_inner import BlockingRunner, Runners
from mailboat.store.message_store import MessageStore
from mailboat.store.replica_log import LogPiece

_log: Final = logging.getLogger(__name__)

MOST_BYTES: Final = 1 << 20
"""Of one answer, unless a single record is larger."""

_BYTES_PER_SECOND: Final = 64 << 20
_ANSWER_WITHIN_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.25
# After a try in vain; each further one waits twice as long.
_AGAIN_S: Final = 1.0
_AGAIN_MOST_S: Final = 60.0
# Whoever has no note is forgotten then: the next reader finds it again.
_TRIES: Final = 6
_CHECKPOINT_WITHIN_S: Final = 60.0
_SLICE_S: Final = 0.003
_FOUND_MOST: Final = 1024


class _Damage:
    """A damaged range, and how far it has been put back."""

    def __init__(self, physical_offset: int, size_bytes: int, note: NotedRange | None) -> None:
        self.begin = self.at = physical_offset
        self.end = physical_offset + size_bytes
        self.note = note
        self.tries = 0
        self.next_try_s = 0.0
        self.repaired_bytes = 0
        self.problem = ""


class LogRepair:
    """Repairs the log of one replica, and serves the repair of others."""

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        runners: Runners,
        replica: Callable[[], Replica],
        links: Callable[[], dict[int, Link]],
    ) -> None:
        """Repair an open store, once `run` runs; `links` gives the others by ordinal."""
        self._store = store
        self._mending = LogMending(disk, store.commit_log, store.dispatch, store.paths.quarantine)
        self._run_reading: BlockingRunner = runners.reads
        self._run_writing: BlockingRunner = runners.files
        self._replica = replica
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._damages: dict[int, _Damage] = {}
        self._in_vain: dict[int, float] = {}
        self._due = asyncio.Event()
        self._asked: tuple[Link, int, asyncio.Future[Fetched]] | None = None
        self._serving: set[Link] = set()
        self._number = 0
        self.repaired_bytes = 0
        """Of damaged records that are whole again."""

        self.tries_in_vain = 0
        """How often no other replica had what was asked for."""

        self.served_bytes = 0
        """Of records that other replicas have asked for."""

    @property
    def damaged_ranges(self) -> int:
        """How many are known to be damaged now."""
        return len(self._damages)

    def note(self, physical_offset: int, size_bytes: int = 1) -> None:
        """Note that a damaged record begins at a physical offset; its size if that is known."""
        if not self._store.replica.start <= physical_offset < self._store.replica.end:
            return
        now_s = self._loop.time()
        is_known = physical_offset in self._damages or len(self._damages) >= _FOUND_MOST
        if is_known or now_s < self._in_vain.get(physical_offset, 0):
            return
        size_bytes = min(max(size_bytes, 1), MOST_BYTES)
        self._damages[physical_offset] = _Damage(physical_offset, size_bytes, None)
        _log.warning("damaged physical_offset=%d: asking other replicas", physical_offset)
        self._due.set()

    async def run(self, progress: TaskProgress) -> None:
        """Repair whatever is damaged; runs for ever."""
        await self._load()
        while True:
            progress.beat(_AGAIN_MOST_S)
            for damage in list(self._damages.values()):
                if self._loop.time() >= damage.next_try_s:
                    progress.beat(_AGAIN_MOST_S)
                    await self._try(damage, progress)
            self._due.clear()
            try:
                async with asyncio.timeout(_LOOK_EVERY_S if self._damages else _AGAIN_MOST_S / 2):
                    await self._due.wait()
            except TimeoutError:
                continue

    async def _load(self) -> None:
        """Take up what starts have found."""
        try:
            found = await on_thread(self._run_reading, self._mending.noted)
        except OSError as error:
            _log.warning("the notes of damaged ranges cannot be read: %s", error)
            found = []
        recovery = self._store.recovery.damaged
        found += [NotedRange(item.physical_offset, item.size_bytes) for item in recovery]
        for noted in sorted(set(found)):
            self._damages[noted.physical_offset] = _Damage(*noted, noted)

    # -- asking ---------------------------------------------------------------------------------

    async def _try(self, damage: _Damage, progress: TaskProgress) -> None:
        """Put back what is damaged, or note when to try again."""
        try:
            is_whole = await self._repair(damage, progress)
        except OtherRecordError as error:
            _log.error("physical_offset=%d stays damaged: %s", damage.begin, error)
            del self._damages[damage.begin]
            self._give_up(damage)
            return
        except (OSError, ValueError) as error:
            if damage.problem != str(error):
                damage.problem = str(error)
                _log.warning("physical_offset=%d is not put back: %s", damage.at, error)
            is_whole = False
        if is_whole:
            del self._damages[damage.begin]
            if not damage.repaired_bytes:
                self._give_up(damage)  # Not the log is damaged, but what led to it.
            return
        damage.tries += 1
        wait_s = min(_AGAIN_S * 2 ** (damage.tries - 1), _AGAIN_MOST_S)
        damage.next_try_s = self._loop.time() + wait_s
        if damage.note is None and damage.tries >= _TRIES:
            del self._damages[damage.begin]
            self._give_up(damage)

    def _give_up(self, damage: _Damage) -> None:
        if len(self._in_vain) >= _FOUND_MOST:
            self._in_vain.clear()
        self._in_vain[damage.begin] = self._loop.time() + _AGAIN_MOST_S

    async def _repair(self, damage: _Damage, progress: TaskProgress) -> bool:
        """Put back what is damaged; tell whether all of it is whole."""
        while True:
            log = self._store.replica
            end = min(damage.end, log.end)
            if damage.at >= end or damage.at < log.start:
                break
            fetched = await self._fetch(damage.at, end - damage.at)
            if fetched is None:
                self.tries_in_vain += 1
                return False
            progress.beat(_AGAIN_MOST_S)
            size_bytes = await self._put_back(damage, fetched)
            damage.tries = 0
            await asyncio.sleep(size_bytes / _BYTES_PER_SECOND)
        if damage.note is not None and damage.begin >= self._store.replica.start:
            await self._forget(damage.note, progress)
        return True

    async def _fetch(self, physical_offset: int, size_bytes: int) -> Fetched | None:
        """Ask the others, one after the other, whoever leads first; None where nobody can help."""
        replica = self._replica()
        leader = (
            -1
            if replica.lease is None or replica.lease.holder is None
            else (replica.lease.holder.ordinal)
        )
        links = sorted(self._links().items(), key=lambda item: (item[0] != leader, item[0]))
        for _, link in links:
            replica = self._replica()
            epochs = replica.durable.epochs
            self._number += 1
            asked = Fetch(
                self._number,
                replica.durable.group,
                epochs,
                self._store.replica.end,
                physical_offset,
                min(size_bytes, MOST_BYTES),
            )
            fetched = await self._ask(link, asked)
            if fetched is None or fetched.physical_offset != physical_offset:
                continue
            assert isinstance(fetched.records, bytes)
            sent_end = physical_offset + len(fetched.records)
            if fetched.refusal or not physical_offset < sent_end <= fetched.end:
                _log.debug("replica at %s: %s", link.address, fetched.refusal)
                continue
            # Whoever leads may have changed meanwhile, and what was here been cut.
            replica = self._replica()
            is_same = replica.durable.epochs == epochs and fetched.end <= asked.end
            if is_same and fetched.end <= self._confirmed and self._mending.has_shown(fetched.end):
                return fetched
        return None

    async def _ask(self, link: Link, asked: Fetch) -> Fetched | None:
        answer: asyncio.Future[Fetched] = self._loop.create_future()
        self._asked = (link, asked.number, answer)
        link.send(asked)
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                return await answer
        except TimeoutError:
            return None
        finally:
            self._asked = None

    async def _put_back(self, damage: _Damage, fetched: Fetched) -> int:
        """Write what has come, and fill what is derived of it; return how many bytes came."""
        data = fetched.records
        assert isinstance(data, bytes)
        job = self._mending.put_back_job(data, damage.at, damage.end)
        done: PutBack = await on_thread(self._run_writing, job)
        await self._restore(done, is_noted=damage.note is not None)
        self.repaired_bytes += done.written_bytes
        damage.repaired_bytes += done.written_bytes
        if done.written_bytes:
            _log.warning("repaired physical_offset=%d size_bytes=%d", damage.at, done.written_bytes)
        damage.at = done.end
        return len(data)

    async def _restore(self, done: PutBack, *, is_noted: bool) -> None:
        changed: dict[ConsumeQueue, int] = {}
        begin_s = self._loop.time()
        for record in done.records:
            sync = self._mending.restore(record, is_noted=is_noted)
            if sync is not None:
                before = changed.get(sync.queue, sync.since_bytes)
                changed[sync.queue] = min(before, sync.since_bytes)
            if self._loop.time() - begin_s > _SLICE_S:
                await asyncio.sleep(_SLICE_S)
                begin_s = self._loop.time()

        def sync_all() -> None:
            for queue, since_bytes in changed.items():
                if not queue.is_removed:
                    queue.sync(since_bytes)

        if is_noted and changed:
            await on_thread(self._run_writing, sync_all)

    async def _forget(self, note: NotedRange, progress: TaskProgress) -> None:
        """Remove the note, once what was derived is durable."""
        is_saved = self._store.checkpoints.soon()
        until_s = self._loop.time() + _CHECKPOINT_WITHIN_S
        while not is_saved():
            if self._loop.time() >= until_s:
                _log.warning("the note of %d stays until the next start: no checkpoint", note[0])
                return
            progress.beat(_AGAIN_MOST_S)
            await asyncio.sleep(_LOOK_EVERY_S)
        await on_thread(self._run_writing, lambda: self._mending.forget(note))

    # -- frames ---------------------------------------------------------------------------------

    def received(self, link: Link, frame: Fetch | Fetched) -> None:
        """Answer another replica, or take its answer."""
        if isinstance(frame, Fetch):
            self._serve(link, frame)
        elif self._asked is not None:
            asked, number, answer = self._asked
            if asked is link and number == frame.number and not answer.done():
                answer.set_result(frame)

    def lost(self, link: Link) -> None:
        """Forget a link."""
        self._serving.discard(link)

    @property
    def _confirmed(self) -> int:
        replica = self._replica()
        return min(max(replica.confirmed, replica.durable.confirmed), self._store.replica.end)

    def _serve(self, link: Link, fetch: Fetch) -> None:
        """Send what both have, if it is whole here; one piece at a time."""
        refusal = "another answer is under way" if link in self._serving else self._refusal(fetch)
        if refusal:
            self._answer(link, fetch, LogPiece(b"", fetch.physical_offset), refusal)
            return
        try:
            job = self._store.replica.read_good_job(
                fetch.physical_offset, min(fetch.size_bytes, MOST_BYTES), self._common_end(fetch)
            )
        except ValueError as error:
            self._answer(link, fetch, LogPiece(b"", fetch.physical_offset), str(error))
            return
        self._serving.add(link)

        def done(piece: Any, error: BaseException | None) -> None:
            self._serving.discard(link)
            if error is None:
                self._answer(link, fetch, piece, "")
                return
            if not isinstance(error, OSError | ValueError):
                raise error
            self._answer(link, fetch, LogPiece(b"", fetch.physical_offset), str(error))

        self._run_reading(job, done)

    def _refusal(self, fetch: Fetch) -> str:
        durable = self._replica().durable
        if not durable.group or durable.group != fetch.group:
            return "the logs are of different groups"
        if fetch.physical_offset >= self._common_end(fetch):
            return "the logs are not known to be the same there, or it is not confirmed"
        return ""

    def _common_end(self, fetch: Fetch) -> int:
        """Return up to where both logs are the same, and confirmed."""
        mine = self._replica().durable.epochs
        end = consistent_end(mine, self._store.replica.end, fetch.epochs, fetch.end)
        return 0 if end is None else min(end, self._confirmed)

    def _answer(self, link: Link, fetch: Fetch, piece: LogPiece, refusal: str) -> None:
        if piece.end > self._common_end(fetch) and not refusal:
            piece, refusal = LogPiece(b"", fetch.physical_offset), "it is not confirmed"
        self.served_bytes += len(piece.records)
        at = fetch.physical_offset
        link.send(Fetched(fetch.number, at, piece.end, refusal, piece.records))
