"""The one object that says who leads, changed by compare-and-swap."""

from typing import NamedTuple


class Member(NamedTuple):
    """A replica: its place in the group and the volume that lies there."""

    ordinal: int
    store_id: str


class Holder(NamedTuple):
    """One run of the process of a replica."""

    ordinal: int
    store_id: str
    boot: str
    """Another one at each start of the process."""

    @property
    def member(self) -> Member:
        """The replica whose process this is."""
        return Member(self.ordinal, self.store_id)


class Lease(NamedTuple):
    """What the store of the lease holds.

    `version` is the store's, higher with every change; a write names the one it replaces. `epoch`
    begins at 0, when nobody has led; `holder` is None then, and after a release. Every renewal
    counts in `renewals`, so that it is a change.
    """

    version: int
    holder: Holder | None
    epoch: int
    in_sync: frozenset[Member]
    min_in_sync: int
    renewals: int = 0
