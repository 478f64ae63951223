"""A leader: who has what, what is confirmed, who belongs to the set, and whether it may go on."""

import math
from dataclasses import dataclass

from mailboat.replication.actions import Stream, WriteLease
from mailboat.replication.epochs import epoch_after
from mailboat.replication.events import Outcome
from mailboat.replication.frames import Ack, Beat, Frame, Hello, Refused, TakeOver, Welcome
from mailboat.replication.lease import LARGEST_LEAP, Holder, Lease, Member
from mailboat.replication.state import ReplicaState


@dataclass(slots=True)
class _Session:
    """What the leader knows of one follower."""

    number: int
    boot: str
    heard_s: float
    granted_s: float
    """When the newest beat was sent that it has granted."""

    is_streaming: bool = False
    closed_s: float = math.inf
    """Since when there has been no link to it; never while there is one, or it is heard."""


@dataclass(frozen=True, slots=True)
class _Write:
    """A write of the lease that has no answer yet."""

    request: int
    sent_s: float
    in_sync: frozenset[Member]
    ends: str
    """Why the leader stops if it was applied; empty for a renewal."""

    begins: bool
    """Whether a new epoch of the same leader begins."""


class Leading:
    """One epoch of one leader."""

    def __init__(
        self,
        replica: ReplicaState,
        lease: Lease,
        start: int,
        sent_s: float,
        authority_from_s: float,
    ) -> None:
        """Lead the epoch of a lease whose write was sent at a time."""
        self._replica = replica
        self._lease = lease
        self.epoch = lease.epoch
        self.start = start
        self.recorded = lease.in_sync
        # Sets of writes that may have been applied, or may yet be.
        self._pending: set[frozenset[Member]] = set()
        self.acked: dict[Member, int] = {}
        self.uninformed: set[Member] = set()
        """Who does not have the tables beside the log yet, and so must not come into the set."""

        self._leaving: set[Member] = set()
        self._sessions: dict[Member, _Session] = {}
        self._led_s = replica.now_s
        self._renewal_sent_s = sent_s
        self._authority_from_s = authority_from_s
        self._write: _Write | None = None
        self._wrote_s = sent_s
        self._beat_s = replica.now_s - replica.times.beat_s
        self._told_confirmed = -1
        self._beats_sent_s: dict[int, float] = {}
        # Where the log ended at the last beats; of each follower, when the log ended where it is.
        self._ends: list[tuple[float, int]] = []
        self._current_s: dict[Member, float] = {}
        self._successor: Member | None = None
        self._parked_until_s = 0.0
        self._has_renounced = self._is_releasing = self._is_to_leave = False
        # A write that ends this may have been applied, or may yet be.
        self._may_have_ended = False
        # When the lease was last written in another way than to renew it.
        self._tried_s = replica.now_s - replica.times.retry_s

    # -- what is confirmed ----------------------------------------------------------------------

    def required(self) -> frozenset[Member]:
        """Who must have a message: the recorded set, and all that may already be recorded."""
        return self.recorded.union(*self._pending)

    @property
    def has_enough(self) -> bool:
        """Whether as many count as the set has at least: who was promoted by hand begins alone."""
        return len(self.required()) >= self._lease.min_in_sync

    def advance(self) -> None:
        """Confirm what everybody has who counts."""
        replica = self._replica
        end = replica.kept_end
        if replica.settings.is_sync_master:
            if not self.has_enough:
                return
            for member in self.required():
                if member != replica.member:
                    end = min(end, self.acked.get(member, 0))
        replica.confirm(end)

    def refusal(self) -> str:
        """Say why no message may be stored now; empty if it may."""
        replica = self._replica
        if self._successor is not None or self._is_releasing:
            return "another replica is about to lead"
        if not (self._is_sure if replica.settings.is_sync_master else self.has_authority):
            return "this replica may not be the leader any more"
        if not replica.settings.is_sync_master:
            return ""
        if len(self.recorded) < self._lease.min_in_sync:
            return "not enough replicas are in sync"
        if any(self._is_silent(member, replica.times.refuse_s) for member in self._others):
            return "a replica in the in-sync set does not answer"
        if any(self._lags(member) for member in self._others):
            return "a replica in the in-sync set lags behind"
        return ""

    @property
    def renewals(self) -> int:
        """How often the lease had been written when it was last known to be this one's."""
        return self._lease.renewals

    @property
    def successors(self) -> frozenset[Member]:
        """Who may be handed over to: members of the set that are not about to end."""
        return self.recorded - {self._replica.member} - self._leaving

    @property
    def is_handing_over(self) -> bool:
        """Whether another one is about to lead."""
        return self._successor is not None

    @property
    def is_releasing(self) -> bool:
        """Whether the lease is about to be given up."""
        return self._is_releasing

    # -- authority ------------------------------------------------------------------------------

    @property
    def has_authority(self) -> bool:
        """Whether nobody else can believe to be the only leader."""
        return self._is_sole and self._is_sure

    @property
    def _is_sole(self) -> bool:
        """Whether nobody who led before can have authority any more."""
        return self._replica.now_s >= self._authority_from_s

    @property
    def _is_sure(self) -> bool:
        """Whether the lease is fresh, or everybody who might lead has promised not to."""
        if self._has_renounced:
            return False
        times, now_s = self._replica.times, self._replica.now_s
        if now_s < self._renewal_sent_s + times.hold_s:
            return True
        return all(
            member in self._sessions and now_s < self._sessions[member].granted_s + times.grant_s
            for member in self._others
        )

    @property
    def _others(self) -> frozenset[Member]:
        return self.required() - {self._replica.member}

    def _is_silent(self, member: Member, longer_than_s: float) -> bool:
        session = self._sessions.get(member)
        heard_s = self._led_s if session is None else session.heard_s
        return self._replica.now_s >= heard_s + longer_than_s

    def _lags(self, member: Member) -> bool:
        """Tell whether what a follower has is as old as somebody may be silent."""
        current_s = self._current_s.get(member, self._led_s)
        return self._replica.now_s >= current_s + self._replica.times.evict_s

    def _note_lags(self) -> None:
        now_s, evict_s = self._replica.now_s, self._replica.times.evict_s
        self._ends = [(at_s, end) for at_s, end in self._ends if at_s > now_s - evict_s]
        self._ends.append((now_s, self._replica.end))
        for member, acked in self.acked.items():
            current_s = [at_s for at_s, end in self._ends if end <= acked]
            self._current_s[member] = max([self._current_s.get(member, self._led_s), *current_s])

    def _is_gone(self, member: Member) -> bool:
        """Tell whether a follower has left, or keeps everybody else waiting for too long."""
        replica, session = self._replica, self._sessions.get(member)
        closed_s = math.inf if session is None else session.closed_s
        return (
            member in self._leaving
            or replica.now_s >= closed_s + replica.times.evict_closed_s
            or self._is_silent(member, replica.times.evict_s)
        )

    # -- followers ------------------------------------------------------------------------------

    def note_link(self, peer: Member, *, is_closed: bool) -> None:
        """Take note of a link to a follower that ended, or came back."""
        session = self._sessions.get(peer)
        if session is not None:
            session.closed_s = self._replica.now_s if is_closed else math.inf

    def received(self, sender: Member, frame: Frame) -> None:
        """Take a frame of a follower."""
        match frame:
            case Hello():
                self._greet(sender, frame)
            case Ack() if frame.epoch == self.epoch:
                self._acknowledged(sender, frame)
            case Beat() | Welcome() if frame.epoch < self.epoch:
                self._replica.send(sender.ordinal, Refused(self.epoch))
            case Beat() | Welcome() if frame.epoch > self.epoch:
                self._replica.stop_for(frame.epoch)

    def _greet(self, sender: Member, hello: Hello) -> None:
        replica = self._replica
        if hello.seen > self.epoch:
            self._hear_of(hello.seen)
            return
        before = self._sessions.get(sender)
        if before is not None and (before.boot, before.number) == (hello.boot, hello.session):
            return  # The same one twice.
        granted_s = replica.now_s - replica.times.grant_s
        self._sessions[sender] = _Session(hello.session, hello.boot, replica.now_s, granted_s)
        self._leaving.discard(sender)
        # What it had is not what it has: it may have been cut, or lost with the volume.
        for member in [member for member in self._sessions if member.ordinal == sender.ordinal]:
            self.acked.pop(member, None)
            if member != sender:
                del self._sessions[member]
        epochs = replica.durable.epochs
        start, end = replica.log_start, replica.end
        group = replica.durable.group
        welcome = Welcome(hello.session, group, self.epoch, epochs, start, end, replica.confirmed)
        replica.send(sender.ordinal, welcome)

    def _acknowledged(self, sender: Member, ack: Ack) -> None:
        replica = self._replica
        session = self._sessions.get(sender)
        if session is None or ack.session != session.number or ack.end > replica.end:
            return  # Too late, or of a log that is not this one.
        session.heard_s = replica.now_s
        session.closed_s = math.inf
        session.granted_s = max(session.granted_s, self._beats_sent_s.get(ack.granted, 0.0))
        if not session.is_streaming:
            session.is_streaming = True
            replica.act(Stream(sender.ordinal, session.number, self.epoch, ack.end))
        if not ack.counts and sender not in self._leaving:
            self._leaving.add(sender)
            self.tick()
        elif ack.counts and ack.end > self.acked.get(sender, -1):
            self._leaving.discard(sender)
            self.acked[sender] = ack.end
            self.advance()
            if sender not in self.recorded:
                self.tick()

    def _send_beats(self) -> None:
        replica = self._replica
        now_s = self._beat_s = replica.now_s
        self._told_confirmed = replica.confirmed
        self._note_lags()
        number = replica.next_number()
        self._beats_sent_s[number] = now_s
        oldest_s = now_s - replica.times.grant_s
        self._beats_sent_s = {n: at_s for n, at_s in self._beats_sent_s.items() if at_s > oldest_s}
        for member, session in self._sessions.items():
            if session.is_streaming:
                is_heard = now_s < session.heard_s + replica.times.grant_s
                beat = Beat(
                    session.number,
                    self.epoch,
                    number,
                    replica.end,
                    replica.confirmed,
                    self.has_authority,
                    is_heard,
                )
                replica.send(member.ordinal, beat)

    # -- time -----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Send beats, renew the lease, see who belongs to the set, hand over."""
        replica = self._replica
        if (
            replica.now_s >= self._beat_s + replica.times.beat_s
            or replica.confirmed > self._told_confirmed
        ):
            self._send_beats()
        if self._write is not None:
            if replica.now_s >= self._parked_until_s:
                self._successor = None  # Whatever becomes of the write, nobody waits any longer.
            return
        if self._successor is not None:
            self._try_to_hand_over(self._successor)
            return
        if self._is_releasing and self._is_sole and self._may_try_again:
            self._release()
            return
        in_sync = self._wanted_set()
        is_due = replica.now_s >= self._wrote_s + replica.times.renew_s
        if is_due or (in_sync != self.recorded and not self._pending):
            self._renew(in_sync)

    def _wanted_set(self) -> frozenset[Member]:
        """Return the set as it should be: without who is silent or lags, with who keeps up."""
        replica = self._replica
        wanted = set(self.recorded)
        for member in sorted(self.recorded - {replica.member}):
            is_needed = len(wanted) <= self._lease.min_in_sync
            if not is_needed and (self._is_gone(member) or self._lags(member)):
                wanted.remove(member)
        for member, end in self.acked.items():
            if (
                member not in wanted
                and member not in self.uninformed
                and not self._is_gone(member)
                and end >= max(replica.confirmed, self.start)
                and not self._is_silent(member, replica.times.refuse_s)
                and not self._lags(member)
            ):
                wanted = {other for other in wanted if other.ordinal != member.ordinal}
                wanted.add(member)
        return frozenset(wanted)

    # -- the lease ------------------------------------------------------------------------------

    @property
    def _may_try_again(self) -> bool:
        """Whether the store is not asked again and again for what it has just refused."""
        return self._replica.now_s >= self._tried_s + self._replica.times.retry_s

    def _renew(self, in_sync: frozenset[Member]) -> None:
        renewed = self._lease._replace(
            in_sync=in_sync,
            renewals=self._lease.renewals + 1,
            is_sole=self._is_sole,
        )
        self._write_lease(self._lease.version, renewed)

    def _write_lease(
        self, replaced: int | None, lease: Lease, *, ends: str = "", begins: bool = False
    ) -> None:
        replica = self._replica
        request = replica.next_number()
        self._wrote_s = replica.now_s
        self._write = _Write(request, replica.now_s, lease.in_sync, ends, begins)
        # Whoever may be in the set from now on counts from now on.
        self._pending.add(lease.in_sync)
        replica.act(WriteLease(request, replaced, lease))

    def lease_written(self, request: int, outcome: Outcome, lease: Lease | None) -> None:
        """Go by what became of a write; where nobody knows, only a newer version tells."""
        replica = self._replica
        write = self._write
        if write is None or request != write.request:
            return
        self._write = None
        if outcome is Outcome.REFUSED:
            # A pod that was deleted has no right any more: waiting does not bring it back.
            self._successor = None
            self._is_releasing = False
            # What was given up by a write without an answer may be another one's.
            self._has_renounced = self._may_have_ended
        elif outcome is Outcome.UNKNOWN and write.ends:
            self._may_have_ended = True
        if outcome is not Outcome.APPLIED or lease is None:
            replica.read_lease()
        elif write.ends:
            replica.stop(write.ends)
        elif write.begins:
            replica.lead(lease, write.sent_s, self._authority_from_s, lost=False)
        else:
            self._renewal_sent_s = write.sent_s
            self._adopt(lease)

    def lease_read(self, lease: Lease | None) -> None:
        """Go on only while the lease says so."""
        replica = self._replica
        # By the number of renewals too: what an older set allows is not allowed any more.
        mine = self.epoch, self._lease.renewals
        if lease is None or (lease.epoch, lease.renewals) < mine:
            self._write_anew(lease)
        elif lease.epoch > self.epoch or lease.holder != replica.me:
            replica.note_lease(lease)
            replica.stop_for(lease.epoch)
        elif lease.version > self._lease.version:
            self._adopt(lease)

    def _adopt(self, lease: Lease) -> None:
        """Take over a newer version: no write of an older one can be applied any more."""
        self._replica.note_lease(lease)
        self._lease = lease
        self.recorded = lease.in_sync
        self._pending = set() if self._write is None else {self._write.in_sync}
        self._has_renounced = self._may_have_ended = False
        self.advance()

    def _write_anew(self, lease: Lease | None) -> None:
        """Write the lease again that was deleted, or went back in time, as a new epoch."""
        replica = self._replica
        if self._write is not None or replica.settings.by_hand is not None:
            return  # By hand it was told so before this epoch began.
        if not self._may_try_again:
            return  # The next renewal fails, and leads here again.
        self._tried_s = replica.now_s
        seen = max(replica.durable.seen, 0 if lease is None else lease.epoch)
        anew = self._lease._replace(
            epoch=seen + 1, in_sync=self.required(), renewals=self._lease.renewals + 1
        )
        self._write_lease(None if lease is None else lease.version, anew, begins=True)

    def _hear_of(self, epoch: int) -> None:
        """Stop where a later epoch is led; else lead one after it.

        Where a store keeps the lease, that tells: it may be of another life of the group, on a
        volume that was kept.
        """
        replica = self._replica
        if replica.settings.by_hand is not None:
            replica.stop_for(epoch)
        elif epoch > self.epoch + LARGEST_LEAP:
            return  # No group has come to that.
        elif self._write is None and self._may_try_again and self._is_staying:
            # Applied where nobody else has written it; the other one says so again until then.
            self._tried_s = replica.now_s
            anew = self._lease._replace(
                epoch=max(epoch, replica.durable.seen) + 1,
                in_sync=self.required(),
                renewals=self._lease.renewals + 1,
            )
            self._write_lease(self._lease.version, anew, begins=True)

    @property
    def _is_staying(self) -> bool:
        return self._successor is None and not self._is_releasing and not self._has_renounced

    # -- handing over ---------------------------------------------------------------------------

    def hand_over(self, ordinal: int) -> None:
        """Let a member lead as soon as it has everything; store nothing until then.

        Where a person says who leads, it is told to try; nobody leads until it has found enough
        others, and nobody but a person says so again.
        """
        replica = self._replica
        for member in self.successors:
            if member.ordinal == ordinal and member in self._sessions:
                self._successor = member
                self._parked_until_s = replica.now_s + replica.times.hand_over_s

    def release(self, *, leaves: bool) -> None:
        """Let whoever is in the set lead without waiting for the lease to be over.

        Not while somebody who led before may have authority: whoever finds no holder does not wait
        for that.
        """
        self._is_releasing, self._is_to_leave = True, leaves
        self.tick()

    def go_on_releasing(self, before: "Leading | None") -> None:
        """Do in a new epoch what was to be done in the one before."""
        if before is not None and before._is_releasing:
            self.release(leaves=before._is_to_leave)

    def _release(self) -> None:
        self._tried_s = self._replica.now_s
        self._has_renounced = True
        lease = self._lease
        in_sync = self._others_in_sync() if self._is_to_leave else lease.in_sync
        renewals = lease.renewals + 1
        released = lease._replace(holder=None, in_sync=in_sync, renewals=renewals, is_sole=True)
        self._write_lease(lease.version, released, ends="released")

    def _others_in_sync(self) -> frozenset[Member]:
        """Return the set without this replica, where it is large enough: all have everything."""
        lease = self._lease
        is_needed = len(lease.in_sync) <= lease.min_in_sync
        return lease.in_sync if is_needed else lease.in_sync - {self._replica.member}

    def _try_to_hand_over(self, successor: Member) -> None:
        replica = self._replica
        is_member = successor in self.recorded and successor in self._sessions
        if replica.now_s >= self._parked_until_s or not is_member:
            self._successor = None
        elif self.acked.get(successor, -1) == replica.end == replica.confirmed:
            # Given up before anybody else can have it.
            self._has_renounced = True
            session = self._sessions[successor]
            if replica.settings.by_hand is not None:
                # Else it might go on by itself after its next start.
                seen = epoch_after(self.epoch, successor.ordinal)
                replica.persist(replica.durable._replace(seen=seen))
                replica.send(successor.ordinal, TakeOver(session.number, self.epoch))
                replica.stop("handed over")
                return
            handed = self._lease._replace(
                holder=Holder(*successor, session.boot),
                epoch=self.epoch + 1,
                # Nobody is to wait until this one is back.
                in_sync=self._others_in_sync(),
                renewals=self._lease.renewals + 1,
                is_sole=self._is_sole,
            )
            self._write_lease(self._lease.version, handed, ends="handed over")
