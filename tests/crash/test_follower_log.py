"""The log of a follower through crashes in any file-system call: followed, cut, and followed again.

Two masters have the same log up to some point and another one behind it. A follower takes the first
one's, is cut back to what both have, and takes the second one's, while its power goes or its
process dies. What it then has is always a part of one of the two, from the beginning: never a tail
of the first behind the second, never less than it has flushed and acknowledged.
"""

from collections.abc import Callable
from random import Random

import pytest
from promises import promised

from mailboat.store.message_inner import PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.history import Sent
from mailboat.testing.simulated_disk import PowerCutError, SimulatedDisk
from mailboat.testing.store_simulator import HOST, make_message, small_config

_LIVES = 60


def _store(disk: SimulatedDisk, role: str, confirmed_offset: int = 0) -> MessageStore:
    config = small_config("ASYNC_FLUSH", broker_role=role)
    store = MessageStore(config, disk, store_host=HOST)
    if role == "SLAVE":
        store.replica.show_below(confirmed_offset)
    store.open()
    return store


def _log(store: MessageStore) -> bytes:
    log = store.commit_log
    return b"".join(
        segment.read(0, min(segment.end, log.end) - segment.start) for segment in log.segments
    )


def _put(store: MessageStore, count: int, random: Random) -> None:
    for _ in range(count):
        number = random.randrange(1000)
        body = random.randbytes(random.randrange(900))
        sent = Sent(number, ("topic", random.randrange(3)), body)
        message = make_message(sent, f"key{number}")
        store.put_messages([message])
        assert message.status == PutStatus.PUT_OK


def _masters(random: Random) -> tuple[MessageStore, MessageStore, int]:
    """Return two masters, and up to where their logs are the same."""
    first = _store(SimulatedDisk(), "ASYNC_MASTER")
    _put(first, random.randrange(1, 60), random)
    shared = first.replica.end
    second = _store(SimulatedDisk(), "SLAVE")
    _copy(first, second)
    second.dispatch.count_held()
    for master in (first, second):
        _put(master, random.randrange(1, 60), random)
    return first, second, shared


def _copy(master: MessageStore, follower: MessageStore, until: int | None = None) -> None:
    end = master.replica.end if until is None else until
    while (at := follower.replica.end) < end:
        follower.replica.follow(master.replica.read(at, 3000).records, at)


def _flush(store: MessageStore) -> None:
    job = store.begin_flush()
    if job is not None:
        job.run()
        store.finish_flush(job, None)


class _Follower:
    """A follower and its disk; `kept_bytes` is what it has acknowledged as durable."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.disk = SimulatedDisk()
        self.store = _store(self.disk, "SLAVE")
        self.kept_bytes = 0
        self.crashes = 0

    def run(self, step: Callable[[], None]) -> None:
        """Do a step again and again until no crash comes between."""
        while True:
            if self.random.random() < 0.7:
                self.disk.cut_power_after(self.random.randrange(1, 40))
            try:
                step()
                self.disk.cut_power_after(1 << 40)
            except PowerCutError:
                self.crashes += 1
                dies = self.random.random() < 0.5
                self.disk = self.disk.kill() if dies else self.disk.crash(self.random)
                self._open()
            else:
                return

    def _open(self) -> None:
        while True:
            if self.random.random() < 0.3:
                self.disk.cut_power_after(self.random.randrange(1, 60))
            try:
                self.store = _store(self.disk, "SLAVE")
                self.disk.cut_power_after(1 << 40)
            except PowerCutError:
                self.disk = self.disk.crash(self.random)
            else:
                return


def _life(seed: int) -> int:
    random = Random(seed)
    first, second, shared = _masters(random)
    logs = _log(first), _log(second)
    follower = _Follower(random)

    def check() -> None:
        own = _log(follower.store)
        assert any(log.startswith(own) for log in logs)
        assert len(own) >= follower.kept_bytes
        # Whatever is shown would have been confirmed before.
        assert all(follower.store.max_offset(*key) == 0 for key in follower.store.queue_keys())

    def follow(master: MessageStore, until: int) -> None:
        check()
        _copy(master, follower.store, until)
        _flush(follower.store)
        follower.kept_bytes = follower.store.replica.end

    follower.run(lambda: follow(first, first.replica.end))
    # A new master does not have what was behind the shared part: nobody had confirmed it.
    follower.kept_bytes = shared

    def cut() -> None:
        check()
        if follower.store.replica.end > shared:
            follower.store.replica.keep_aside(shared, follower.store.paths.diverged)
            follower.store.replica.cut(shared)

    follower.run(cut)
    # From here on nothing of the first one's tail may ever come back.
    logs = (logs[1],)
    follower.run(lambda: follow(second, second.replica.end))
    assert _log(follower.store) == logs[0]
    return follower.crashes


@pytest.mark.parametrize("part", range(2))
def test_a_follower_never_has_what_neither_master_had(part: int) -> None:
    """Every life ends with the second master's log, whatever crashed on the way."""
    crashes = 0
    for seed in range(part * _LIVES, (part + 1) * _LIVES):
        with promised(f"a follower has a part of one log, _life({seed})"):
            crashes += _life(seed)
    assert crashes > _LIVES
