"""The one object that says who leads, changed by compare-and-swap."""

from typing import Final, NamedTuple

LARGEST_LEAP: Final = 1 << 40
"""Of an epoch, or of renewals: in ten thousand years of one each second."""


class Member(NamedTuple):
    """A replica: its place in the group and the volume that lies there."""

    ordinal: int
    store_id: str


class Holder(NamedTuple):
    """One run of the process of a replica."""

    ordinal: int
    store_id: str
    boot: str
    """Another one at each start of the process. What lies before its last "/" names the place where
    the process runs: there is never more than one at a time, and another place may have another
    one of the same replica. Without "/" all of a replica's processes have one place."""

    @property
    def member(self) -> Member:
        """The replica whose process this is."""
        return Member(self.ordinal, self.store_id)

    def is_other_run_of(self, me: "Holder") -> bool:
        """Tell whether it is another run in my place, which is over since mine has begun."""
        places = self.boot.rpartition("/")[0], me.boot.rpartition("/")[0]
        return self.member == me.member and self != me and places[0] == places[1]


class Lease(NamedTuple):
    """What the store of the lease holds.

    `version` is the store's, higher with every change; a write names the one it replaces. `epoch`
    begins at 0, when nobody has led; `holder` is None then, and after a release. Every renewal
    counts in `renewals`, so that it is a change. `is_sole`: nobody who led before may have
    authority any more, so that whoever has the lease from the holder need not wait for that.
    `lease_s`: for how long after its last change whoever wrote it is to be respected, 0 where that
    is not said.
    """

    version: int
    holder: Holder | None
    epoch: int
    in_sync: frozenset[Member]
    min_in_sync: int
    renewals: int = 0
    is_sole: bool = False
    lease_s: float = 0
