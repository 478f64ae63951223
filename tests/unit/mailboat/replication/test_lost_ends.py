"""Who may have lost the end of its log, and must not count as one that has it."""

import pytest

from mailboat.replication.actions import Send
from mailboat.replication.durable import Durable
from mailboat.replication.epochs import EpochStart
from mailboat.replication.events import Promote, Received, Ticked
from mailboat.replication.frames import Answer, Ask
from mailboat.replication.lease import Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import ByHand, Settings

_GROUP = ByHand(replicas=3, min_in_sync=2, begins=False)


def _replica(durable: Durable, *, end: int, kernel: str, is_sync_flush: bool) -> Replica:
    settings = Settings(1, "boot", kernel, is_sync_flush=is_sync_flush, by_hand=_GROUP)
    return Replica(settings, durable, end, 0.0)


def _durable(trusted_boot: str, confirmed: int = 0) -> Durable:
    epochs = (EpochStart(8, 0),)
    return Durable("v-1", 8, epochs, confirmed, trusted_boot, is_whole=True, group="g")


@pytest.mark.parametrize("is_sync_flush", [True, False])
def test_another_setting_brings_nothing_back(is_sync_flush: bool) -> None:
    """What was in memory when the power went is gone, however the next start flushes."""
    replica = _replica(
        _durable("kernel-1"), end=500, kernel="kernel-2", is_sync_flush=is_sync_flush
    )
    assert replica.is_suspect


def test_what_was_flushed_outlives_the_kernel() -> None:
    """Under SYNC_FLUSH a loss of power takes nothing that was acknowledged."""
    before = _replica(_durable("kernel-1"), end=500, kernel="kernel-1", is_sync_flush=True)
    after = _replica(before.durable, end=500, kernel="kernel-2", is_sync_flush=True)
    assert not after.is_suspect
    # From now on it matters which kernel runs.
    later = _replica(after.durable, end=500, kernel="kernel-2", is_sync_flush=False)
    assert _replica(later.durable, end=500, kernel="kernel-3", is_sync_flush=False).is_suspect


def test_a_log_that_ends_before_its_mark_has_lost_something() -> None:
    """The disk does not have what it had, though the kernel runs on."""
    durable = _durable("kernel-1", confirmed=500)
    assert _replica(durable, end=499, kernel="kernel-1", is_sync_flush=False).is_suspect
    assert not _replica(durable, end=500, kernel="kernel-1", is_sync_flush=False).is_suspect


def test_who_knows_that_it_has_lost_something_is_not_promoted() -> None:
    """Not even where everybody answers and has no more."""
    durable = _durable("", confirmed=500)
    replica = _replica(durable, end=400, kernel="kernel-1", is_sync_flush=True)
    replica.handle(Promote(accepts_loss=False), 1.0)
    for tenth in range(11, 30):
        for action in replica.handle(Ticked(), tenth / 10):
            if isinstance(action, Send) and isinstance(action.frame, Ask):
                ask = action.frame
                seen = max(8, ask.epoch)
                answer = Answer(ask.attempt, seen, 8, 400, 400, False, True, False)
                other = Member(action.ordinal, f"v-{action.ordinal}")
                replica.handle(Received(other, answer), tenth / 10)
    assert not replica.is_leading
    assert "has lost" in replica.election.outcome


@pytest.mark.parametrize("end", [400, 500])
def test_who_is_alone_goes_on_after_a_loss_of_power(end: int) -> None:
    """Nobody else has what it has lost: waiting for a person brings nothing back."""
    alone = ByHand(replicas=1, min_in_sync=1, begins=True)
    settings = Settings(0, "boot", "kernel-2", by_hand=alone)
    replica = Replica(settings, _durable("kernel-1", confirmed=500), end, 0.0)
    assert replica.is_suspect
    for tenth in range(30):
        replica.handle(Ticked(), tenth / 10)
    assert replica.is_leading
