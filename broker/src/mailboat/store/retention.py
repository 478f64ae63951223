"""How full the disk is, which segments may therefore go, and whether messages are still taken.

    level           above (per cent of the volume, or below so many free bytes)   effect
    expire          diskMaxUsedSpaceRatio        diskExpireFreeBytes              see below
    force clean     diskSpaceCleanForciblyRatio  diskForceCleanFreeBytes          see below
    reject writes   diskSpaceWarningLevelRatio   diskRejectFreeBytes              sends are refused

    reason          a segment goes when
    expired         it is past fileReservedTime, in the hours of deleteWhen or above a level
    consumed        every group has read it: past readFileReservedTime above "expire", at any age
                    above "force clean"
    forced          above "force clean", only with cleanUnconsumedFilesEnable

A volume above a level is above those before it too, wherever their thresholds are: free bytes and
percentages stand in another order on a volume of another size, and one that refuses writes must be
cleaned. A level is left only diskThresholdHysteresisPercent below where it was entered. Room that
segments have reserved and not written yet counts as free: a send into it takes nothing from the
volume. Where the next segment does not fit any more, that is as good as being above "force clean".

Where the CommitLog has a volume of its own, that of the derived files has less to say, because
removed segments hardly help it: above "expire" expired segments go at any hour, which takes their
derived files along, and above "reject writes" sends are refused. Nothing goes before its time.

Age is the time since a segment's newest record was stored, counted by a clock that follows the
monotonic one: a jump of the wall clock expires nothing. A volume whose state cannot be read counts
as unknown: nothing is deleted, and after three failures sends are refused.

Source: apache/rocketmq store/DefaultMessageStore.java (CleanCommitLogService), which knows no
reading groups, no hysteresis and no free bytes.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from mailboat.config import MessageStoreConfig
from mailboat.disk import Disk, VolumeUsage
from mailboat.disk.steady_clock import SteadyClock

log = logging.getLogger(__name__)

Reason: TypeAlias = Literal["expired", "consumed", "forced"]
"""Why a segment goes."""

_LEVELS: Final = ("expire", "force_clean", "reject_writes")

REASONS: Final[tuple[Reason, ...]] = ("expired", "consumed", "forced")

HOUR_MS: Final = 3_600_000
_UNKNOWN_LIMIT: Final = 3


def used_percent(usage: VolumeUsage) -> int:
    """Return the used part of what a user may fill, in whole percent rounded up, as df does."""
    total = usage.used_bytes + usage.available_bytes
    return math.ceil(100 * usage.used_bytes / total) if total else 100


class Threshold(NamedTuple):
    """Where a level is entered; whichever is reached first. 0 free bytes: only the percentage."""

    percent: int
    free_bytes: int

    def is_crossed(self, usage: VolumeUsage, hysteresis_percent: int = 0) -> bool:
        """Tell whether a volume is above; with a hysteresis, whether it is not yet well below."""
        return self.is_percent_crossed(usage, hysteresis_percent) or self.is_free_crossed(
            usage, hysteresis_percent
        )

    def is_percent_crossed(self, usage: VolumeUsage, hysteresis_percent: int) -> bool:
        """Tell whether the used part is above."""
        return used_percent(usage) > self.percent - hysteresis_percent

    def is_free_crossed(self, usage: VolumeUsage, hysteresis_percent: int) -> bool:
        """Tell whether too few bytes are free."""
        return usage.available_bytes < self.wanted_free_bytes(usage, hysteresis_percent)

    def wanted_free_bytes(self, usage: VolumeUsage, hysteresis_percent: int) -> int:
        """Return how many bytes are to be free, 0 where only the percentage counts."""
        if not self.free_bytes:
            return 0
        fillable = usage.used_bytes + usage.available_bytes
        return self.free_bytes + fillable * hysteresis_percent // 100


class Thresholds(NamedTuple):
    """The levels in the order in which a filling disk reaches them."""

    expire: Threshold
    force_clean: Threshold
    reject_writes: Threshold
    hysteresis_percent: int


def thresholds_of(config: MessageStoreConfig) -> Thresholds:
    """Return the thresholds that a configuration names."""
    return Thresholds(
        Threshold(config.disk_max_used_space_ratio, config.disk_expire_free_bytes),
        Threshold(config.disk_space_clean_forcibly_ratio, config.disk_force_clean_free_bytes),
        Threshold(config.disk_space_warning_level_ratio, config.disk_reject_free_bytes),
        config.disk_threshold_hysteresis_percent,
    )


@dataclass(slots=True)
class ActiveLevels:
    """The levels that the CommitLog's volume is above; the last one also for another volume."""

    expire: bool = False
    force_clean: bool = False
    reject_writes: bool = False


class Reserved(NamedTuple):
    """What the log itself says of its room: reserved bytes without records, and those that the
    next segment needs soon and does not have yet."""

    empty_bytes: int = 0
    wanted_bytes: int = 0


NOTHING_RESERVED: Final = Reserved()


class _Volume(NamedTuple):
    """A volume as the thresholds see it, and a path on it."""

    path: str
    usage: VolumeUsage


class Pressure(NamedTuple):
    """What may be deleted now; `in_window` lets expired segments go, as `expire` does."""

    in_window: bool
    expire: bool
    force_clean: bool

    @property
    def wants_room(self) -> bool:
        """The disk is above a level, or the next segment does not fit."""
        return self.expire or self.force_clean


class Retention:
    """Watches the volume of the CommitLog and that of the derived files."""

    def __init__(self, config: MessageStoreConfig, disk: Disk, paths: list[str]) -> None:
        """Watch the volumes of `paths`, the CommitLog's first."""
        self._disk = disk
        self._paths = paths
        self.clock = SteadyClock(disk)
        """Time as all of the store's promises count it: no jump of the wall clock moves it."""

        self._unknown_count = 0
        self._volumes: list[_Volume] = []
        self._wanted_bytes = 0
        self.usage: VolumeUsage | None = None
        """The CommitLog's volume at the last look, None while it is unknown."""

        self.pressure_percent: int | None = None
        """What the thresholds were compared with, of the fullest volume: reserved room counts as
        free."""

        self.active = ActiveLevels()
        self.manual_rounds = 0
        """Rounds that take every hour for one of deleteWhen, as an administrator asked."""

        self.refusal: str | None = None
        self.on_look: Callable[[], None] | None = None
        """Called after every look that succeeded."""

        self.configure(config)

    def configure(self, config: MessageStoreConfig) -> None:
        """Follow other settings from the next look on."""
        self._config = config
        self._hours = {int(hour) for hour in config.delete_when.split(";") if hour.strip()}
        self.thresholds = thresholds_of(config)

    def now_ms(self) -> int:
        """Return the wall time at the start plus the time that has really passed since.

        Epoch milliseconds, never ahead of a wall clock that nobody sets.
        """
        return self.clock.now_ms()

    @property
    def reserved_hours(self) -> int:
        """Hours for which every message is kept while nothing is forced."""
        return self._config.file_reserved_time

    @property
    def read_reserved_hours(self) -> int:
        """Hours for which a message that every group has read is kept above "expire"."""
        hours = self._config.read_file_reserved_time
        return self._config.file_reserved_time if hours < 0 else hours

    def is_expired(self, newest_ms: int) -> bool:
        """Tell whether a segment whose newest record has this time is past fileReservedTime."""
        return self.now_ms() - newest_ms >= self.reserved_hours * HOUR_MS

    def look(self, reserved: Reserved = NOTHING_RESERVED) -> None:
        """Read the volumes, enter and leave levels, and set or clear the refusal of sends."""
        volumes: dict[int, _Volume] = {}
        for path in self._paths:
            try:
                usage = self._disk.usage(path)
            except OSError as exc:
                self._is_unknown(path, exc)
                return
            # The numbers of one volume change between two calls: the first ones count.
            volumes.setdefault(usage.device, _Volume(path, usage))
        self._unknown_count = 0
        of_log, *others = volumes.values()
        self.usage = of_log.usage
        of_log = _Volume(of_log.path, _with_room(of_log.usage, reserved.empty_bytes))
        self._volumes = [of_log, *others]
        self._wanted_bytes = reserved.wanted_bytes
        self.pressure_percent = max(used_percent(volume.usage) for volume in self._volumes)
        self._enter_and_leave()
        if self.on_look is not None:
            self.on_look()

    @property
    def used_percent(self) -> int | None:
        """The used part of the CommitLog's volume as df shows it, None while it is unknown."""
        return None if self.usage is None else used_percent(self.usage)

    def pressure(self, freed_bytes: int = 0) -> Pressure:
        """Return what may be deleted, once the removal of so many bytes is through."""
        hour = time.localtime(self.now_ms() / 1000).tm_hour
        in_window = hour in self._hours or self.manual_rounds > 0
        if self.usage is None:
            return Pressure(in_window=False, expire=False, force_clean=False)
        of_log, *others = self._volumes
        in_window = in_window or any(self._is_above("expire", other) for other in others)
        freed = _Volume(of_log.path, _with_room(of_log.usage, freed_bytes))
        lacks_room = self.usage.available_bytes + freed_bytes < self._wanted_bytes
        hysteresis = self.thresholds.hysteresis_percent
        return Pressure(
            in_window,
            self.active.expire and self._is_above("expire", freed, hysteresis),
            lacks_room
            or (self.active.force_clean and self._is_above("force_clean", freed, hysteresis)),
        )

    @property
    def lacks_room(self) -> bool:
        """The segment that the log needs next does not fit into the volume."""
        return self.usage is not None and self.usage.available_bytes < self._wanted_bytes

    @property
    def is_pressing(self) -> bool:
        """The disk is above a level, or unknown: it is worth to look again soon."""
        active = self.active
        return (
            active.expire
            or active.force_clean
            or active.reject_writes
            or self.lacks_room
            or self.refusal is not None
        )

    def removal_reason(
        self, pressure: Pressure, *, newest_ms: Callable[[], int | None], is_read: bool
    ) -> Reason | None:
        """Say why the oldest segment goes, None while it stays.

        Args:
            pressure: what the disk asks for.
            newest_ms: gives the time of the segment's newest record, None where it is unknown.
            is_read: every group has read all of it.
        """
        newest = newest_ms() if pressure.in_window or pressure.wants_room else None
        if newest is not None and self.is_expired(newest):
            return "expired"
        if pressure.expire and is_read and newest is not None:
            age_ms = self.now_ms() - newest
            if age_ms >= self.read_reserved_hours * HOUR_MS:
                return "consumed"
        if not pressure.force_clean or not self._config.clean_file_forcibly_enable:
            return None
        if is_read:
            return "consumed"
        return "forced" if self._config.clean_unconsumed_files_enable else None

    def _enter_and_leave(self) -> None:
        active = self.active
        for name in _LEVELS:
            was_active: bool = getattr(active, name)
            hysteresis = self.thresholds.hysteresis_percent if was_active else 0
            volumes = self._volumes if name == "reject_writes" else self._volumes[:1]
            is_active = any(self._is_above(name, volume, hysteresis) for volume in volumes)
            if is_active != was_active:
                setattr(active, name, is_active)
                level = logging.WARNING if name == "reject_writes" and is_active else logging.INFO
                verb = "above" if is_active else "below"
                log.log(level, "disk %s %s percent=%s", verb, name, self.pressure_percent)
        self.refusal = self._full_sentence() if active.reject_writes else None

    def _is_above(self, level: str, volume: _Volume, hysteresis_percent: int = 0) -> bool:
        """Tell whether a volume is above a level or a later one."""
        thresholds: list[Threshold] = [
            getattr(self.thresholds, name) for name in _LEVELS[_LEVELS.index(level) :]
        ]
        return any(
            threshold.is_crossed(volume.usage, hysteresis_percent) for threshold in thresholds
        )

    def _full_sentence(self) -> str:
        limit, hysteresis = self.thresholds.reject_writes, self.thresholds.hysteresis_percent
        path, usage = next(
            volume
            for volume in self._volumes
            if self._is_above("reject_writes", volume, hysteresis)
        )
        free = f" or less than {limit.free_bytes} bytes free" if limit.free_bytes else ""
        wanted = []
        if limit.is_percent_crossed(usage, hysteresis):
            wanted.append(f"at {limit.percent - hysteresis}%")
        if limit.is_free_crossed(usage, hysteresis):
            wanted.append(f"with {limit.wanted_free_bytes(usage, hysteresis)} bytes free")
        return (
            f"the broker's disk is full [{used_percent(usage)}% and {usage.available_bytes} bytes "
            f"free of the volume of {path}, limit {limit.percent}%{free}]; messages are taken "
            f"again {' and '.join(wanted)}: let consumers catch up or make the volume larger"
        )

    def _is_unknown(self, path: str, exc: OSError) -> None:
        self._unknown_count += 1
        self.usage = self.pressure_percent = None
        log.warning("disk usage unknown count=%d: %s", self._unknown_count, exc)
        if self._unknown_count >= _UNKNOWN_LIMIT:
            self.refusal = f"the state of the volume at {path} cannot be read: {exc}"


def _with_room(volume: VolumeUsage, size_bytes: int) -> VolumeUsage:
    """Return a volume as it is when so many of its used bytes count as free."""
    size_bytes = min(size_bytes, volume.used_bytes)
    return volume._replace(
        used_bytes=volume.used_bytes - size_bytes,
        available_bytes=volume.available_bytes + size_bytes,
    )
