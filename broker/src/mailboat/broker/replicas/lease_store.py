"""Where the lease of a group is kept: what every store of it has to do."""

from typing import Protocol

from mailboat.errors import MailboatError
from mailboat.replication.events import Outcome
from mailboat.replication.lease import Lease


class LeaseStoreError(MailboatError):
    """The store says nothing of the lease: it cannot be reached, or refuses."""

    retriable = True


class LeaseStore(Protocol):
    """One lease, changed by compare-and-swap."""

    @property
    def trouble(self) -> str:
        """Why the store was of no use when it was asked last, empty where it was."""

    alarm: str
    """Why what is kept there is no lease, empty where it is one, or there is none."""

    async def read(self) -> Lease | None:
        """Return the lease as it is now, from where writes are decided; None for none.

        Raises:
            LeaseStoreError: nobody knows; `trouble` says why.
        """

    async def write(self, replaced: int | None, lease: Lease) -> tuple[Outcome, Lease | None]:
        """Replace the version `replaced`, or nothing if it is None.

        Returns:
            what became of it, and the lease with its new version where it is known to be there.
        """

    async def close(self) -> None:
        """Ask no more."""
