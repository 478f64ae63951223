"""What a replica is told."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from mailboat.replication.frames import Frame
from mailboat.replication.lease import Lease, Member


class Outcome(Enum):
    """What became of a write of the lease."""

    APPLIED = "applied"
    CONFLICT = "another version was there"
    UNKNOWN = "no answer: it may have been applied, or may yet be"


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: every 100 ms or so."""


@dataclass(frozen=True, slots=True)
class LeaseRead:
    """The lease as the store had it when asked; None where there is none."""

    lease: Lease | None


@dataclass(frozen=True, slots=True)
class LeaseWritten:
    """The outcome of `WriteLease` number `request`; `lease` is what was written if it is known."""

    request: int
    outcome: Outcome
    lease: Lease | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A frame of another replica."""

    sender: Member
    frame: Frame


@dataclass(frozen=True, slots=True)
class LogAppended:
    """The leader's log has grown to `end`."""

    end: int


@dataclass(frozen=True, slots=True)
class LogFlushed:
    """The log is durable below `end`."""

    end: int


@dataclass(frozen=True, slots=True)
class HolderDied:
    """The process that holds the lease is dead for certain, though the lease stands."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Somebody wants another member to lead."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class Promote:
    """A person wants this replica to lead.

    `accepts_loss`: whoever does not answer may have had messages that this one has not.
    """

    accepts_loss: bool


Event: TypeAlias = (
    Ticked
    | LeaseRead
    | LeaseWritten
    | Received
    | LogAppended
    | LogFlushed
    | HolderDied
    | HandOver
    | Promote
)
