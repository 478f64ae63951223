"""What a replica wants done: in this order, each wholly done before the next."""

from dataclasses import dataclass
from typing import TypeAlias

from mailboat.replication.durable import Durable
from mailboat.replication.frames import Frame
from mailboat.replication.lease import Lease


@dataclass(frozen=True, slots=True)
class Persist:
    """Make the state durable."""

    state: Durable


@dataclass(frozen=True, slots=True)
class Note:
    """Make the state durable soon; what comes next need not wait, and need not find it done."""

    state: Durable


@dataclass(frozen=True, slots=True)
class CutLog:
    """Keep aside what lies at or above `end`, then take it off the log, durably."""

    end: int


@dataclass(frozen=True, slots=True)
class BeginLog:
    """Let the log, which is empty, begin at a physical offset."""

    physical_offset: int


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Keep the whole log aside and begin with an empty one, as another replica."""


@dataclass(frozen=True, slots=True)
class WriteLog:
    """Append records of the leader."""

    physical_offset: int
    end: int
    records: object


@dataclass(frozen=True, slots=True)
class Send:
    """Send a frame, if there is a link; it may be lost."""

    ordinal: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class Stream:
    """Send a follower `Data` from a physical offset on, until another session or epoch begins."""

    ordinal: int
    session: int
    epoch: int
    physical_offset: int


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Read the lease, from where writes are decided."""


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Write the lease if its version still is `replaced` (None: if there is none)."""

    request: int
    replaced: int | None
    lease: Lease


@dataclass(frozen=True, slots=True)
class Lead:
    """Give out the queue offsets of what is not confirmed yet, then open for clients."""

    epoch: int
    start: int
    may_have_lost: bool
    """All members may have lost what they had not flushed."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Make visible, and answer, what lies below `end`."""

    end: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Answer nobody any more, close all connections, and start anew as a follower."""

    reason: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """Tell a person: the replica goes no further by itself."""

    text: str


Action: TypeAlias = (
    Persist
    | Note
    | CutLog
    | BeginLog
    | ResetLog
    | WriteLog
    | Send
    | Stream
    | ReadLease
    | WriteLease
    | Lead
    | Confirm
    | Stop
    | Alarm
)
