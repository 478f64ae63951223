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
    REFUSED = "this replica has no right to write it any more: nothing was done"
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
class Linked:
    """There is a link to another replica from now on."""

    peer: Member


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """There is no link to another replica any more: its process has died, or will connect again."""

    peer: Member


@dataclass(frozen=True, slots=True)
class HolderDied:
    """The process that holds the lease is dead for certain, though the lease stands."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Somebody wants another member to lead."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class Release:
    """A leader stores nothing more and is about to end; nobody has taken over from it.

    `leaves`: it is not to lead again before it has everything from another leader, if enough others
    are in the set.
    """

    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """This replica is about to end, in order: whoever it follows need not wait for it."""


@dataclass(frozen=True, slots=True)
class Promote:
    """A person wants this replica to lead.

    `accepts_loss`: whoever does not answer may have had messages that this one has not.
    `reachable`: who may be expected to answer, by ordinal; None where nobody knows.
    """

    accepts_loss: bool
    reachable: frozenset[int] | None = None


Event: TypeAlias = (
    Ticked
    | LeaseRead
    | LeaseWritten
    | Received
    | Linked
    | LinkClosed
    | LogAppended
    | LogFlushed
    | HolderDied
    | HandOver
    | Release
    | Leave
    | Promote
)
