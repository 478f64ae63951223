"""How fast the old part of the log is copied to followers, so that sends keep the disk."""

from typing import Final

# What may go at once after a rest.
_BURST_S: Final = 0.05
_SAMPLE_S: Final = 1.0
# A copy that is not faster than the log grows never ends.
_TIMES_GROWTH: Final = 1.5


class Pace:
    """A rate for all copies of one broker together. Nothing here waits: `wait_s` says how long.

    Each copy goes at least as fast as the log has grown lately, and a half faster.
    """

    def __init__(self, now_s: float, bytes_per_second: int) -> None:
        """Begin at a time with a rate; 0 bytes per second are no bound."""
        self.bytes_per_second = bytes_per_second
        self._due_s = now_s
        self._sampled_s = now_s
        self._sampled_end: int | None = None
        self._growth_bytes_per_second = 0.0

    def wait_s(self, now_s: float, size_bytes: int, log_end: int) -> float:
        """Return for how many seconds nothing more may be copied after so many bytes.

        Args:
            now_s: The time.
            size_bytes: How much was copied just now.
            log_end: The physical offset where the log ends now.
        """
        self._sample(now_s, log_end)
        if not self.bytes_per_second:
            return 0.0
        rate = max(self.bytes_per_second, self._growth_bytes_per_second * _TIMES_GROWTH)
        self._due_s = max(self._due_s, now_s - _BURST_S) + size_bytes / rate
        return max(self._due_s - now_s, 0.0)

    def _sample(self, now_s: float, log_end: int) -> None:
        if self._sampled_end is None:
            self._sampled_s, self._sampled_end = now_s, log_end
        elif now_s >= self._sampled_s + _SAMPLE_S:
            grown_bytes = max(log_end - self._sampled_end, 0)
            self._growth_bytes_per_second = grown_bytes / (now_s - self._sampled_s)
            self._sampled_s, self._sampled_end = now_s, log_end
