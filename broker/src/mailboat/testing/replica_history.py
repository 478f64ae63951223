"""What was promised beside the messages of the log, and whether replicas still keep to it.

Committed offsets, delayed messages, transactions, and logs that are equal. Each class is told what
was asked and answered, and checks what a group serves once it is whole again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mailboat.testing.history import HistoryViolation, QueueKey


@dataclass(slots=True)
class Commits:
    """Offsets that one consumer group has committed."""

    _answered: dict[QueueKey, list[tuple[float, int]]] = field(default_factory=dict)

    def answer(self, key: QueueKey, queue_offset: int, at_s: float) -> None:
        """Note a commit that was answered at a time."""
        self._answered.setdefault(key, []).append((at_s, queue_offset))

    def check(
        self,
        offsets: Mapping[QueueKey, int],
        ends: Mapping[QueueKey, int],
        before_s: float,
        now_s: float,
    ) -> None:
        """Check the offsets that a group serves; they count as answered now.

        Args:
            offsets: of each queue.
            ends: one above the highest queue offset of each queue.
            before_s: what was answered before it must be there.
            now_s: the time.

        Raises:
            HistoryViolation: an offset went back, or is beyond the end.
        """
        for key, answered in self._answered.items():
            found = offsets.get(key, -1)
            wanted = max((offset for at_s, offset in answered if at_s < before_s), default=-1)
            # What a group of ASYNC_MASTER has lost is no longer read either.
            if found < min(wanted, ends.get(key, 0)):
                raise HistoryViolation("commit lost", f"{key} is at {found}, was at {wanted}")
            if found > ends.get(key, 0):
                raise HistoryViolation("commit beyond the end", f"{key} is at {found} of {ends}")
        self._answered = {key: [(now_s, offset)] for key, offset in offsets.items()}


@dataclass(slots=True)
class _Delayed:
    due_s: float
    is_acknowledged: bool = False
    is_refused: bool = False


@dataclass(slots=True)
class DelayedMessages:
    """Messages that were to be delivered later, by their bodies."""

    _sent: dict[bytes, _Delayed] = field(default_factory=dict)

    def send(self, body: bytes, due_s: float) -> None:
        """Note a message about to be sent, that must not be seen before a time."""
        self._sent[body] = _Delayed(due_s)

    def acknowledge(self, body: bytes) -> None:
        """Note SEND_OK."""
        self._sent[body].is_acknowledged = True

    def refuse(self, body: bytes) -> None:
        """Note an answer that says nothing was stored."""
        self._sent[body].is_refused = True

    def see(self, body: bytes, at_s: float) -> None:
        """Note what was delivered, and when.

        Raises:
            HistoryViolation: it should not have been, or not yet.
        """
        message = self._sent.get(body)
        if message is None:
            raise HistoryViolation("changed or never sent", f"delayed message {body[:40]!r}")
        if message.is_refused:
            raise HistoryViolation("refused but stored", f"delayed message {body[:40]!r}")
        if at_s < message.due_s:
            early_s = message.due_s - at_s
            raise HistoryViolation("delayed message early", f"{body[:40]!r} by {early_s:.3f} s")

    def missing(self, delivered: Iterable[bytes]) -> list[bytes]:
        """Return what was acknowledged and is not among what was delivered."""
        found = set(delivered)
        return [
            body for body, one in self._sent.items() if one.is_acknowledged and body not in found
        ]

    def check(self, delivered: Counter[bytes]) -> int:
        """Check all that was delivered by now, when everything is due; returns how many doubles.

        Raises:
            HistoryViolation: an acknowledged one is missing.
        """
        if missing := self.missing(delivered):
            raise HistoryViolation("delayed message lost", f"{len(missing)}, first {missing[0]!r}")
        return delivered.total() - len(delivered)


@dataclass(slots=True)
class _Transaction:
    commits: bool
    is_prepared: bool = False
    is_refused: bool = False


@dataclass(slots=True)
class Transactions:
    """Half messages and what their producer decided, which never changes, by their keys."""

    _begun: dict[str, _Transaction] = field(default_factory=dict)

    def begin(self, key: str, *, commits: bool) -> None:
        """Note a half message about to be sent."""
        self._begun[key] = _Transaction(commits)

    def commits(self, key: str) -> bool:
        """Return the decision; that of what nobody has begun is to roll back."""
        return key in self._begun and self._begun[key].commits

    def prepare(self, key: str) -> None:
        """Note that the half message was acknowledged."""
        self._begun[key].is_prepared = True

    def refuse(self, key: str) -> None:
        """Note an answer that says nothing was stored."""
        self._begun[key].is_refused = True

    def missing(self, delivered: Iterable[str]) -> list[str]:
        """Return what is to be delivered, and is not."""
        found = set(delivered)
        return [
            key
            for key, one in self._begun.items()
            if one.is_prepared and one.commits and key not in found
        ]

    def check(self, delivered: Counter[str]) -> None:
        """Check what was delivered once every half message had its end.

        Raises:
            HistoryViolation: a transaction did not end as its producer decided, or twice.
        """
        for key, times in delivered.items():
            transaction = self._begun.get(key)
            if transaction is None:
                raise HistoryViolation("changed or never sent", f"transaction {key}")
            if transaction.is_refused:
                raise HistoryViolation("refused but stored", f"transaction {key}")
            if not transaction.commits:
                raise HistoryViolation("rolled back but delivered", f"transaction {key}")
            if times > 1:
                raise HistoryViolation("committed twice", f"transaction {key}, {times} times")
        if missing := self.missing(delivered):
            raise HistoryViolation("half message lost", f"{len(missing)}, first {missing[0]}")


def check_logs(logs: Mapping[int, tuple[int, bytes]]) -> None:
    """Check that replicas have the same bytes at the same places, as far as all of them have any.

    Args:
        logs: physical offset of the first byte and the bytes, by ordinal.

    Raises:
        HistoryViolation: two of them differ.
    """
    start = max(begin for begin, _ in logs.values())
    end = min(begin + len(data) for begin, data in logs.values())
    parts = {ordinal: data[start - begin : end - begin] for ordinal, (begin, data) in logs.items()}
    first = min(parts)
    for ordinal, part in parts.items():
        if part != parts[first]:
            pairs = enumerate(zip(part, parts[first], strict=True))
            at = start + next(number for number, (one, other) in pairs if one != other)
            raise HistoryViolation("logs differ", f"of replicas {first} and {ordinal} at {at}")
