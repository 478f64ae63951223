"""`mailboat store check` tells the truth, of damaged directories and of those that look odd."""

import logging
from collections.abc import Callable
from random import Random

import pytest
from promises import promised

from mailboat.disk import read_file
from mailboat.errors import DamagedStoreError
from mailboat.store.checkpoint import read_flushed_mark
from mailboat.store.inspection import StoreInspector, StoreReport
from mailboat.store.message_inner import PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.history import History
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, make_message, small_config

LIVES = 150
KEYS = (("orders", 0), ("orders", 1), ("%RETRY%group", 0))

Range = tuple[int, int]
"""Where a record begins and ends in the log."""

Life = tuple[SimulatedDisk, list[Range], bool]
"""A disk, where its durable messages lie, and whether all that were answered are there."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mailboat")


def check(disk: SimulatedDisk) -> StoreReport | None:
    """Look at a directory; None where it cannot be opened at all."""
    try:
        inspector = StoreInspector(disk, "/store")
    except DamagedStoreError:
        return None
    try:
        return inspector.check()
    finally:
        inspector.close()


def flush(store: MessageStore) -> None:
    """Make durable what is stored."""
    job = store.begin_flush()
    if job is not None:
        job.run()
        store.finish_flush(job, None)


def life(random: Random, flushing: str) -> Life:
    """Return the disk after a store's life.

    It ends in order, by a kill, or by a power cut; topics are deleted and made anew in it.
    """
    disk = SimulatedDisk()
    store = MessageStore(small_config(flushing), disk, store_host=HOST)
    store.open()
    history, ranges, unflushed = History(), [], []
    for number in range(random.randrange(1, 60)):
        if random.random() < 0.05:
            store.delete_topic(random.choice(KEYS)[0])
            flush(store)
            ranges, unflushed = ranges + unflushed, []
        sent = history.send(*random.choice(KEYS), random.randbytes(random.choice([20, 300, 900])))
        inner = make_message(sent, f"U{number}")
        store.put_messages([inner])
        assert inner.status == PutStatus.PUT_OK
        at = inner.physical_offset
        unflushed.append((at, at + inner.size_bytes))
        if random.random() < 0.3:
            flush(store)
            ranges, unflushed = ranges + unflushed, []
        if random.random() < 0.05:
            disk.advance(11)
            store.background()
    if random.random() < 0.4:
        store.close()
        return disk, ranges + unflushed, True
    is_killed = random.random() < 0.5
    disk = disk.kill() if is_killed else disk.crash(random)
    # Beyond the mark nobody knows what was torn and what was damaged. A power cut sets it back.
    mark = read_flushed_mark(disk, "/store/mailboat/flushed") or 0
    is_whole = is_killed or flushing == "SYNC_FLUSH" or not unflushed
    return disk, [each for each in ranges if each[1] <= mark], is_whole


def files(disk: SimulatedDisk, part: str) -> list[str]:
    """Return the files below a folder of the store."""
    return [path for path in disk.walk() if f"/{part}/" in path]


def overwrite(disk: SimulatedDisk, begin: int, data: bytes) -> None:
    """Write into the log at a physical offset, as a bad disk would."""
    for path in files(disk, "commitlog"):
        start, size = int(path.rpartition("/")[2]), disk.size(path)
        part = data[max(start - begin, 0) : max(start + size - begin, 0)]
        if part and begin < start + size:
            fd = disk.open(path)
            disk.pwrite(fd, part, max(begin - start, 0))
            disk.close(fd)


def lose_tail(disk: SimulatedDisk, random: Random, ranges: list[Range]) -> bool:
    """Zero the log from some record on."""
    begin, end = random.choice(ranges)[0], ranges[-1][1]
    overwrite(disk, begin, bytes(end - begin))
    return True


def flip_bit(disk: SimulatedDisk, random: Random, ranges: list[Range]) -> bool:
    """Flip one bit of a record."""
    begin, end = random.choice(ranges)
    at = random.randrange(begin, end)
    for path in files(disk, "commitlog"):
        start = int(path.rpartition("/")[2])
        if start <= at < start + disk.size(path):
            byte = read_file(disk, path)[at - start]
            overwrite(disk, at, bytes([byte ^ 1 << random.randrange(8)]))
    return True


def lose_segment(disk: SimulatedDisk, random: Random, ranges: list[Range]) -> bool | None:
    """Remove a file of the log; it is all the same where no durable message lay in it."""
    paths = files(disk, "commitlog")
    # Where it was not closed, the first one may have expired a moment before.
    path = random.choice(paths[disk.exists("/store/abort") :] or paths)
    start, size = int(path.rpartition("/")[2]), disk.size(path)
    disk.unlink(path)
    return any(begin < start + size and end > start for begin, end in ranges) or None


def keep(_disk: SimulatedDisk, _random: Random, _ranges: list[Range]) -> bool:
    """Damage nothing."""
    return False


def lose_own_files(disk: SimulatedDisk, random: Random, _ranges: list[Range]) -> bool:
    """Remove one of the files that a start makes anew."""
    own = [path for path in disk.walk() if path.endswith(("progress.json", "checkpoint"))]
    if own:
        disk.unlink(random.choice(own))
    return False


Damage = Callable[[SimulatedDisk, Random, list[Range]], bool | None]
"""Tells whether it has lost messages that were durable, None where nobody can say."""

DAMAGES: tuple[Damage, ...] = (keep, lose_tail, flip_bit, lose_segment, lose_own_files)


@pytest.mark.parametrize("flushing", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_none_damaged_is_sound_and_none_sound_damaged(damage: Damage, flushing: str) -> None:
    """However the store ended; what a power cut takes of what nobody waited for is no damage."""
    for seed in range(LIVES // len(DAMAGES)):
        random = Random(f"{damage.__name__} {flushing} {seed}")
        disk, ranges, is_whole = life(random, flushing)
        if not ranges:
            continue
        is_lost = damage(disk, random, ranges)
        if is_lost is False and not is_whole:
            continue  # The power cut has lost what was answered, and maybe left its units.
        report = check(disk)
        is_sound = report is not None and report.is_sound
        with promised(f"seed {seed}: the check tells the truth"):
            assert is_lost is None or is_sound != is_lost, report


def test_torn_bytes_are_told() -> None:
    """Half a record at the end, that nobody was promised."""
    disk, ranges, _ = life(Random(1), "SYNC_FLUSH")
    _, end = ranges[-1]
    disk = disk.kill()
    overwrite(disk, end, b"\0\0\1\0torn")
    report = check(disk)
    assert report is not None
    assert (report.is_sound, report.torn_bytes) == (True, 8)


@pytest.mark.parametrize(
    ("file", "at", "data"),
    [
        (0, 30 * 20, bytes(20)),
        (1000, 0, bytes(500)),
        (0, 30 * 20 + 11, b"\x07"),
        (0, 30 * 20 + 19, b"\x07"),
        (1000, 0, b"\xff"),
        (0, 7, b"\x07"),
        (0, None, b""),
        (1000, None, b""),
        (2000, None, b""),
    ],
    ids=["zeroed", "page", "size", "tags", "below", "place", "first", "middle", "last"],
)
def test_a_queue_that_does_not_lead_to_its_messages_is_not_sound(
    file: int, at: int | None, data: bytes
) -> None:
    """Of a store that was closed; `at` None takes the whole file."""
    disk = SimulatedDisk()
    config = small_config("ASYNC_FLUSH", mapped_file_size_consume_queue=1000)
    store = MessageStore(config, disk, store_host=HOST)
    store.open()
    for number in range(120):
        message = make_message(History().send("orders", 0, b"%d" % number), f"U{number}")
        store.put_messages([message])
        assert message.status == PutStatus.PUT_OK
    store.close()
    report = check(disk)
    assert report is not None
    assert report.is_sound, report.problems
    path = f"/store/consumequeue/orders/0/{file:020d}"
    if at is None:
        disk.unlink(path)
    else:
        fd = disk.open(path)
        disk.pwrite(fd, data, at)
        disk.close(fd)
    report = check(disk)
    assert report is not None
    assert not report.is_sound
