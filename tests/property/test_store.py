"""The store against a list: any sequence of work, crashes and restarts that Hypothesis thinks of.

The model is a `History`: what was sent, what was answered, what was seen. After each start
everything that can be read is held against it, and the derived files against the log. The promises
that are checked are named in `mailboat.testing.history`.
"""

import logging
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from promises import PromiseBroken, promised

from mailboat.store import flush
from mailboat.store.flush import FlushJob
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.history import Crash, History, HistoryViolation, Sent
from mailboat.testing.simulated_disk import PowerCutError, SimulatedDisk
from mailboat.testing.store_reading import check_derived, read_queue, read_store
from mailboat.testing.store_simulator import HOST, make_message, small_config

_KEYS = st.tuples(st.sampled_from(["a", "topic", "%RETRY%g"]), st.integers(0, 1))
_SIZES = st.sampled_from([0, 1, 100, 500, 1500, 4000])
_SEEDS = st.integers(0, 2**32 - 1)
_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]


class StoreMachine(RuleBasedStateMachine):
    """One store directory through put, flush, expiry, crash, recovery and clean stop."""

    flush_disk_type = "ASYNC_FLUSH"

    def __init__(self) -> None:
        """Begin with an empty disk."""
        super().__init__()
        self.disk = SimulatedDisk()
        self.history = History()
        self.jobs: list[_Job] = []
        self.unanswered: list[tuple[Sent, int]] = []
        self.flush: FlushJob | None = None
        self.store: MessageStore

    @property
    def is_sync(self) -> bool:
        """Under SYNC_FLUSH an answer waits for its flush."""
        return self.flush_disk_type == "SYNC_FLUSH"

    @initialize()
    def start(self) -> None:
        """Open the empty directory."""
        self.open(Crash.NONE)

    def new_store(self) -> MessageStore:
        """Return a store over the present disk whose blocking calls wait for `run_job`."""
        return MessageStore(
            small_config(self.flush_disk_type),
            self.disk,
            store_host=HOST,
            run_blocking=lambda job, done: self.jobs.append((job, done)),
        )

    def open(self, crash: Crash) -> None:
        """Open what a crash left and check all of it."""
        self.jobs, self.unanswered, self.flush = [], [], None
        self.store = self.new_store()
        self.store.open()
        with promised("every queue can be read"):
            queues = read_store(self.store)
        with promised("what was promised is there"):
            self.history.adopt(queues, crash)
            self.history.durable_below = self.store.flushed_offset
            check_derived(self.store, queues, expired_below=self.history.expired_below)
            assert self.store.recovery.damaged == []
            assert self.store.lookup.corrupt_records == 0

    @property
    def power_cut(self) -> Crash:
        """The kind of crash that this flush type is judged by."""
        return Crash.POWER_CUT_SYNC_FLUSH if self.is_sync else Crash.POWER_CUT_ASYNC_FLUSH

    @rule(messages=st.lists(st.tuples(_KEYS, _SIZES), min_size=1, max_size=8))
    def put(self, messages: list[tuple[tuple[str, int], int]]) -> None:
        """Send messages that come in one read, each on its own."""
        batch = [self.make(key, size) for key, size in messages]
        self.store.put_messages([inner for _, inner in batch])
        self.note(batch)

    @rule(key=_KEYS, sizes=st.lists(_SIZES, min_size=1, max_size=6))
    def put_batch(self, key: tuple[str, int], sizes: list[int]) -> None:
        """Send one client batch: all of it is stored, back to back, or nothing."""
        batch = [self.make(key, size) for size in sizes]
        self.store.put_batch([inner for _, inner in batch])
        stored = [inner for _, inner in batch if inner.status == PutStatus.PUT_OK]
        with promised("a batch is stored as a whole"):
            assert len(stored) in (0, len(batch))
            for before, after in pairwise(stored):
                assert after.physical_offset == before.physical_offset + before.size_bytes
                assert after.queue_offset == before.queue_offset + 1
        self.note(batch)

    def make(self, key: tuple[str, int], size: int) -> tuple[Sent, MessageInner]:
        """Prepare one message with a body of its own."""
        number = len(self.history.sent)
        sent = self.history.send(*key, b"%d " % number + b"x" * size)
        return sent, make_message(sent, f"U{number}")

    def note(self, batch: list[tuple[Sent, MessageInner]]) -> None:
        """Take the answers: on a well disk only what is too large is refused."""
        for sent, inner in batch:
            if inner.status == PutStatus.PUT_OK:
                sent.queue_offset = inner.queue_offset
                sent.physical_offset = inner.physical_offset
                end = inner.physical_offset + inner.size_bytes
                self.unanswered.append((sent, end))
            else:
                assert inner.status == PutStatus.MESSAGE_ILLEGAL
                self.history.refuse(sent)
        if not self.is_sync:
            self.answer()

    def answer(self) -> None:
        """Answer SEND_OK to what the flush type allows."""
        flushed = self.store.flushed_offset
        due = [sent for sent, end in self.unanswered if not self.is_sync or end <= flushed]
        self.unanswered = [pair for pair in self.unanswered if pair[0] not in due]
        for sent in due:
            with promised("what is acknowledged has its own place"):
                self.history.acknowledge(sent, sent.queue_offset, sent.physical_offset)

    @rule()
    def begin_flush(self) -> None:
        """Make a flush job; more may be written before it runs."""
        if self.flush is None:
            self.flush = self.store.begin_flush()

    @precondition(lambda self: self.flush is not None)
    @rule()
    def finish_flush(self) -> None:
        """Run the job and take it back."""
        job, self.flush = self.flush, None
        assert job is not None
        job.run()
        self.store.finish_flush(job, None)
        self.history.durable_below = max(self.history.durable_below, job.target)
        self.answer()

    @rule(seconds=st.sampled_from([0.05, 1.0, 11.0, 1900.0, 4000.0]))
    def background(self, seconds: float) -> None:
        """Let time pass: checkpoints, expiry, segments made ahead."""
        self.disk.advance(seconds)
        self.store.background()
        expired_below = max(self.history.expired_below, self.store.commit_log.start)
        self.history.expired_below = expired_below

    @precondition(lambda self: bool(self.jobs))
    @rule(choice=_SEEDS)
    def run_job(self, choice: int) -> None:
        """Let one blocking call end; they may end in any order."""
        job, done = self.jobs.pop(choice % len(self.jobs))
        done(job(), None)

    @rule(key=_KEYS)
    def consume(self, key: tuple[str, int]) -> None:
        """Read a queue: what was seen must stay."""
        with promised("what was seen stays"):
            self.history.see(key, read_queue(self.store, key).messages)

    @rule(seed=_SEEDS)
    def cut_power(self, seed: int) -> None:
        """Lose power now."""
        self.disk = self.disk.crash(Random(seed))
        self.open(self.power_cut)

    @rule(seed=_SEEDS, changes=st.integers(1, 80))
    def cut_power_in_recovery(self, seed: int, changes: int) -> None:
        """Lose power, and again while the store opens."""
        random = Random(seed)
        self.disk = self.disk.crash(random)
        self.disk.cut_power_after(changes)
        try:
            self.new_store().open()
            self.disk = self.disk.kill()
        except PowerCutError:
            self.disk = self.disk.crash(random)
        self.open(self.power_cut)

    @rule()
    def kill(self) -> None:
        """Lose the process; the page cache stays."""
        self.disk = self.disk.kill()
        self.open(Crash.NONE)

    @rule(seed=_SEEDS)
    def close(self, seed: int) -> None:
        """Stop cleanly; a power cut afterwards changes nothing."""
        while self.jobs:
            self.run_job_in_order()
        if self.flush is not None:
            self.finish_flush()
        self.store.close()
        self.answer()
        self.disk = self.disk.crash(Random(seed))
        assert not self.disk.exists(self.store.paths.abort)
        self.open(Crash.NONE)
        assert self.store.recovery.records == 0

    def run_job_in_order(self) -> None:
        """Let the oldest blocking call end."""
        job, done = self.jobs.pop(0)
        done(job(), None)

    @invariant()
    def takes_messages(self) -> None:
        """A store on a well disk never refuses, and never calls itself damaged."""
        if hasattr(self, "store"):
            assert self.store.refusal() is None
            assert self.store.lookup.corrupt_records == 0


class SyncStoreMachine(StoreMachine):
    """The same under SYNC_FLUSH."""

    flush_disk_type = "SYNC_FLUSH"


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mailboat")


@pytest.mark.parametrize("machine", [StoreMachine, SyncStoreMachine])
def test_the_store_agrees_with_the_list(machine: type[StoreMachine]) -> None:
    """No sequence of calls and crashes breaks a promise."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("machine", [StoreMachine, SyncStoreMachine])
def test_a_planted_bug_is_noticed(
    machine: type[StoreMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that never syncs its log does not get past the list."""
    monkeypatch.setattr(flush, "sync", lambda disk, fd: None)
    with pytest.raises(PromiseBroken) as caught:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=200,
                stateful_step_count=30,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
    assert isinstance(caught.value.__cause__, HistoryViolation)
