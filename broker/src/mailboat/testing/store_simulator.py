"""One store on a simulated disk: random work, random crashes, every promise checked after each.

Everything follows from the seed, so that a violation can be run again. A life of the store ends
with a power cut at any call, the death of the process, a failed disk or a clean close; each power
cut is opened in several variants, and recovery itself is cut as well.
"""

import errno
from collections.abc import Callable
from random import Random
from typing import Any, Final

from mailboat.config import MessageStoreConfig
from mailboat.disk import Disk
from mailboat.errors import StoreError
from mailboat.model.properties import encode_properties
from mailboat.model.sys_flag import TRANSACTION_PREPARED
from mailboat.model.tags import tags_code
from mailboat.store.flush import FlushJob
from mailboat.store.message_inner import MessageInner, PutStatus, run_inline
from mailboat.store.message_store import MessageStore
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.testing.history import Crash, History, HistoryViolation, Sent
from mailboat.testing.simulated_disk import PowerCutError, SimulatedDisk
from mailboat.testing.store_reading import check_derived, read_queue, read_store

HOST: Final = bytes([10, 0, 0, 2]) + (10911).to_bytes(4, "big")
_TOPICS: Final = ("orders", "%RETRY%group", "t" * 60)
_SIZES: Final = (0, 10, 200, 700, 1500)
_DiskWrap = Callable[[Disk], Disk]


def small_config(flush_disk_type: str, **changes: Any) -> MessageStoreConfig:
    """Return settings with files so small that everything rolls all the time.

    Messages are taken however full the disk is: that of a test machine may be, which is nothing a
    test of something else is about.
    """
    values: dict[str, Any] = {
        "store_path_root_dir": "/store",
        "flush_disk_type": flush_disk_type,
        "mapped_file_size_commit_log": 8192,
        "mapped_file_size_consume_queue": 400,
        "max_hash_slot_num": 16,
        "max_index_num": 40,
        "max_message_size": 4096,
        "file_reserved_time": 1,
        "disk_space_warning_level_ratio": 100,
        "delete_when": ";".join(f"{hour:02}" for hour in range(24)),
    }
    return MessageStoreConfig(**(values | changes))


def make_message(sent: Sent, unique_key: str) -> MessageInner:
    """Return the store's form of a message that was noted in a history."""
    properties = {"TAGS": f"tag{sent.number % 3}", "UNIQ_KEY": unique_key}
    keys = f"key{sent.number:06}" if sent.key[0] != _TOPICS[0] else None
    if keys:
        properties["KEYS"] = keys
    return MessageInner(
        topic=sent.key[0],
        queue_id=sent.key[1],
        body=sent.body,
        properties=encode_properties(properties).encode(),
        tags_code=tags_code(properties["TAGS"]),
        unique_key=unique_key,
        keys=keys,
        flag=sent.number,
        sys_flag=1 << sent.number % 31 & ~TRANSACTION_PREPARED,
        born_timestamp_ms=1_700_000_000_000,
        born_host=HOST,
    )


class StoreSimulator:
    """Runs one store through lives and crashes; `crash_states` counts those that were checked.

    Raises HistoryViolation from `run` with the seed in its text.
    """

    def __init__(
        self,
        seed: int,
        flush_disk_type: str,
        *,
        wrap: _DiskWrap | None = None,
        store_class: type[MessageStore] = MessageStore,
        variants: int = 2,
        with_failures: bool = True,
    ) -> None:
        """Prepare an empty disk.

        Args:
            seed: decides everything.
            flush_disk_type: ASYNC_FLUSH or SYNC_FLUSH.
            wrap: puts a misbehaving disk between the store and the simulated one.
            store_class: a store with a planted bug.
            variants: how many outcomes of one power cut are looked at beside the one that goes on.
            with_failures: lets the disk fail calls as well.
        """
        self.seed = seed
        self.crash_states = 0
        self.history = History()
        self._random = Random(seed)
        self._topics: tuple[str, ...] = _TOPICS
        self._sizes: tuple[int, ...] = _SIZES
        if self._random.random() < 0.3:
            # Records of one size: what a crash left behind a cut fits what is written over it.
            self._topics, self._sizes = _TOPICS[:1], (200,)
        self._is_sync = flush_disk_type == "SYNC_FLUSH"
        self._config = small_config(flush_disk_type)
        self._wrap = wrap if wrap is not None else _unwrapped
        self._store_class = store_class
        self._variants = variants
        self._with_failures = with_failures
        self._disk = SimulatedDisk()
        self._faulty = FaultyDisk(self._disk)
        self._jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self._unanswered: list[tuple[Sent, int]] = []
        self._flush: FlushJob | None = None
        self._store = self._new_store(self._disk)

    def run(self, lives: int = 3) -> None:
        """Run some lives, each ended by a crash or a clean close.

        Raises:
            HistoryViolation: a promise was broken.
        """
        try:
            crash = Crash.NONE
            for _ in range(lives):
                self._open(crash)
                crash = self._live()
            self._open(crash)
        except HistoryViolation as exc:
            exc.add_note(f"seed {self.seed}, {'SYNC' if self._is_sync else 'ASYNC'}_FLUSH")
            raise

    # -- opening and checking ---------------------------------------------------------------------

    def _new_store(self, disk: SimulatedDisk, *, inline: bool = False) -> MessageStore:
        self._faulty = FaultyDisk(disk)
        return self._store_class(
            self._config,
            self._wrap(self._faulty),
            store_host=HOST,
            run_blocking=run_inline if inline else self._run_blocking,
        )

    def _run_blocking(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        self._jobs.append((job, done))

    def _open(self, crash: Crash) -> None:
        """Open the store, with power cuts during recovery, and check it."""
        while self._random.random() < 0.3:
            self._disk.cut_power_after(self._random.randrange(1, 60))
            try:
                _open_or_violate(self._new_store(self._disk))
            except PowerCutError:
                self._disk = self._cut_power()
                crash = self._power_cut
                self._look_at(self._disk.crash(self._random), crash)
                continue
            # It was faster than the cut: the process dies instead.
            self._disk = self._disk.kill()
        self._jobs = []
        self._unanswered = []
        self._flush = None
        self._store = self._new_store(self._disk)
        _open_or_violate(self._store)
        self._check(self._store, crash, adopt=True)
        if crash is not Crash.NONE:
            self.crash_states += 1

    @property
    def _power_cut(self) -> Crash:
        return Crash.POWER_CUT_SYNC_FLUSH if self._is_sync else Crash.POWER_CUT_ASYNC_FLUSH

    def _cut_power(self) -> SimulatedDisk:
        """Look at some outcomes of a power cut now, and return another one to go on with."""
        for _ in range(self._variants):
            self._look_at(self._disk.crash(self._random), self._power_cut)
        return self._disk.crash(self._random)

    def _look_at(self, disk: SimulatedDisk, crash: Crash) -> None:
        store = self._new_store(disk, inline=True)
        _open_or_violate(store)
        self._check(store, crash, adopt=False)
        self.crash_states += 1

    def _check(self, store: MessageStore, crash: Crash, *, adopt: bool) -> None:
        queues = read_store(store)
        if adopt:
            self.history.adopt(queues, crash)
            self.history.durable_below = store.flushed_offset
        else:
            self.history.check(queues, crash)
        check_derived(store, queues, expired_below=self.history.expired_below)
        if store.lookup.corrupt_records or store.recovery.damaged:
            raise HistoryViolation("taken for damage", f"{store.recovery.damaged}")

    # -- one life ---------------------------------------------------------------------------------

    def _live(self) -> Crash:
        random = self._random
        cut_after = random.randrange(1, 150) if random.random() < 0.6 else None
        if cut_after is not None:
            self._disk.cut_power_after(cut_after)
        try:
            for _ in range(random.randrange(40)):
                random.choices(
                    (self._put, self._put_batch, self._flush_step, self._background,
                     self._run_job, self._wait, self._consume, self._fail),
                    (6, 4, 8, 5, 5, 2, 2, 1 if self._with_failures else 0),
                )[0]()  # fmt: skip
            if cut_after is not None or random.random() < 0.4:
                raise PowerCutError
            if random.random() < 0.5 or self._store.state().failed is not None:
                # Also after a failed flush: the next life reads bytes that the kernel has dropped.
                self._disk = self._disk.kill()
                return Crash.NONE
            return self._close()
        except PowerCutError:
            self._disk = self._cut_power()
            return self._power_cut

    def _close(self) -> Crash:
        """Close cleanly; a power cut afterwards must not matter."""
        self._faulty.heal()
        while self._jobs:
            self._run_job()
        if self._flush is not None:
            self._finish_flush()
        self._store.close()
        self._answer()
        if self._random.random() < 0.5:
            self._disk = self._disk.crash(self._random)
        return Crash.NONE

    def _put(self) -> None:
        batch = [self._make() for _ in range(self._random.randrange(1, 5))]
        self._store.put_messages([inner for _, inner in batch])
        self._note(batch)

    def _put_batch(self) -> None:
        first, inner = self._make()
        batch = [(first, inner)]
        batch += [self._make(first.key) for _ in range(self._random.randrange(4))]
        self._store.put_batch([inner for _, inner in batch])
        if len({inner.status for _, inner in batch}) > 1:
            raise HistoryViolation("half a batch", f"{[inner.status for _, inner in batch]}")
        self._note(batch)

    def _make(self, key: tuple[str, int] | None = None) -> tuple[Sent, MessageInner]:
        random = self._random
        topic, queue_id = key or (random.choice(self._topics), random.randrange(2))
        number = len(self.history.sent)
        size = random.choice(self._sizes)
        body = b"%d/%06d " % (self.seed, number) + random.randbytes(8) * (size // 8)
        sent = self.history.send(topic, queue_id, body)
        return sent, make_message(sent, f"U{number:06}")

    def _note(self, batch: list[tuple[Sent, MessageInner]]) -> None:
        for sent, inner in batch:
            if inner.status == PutStatus.PUT_OK:
                sent.queue_offset = inner.queue_offset
                sent.physical_offset = inner.physical_offset
                self._unanswered.append((sent, inner.physical_offset + inner.size_bytes))
            elif inner.status != PutStatus.FLUSH_DISK_TIMEOUT:
                self.history.refuse(sent)
        if not self._is_sync:
            self._answer()

    def _answer(self) -> None:
        """Answer SEND_OK to what the flush type allows."""
        flushed_offset = self._store.flushed_offset
        waiting = []
        for sent, end in self._unanswered:
            if self._is_sync and end > flushed_offset:
                waiting.append((sent, end))
            else:
                self.history.acknowledge(sent, sent.queue_offset, sent.physical_offset)
        self._unanswered = waiting

    def _flush_step(self) -> None:
        """Begin a flush, or finish the one that was begun some steps ago."""
        if self._flush is None:
            self._flush = self._store.begin_flush()
        if self._flush is not None and self._random.random() < 0.7:
            self._finish_flush()

    def _finish_flush(self) -> None:
        job, self._flush = self._flush, None
        assert job is not None
        error: OSError | None = None
        try:
            job.run()
        except OSError as exc:
            error = exc
        self._store.finish_flush(job, error)
        if error is None:
            self.history.durable_below = max(self.history.durable_below, job.target)
        self._answer()

    def _background(self) -> None:
        try:
            self._store.background()
        finally:
            expired_below = max(self.history.expired_below, self._store.commit_log.start)
            self.history.expired_below = expired_below

    def _run_job(self) -> None:
        if not self._jobs:
            return
        job, done = self._jobs.pop(self._random.randrange(len(self._jobs)))
        result, error = None, None
        try:
            result = job()
        except OSError as exc:
            error = exc
        done(result, error)

    def _wait(self) -> None:
        self._disk.advance(self._random.choice((0.05, 0.3, 11, 11, 1900, 4000)))

    def _consume(self) -> None:
        keys = list(self._store.queues.by_key)
        if keys:
            key = self._random.choice(keys)
            self.history.see(key, read_queue(self._store, key).messages)

    def _fail(self) -> None:
        """Let the next call of some kind fail once, now or later."""
        random = self._random
        call, errors = random.choice(_FAILURES)
        self._faulty.inject(Fault((call,), random.randrange(1, 4), random.choice(errors)))


_FAILURES: Final = (
    ("pwrite", (errno.ENOSPC, errno.EIO, errno.EINTR)),
    ("fdatasync", (errno.EIO, errno.EINTR)),
    ("fallocate", (errno.ENOSPC,)),
    ("create", (errno.ENOSPC, errno.EMFILE)),
    ("open", (errno.EMFILE,)),
    ("rename", (errno.EIO,)),
    ("fsync_dir", (errno.EIO,)),
)


def _unwrapped(disk: Disk) -> Disk:
    return disk


def _open_or_violate(store: MessageStore) -> None:
    try:
        store.open()
    except StoreError as exc:
        raise HistoryViolation("cannot be opened", str(exc)) from exc
