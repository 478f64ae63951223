"""The version of a table, by which name servers and slaves see that it changed.

Source: apache/rocketmq remoting/protocol/DataVersion.java.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class DataVersion:
    """`counter` counts changes since the table was made; `timestamp` is epoch milliseconds."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0

    def advance(self, now_ms: int) -> None:
        """Note one more change, made at `now_ms`."""
        self.counter += 1
        self.timestamp = now_ms
