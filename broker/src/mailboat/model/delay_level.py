"""Delay levels: how long a message of each level is parked, and until when.

A parked record carries `MAILBOAT_DELIVER_MS`, the time at which it is due, and `MAILBOAT_DELAY_MS`,
how long it was to wait: so a ConsumeQueue rebuilt from the log alone, or read under another table,
keeps its time. Records that a Java broker parked have neither: they are due when the delay of
their `DELAY` has passed since they were stored.

Source: apache/rocketmq broker/schedule/ScheduleMessageService.java (parseDelayLevel,
computeDeliverTimestamp, delayLevel2QueueId) and store/DefaultMessageStore.java.
"""

from collections.abc import Mapping
from typing import Final

from mailboat.model.properties import PropertyName

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def queue_id_of(level: int) -> int:
    """Return the queue of SCHEDULE_TOPIC_XXXX that holds a level."""
    return level - 1


def level_of(queue_id: int) -> int:
    """Return the level that a queue of SCHEDULE_TOPIC_XXXX holds."""
    return queue_id + 1


class DelayLevels:
    """The table of one broker, as `messageDelayLevel` gives it."""

    def __init__(self, text: str) -> None:
        """Read times such as `1s 5s 2h`, whose form the configuration has checked."""
        self.text = text
        self._delays_ms = [int(time[:-1]) * _UNIT_MS[time[-1]] for time in text.split(" ")]

    @property
    def delays_ms(self) -> list[int]:
        """The delays from level 1 on."""
        return list(self._delays_ms)

    @property
    def last(self) -> int:
        """The highest level."""
        return len(self._delays_ms)

    @property
    def longest_ms(self) -> int:
        """The longest delay of the table."""
        return max(self._delays_ms)

    def delay_ms(self, level: int) -> int:
        """Return the delay of a level of 1 or more; what lies above the table is the last one."""
        return self._delays_ms[min(level, self.last) - 1]

    def parked_delay_ms(self, properties: Mapping[str, str]) -> int:
        """Return how long a parked record was to wait."""
        own = _number(properties.get(PropertyName.DELAY_MS))
        if own is not None:
            return own
        level = _number(properties.get(PropertyName.DELAY)) or 0
        return self.delay_ms(level) if level > 0 else 0

    def deliver_ms(self, properties: Mapping[str, str], store_timestamp_ms: int) -> int:
        """Return when a parked record is due, epoch milliseconds."""
        own = _number(properties.get(PropertyName.DELIVER_MS))
        return store_timestamp_ms + self.parked_delay_ms(properties) if own is None else own


def _number(text: str | None) -> int | None:
    """Return a number of this broker's or Java's hand, None where there is no such number."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        return None
    return int(text)
