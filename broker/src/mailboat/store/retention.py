"""Which CommitLog segments may go, and whether the disk still takes messages.

    used ratio above          effect
    diskMaxUsedSpaceRatio     segments older than fileReservedTime go, at any hour
    diskSpaceCleanForcibly..  the oldest segments go whatever their age
    diskSpaceWarningLevel..   sends are refused as well, until the ratio is back below the former

Age is the time since a segment's newest record was stored, counted by a clock that follows the
monotonic one: a jump of the wall clock expires nothing. A volume whose state cannot be read counts
as unknown: nothing is deleted, and after three failures sends are refused.

Source: apache/rocketmq store/DefaultMessageStore.java (CleanCommitLogService).
"""

import logging
import math
import time
from dataclasses import dataclass
from typing import Final

from mailboat.config import MessageStoreConfig
from mailboat.disk import Disk, VolumeUsage

log = logging.getLogger(__name__)

_UNKNOWN_LIMIT: Final = 3
_HOUR_MS: Final = 3_600_000


def used_percent(usage: VolumeUsage) -> int:
    """Return the used part of what a user may fill, in whole percent rounded up, as df does."""
    total = usage.used_bytes + usage.available_bytes
    return math.ceil(100 * usage.used_bytes / total) if total else 100


@dataclass(slots=True)
class RetentionDecision:
    """What one look at the disk says."""

    delete_expired: bool
    delete_oldest: bool


class Retention:
    """Watches the volume of the CommitLog and that of the derived files."""

    def __init__(self, config: MessageStoreConfig, disk: Disk, paths: list[str]) -> None:
        """Watch the volumes of `paths`."""
        self._config = config
        self._disk = disk
        self._paths = paths
        self._started_wall_ms = disk.wall_ms()
        self._started_s = disk.monotonic()
        self._unknown_count = 0
        self._hours = {int(hour) for hour in config.delete_when.split(";") if hour.strip()}
        self.used_percent: int | None = None
        self.refusal: str | None = None

    def now_ms(self) -> int:
        """Return the wall time at the start plus the time that has really passed since."""
        elapsed_s = self._disk.monotonic() - self._started_s
        return self._started_wall_ms + int(elapsed_s * 1000)

    def is_expired(self, last_store_timestamp_ms: int) -> bool:
        """Tell whether a segment whose newest record has this time is past fileReservedTime."""
        return self.now_ms() - last_store_timestamp_ms >= (
            self._config.file_reserved_time * _HOUR_MS
        )

    def look(self) -> RetentionDecision:
        """Read the volumes, decide, and set or clear the refusal of sends."""
        percent = self._read_percent()
        if percent is None:
            return RetentionDecision(delete_expired=False, delete_oldest=False)
        config = self._config
        if percent > config.disk_space_warning_level_ratio:
            if self.refusal is None:
                log.warning("disk full used_percent=%d: refusing sends", percent)
            self.refusal = (
                f"the broker's disk is full [{percent}% of {self._paths[0]}, limit "
                f"{config.disk_space_warning_level_ratio}%]"
            )
        elif percent <= config.disk_space_clean_forcibly_ratio and self.refusal is not None:
            log.info("disk has room again used_percent=%d: taking sends", percent)
            self.refusal = None
        hour = time.localtime(self.now_ms() / 1000).tm_hour
        forcibly = percent > config.disk_space_clean_forcibly_ratio
        return RetentionDecision(
            delete_expired=percent > config.disk_max_used_space_ratio or hour in self._hours,
            delete_oldest=forcibly and config.clean_file_forcibly_enable,
        )

    def _read_percent(self) -> int | None:
        try:
            percent = max(used_percent(self._disk.usage(path)) for path in self._paths)
        except OSError as exc:
            self._unknown_count += 1
            self.used_percent = None
            log.warning("disk usage unknown count=%d: %s", self._unknown_count, exc)
            if self._unknown_count >= _UNKNOWN_LIMIT:
                self.refusal = f"the state of the volume at {self._paths[0]} cannot be read: {exc}"
            return None
        if self._unknown_count:
            self._unknown_count = 0
            self.refusal = None
        self.used_percent = percent
        return percent
