"""A damaged log that gets its records back from another replica, through crashes in any call.

One disk loses bits, or pages, of a log that another one has whole. Its store is opened, notes the
ranges, and gets them back, while its power goes or its process dies. At any time a message is
damaged or what was stored; at the end the logs are equal, and everything is read and found by key.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest
from promises import promised

from mailboat.disk import PAGE_BYTES
from mailboat.model.record import decode_records
from mailboat.store.inspection import StoreInspector
from mailboat.store.mending import LogMending, NotedRange, OtherRecordError
from mailboat.store.message_inner import PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.history import Sent
from mailboat.testing.simulated_disk import PowerCutError, SimulatedDisk
from mailboat.testing.store_simulator import HOST, make_message, small_config

_LIVES = 150
_QUEUES = 3
_PIECE_BYTES = 3000


class _Message(NamedTuple):
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    body: bytes
    key: str


def _store(disk: SimulatedDisk) -> MessageStore:
    store = MessageStore(small_config("SYNC_FLUSH"), disk, store_host=HOST)
    store.open()
    return store


def _mending(store: MessageStore, disk: SimulatedDisk) -> LogMending:
    return LogMending(disk, store.commit_log, store.dispatch, store.paths.quarantine)


def _flush(store: MessageStore) -> None:
    job = store.begin_flush()
    if job is not None:
        job.run()
        store.finish_flush(job, None)


def _checkpoint(store: MessageStore) -> None:
    is_saved = store.checkpoints.soon()
    while not is_saved():
        store.background()


def _log(store: MessageStore) -> bytes:
    log = store.commit_log
    return b"".join(
        segment.read_around_damage(0, min(segment.end, log.end) - segment.start)
        for segment in log.segments
    )


def _write(disk: SimulatedDisk, physical_offset: int, data: bytes) -> None:
    """Write over bytes of the log on the disk."""
    fd = disk.open(f"/store/commitlog/{physical_offset // 8192 * 8192:020d}")
    disk.pwrite(fd, data, physical_offset % 8192)
    disk.fdatasync(fd)
    disk.close(fd)


def _fill(store: MessageStore, random: Random) -> list[_Message]:
    found = []
    for number in range(60):
        body = random.randbytes(random.randrange(900))
        sent = Sent(number, ("topic", random.randrange(_QUEUES)), body)
        inner = make_message(sent, f"U{number}")
        store.put_messages([inner])
        assert inner.status == PutStatus.PUT_OK
        _flush(store)
        place = (inner.queue_id, inner.queue_offset, inner.physical_offset, inner.size_bytes)
        found.append(_Message(*place, body, f"U{number}"))
        if number == 20:
            _checkpoint(store)
    return found


def _damage(disk: SimulatedDisk, messages: list[_Message], random: Random) -> None:
    """Flip bits in some messages, or lose pages; the last one stays, so that the log has its end.

    Then the next start may look at all of the log. What a checksum lies in is left alone: damage to
    its name is none to a reader, who then looks at that of the body.
    """
    is_all_read = random.random() < 0.7
    for message in random.sample(messages[:-1], random.randrange(1, 12)):
        segment_start = message.physical_offset // 8192 * 8192
        path = f"/store/commitlog/{segment_start:020d}"
        at = message.physical_offset - segment_start + random.randrange(message.size_bytes - 20)
        last = messages[-1].physical_offset - segment_start
        # What is found by a read is one record, and no page is made of it.
        if is_all_read and random.random() < 0.2 and last // PAGE_BYTES > at // PAGE_BYTES:
            disk.file(path).make_unreadable(at, 1)
            continue
        if disk.file(path).readable_bytes(1, at) == 0:
            continue
        fd = disk.open(path)
        byte = disk.pread(fd, 1, at)[0]
        disk.close(fd)
        _write(disk, segment_start + at, bytes([byte ^ 1 << random.randrange(8)]))
    if is_all_read:
        disk.unlink("/store/mailboat/progress.json")
        disk.fsync_dir("/store/mailboat")


class _Victim:
    """A store with damage, and its disk."""

    def __init__(self, disk: SimulatedDisk, messages: list[_Message], random: Random) -> None:
        self.disk = disk
        self._messages = messages
        self._random = random
        self.crashes = 0
        self.open()

    def open(self) -> None:
        """Open the store; its power may go meanwhile."""
        while True:
            if self._random.random() < 0.3:
                self.disk.cut_power_after(self._random.randrange(1, 60))
            try:
                self.store = _store(self.disk)
                self.disk.cut_power_after(1 << 40)
            except PowerCutError:
                self.disk = self.disk.crash(self._random)
            else:
                self.mending = _mending(self.store, self.disk)
                return

    def run(self, step: Callable[[], None]) -> None:
        """Do a step again and again until no crash comes between."""
        while True:
            if self._random.random() < 0.7:
                self.disk.cut_power_after(self._random.randrange(1, 60))
            try:
                step()
                self.disk.cut_power_after(1 << 40)
            except PowerCutError:
                self.crashes += 1
                dies = self._random.random() < 0.5
                self.disk = self.disk.kill() if dies else self.disk.crash(self._random)
                self.open()
                self.check(all_of_them=False)
            else:
                return

    def mend(self, healthy: MessageStore) -> None:
        """Put everything back that is noted, or found by reading."""
        if self._random.random() < 0.5:
            _checkpoint(self.store)  # From now on a start does not look at all of the log.
        for noted in self.mending.noted():
            self._put_back(noted, healthy, is_noted=True)
            _checkpoint(self.store)
            self.mending.forget(noted)
        for message in self._messages:
            if not self._read(message):
                found = NotedRange(message.physical_offset, message.size_bytes)
                self._put_back(found, healthy, is_noted=False)

    def _put_back(self, damaged: NotedRange, healthy: MessageStore, *, is_noted: bool) -> None:
        at = damaged.physical_offset
        end = at + damaged.size_bytes
        while at < end:
            piece = healthy.replica.read_good_job(at, min(_PIECE_BYTES, end - at))()
            done = self.mending.put_back_job(piece.records, at, end)()
            for record in done.records:
                changed = self.mending.restore(record, is_noted=is_noted)
                if changed is not None:
                    changed.queue.sync(changed.since_bytes)
            at = piece.end

    def _read(self, message: _Message) -> bool:
        """Read a message, which is damaged, or what was stored; tell whether it is whole."""
        found = self.store.get_message("topic", message.queue_id, message.queue_offset, 1, 1)
        if not found.message_count:
            return False
        (record,) = decode_records(b"".join(map(bytes, found.slices)))
        assert record.body == message.body
        assert record.physical_offset == message.physical_offset
        return True

    def check(self, *, all_of_them: bool) -> None:
        """Read every message; at the end all are whole, and found by their keys once."""
        for message in self._messages:
            is_whole = self._read(message)
            if all_of_them:
                assert is_whole, message
                searched = self.store.query_message("topic", message.key, 4, 0, 1 << 60)
                assert len(searched.records) == 1, message.key


def _life(seed: int) -> tuple[int, int]:
    random = Random(seed)
    whole = SimulatedDisk()
    store = _store(whole)
    messages = _fill(store, random)
    store.close()
    healthy = _store(whole)
    disk = whole.crash(random)
    _damage(disk, messages, random)
    victim = _Victim(disk, messages, random)
    noted = len(victim.mending.noted())
    victim.run(lambda: victim.mend(healthy))
    if random.random() < 0.7:
        victim.disk = victim.disk.crash(random)
        victim.open()
    assert _log(victim.store) == _log(healthy)
    assert victim.mending.noted() == []
    victim.check(all_of_them=True)
    victim.store.close()
    report = StoreInspector(victim.disk, "/store").check()
    assert report.is_sound, (report.problems, report.damaged)
    return victim.crashes, noted


def test_what_is_put_back_is_whole_or_damaged() -> None:
    """Whatever dies when: never anything else, and whole in the end."""
    crashes = noted = 0
    for seed in range(_LIVES):
        with promised(f"_life({seed})"):
            found = _life(seed)
        crashes += found[0]
        noted += found[1]
    assert crashes > _LIVES // 3
    assert noted > _LIVES


def test_nothing_damaged_is_put_back() -> None:
    """Records that fail their checks, or belong elsewhere, are refused, and so are good others."""
    random = Random(1)
    disk = SimulatedDisk()
    store = _store(disk)
    messages = _fill(store, random)
    before = _log(store)
    mending = _mending(store, disk)
    message = messages[7]
    at, end = message.physical_offset, message.physical_offset + message.size_bytes
    good = before[at:end]
    bad = bytearray(good)
    bad[-30] ^= 1
    _write(disk, at + 50, b"damaged")
    before = _log(store)
    with pytest.raises(ValueError, match="the checksum does not match"):
        mending.put_back_job(bytes(bad), at, end)()
    with pytest.raises(ValueError, match="was written for"):
        mending.put_back_job(good, messages[8].physical_offset, end)()
    other = _store(SimulatedDisk())
    _fill(other, Random(2))
    first = other.lookup.record_at(0)
    assert first is not None
    with pytest.raises(OtherRecordError):
        mending.put_back_job(first, 0, 0)()
    with pytest.raises(ValueError, match="the log has no"):
        mending.put_back_job(good, store.commit_log.end, end)
    with promised("what is refused changes nothing"):
        assert _log(store) == before
    assert mending.put_back_job(good, at, end)().written_bytes == len(good)
    with promised("a good record is put back"):
        assert _log(store)[at:end] == good
