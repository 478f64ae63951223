"""What all parts of a replica know and may ask for."""

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from mailboat.replication.actions import Action, Confirm, Persist, ReadLease, Send
from mailboat.replication.durable import Durable
from mailboat.replication.frames import Frame
from mailboat.replication.lease import Holder, Lease, Member
from mailboat.replication.times import Times


@dataclass(frozen=True, slots=True)
class ByHand:
    """A group in which a person says who leads.

    Its replicas have the ordinals below `replicas`; each message is on `min_in_sync` of them before
    it is confirmed. `begins`: this replica leads where nobody has led yet.
    """

    replicas: int
    min_in_sync: int
    begins: bool


@dataclass(frozen=True, slots=True)
class Settings:
    """What a replica is from its start to its end.

    `boot` names this run of its process and where it runs (`Holder.boot`), `kernel_boot` the run
    of the machine.
    """

    ordinal: int
    boot: str
    kernel_boot: str
    is_sync_master: bool = True
    is_sync_flush: bool = False
    by_hand: ByHand | None = None
    """Where a person says who leads, and no store keeps the lease."""

    min_in_sync: int = 1
    """Of a lease that a person has made anew."""

    times: Times = field(default_factory=Times)


class ReplicaState(ABC):
    """A replica, as far as its parts know it."""

    def __init__(self, settings: Settings, durable: Durable, end: int, now_s: float) -> None:
        """Begin with what the disk holds: all of the log below `end` is durable."""
        self.settings = settings
        self.times = settings.times
        self.durable = durable
        self.end = self.flushed_end = end
        self.log_start = 0
        """Where the log begins; whoever owns the replica keeps it up to date."""

        self.tables = (0, 0)
        """The epoch and the number of the tables beside the log; whoever owns the replica keeps it
        up to date."""

        self.confirmed = min(durable.confirmed, end)
        self.now_s = now_s
        self.me = Holder(settings.ordinal, durable.store_id, settings.boot)
        self.member: Member = self.me.member
        """The replica as the recorded set names it."""

        self.stopped = ""
        self.is_halted = False
        """It waits for a person."""

        self.lease: Lease | None = None
        self.lease_changed_s = now_s
        self.holder_died_version = -1
        # Whoever ran before may have granted something a moment ago.
        self.promised_until_s = now_s + self.times.promise_s
        self.authority_heard_until_s = now_s
        self.is_suspect = self._may_have_lost()
        self.knows_newest = settings.by_hand is None or durable.is_whole
        """Whether it follows no leader by mistake that another one has replaced."""

        self._actions: list[Action] = []
        # Not those of another run: what was said to that one arrives as long as links hold it back.
        self._next_number = zlib.crc32(settings.boot.encode()) << 20
        self._read_s = now_s - self.times.renew_s
        if not self.is_suspect:
            self.trust()

    @property
    @abstractmethod
    def is_leading(self) -> bool:
        """Whether it leads."""

    @abstractmethod
    def lead(self, lease: Lease, sent_s: float, authority_from_s: float, *, lost: bool) -> None:
        """Begin to lead an epoch at the end of the log, which is kept whatever is confirmed."""

    @abstractmethod
    def say_hello(self, ordinal: int) -> None:
        """Ask a replica to be taken up by it."""

    @abstractmethod
    def stop_following(self) -> None:
        """Acknowledge nothing more."""

    @abstractmethod
    def stop(self, reason: str) -> None:
        """End: the process begins anew as a follower."""

    @abstractmethod
    def stop_for(self, epoch: int) -> None:
        """End because a later epoch is led; by hand it is remembered."""

    @property
    def last_epoch(self) -> int:
        """The newest epoch whose beginning the log has reached, 0 if none."""
        return max((e.epoch for e in self.durable.epochs if e.start <= self.end), default=0)

    @property
    def kept_end(self) -> int:
        """How far the log is as durable as the group wants it."""
        return self.flushed_end if self.settings.is_sync_flush else self.end

    def act(self, action: Action) -> None:
        """Have something done, after all that was to be done before."""
        self._actions.append(action)

    def send(self, ordinal: int, frame: Frame) -> None:
        """Send a frame."""
        self._actions.append(Send(ordinal, frame))

    def next_number(self) -> int:
        """Return a number that this run of the process has not used."""
        self._next_number += 1
        return self._next_number

    def persist(self, durable: Durable) -> None:
        """Make a state durable."""
        self.durable = durable
        self._actions.append(Persist(durable))

    def trust(self) -> None:
        """Note that nothing which was there under this run of the kernel can be lost."""
        self.is_suspect = False
        # Under SYNC_FLUSH nothing that counts is lost with any of them.
        boot = "" if self.settings.is_sync_flush else self.settings.kernel_boot
        if self.durable.trusted_boot != boot or self.durable.is_clean:
            self.persist(self.durable._replace(trusted_boot=boot, is_clean=False))

    def confirm(self, end: int) -> None:
        """Note that everybody who counts has the log below `end`."""
        if end > self.confirmed:
            self.confirmed = end
            self.act(Confirm(end))

    def read_lease(self) -> None:
        """Ask for the lease."""
        self._read_s = self.now_s
        self.act(ReadLease())

    def respected_s(self, *leases: Lease | None) -> float:
        """Return for how long leases are respected after their last change.

        Whoever wrote one may have been told to go by a longer time than this replica is.
        """
        said_s = (lease.lease_s for lease in leases if lease is not None)
        return max([self.times.lease_s, *said_s])

    def note_lease(self, lease: Lease | None) -> None:
        """Take note of the lease as it was read or written."""
        if lease is None or self.lease is None or lease.version != self.lease.version:
            self.lease_changed_s = self.now_s
        self.lease = lease

    def _may_have_lost(self) -> bool:
        durable = self.durable
        is_same_run = durable.trusted_boot in ("", self.settings.kernel_boot)
        has_lost = durable.confirmed > self.end and not self.settings.is_sync_flush
        return has_lost or not (is_same_run or durable.is_clean)
