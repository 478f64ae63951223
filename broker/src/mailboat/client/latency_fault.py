"""Which brokers a producer should leave alone for a while because they were slow or failed.

Off by default, as in RocketMQ. Each finished send tells how long it took; the tables below turn
that into a time during which the broker is passed over, if another one can take the message.

Source: apache/rocketmq client/latency/MQFaultStrategy.java and LatencyFaultToleranceImpl.java @
4.9.7.
"""

import time
from collections.abc import Callable
from typing import Final

LATENCY_MAX_MS: Final = (50, 100, 550, 1000, 2000, 3000, 15000)
NOT_AVAILABLE_MS: Final = (0, 0, 30000, 60000, 120000, 180000, 600000)
# A send that failed counts as one that took this long.
FAILED_SEND_LATENCY_MS: Final = 30000


def not_available_ms(latency_ms: float) -> int:
    """Return for how long a broker with this latency is passed over."""
    duration_ms = 0
    for limit_ms, pause_ms in zip(LATENCY_MAX_MS, NOT_AVAILABLE_MS, strict=True):
        if latency_ms >= limit_ms:
            duration_ms = pause_ms
    return duration_ms


class LatencyFaults:
    """The brokers' last latencies and until when each is passed over."""

    __slots__ = ("_clock", "_faults")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with every broker available; `clock` gives monotonic seconds."""
        self._clock = clock
        self._faults: dict[str, tuple[float, float]] = {}

    def record(self, broker_name: str, latency_ms: float, *, failed: bool = False) -> None:
        """Note how long a send took, or that it failed."""
        pause_ms = not_available_ms(FAILED_SEND_LATENCY_MS if failed else latency_ms)
        self._faults[broker_name] = (latency_ms, self._clock() + pause_ms / 1000)

    def is_available(self, broker_name: str) -> bool:
        """Tell whether the broker may be chosen now."""
        fault = self._faults.get(broker_name)
        return fault is None or self._clock() >= fault[1]

    def least_bad(self, broker_names: set[str]) -> str | None:
        """Return the known broker that is back first (the faster of equals), if there is one."""
        known = [(self._faults[name][::-1], name) for name in broker_names if name in self._faults]
        return min(known)[1] if known else None
