"""What replicas tell each other.

Every frame but `Ask`, `Answer`, `Fetch` and `Fetched` belongs to an epoch. A `session` begins with
each `Hello`: what a link delivers late, twice or out of order belongs to none any more, or is out
of place in the log.
"""

from dataclasses import dataclass
from typing import TypeAlias

from mailboat.replication.epochs import Epochs


@dataclass(frozen=True, slots=True)
class Hello:
    """A follower asks to be taken up; `seen` is the highest epoch it knows of."""

    session: int
    seen: int
    boot: str
    """Which run of its process asks."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The leader's epochs, and where its log begins and ends: what the follower's is cut by."""

    session: int
    group: str
    epoch: int
    epochs: Epochs
    start: int
    end: int
    confirmed: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Somebody has seen a higher epoch than the one of the frame it answers."""

    seen: int


@dataclass(frozen=True, slots=True)
class Data:
    """Whole records from `physical_offset` to `end`, and how far the log is confirmed."""

    session: int
    epoch: int
    physical_offset: int
    end: int
    confirmed: int
    records: object


@dataclass(frozen=True, slots=True)
class Beat:
    """The leader lives.

    `has_authority`: it claims to be the only one. `is_heard`: acknowledgements of the follower
    that this goes to have arrived lately.
    """

    session: int
    epoch: int
    number: int
    end: int
    confirmed: int
    has_authority: bool
    is_heard: bool


@dataclass(frozen=True, slots=True)
class Ack:
    """A follower has everything below `end`, as durable as the group wants it.

    `granted` is the number of the last beat since whose arrival it does not try to lead, 0 if none.
    `counts`: a message may be confirmed because this follower has it. One that says otherwise while
    it is in the set leaves it, if enough others are there.
    """

    session: int
    epoch: int
    end: int
    granted: int
    counts: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody who may try to lead asks whether others know better.

    With an `epoch` he asks for the promise to follow nobody of an earlier one any more, from
    whoever knows of none above `known`.
    """

    attempt: int
    epoch: int = 0
    known: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a replica knows when it is asked."""

    attempt: int
    seen: int
    last_epoch: int
    end: int
    confirmed: int
    is_suspect: bool
    is_whole: bool
    hears_authority: bool
    tables: tuple[int, int] = (0, 0)
    """Of which epoch its tables beside the log are, and the number of their last change."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Some of what there is beside the log, or from a follower what was committed at it.

    `kind` is a table, `part` says whether the whole of it begins or ends here, `body` has entries.
    A `number` above 0 asks for `TablesKept` once everything up to here is durable.
    """

    session: int
    epoch: int
    number: int
    kind: int
    part: int
    body: bytes


@dataclass(frozen=True, slots=True)
class TablesKept:
    """A follower has all tables as the leader had them at a number."""

    session: int
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The leader of an epoch stops, and a follower that has everything is to lead after it.

    Only where a person says who leads.
    """

    session: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """A replica whose log is damaged at a physical offset asks for the records from there on.

    `group`, `epochs` and `end` say what its log is: who is asked answers with what both have.
    """

    number: int
    group: str
    epochs: Epochs
    end: int
    physical_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole records from `physical_offset` to `end`, none where the reason for that is said."""

    number: int
    physical_offset: int
    end: int
    refusal: str
    records: object


Frame: TypeAlias = Hello | Welcome | Refused | Data | Beat | Ack | Ask | Answer | TakeOver
