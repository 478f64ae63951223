"""Segments that go from a real store on a simulated disk of limited size."""

import time
from typing import Any

import pytest

from mailboat.disk import VolumeUsage
from mailboat.store.message_inner import PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.store.queue_table import RaisedQueue
from mailboat.store.retention import HOUR_MS, Pressure
from mailboat.testing.history import Sent
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, make_message, small_config

SEGMENT = 65_536
ALL_OF_A_SEGMENT = 15
"""Messages of 4000 bytes that one segment takes."""

OTHER_FILES = 32_768
"""Room for the ConsumeQueue, marks and names."""

KEY = ("topic", 0)


class Life:
    """A store with a clock, and its flushes."""

    def __init__(self, capacity_bytes: int, disk: SimulatedDisk | None = None, **changes: Any):
        """Open a store on a volume of this size."""
        self.disk = disk or SimulatedDisk(capacity_bytes=capacity_bytes)
        values = {
            "delete_when": "04",
            "file_reserved_time": 72,
            "clean_resource_interval": 10_000,
            "disk_space_warning_level_ratio": 90,
            "message_index_enable": False,
            "mapped_file_size_commit_log": SEGMENT,
        }
        config = small_config("ASYNC_FLUSH", **(values | changes))
        self.store = MessageStore(config, self.disk, store_host=HOST)
        self.store.open()
        self.raised: list[RaisedQueue] = []
        self.store.cleaner.on_removed = self.raised.extend
        self.count = 0

    def put(self, size: int = 4000) -> int:
        """Store one message; return its status."""
        sent = Sent(self.count, KEY, b"x" * size)
        inner = make_message(sent, f"U{self.count}")
        self.count += 1
        self.store.put_messages([inner])
        return inner.status

    def fill(self, segments: int) -> None:
        """Store messages until the log has so many segments."""
        while len(self.store.commit_log.segments) < segments:
            assert self.put() == PutStatus.PUT_OK
            self.tick(0)

    def tick(self, seconds: float = 1.1) -> None:
        """Let time pass, flush, and give the store slices enough for a round and a checkpoint."""
        self.disk.advance(seconds)
        job = self.store.begin_flush()
        if job is not None:
            job.run()
            self.store.finish_flush(job, None)
        for _ in range(4):
            self.store.background()

    def read_up_to(self, position: int | None = None) -> None:
        """Let every group have read the log up to a position, or all of it."""
        log = self.store.commit_log
        self.store.cleaner.read_position = lambda: log.end if position is None else position

    @property
    def files(self) -> dict[str, int]:
        """How many files went, by reason."""
        return {reason: count for reason, count in self.store.cleaner.files.items() if count}


def test_only_as_many_read_segments_go_as_the_disk_needs() -> None:
    """Above force clean the oldest ones go, until the level is left, and no more."""
    life = Life(20 * SEGMENT + OTHER_FILES)
    life.fill(16)
    assert life.files == {}
    life.read_up_to()
    while not life.files:
        assert life.put() == PutStatus.PUT_OK
        life.tick()
    life.tick()
    # Above 85% of 20 segments there are 17 full ones; at 82% one has gone, at most two.
    assert set(life.files) == {"consumed"}
    assert life.files["consumed"] <= 2
    assert life.raised[0].old_min == 0
    assert life.store.min_offset(*KEY) == life.raised[-1].new_min > 0


def test_unread_segments_stay_and_sends_are_refused() -> None:
    """With what is read before them gone, the log ends at the oldest unread message."""
    life = Life(20 * SEGMENT + OTHER_FILES)
    life.fill(8)
    life.read_up_to(3 * SEGMENT)
    refused = 0
    for _ in range(400):
        refused += life.put() != PutStatus.PUT_OK
        life.tick()
    assert refused > 0
    assert life.files == {"consumed": 3}
    assert life.store.commit_log.start == 3 * SEGMENT
    assert "disk is full" in (life.store.refusal() or "")
    assert life.store.writes_rejected["disk_full"] == refused
    life.read_up_to()
    life.tick()
    life.tick()
    assert life.put() == PutStatus.PUT_OK


def test_forced_segments_go_only_where_allowed() -> None:
    """With cleanUnconsumedFilesEnable the log never refuses, and says what it dropped."""
    life = Life(20 * SEGMENT + OTHER_FILES, clean_unconsumed_files_enable=True)
    for _ in range(400):
        assert life.put() == PutStatus.PUT_OK
        life.tick()
    assert set(life.files) == {"forced"}
    assert life.raised[-1].new_min == life.store.min_offset(*KEY)
    assert sum(item.new_min - item.old_min for item in life.raised) == life.raised[-1].new_min


def test_expired_segments_go_although_unread() -> None:
    """Above expire, whatever nobody has read; younger ones stay."""
    life = Life(20 * SEGMENT + OTHER_FILES)
    life.fill(9)
    old_end = life.store.commit_log.segments[7].end
    life.tick(72 * HOUR_MS / 1000)
    life.fill(14)
    for _ in range(20):
        life.put()
        life.tick()
    assert set(life.files) == {"expired"}
    assert life.store.commit_log.start <= old_end


def test_a_volume_of_two_segments_goes_on_for_ever() -> None:
    """Where no percentage is reached, the segment that does not fit makes room for itself."""
    life = Life(2 * SEGMENT + OTHER_FILES)
    life.read_up_to()
    for _ in range(200):
        life.put()
        life.tick()
    assert life.put() == PutStatus.PUT_OK
    assert life.files["consumed"] > 10


def test_the_only_segment_makes_room_when_it_is_read() -> None:
    """A volume that holds one segment: the log moves on to a new file and drops the old one."""
    life = Life(SEGMENT + SEGMENT // 2 + OTHER_FILES)
    statuses = [life.put() for _ in range(ALL_OF_A_SEGMENT)]
    assert set(statuses) == {PutStatus.PUT_OK}
    assert life.put() == PutStatus.CREATE_MAPPED_FILE_FAILED
    life.tick()
    assert life.put() == PutStatus.CREATE_MAPPED_FILE_FAILED
    assert life.store.writes_rejected["no_room"] == 2
    life.read_up_to()
    for _ in range(4):
        life.tick()
    assert life.files == {"consumed": 1}
    [segment] = life.store.commit_log.segments
    assert (segment.start, segment.is_reserved) == (SEGMENT, True)
    assert life.put() == PutStatus.PUT_OK
    assert life.store.min_offset(*KEY) == ALL_OF_A_SEGMENT
    life.tick()
    life.store.close()
    again = Life(0, disk=life.disk)
    assert (again.store.min_offset(*KEY), again.store.max_offset(*KEY)) == (
        ALL_OF_A_SEGMENT,
        ALL_OF_A_SEGMENT + 1,
    )
    assert again.put() == PutStatus.PUT_OK


def test_a_log_that_moved_on_and_is_empty_opens_again() -> None:
    """With every message gone, queue offsets go on where they were."""
    life = Life(SEGMENT + SEGMENT // 2 + OTHER_FILES)
    for _ in range(ALL_OF_A_SEGMENT):
        life.put()
    life.read_up_to()
    for _ in range(4):
        life.tick()
    assert life.store.commit_log.start == life.store.commit_log.end == SEGMENT
    life.store.close()
    again = Life(0, disk=life.disk)
    assert again.store.max_offset(*KEY) == ALL_OF_A_SEGMENT
    assert again.put() == PutStatus.PUT_OK
    assert again.store.max_offset(*KEY) == ALL_OF_A_SEGMENT + 1


def test_an_unread_only_segment_stays() -> None:
    """One message that a group has not read keeps its file."""
    life = Life(SEGMENT + SEGMENT // 2 + OTHER_FILES)
    for _ in range(ALL_OF_A_SEGMENT):
        life.put()
    life.read_up_to(life.store.commit_log.end - 1)
    for _ in range(4):
        life.tick()
    assert life.files == {}
    assert [segment.start for segment in life.store.commit_log.segments] == [0]


def test_no_segment_is_prepared_where_none_fits() -> None:
    """Reserving in vain would take the last bytes from the queues for a moment."""
    life = Life(SEGMENT + SEGMENT // 2 + OTHER_FILES)
    for _ in range(ALL_OF_A_SEGMENT):
        life.put()
        life.tick()
    assert life.store.commit_log.has_room_ahead is False
    assert life.store.commit_log.is_prepared is False


def test_a_full_disk_is_noticed_while_one_segment_fills() -> None:
    """At full speed a small volume is full long before the next round by time."""
    life = Life(20 * SEGMENT + OTHER_FILES)
    while life.put() == PutStatus.PUT_OK:
        life.tick(0.001)
    assert life.store.writes_rejected["disk_full"] == 1


def test_a_round_removes_a_bounded_number_of_files() -> None:
    """deleteFileBatchMax holds from the next round on, whatever the disk asks for."""
    life = Life(40 * SEGMENT + OTHER_FILES, delete_file_batch_max=1)
    life.fill(30)
    life.read_up_to()
    life.tick()
    old = life.store.commit_log.segments[0].start
    full = Pressure(in_window=False, expire=True, force_clean=True)
    life.store.retention.pressure = lambda freed_bytes=0: full  # type: ignore[method-assign]
    assert life.store.clean() == 1
    assert life.store.commit_log.start == old + SEGMENT
    life.store.configure(small_config("ASYNC_FLUSH", delete_file_batch_max=3))
    assert life.store.clean() == 3


def test_expired_segments_go_at_any_hour_when_an_administrator_asks() -> None:
    """On a disk with room, outside of deleteWhen; the next ones stay again after twenty rounds."""
    life = Life(100 * SEGMENT)
    hour = time.localtime(life.store.retention.now_ms() / 1000).tm_hour
    life.store.configure(
        small_config(
            "ASYNC_FLUSH",
            # Two hours away from now, and from the time 72 hours later.
            delete_when=f"{(hour + 2) % 24:02}",
            file_reserved_time=72,
            clean_resource_interval=10_000,
            message_index_enable=False,
            mapped_file_size_commit_log=SEGMENT,
        )
    )
    life.fill(4)
    life.tick(72 * HOUR_MS / 1000)
    for _ in range(3):
        life.tick(11)
    assert life.files == {}
    life.store.cleaner.delete_expired()
    for _ in range(3):
        life.tick(11)
    assert life.files == {"expired": 3}
    for _ in range(20):
        life.tick(11)
    life.fill(3)
    life.tick(72 * HOUR_MS / 1000)
    for _ in range(3):
        life.tick(11)
    assert life.files == {"expired": 3}


def foreign_file_takes_all_room(life: Life) -> None:
    """Fill the volume to the last byte with a file that is not the store's."""
    fd = life.disk.open("/foreign", create=True)
    with pytest.raises(OSError, match="No space left"):
        life.disk.fallocate(fd, 1 << 40)


def test_a_volume_without_a_byte_left_is_cleaned() -> None:
    """What is read makes room, although the ConsumeQueue of a new topic finds none."""
    life = Life(20 * SEGMENT + OTHER_FILES)
    life.fill(10)
    life.tick(11)
    life.read_up_to()
    foreign_file_takes_all_room(life)
    sent = Sent(life.count, ("another", 0), b"x" * 4000)
    inner = make_message(sent, "unique")
    life.store.put_messages([inner])
    assert inner.status == PutStatus.PUT_OK
    for _ in range(10):
        life.tick()
    assert life.files.keys() == {"consumed"}
    assert life.store.refusal() is None
    assert life.store.physical_position("another", 0, inner.queue_offset) == inner.physical_offset


class TwoVolumes(SimulatedDisk):
    """A disk whose files outside of /data lie on a volume that others have filled to 87 %."""

    def usage(self, path: str) -> VolumeUsage:
        """Count what /data holds, of 200 segments; make up the rest."""
        if not path.startswith("/data"):
            return VolumeUsage(2, 100_000, 87_000, 13_000, 1000, 900)
        used = sum(self.file(found).allocated_bytes for found in self.walk("/data"))
        return VolumeUsage(1, 200 * SEGMENT, used, 200 * SEGMENT - used, 1000, 900)


def test_a_full_volume_elsewhere_leaves_the_log_alone() -> None:
    """The log's own volume has room: nothing goes for one on which it does not lie."""
    life = Life(0, disk=TwoVolumes(), store_path_commit_log="/data/commitlog")
    life.read_up_to()
    life.fill(8)
    for _ in range(5):
        life.tick()
    assert life.files == {}


def test_readers_are_asked_when_only_they_keep_a_segment() -> None:
    """Above expire with a shortened promise, as above force clean; not while it is too young."""
    life = Life(20 * SEGMENT + OTHER_FILES, read_file_reserved_time=1)
    asked: list[None] = []
    life.store.cleaner.on_unread = lambda: asked.append(None)
    life.fill(16)
    life.tick()
    assert life.store.retention.pressure().expire
    assert asked == []
    life.tick(3600)
    assert not life.store.retention.pressure().force_clean
    assert len(asked) >= 1
    life.read_up_to(SEGMENT - 1)
    asked.clear()
    life.tick()
    assert len(asked) >= 1
    life.read_up_to()
    life.tick()
    assert life.files["consumed"] >= 1


def test_one_unreadable_queue_keeps_no_other_from_being_trimmed() -> None:
    """The others and the index lose what lies below the log's new start; the failure is told."""
    life = Life(60 * SEGMENT, message_index_enable=True, mapped_file_size_consume_queue=600)
    for number in range(300):
        for topic in ("bad", "good"):
            inner = make_message(Sent(life.count, (topic, 0), b"x" * 4000), f"U{number}{topic}")
            life.count += 1
            life.store.put_messages([inner])
        life.tick(0)
    life.tick(11)
    old_index_files = list(life.store.index.files)
    life.store.queues.close()
    bad = [path for path in life.disk.walk("/store/consumequeue") if "/bad/" in path]
    life.disk.unlink(bad[0])
    life.tick(73 * 3600)
    life.store.cleaner.delete_expired()
    for _ in range(20):
        life.tick(11)
    start = life.store.commit_log.start
    assert start > 0
    assert life.store.min_offset("bad", 0) == 0
    first = life.store.min_offset("good", 0)
    assert start <= (life.store.physical_position("good", 0, first) or 0) < start + 2 * 4200
    assert life.store.index.files[0] not in old_index_files[:5]


def every_hour() -> str:
    """Return a deleteWhen that names all hours."""
    return ";".join(f"{hour:02}" for hour in range(24))


def test_a_clock_that_was_ahead_keeps_no_segment_for_good() -> None:
    """All messages carry a time of next year since; each segment goes 72 hours after it was full,
    or after the start where that was later, and never before."""
    life = Life(400 * SEGMENT, delete_when=every_hour())
    life.put()
    life.disk.jump_wall_clock(365 * 86_400)
    life.put()
    life.disk.jump_wall_clock(-365 * 86_400)
    life.fill(3)
    life.tick(71.9 * 3600)
    life.fill(4)
    life.tick()
    assert life.files == {}
    life.tick(0.2 * 3600)
    assert life.files == {"expired": 2}
    assert life.store.commit_log.last_store_timestamp_ms > life.disk.wall_ms() + 300 * 86_400_000

    again = Life(0, disk=life.disk.kill(), delete_when=every_hour())
    again.tick(71.9 * 3600)
    assert again.files == {}
    again.tick(0.2 * 3600)
    assert again.files == {"expired": 1}
    assert again.store.cleaner.reclaimable_bytes() == {"expired": 0, "consumed": 0}


def test_a_clock_that_was_ahead_by_two_days_keeps_no_segment_longer() -> None:
    """Also once the time has come that the messages carry: they were full before it."""
    life = Life(400 * SEGMENT, delete_when=every_hour())
    life.disk.jump_wall_clock(2 * 86_400)
    life.put()
    life.disk.jump_wall_clock(-2 * 86_400)
    life.fill(3)
    life.tick(71.9 * 3600)
    assert life.files == {}
    life.tick(0.2 * 3600)
    assert life.files == {"expired": 2}


def test_a_start_with_a_clock_that_is_behind_deletes_nothing_early() -> None:
    """All messages seem to come from the future then; their age counts from the start."""
    life = Life(400 * SEGMENT)
    life.fill(4)
    life.tick(11)
    life.disk.jump_wall_clock(-365 * 86_400)
    again = Life(0, disk=life.disk.kill(), delete_when=every_hour())
    again.tick(71.9 * 3600)
    again.disk.jump_wall_clock(365 * 86_400)
    again.tick(60)
    assert again.files == {}
    assert again.store.cleaner.reclaimable_bytes()["expired"] == 0
