"""What one user may use of a broker: its quotas, and the buckets that count what flows.

    {
      "connections": 20,
      "publishMessagesPerSecond": 1000, "publishBytesPerSecond": 1048576,
      "fetchMessagesPerSecond": 1000, "fetchBytesPerSecond": 1048576,
      "topics": 10, "groups": 10,
      "heldPulls": 100, "queueLocks": 100
    }

Each may be left out: then nothing bounds it. What a newer version may bound and this one does not
know is left out too, and named: for a bound that is not there nobody may do what is forbidden.

Nothing here looks at a clock or does any input or output.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from mailboat.errors import IllegalUserError

QUOTA_MAX: Final = 10**12
"""Largest number of a quota."""

_MAY_BE_NONE: Final = frozenset({"topics", "groups", "queueLocks"})


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of one user, each a number, or None where nothing is bounded."""

    connections: int | None = None
    """Connections at a time that it has signed requests on."""

    publish_messages_per_second: int | None = None
    publish_bytes_per_second: int | None = None
    """Bodies of what it sends."""

    fetch_messages_per_second: int | None = None
    fetch_bytes_per_second: int | None = None
    """Records that its pulls are answered with."""

    topics: int | None = None
    """Topics that there are because it sent to them."""

    groups: int | None = None
    """Consumer groups that there are because it used them."""

    held_pulls: int | None = None
    """Pulls that wait at a time."""

    queue_locks: int | None = None
    """Queues that it has locked at a time."""


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


QUOTA_NAMES: Final = {_camel(field.name): field.name for field in fields(Quotas)}
"""Names of quotas in files, and in `Quotas`."""


def parse_quotas(body: Mapping[str, object]) -> tuple[Quotas | None, tuple[str, ...]]:
    """Return what a file says, None where it bounds nothing, and the names that are not known.

    Raises:
        IllegalUserError: a quota is not a whole number, or too small or large.
    """
    found: dict[str, int] = {}
    unknown = []
    for name, value in body.items():
        known = QUOTA_NAMES.get(name)
        if known is None:
            unknown.append(name)
        elif value is not None:
            found[known] = _checked(name, value)
    return Quotas(**found) if found else None, tuple(sorted(unknown))


def quotas_body(quotas: Quotas) -> dict[str, int]:
    """Return quotas as files have them."""
    values = ((name, getattr(quotas, known)) for name, known in QUOTA_NAMES.items())
    return {name: value for name, value in values if value is not None}


def _checked(name: str, value: object) -> int:
    least = 0 if name in _MAY_BE_NONE else 1
    # A truth value is a number to Python.
    if type(value) is not int or not least <= value <= QUOTA_MAX:
        raise IllegalUserError(
            f"quotas: {name} has to be a whole number from {least} to {QUOTA_MAX}"
        )
    return value


class TokenBucket:
    """Lets through a rate over time, and at once no more than one second's worth.

    What is larger than that is let through when the bucket is full, and leaves a debt: what comes
    behind it waits until that is paid. So in any time t, of amounts of at most a, no more than
    rate * t + max(rate, a) can be taken, and who asks all the time gets no less than rate * t - a.

    Times are seconds of a clock that is given; where it goes back, it counts as standing still.
    """

    __slots__ = ("_at_s", "_level", "rate")

    def __init__(self, rate: float, now_s: float) -> None:
        """Begin full; `rate` is an amount for each second, at least 1."""
        self.rate = rate
        self._level = rate
        self._at_s = now_s

    def change(self, rate: float, now_s: float) -> None:
        """Let through another rate from now on; what was taken stays taken."""
        self._settle(now_s)
        self.rate = rate
        self._level = min(self._level, rate)

    def level(self, now_s: float) -> float:
        """Return how much is there, below zero for a debt."""
        self._settle(now_s)
        return self._level

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return how long it is until an amount may be taken, 0.0 where it may be now."""
        self._settle(now_s)
        missing = min(amount, self.rate) - self._level
        return missing / self.rate if missing > 0.0 else 0.0

    def take(self, amount: float, now_s: float) -> None:
        """Take an amount, whether it is there or not."""
        self._settle(now_s)
        self._level -= amount

    def give_back(self, amount: float, now_s: float) -> None:
        """Undo `take`."""
        self._settle(now_s)
        self._level = min(self._level + amount, self.rate)

    def _settle(self, now_s: float) -> None:
        elapsed_s = now_s - self._at_s
        if elapsed_s > 0.0:
            self._at_s = now_s
            self._level = min(self._level + elapsed_s * self.rate, self.rate)
