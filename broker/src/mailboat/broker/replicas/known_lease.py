"""Who leads, as far as one replica knows: by the lease, or led by hand, by what links say."""

import asyncio
from collections.abc import Callable

from mailboat.broker.replicas.lease_keeper import LeaseKeeper
from mailboat.broker.replicas.lease_store import LeaseStore
from mailboat.replication.events import Event, LeaseRead, LeaseWritten, Outcome
from mailboat.replication.lease import Holder, Lease
from mailboat.replication.state import ByHand
from mailboat.replication.wire import Open


class KnownLease:
    """The lease as it is known here; led by hand it says no more than who leads."""

    def __init__(
        self,
        by_hand: ByHand | None,
        handle: Callable[[Event], None],
        on_change: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Know nothing.

        Args:
            by_hand: what the group is where a person says who leads, None where a lease does.
            handle: tells the replica.
            on_change: called when another one is believed to lead, before the replica is told.
            fail: takes an error that nobody expected.
        """
        self._by_hand = by_hand
        self._handle = handle
        self._on_change = on_change
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self.lease: Lease | None = None
        self.keeper: LeaseKeeper | None = None
        """Who asks for the lease, None where a person says who leads."""

    def keep_in(self, leases: LeaseStore) -> None:
        """Go by the lease in a store."""
        self.keeper = LeaseKeeper(leases, self)

    @property
    def holder(self) -> Holder | None:
        """Who leads, as far as is known here."""
        return None if self.lease is None else self.lease.holder

    @property
    def min_in_sync(self) -> int:
        """How many replicas have what is confirmed, at least: by the lease, once it is known."""
        if self._by_hand is not None:
            return self._by_hand.min_in_sync
        return 1 if self.lease is None else self.lease.min_in_sync

    def view(self) -> tuple[Holder, int]:
        """Return whom this replica believes to lead, and since which epoch (0: nobody)."""
        if self.lease is None or self.lease.holder is None:
            return Holder(-1, "", ""), 0
        return self.lease.holder, self.lease.epoch

    def take_view(self, message: Open) -> None:
        """Take whom another replica believes to lead."""
        _, known = self.view()
        if message.epoch <= known or message.leader < 0:
            return
        if self.keeper is not None:
            self.keeper.read()
            return
        holder = Holder(message.leader, message.leader_store_id, message.leader_boot)
        self.believe(holder, message.epoch)

    def believe(self, holder: Holder, epoch: int) -> None:
        """Believe that somebody leads, by hand."""
        version = 1 if self.lease is None else self.lease.version + 1
        members = frozenset({holder.member})
        self.lease = Lease(version, holder, epoch, members, self.min_in_sync)
        self._on_change()
        self._handle(LeaseRead(self.lease))

    def note(self, lease: Lease | None) -> None:
        """Take note of the lease, and tell where somebody else leads by it."""
        before = self.view()
        self.lease = lease
        if self.view() != before:
            self._on_change()

    def read(self, *, is_leading: bool) -> None:
        """Have the lease read; who leads by hand knows it."""
        if self.keeper is not None:
            self.keeper.read()
        elif self.lease is not None and not is_leading:
            self._loop.call_soon(self._handle, LeaseRead(self.lease))

    def write(self, request: int, replaced: int | None, lease: Lease) -> None:
        """Have the lease written where it still has a version, None where there is none."""
        if self.keeper is not None:
            self.keeper.write(request, replaced, lease)
            return
        # By hand the leader has what it wants at once: nobody else writes it.
        answer = LeaseWritten(request, Outcome.APPLIED, lease._replace(version=lease.version + 1))
        self._loop.call_soon(self._handle, answer)

    # LeaseHandler

    def lease_read(self, lease: Lease | None) -> None:
        """Take the lease as the store has it."""
        self.note(lease)
        self._handle(LeaseRead(lease))

    def lease_written(self, request: int, outcome: Outcome, lease: Lease | None) -> None:
        """Take what became of a write."""
        if lease is not None:
            # Before this replica stops: who is to lead in its place need not wait for a read.
            self.note(lease)
        self._handle(LeaseWritten(request, outcome, lease))

    def lease_failed(self, error: BaseException) -> None:
        """Have the process fail with what nobody expected."""
        self._fail(error)
