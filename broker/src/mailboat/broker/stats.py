"""What the broker counted: plain integers, added to once per batch, turned into rates by sampling.

Counters only grow while the process lives; rates come from samples of them. The hot paths call
`record_put` and `record_get` once per read of a socket, never per message. What a counter counted
within the last minute, hour or day is its value less its oldest sample of that span; RocketMQ
shows an hour that is up to ten minutes old and a day that is up to an hour old.

Source: apache/rocketmq store/StoreStatsService.java, store/stats/BrokerStatsManager.java and
BrokerStats.java @ rocketmq-all-5.3.3.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

SAMPLE_PERIOD_S: Final = 1.0
_RATE_WINDOWS_S: Final = (10, 60, 600)
_FLOW_SAMPLE_EVERY: Final = 10
_FLOW_SAMPLES: Final = 7  # a minute of them and the one before
_HOUR_SAMPLE_EVERY: Final = 60  # flow samples between two of the hour
_HOUR_SAMPLES: Final = 7
_DAY_SAMPLE_EVERY: Final = 360
_DAY_SAMPLES: Final = 25

Span = Literal["minute", "hour", "day"]
"""What a counter can be asked about: its last minute, hour or day."""


class SpanCount(NamedTuple):
    """What a flow counted over a span, which is shorter while the flow is young."""

    messages: int
    size_bytes: int
    seconds: float


class _FlowSample(NamedTuple):
    at: float
    messages: int
    size_bytes: int


class FlowCounter:
    """Messages and bytes of one flow: a topic's sends, or a group's pulls of a topic."""

    __slots__ = ("_days", "_hours", "_minutes", "_ticks", "messages", "size_bytes")

    def __init__(self, now: float) -> None:
        """Start at zero."""
        self.messages = 0
        self.size_bytes = 0
        start = _FlowSample(now, 0, 0)
        # Lists, oldest first: one of a single sample is a tenth of a deque, and there are many.
        self._minutes = [start]
        self._hours = [start]
        self._days = [start]
        self._ticks = 0

    def sample(self, now: float) -> None:
        """Keep the counts of this moment; to be called every ten seconds."""
        self._ticks += 1
        sample = _FlowSample(now, self.messages, self.size_bytes)
        _keep(self._minutes, sample, _FLOW_SAMPLES)
        if self._ticks % _HOUR_SAMPLE_EVERY == 0:
            _keep(self._hours, sample, _HOUR_SAMPLES)
        if self._ticks % _DAY_SAMPLE_EVERY == 0:
            _keep(self._days, sample, _DAY_SAMPLES)

    def counted(self, span: Span, now: float) -> SpanCount:
        """Return what was counted over the last minute, hour or day."""
        samples = {"minute": self._minutes, "hour": self._hours, "day": self._days}[span]
        since, messages, size_bytes = samples[0]
        return SpanCount(self.messages - messages, self.size_bytes - size_bytes, now - since)

    def per_second(self, now: float) -> float:
        """Return messages per second over the last minute, or since the flow began."""
        messages, _, seconds = self.counted("minute", now)
        return messages / seconds if seconds > 0 else 0.0


def _keep(samples: list[_FlowSample], sample: _FlowSample, limit: int) -> None:
    samples.append(sample)
    if len(samples) > limit:
        del samples[0]


class _Sample(NamedTuple):
    at: float
    put_messages: int
    get_found: int
    get_missed: int
    get_messages: int


class BrokerStats:
    """Counters of one broker since its start."""

    __slots__ = (
        "_all_gets",
        "_all_puts",
        "_clock",
        "_day",
        "_groups",
        "_local_day",
        "_samples",
        "_sent_back",
        "_ticks",
        "_topics",
        "boot_timestamp_ms",
        "get_bytes",
        "get_found",
        "get_messages",
        "get_missed",
        "get_total_today_morning",
        "get_total_yesterday_morning",
        "put_bytes",
        "put_failed",
        "put_messages",
        "put_total_today_morning",
        "put_total_yesterday_morning",
        "put_without_wait",
        "started_monotonic",
    )

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        local_day: Callable[[], int] = lambda: time.localtime().tm_yday,
    ) -> None:
        """Start at zero; `clock` counts seconds, `local_day` changes at midnight."""
        self._clock = clock
        self._local_day = local_day
        self.started_monotonic = clock()
        self.boot_timestamp_ms = time.time_ns() // 1_000_000
        self.put_messages = 0
        self.put_bytes = 0
        self.put_failed = 0
        self.put_without_wait = 0
        self.get_found = 0
        self.get_missed = 0
        self.get_messages = 0
        self.get_bytes = 0
        self.put_total_yesterday_morning = 0
        self.put_total_today_morning = 0
        self.get_total_yesterday_morning = 0
        self.get_total_today_morning = 0
        self._topics: dict[str, FlowCounter] = {}
        self._groups: dict[tuple[str, str], FlowCounter] = {}
        self._sent_back: dict[tuple[str, str], FlowCounter] = {}
        self._all_puts, self._all_gets = FlowCounter(clock()), FlowCounter(clock())
        self._samples: deque[_Sample] = deque(maxlen=_RATE_WINDOWS_S[-1] + 1)
        self._samples.append(self._take_sample())
        self._ticks = 0
        self._day = local_day()

    def record_put(self, topic: str, count: int, size_bytes: int) -> None:
        """Count messages that were stored; `size_bytes` is that of their records."""
        self.put_messages += count
        self.put_bytes += size_bytes
        flow = self._topics.get(topic)
        if flow is None:
            flow = self._topics[topic] = FlowCounter(self._clock())
        flow.messages += count
        flow.size_bytes += size_bytes

    def record_put_failed(self, count: int = 1) -> None:
        """Count messages that the store refused."""
        self.put_failed += count

    def record_get(self, topic: str, group: str, count: int, size_bytes: int) -> None:
        """Count one pull of `group` that returned messages."""
        self.get_found += 1
        self.get_messages += count
        self.get_bytes += size_bytes
        flow = self._groups.get((topic, group))
        if flow is None:
            flow = self._groups[topic, group] = FlowCounter(self._clock())
        flow.messages += count
        flow.size_bytes += size_bytes

    def record_sent_back(self, topic: str, group: str) -> None:
        """Count a message of a topic that a consumer of `group` has sent back."""
        flow = self._sent_back.get((topic, group))
        if flow is None:
            flow = self._sent_back[topic, group] = FlowCounter(self._clock())
        flow.messages += 1

    def record_get_miss(self) -> None:
        """Count one pull that found nothing."""
        self.get_missed += 1

    def topic_flows(self) -> dict[str, FlowCounter]:
        """Return the counter of each topic that was sent to; do not change it."""
        return self._topics

    def group_flows(self) -> dict[tuple[str, str], FlowCounter]:
        """Return the counter of each (topic, group) that pulled; do not change it."""
        return self._groups

    def sent_back_flows(self) -> dict[tuple[str, str], FlowCounter]:
        """Return the counter of each (topic, group) that sent back; do not change it."""
        return self._sent_back

    def all_flows(self) -> tuple[FlowCounter, FlowCounter]:
        """Return the counters of all that was sent, and of all that was pulled."""
        # The hot path adds to the numbers alone.
        puts, gets = self._all_puts, self._all_gets
        puts.messages, puts.size_bytes = self.put_messages, self.put_bytes
        gets.messages, gets.size_bytes = self.get_messages, self.get_bytes
        return puts, gets

    def now(self) -> float:
        """Return the moment that `FlowCounter.counted` takes."""
        return self._clock()

    def topic_put_tps(self, topic: str) -> float:
        """Return messages per second sent to a topic, over the last minute."""
        flow = self._topics.get(topic)
        return 0.0 if flow is None else flow.per_second(self._clock())

    def group_get_tps(self, topic: str, group: str) -> float:
        """Return messages per second that a group pulls of a topic, over the last minute."""
        flow = self._groups.get((topic, group))
        return 0.0 if flow is None else flow.per_second(self._clock())

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        self._topics.pop(topic, None)
        for table in (self._groups, self._sent_back):
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group."""
        for table in (self._groups, self._sent_back):
            for key in [key for key in table if key[1] == group]:
                del table[key]

    def sample(self) -> None:
        """Keep the counts of this moment; to be called every `SAMPLE_PERIOD_S`."""
        self._samples.append(self._take_sample())
        self._ticks += 1
        if self._ticks % _FLOW_SAMPLE_EVERY == 0:
            now = self._clock()
            named = (self._topics, self._groups, self._sent_back)
            for flow in (*self.all_flows(), *(each for table in named for each in table.values())):
                flow.sample(now)
        day = self._local_day()
        if day != self._day:
            self._day = day
            self.put_total_yesterday_morning = self.put_total_today_morning
            self.put_total_today_morning = self.put_messages
            self.get_total_yesterday_morning = self.get_total_today_morning
            self.get_total_today_morning = self.get_messages

    def runtime_info(self) -> dict[str, str]:
        """Return these counters under RocketMQ's keys of GET_BROKER_RUNTIME_INFO.

        A rate is three numbers: messages, or pulls, per second over 10, 60 and 600 seconds.
        """
        now = self._take_sample()
        transferred = self._rates(now, lambda sample: sample.get_messages)
        return {
            "bootTimestamp": str(self.boot_timestamp_ms),
            "runtime": _duration(now.at - self.started_monotonic),
            "putMessageTimesTotal": str(self.put_messages),
            "putMessageFailedTimes": str(self.put_failed),
            "putMessageSizeTotal": str(self.put_bytes),
            "putMessageAverageSize": str(self.put_bytes / max(self.put_messages, 1)),
            "putTps": self._rates(now, lambda sample: sample.put_messages),
            "getFoundTps": self._rates(now, lambda sample: sample.get_found),
            "getMissTps": self._rates(now, lambda sample: sample.get_missed),
            "getTotalTps": self._rates(now, lambda sample: sample.get_found + sample.get_missed),
            "getTransferredTps": transferred,
            "getTransferedTps": transferred,
            "msgPutTotalYesterdayMorning": str(self.put_total_yesterday_morning),
            "msgPutTotalTodayMorning": str(self.put_total_today_morning),
            "msgPutTotalTodayNow": str(self.put_messages),
            "msgGetTotalYesterdayMorning": str(self.get_total_yesterday_morning),
            "msgGetTotalTodayMorning": str(self.get_total_today_morning),
            "msgGetTotalTodayNow": str(self.get_messages),
        }

    def _take_sample(self) -> _Sample:
        return _Sample(
            self._clock(), self.put_messages, self.get_found, self.get_missed, self.get_messages
        )

    def _rates(self, now: _Sample, count: Callable[[_Sample], int]) -> str:
        rates = []
        for window_s in _RATE_WINDOWS_S:
            start = self._sample_before(now.at - window_s)
            elapsed_s = now.at - start.at
            rates.append((count(now) - count(start)) / elapsed_s if elapsed_s > 0 else 0.0)
        return " ".join(f"{rate:.3f}" for rate in rates)

    def _sample_before(self, moment: float) -> _Sample:
        """Return the newest sample not after `moment`, or the oldest there is."""
        for sample in reversed(self._samples):
            if sample.at <= moment:
                return sample
        return self._samples[0]


def _duration(seconds: float) -> str:
    """Spell a duration as RocketMQ does."""
    minutes, whole_seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {whole_seconds} seconds ]"
