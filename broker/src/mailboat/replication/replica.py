"""One replica of a group: events in, actions out (`mailboat.replication`)."""

from mailboat.replication.actions import Action, Lead, Note, Stop
from mailboat.replication.durable import Durable
from mailboat.replication.election import Election
from mailboat.replication.epochs import EpochStart
from mailboat.replication.events import (
    Event,
    HandOver,
    HolderDied,
    LeaseRead,
    LeaseWritten,
    Leave,
    LinkClosed,
    Linked,
    LogAppended,
    LogFlushed,
    Outcome,
    Promote,
    Received,
    Release,
    Ticked,
)
from mailboat.replication.following import Following
from mailboat.replication.frames import Answer, Ask, Frame, Refused, TakeOver
from mailboat.replication.hand_election import HandElection
from mailboat.replication.leading import Leading
from mailboat.replication.lease import Lease, Member
from mailboat.replication.state import ReplicaState, Settings


class Replica(ReplicaState):
    """A replica from the start of its process to its end.

    It observes until it follows somebody or leads, and is of no more use once it has `stopped`.
    """

    def __init__(self, settings: Settings, durable: Durable, end: int, now_s: float) -> None:
        """Begin with what the disk holds: all of the log below `end` is durable."""
        super().__init__(settings, durable, end, now_s)
        self.leading: Leading | None = None
        self.following: Following | None = None
        self.election: Election | HandElection = Election(self)
        if settings.by_hand is not None:
            self.election = HandElection(self, settings.by_hand)
        self._said_hello_s = now_s - self.times.hello_s
        self._greeted_epoch = 0
        self._marked_s = now_s

    # -- for everybody ------------------------------------------------------------------------

    @property
    def has_authority(self) -> bool:
        """Whether it may do what only one may do, and the recorded set does not confirm."""
        return self.leading is not None and self.leading.has_authority

    def refusal(self) -> str:
        """Say why no message may be stored now; empty if it may."""
        return "this replica does not lead" if self.leading is None else self.leading.refusal()

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Take an event at a time of the replica's own clock; return what is to be done."""
        self.now_s = max(self.now_s, now_s)
        if not self.stopped:
            self._handle(event)
        actions, self._actions = self._actions, []
        return actions

    # -- for the parts ------------------------------------------------------------------------

    @property
    def is_leading(self) -> bool:
        """Whether it leads."""
        return self.leading is not None

    @property
    def is_releasing(self) -> bool:
        """Whether it leads, and is about to give that up."""
        return self.leading is not None and self.leading.is_releasing

    def stop_following(self) -> None:
        """Acknowledge nothing more."""
        self.following = None

    def stop(self, reason: str) -> None:
        """End: the process begins anew as a follower."""
        self.stopped = reason
        self.leading = self.following = None
        self.act(Stop(reason))

    def stop_for(self, epoch: int) -> None:
        """End because a later epoch is led; by hand it is remembered.

        Who led last would go on by itself else, and be deposed again, as often as it comes to that
        before it hears from anybody.
        """
        if self.settings.by_hand is not None and epoch > self.durable.seen:
            self.persist(self.durable._replace(seen=epoch))
        self.stop(f"epoch {epoch} has begun")

    def lead(self, lease: Lease, sent_s: float, authority_from_s: float, *, lost: bool) -> None:
        """Begin to lead an epoch at the end of the log, which is kept whatever is confirmed."""
        self.following = None
        self.election.forget()
        epochs = tuple(entry for entry in self.durable.epochs if entry.start <= self.end)
        entry = EpochStart(lease.epoch, self.end)
        # Durable before the first byte of the epoch.
        durable = self.durable._replace(seen=lease.epoch, epochs=(*epochs, entry), is_whole=True)
        if self.settings.by_hand is not None and not durable.group:
            durable = durable._replace(group=self.settings.boot)
        self.persist(durable)
        self.note_lease(lease)
        before = self.leading
        if self.settings.by_hand is None and not lease.is_sole:
            # The write may have been applied late, and another one's beat been granted meanwhile.
            authority_from_s = max(authority_from_s, self.promised_until_s)
        self.leading = Leading(self, lease, self.end, sent_s, authority_from_s)
        self.act(Lead(lease.epoch, self.end, lost))
        if self.is_suspect:
            self.trust()  # What it has is the log of the group from now on.
        self.leading.advance()
        self.leading.go_on_releasing(before)

    # -- events -------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case Received(sender, frame):
                self._received(sender, frame)
            case Linked(peer) | LinkClosed(peer):
                is_closed = isinstance(event, LinkClosed)
                if self.leading is not None:
                    self.leading.note_link(peer, is_closed=is_closed)
                elif self.following is not None and not is_closed:
                    self.following.note_link(peer)
            case LogAppended(end):
                self.end = end
                if self.leading is not None:
                    self.leading.advance()
            case LogFlushed(end):
                self.flushed_end = max(self.flushed_end, min(end, self.end))
                if self.leading is not None:
                    self.leading.advance()
                elif self.following is not None:
                    self.following.acknowledge()
            case Ticked():
                self._ticked()
            case LeaseRead(lease):
                self._lease_read(lease)
            case LeaseWritten(request, outcome, lease):
                self._lease_written(request, outcome, lease)
            case HolderDied():
                self.holder_died_version = -1 if self.lease is None else self.lease.version
                # Whoever else finds that out is not to wait for what the dead said last.
                self.authority_heard_until_s = self.now_s
                self.election.consider()
            case HandOver(ordinal):
                if self.leading is not None:
                    self.leading.hand_over(ordinal)
            case Release(leaves):
                if self.leading is not None:
                    self.leading.release(leaves=leaves)
            case Leave():
                if self.following is not None:
                    self.following.leave()
            case Promote(accepts_loss, reachable):
                self.election.promote(accepts_loss=accepts_loss, reachable=reachable)

    def _ticked(self) -> None:
        if self.confirmed > self.durable.confirmed and self.now_s >= self._marked_s + 1:
            self._marked_s = self.now_s
            # No answer rests on it: sends and what follows them do not wait for the disk.
            self.durable = self.durable._replace(confirmed=self.confirmed)
            self.act(Note(self.durable))
        is_read_due = self.now_s >= self._read_s + self.times.renew_s
        if self.leading is not None:
            # Where a store keeps the lease, each write of it tells as much.
            if is_read_due and self.settings.by_hand is not None:
                self.read_lease()
            self.leading.tick()
            return
        if self.following is not None and self.following.is_lost:
            self.following = None
        if is_read_due:
            self.read_lease()
        self._look_for_leader()
        self.election.consider()

    def _look_for_leader(self) -> None:
        if self.is_halted or self.lease is None or self.lease.holder is None:
            return
        holder = self.lease.holder
        if holder.member == self.member:
            return
        following, epoch = self.following, self.lease.epoch
        if following is not None and following.is_joined and following.epoch >= epoch:
            return
        # Who has just begun to lead is greeted at once.
        if epoch > self._greeted_epoch or self.now_s >= self._said_hello_s + self.times.hello_s:
            self._greeted_epoch = epoch
            self.say_hello(holder.ordinal)

    def say_hello(self, ordinal: int) -> None:
        """Ask a replica to be taken up by it."""
        self._said_hello_s = self.now_s
        self.following = Following(self, ordinal)
        self.following.say_hello()

    def _lease_read(self, lease: Lease | None) -> None:
        if self.leading is not None:
            self.leading.lease_read(lease)
            return
        before, before_s = self.lease, self.lease_changed_s
        self.note_lease(lease)
        if lease is not None and lease.holder == self.me and lease.epoch > self.durable.seen:
            # Handed over, by one who has given up his authority before; or my own late write.
            is_mine = self.election.tried_epoch == lease.epoch
            from_s = self.now_s
            if not lease.is_sole:
                from_s = (before_s if is_mine else from_s) + self.respected_s(before, lease)
            self.lead(lease, self.now_s - self.times.hold_s, from_s, lost=self.is_suspect)
        else:
            self._look_for_leader()

    def _lease_written(self, request: int, outcome: Outcome, lease: Lease | None) -> None:
        if self.leading is not None:
            self.leading.lease_written(request, outcome, lease)
        else:
            self.election.lease_written(request, outcome, lease)

    def _received(self, sender: Member, frame: Frame) -> None:
        match frame:
            case Ask():
                self._promise(frame)
                self.send(sender.ordinal, self._answer(frame.attempt))
            case Answer():
                self.election.answered(sender, frame)
            case Refused(seen):
                if self.leading is not None and seen > self.leading.epoch:
                    self.stop_for(seen)
            case TakeOver(session, epoch):
                if self.following is not None and self.following.is_of(session, epoch):
                    self.election.take_over()
            case _ if self.leading is not None:
                self.leading.received(sender, frame)
            case _ if self.following is not None:
                self.following.received(sender, frame)

    def _promise(self, ask: Ask) -> None:
        """Follow nobody of an epoch before this one any more, unless somebody leads."""
        hears = self.leading is not None or self.now_s < self.authority_heard_until_s
        if self.durable.seen <= ask.known and self.durable.seen < ask.epoch and not hears:
            self.following = None
            self.persist(self.durable._replace(seen=ask.epoch))

    def _answer(self, attempt: int) -> Answer:
        hears = self.has_authority or self.now_s < self.authority_heard_until_s
        durable = self.durable
        return Answer(
            attempt,
            durable.seen,
            self.last_epoch,
            self.end,
            max(self.confirmed, durable.confirmed),
            self.is_suspect,
            durable.is_whole,
            hears,
            self.tables,
        )
