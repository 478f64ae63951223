"""The levels of a filling disk, and which segments go at each of them."""

import dataclasses
import time
from typing import Any

import pytest

from mailboat.config import MessageStoreConfig
from mailboat.disk import VolumeUsage
from mailboat.store.retention import Pressure, Reserved, Retention, Threshold, used_percent
from mailboat.testing.simulated_disk import SimulatedDisk

GIB = 1 << 30
HOUR_S = 3600


class Volume(SimulatedDisk):
    """A disk whose state a test sets: `used` of 100 GiB."""

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__()
        self.used = 0.0
        self.error: OSError | None = None

    def usage(self, path: str) -> VolumeUsage:
        """Return what was set."""
        if self.error is not None:
            raise self.error
        used = round(self.used * GIB)
        return VolumeUsage(1, 100 * GIB, used, 100 * GIB - used, 1000, 900)


class TwoVolumes(Volume):
    """A volume for the log, and one for all else: `used_elsewhere` of 100 GiB as well."""

    used_elsewhere = 0.0

    def usage(self, path: str) -> VolumeUsage:
        """Return what was set; the two differ in their device only."""
        of_log = super().usage(path)
        if path == "/log":
            return of_log
        used = round(self.used_elsewhere * GIB)
        return of_log._replace(device=2, used_bytes=used, available_bytes=100 * GIB - used)


def make(disk: Volume | None = None, **changes: Any) -> tuple[Volume, Retention]:
    """Return retention with the default thresholds 75, 85, 90, hysteresis 3."""
    disk = disk or Volume()
    hour = time.localtime(disk.wall_ms() / 1000).tm_hour
    other_hour = f"{(hour + 12) % 24:02}"
    config = MessageStoreConfig(**{"delete_when": other_hour, **changes})
    return disk, Retention(config, disk, ["/log", "/root"])


def look(disk: Volume, retention: Retention, used: float, reserved: Reserved | None = None) -> Any:
    """Look at a volume used to so many per cent; return the active levels."""
    disk.used = used
    retention.look(reserved or Reserved())
    return dataclasses.astuple(retention.active)


def reason(retention: Retention, *, age_h: float, is_read: bool, pressure: Any = None) -> Any:
    """Return why a segment of this age goes."""
    newest = retention.now_ms() - round(age_h * HOUR_S * 1000)
    return retention.removal_reason(
        pressure or retention.pressure(), newest_ms=lambda: newest, is_read=is_read
    )


@pytest.mark.parametrize(
    ("used", "percent"), [(0, 0), (50, 50), (75, 75), (75.01, 76), (99.9, 100), (100, 100)]
)
def test_per_cent_are_those_of_df(used: float, percent: int) -> None:
    """The used part of what can be filled, rounded up; room kept for root does not count."""
    size = round(used * GIB)
    assert used_percent(VolumeUsage(1, 200 * GIB, size, 100 * GIB - size, 1, 1)) == percent


@pytest.mark.parametrize(
    ("used", "levels"),
    [
        (75, (False, False, False)),
        (75.1, (True, False, False)),
        (85.1, (True, True, False)),
        (90, (True, True, False)),
        (90.1, (True, True, True)),
    ],
)
def test_levels_begin_above_their_thresholds(used: float, levels: tuple[bool, ...]) -> None:
    """Like RocketMQ's, a threshold itself is not yet above it."""
    disk, retention = make()
    assert look(disk, retention, used) == levels
    assert (retention.refusal is not None) == levels[2]


def test_levels_end_three_per_cent_below() -> None:
    """Between 87 and 90 the answer is that of before, so nothing flaps."""
    disk, retention = make()
    assert not look(disk, retention, 89)[2]
    assert look(disk, retention, 91)[2]
    assert "91%" in (retention.refusal or "")
    assert "taken again at 87%:" in (retention.refusal or "")
    for used in (90, 89, 87.1):
        assert look(disk, retention, used)[2], used
        assert retention.refusal
    assert not look(disk, retention, 87)[2]
    assert retention.refusal is None
    assert not look(disk, retention, 90)[2]


def test_free_bytes_count_as_well_as_per_cent() -> None:
    """Whichever is reached first; the way back is the same part of the volume."""
    disk, retention = make(disk_reject_free_bytes=20 * GIB)
    assert not look(disk, retention, 80)[2]
    assert look(disk, retention, 80.1)[2]
    # 20 GiB and the hysteresis of 3 %; 80.1 % is below what the percentage asks for.
    assert f"taken again with {23 * GIB} bytes free:" in (retention.refusal or "")
    assert look(disk, retention, 91)[2]
    assert f"taken again at 87% and with {23 * GIB} bytes free:" in (retention.refusal or "")
    assert look(disk, retention, 77.1)[2]
    assert not look(disk, retention, 77)[2]


def test_a_level_implies_those_before_it() -> None:
    """Free bytes may put a later level first: what refuses writes, or forces, cleans as well."""
    disk, retention = make(disk_reject_free_bytes=30 * GIB)
    assert look(disk, retention, 70) == (False, False, False)
    assert look(disk, retention, 70.1) == (True, True, True)
    assert reason(retention, age_h=1, is_read=True) == "consumed"
    pressure = retention.pressure(freed_bytes=4 * GIB)
    assert (pressure.expire, pressure.force_clean) == (False, False)
    assert look(disk, retention, 67) == (False, False, False)
    disk, retention = make(disk_force_clean_free_bytes=30 * GIB)
    assert look(disk, retention, 70.1) == (True, True, False)


def test_room_that_the_log_reserved_is_free_room() -> None:
    """A segment made ahead must not be what refuses the sends that it was made for."""
    disk, retention = make()
    assert look(disk, retention, 92, Reserved(empty_bytes=10 * GIB)) == (True, False, False)
    assert (retention.pressure_percent, retention.used_percent) == (82, 92)


def test_a_volume_whose_numbers_change_is_one_volume() -> None:
    """Some file systems count inodes anew at each call; room reserved on them is free all the
    same."""

    class Counting(Volume):
        inodes = 10_000

        def usage(self, path: str) -> VolumeUsage:
            self.inodes += 8
            return super().usage(path)._replace(inodes_total=self.inodes)

    disk, retention = make(Counting())
    assert look(disk, retention, 92, Reserved(empty_bytes=10 * GIB)) == (True, False, False)
    assert retention.pressure_percent == 82


def test_two_volumes_of_one_size_are_two_volumes() -> None:
    """Room that the log has reserved is none on the volume of the other files."""
    disk = TwoVolumes()
    _, retention = make(disk)
    disk.used_elsewhere = 92
    assert look(disk, retention, 20, Reserved(empty_bytes=10 * GIB)) == (False, False, True)
    assert retention.pressure_percent == 92
    assert "92%" in (retention.refusal or "")
    assert "the volume of /root" in (retention.refusal or "")


@pytest.mark.parametrize("used_elsewhere", [76, 86, 91])
def test_a_full_volume_without_the_log_takes_nothing_before_its_time(
    used_elsewhere: float,
) -> None:
    """Removed segments make hardly any room there; what is past its time goes at any hour."""
    disk = TwoVolumes()
    _, retention = make(disk, read_file_reserved_time=0, clean_unconsumed_files_enable=True)
    disk.used_elsewhere = used_elsewhere
    assert look(disk, retention, 20) == (False, False, used_elsewhere == 91)
    assert reason(retention, age_h=71.9, is_read=True) is None
    assert reason(retention, age_h=72, is_read=False) == "expired"
    disk.used_elsewhere = 75
    look(disk, retention, 20)
    assert reason(retention, age_h=72, is_read=False) is None


def test_a_segment_that_does_not_fit_is_pressure() -> None:
    """No percentage says that a volume of two segments has no room for a third."""
    disk, retention = make()
    look(disk, retention, 60, Reserved(wanted_bytes=50 * GIB))
    assert retention.lacks_room
    assert retention.pressure().force_clean
    assert not retention.pressure(freed_bytes=10 * GIB).force_clean
    assert retention.refusal is None


def test_deleted_bytes_end_the_pressure_that_deleted_them() -> None:
    """One look serves a round: a file counts as free once it is out of the log."""
    disk, retention = make()
    look(disk, retention, 86)
    assert retention.pressure() == Pressure(in_window=False, expire=True, force_clean=True)
    assert retention.pressure(freed_bytes=4 * GIB - 1).force_clean
    assert not retention.pressure(freed_bytes=4 * GIB).force_clean
    assert retention.pressure(freed_bytes=4 * GIB).expire


def test_an_unread_segment_stays_until_it_is_past_retention() -> None:
    """At any level; it goes at 72 hours although unread, which is what fileReservedTime says."""
    disk, retention = make()
    for used in (50, 80, 89, 95):
        look(disk, retention, used)
        assert reason(retention, age_h=71.9, is_read=False) is None, used
    assert reason(retention, age_h=72, is_read=False) == "expired"
    look(disk, retention, 50)
    assert reason(retention, age_h=72, is_read=False) is None


def test_a_read_segment_goes_at_any_age_above_force_clean_only() -> None:
    """By default fileReservedTime also holds for what was read, as long as the disk allows."""
    disk, retention = make()
    look(disk, retention, 80)
    assert reason(retention, age_h=71, is_read=True) is None
    look(disk, retention, 86)
    assert reason(retention, age_h=0, is_read=True) == "consumed"


def test_a_shortened_promise_counts_above_expire() -> None:
    """readFileReservedTime is for what every group has read; below the level nothing goes."""
    disk, retention = make(read_file_reserved_time=24)
    look(disk, retention, 80)
    assert reason(retention, age_h=23.9, is_read=True) is None
    assert reason(retention, age_h=24, is_read=True) == "consumed"
    assert reason(retention, age_h=71, is_read=False) is None
    look(disk, retention, 50)
    assert reason(retention, age_h=24, is_read=True) is None
    assert retention.read_reserved_hours == 24


def test_unread_segments_are_forced_only_when_that_is_allowed() -> None:
    """cleanUnconsumedFilesEnable is RocketMQ's behaviour; cleanFileForciblyEnable rules both."""
    disk, retention = make(clean_unconsumed_files_enable=True)
    look(disk, retention, 86)
    assert reason(retention, age_h=0, is_read=False) == "forced"
    assert reason(retention, age_h=0, is_read=True) == "consumed"
    disk, retention = make(clean_unconsumed_files_enable=True, clean_file_forcibly_enable=False)
    look(disk, retention, 95)
    assert reason(retention, age_h=0, is_read=True) is None
    assert reason(retention, age_h=72, is_read=False) == "expired"


def test_the_window_deletes_what_is_expired_and_nothing_else() -> None:
    """In the hours of deleteWhen the disk may be as empty as it likes."""
    hour = time.localtime(SimulatedDisk().wall_ms() / 1000).tm_hour
    disk, retention = make(delete_when=f"{hour:02}", read_file_reserved_time=0)
    look(disk, retention, 10)
    assert reason(retention, age_h=72, is_read=False) == "expired"
    assert reason(retention, age_h=71, is_read=True) is None


def test_an_unknown_volume_deletes_nothing_and_refuses_after_three_looks() -> None:
    """What cannot be read is neither full nor empty; one good look ends it."""
    disk, retention = make()
    look(disk, retention, 86)
    disk.error = OSError(5, "gone")
    for count in (1, 2, 3):
        retention.look()
        assert (retention.refusal is not None) == (count == 3)
        assert reason(retention, age_h=1000, is_read=True) is None
    disk.error = None
    assert look(disk, retention, 50) == (False, False, False)
    assert retention.refusal is None


def test_a_jump_of_the_wall_clock_expires_nothing() -> None:
    """Age is time that has passed."""
    disk, retention = make()
    look(disk, retention, 80)
    newest = retention.now_ms()
    disk.jump_wall_clock(1000 * HOUR_S)
    assert not retention.is_expired(newest)
    disk.advance(72 * HOUR_S)
    assert retention.is_expired(newest)


def test_live_settings_are_followed_from_the_next_look() -> None:
    """A higher threshold takes a refusal back."""
    disk, retention = make()
    assert look(disk, retention, 91)[2]
    retention.configure(MessageStoreConfig(disk_space_warning_level_ratio=95))
    assert retention.thresholds.reject_writes == Threshold(95, 0)
    assert not look(disk, retention, 91)[2]
