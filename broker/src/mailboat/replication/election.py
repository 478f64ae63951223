"""When a replica may try to lead, and how it tries: whom it asks, and what it writes."""

from mailboat.replication.actions import WriteLease
from mailboat.replication.events import Outcome
from mailboat.replication.frames import Answer, Ask
from mailboat.replication.lease import Lease, Member
from mailboat.replication.state import ReplicaState


class Election:
    """The attempts of one replica, one at a time."""

    def __init__(self, replica: ReplicaState) -> None:
        """Begin without an attempt."""
        self._replica = replica
        self._attempt = 0
        self._asked_s = 0.0
        self._answers: dict[Member, Answer] = {}
        self._request = 0
        self._sent_s = 0.0
        self._authority_from_s = 0.0
        self._retry_s = replica.now_s
        self._has_let_go_first = False
        self.tried_epoch = 0
        """The epoch of the last write of the lease."""

    def forget(self) -> None:
        """End the attempt, whatever comes of it."""
        self._attempt = self._request = 0
        self._retry_s = self._replica.now_s + self._replica.times.retry_s

    def consider(self) -> None:
        """Begin to try, or go on."""
        replica = self._replica
        if self._request or replica.is_leading or replica.stopped:
            return
        lease = replica.lease
        if lease is None or not self.may_try(lease):
            self._attempt = 0
        elif not self._attempt:
            if replica.now_s >= self._retry_s:
                self._ask(lease)
        elif replica.now_s >= self._asked_s + replica.times.ask_s:
            self._decide(lease)

    def may_try(self, lease: Lease) -> bool:
        """Tell whether the lease, and what was promised, leave it to this replica."""
        replica = self._replica
        if (
            replica.is_halted
            or replica.member not in lease.in_sync
            # A lease that went back in time says nothing.
            or lease.epoch < replica.durable.seen
        ):
            return False
        holder = lease.holder
        if holder is not None and holder.member == replica.member:
            return holder != replica.me  # That process is over.
        if holder is not None and replica.holder_died_version == lease.version:
            return True
        if replica.now_s < replica.promised_until_s:
            return False
        return holder is None or replica.now_s >= replica.lease_changed_s + replica.times.lease_s

    def promote(self, *, accepts_loss: bool) -> None:
        """Do nothing: the lease says who leads."""

    def take_over(self) -> None:
        """Do nothing: the lease says who leads."""

    def answered(self, sender: Member, answer: Answer) -> None:
        """Take the answer of another replica."""
        if answer.attempt == self._attempt:
            self._answers[sender] = answer

    def lease_written(self, request: int, outcome: Outcome, lease: Lease | None) -> None:
        """Lead if the write was applied; otherwise only a read can tell."""
        if not request or request != self._request:
            return
        self.forget()
        if outcome is Outcome.APPLIED and lease is not None:
            lost = self._replica.is_suspect
            self._replica.lead(lease, self._sent_s, self._authority_from_s, lost=lost)
        else:
            self._replica.read_lease()

    def _ask(self, lease: Lease) -> None:
        replica = self._replica
        self._attempt = replica.next_number()
        self._asked_s = replica.now_s
        self._answers = {}
        for member in sorted(lease.in_sync):
            if member != replica.member:
                replica.send(member.ordinal, Ask(self._attempt))

    def _decide(self, lease: Lease) -> None:
        answers = self._answers
        self.forget()
        if self._is_left_to_me(lease, answers):
            self._has_let_go_first = False
            self._write(lease)

    def _is_left_to_me(self, lease: Lease, answers: dict[Member, Answer]) -> bool:
        replica = self._replica
        if any(
            answer.seen > lease.epoch
            or answer.hears_authority
            # It was dropped from the set meanwhile, lost its end, or is an old copy of its volume.
            or answer.confirmed > replica.end
            for answer in answers.values()
        ):
            replica.read_lease()
            return False
        mine = replica.last_epoch, replica.end, -replica.member.ordinal
        ranks = [
            (answer.last_epoch, answer.end, -member.ordinal)
            for member, answer in answers.items()
            if member in lease.in_sync and answer.is_suspect == replica.is_suspect
        ]
        if replica.is_suspect:
            # Only where all may have lost something, and who has most is known.
            return len(ranks) == len(lease.in_sync) - 1 and all(mine > rank for rank in ranks)
        if any(rank > mine for rank in ranks) and not self._has_let_go_first:
            self._has_let_go_first = True
            return False
        return True

    def _write(self, lease: Lease) -> None:
        replica = self._replica
        # Nothing more is acknowledged to the one who led.
        replica.stop_following()
        in_sync = lease.in_sync
        is_others = lease.holder is not None and lease.holder.member != replica.member
        if lease.holder is not None and is_others and len(in_sync) > lease.min_in_sync:
            in_sync -= {lease.holder.member}
        epoch = max(lease.epoch, replica.durable.seen) + 1
        taken = lease._replace(
            holder=replica.me, epoch=epoch, in_sync=in_sync, renewals=lease.renewals + 1
        )
        self.tried_epoch = epoch
        self._request = replica.next_number()
        self._sent_s = self._authority_from_s = replica.now_s
        if is_others:
            over_s = replica.lease_changed_s + replica.times.lease_s
            self._authority_from_s = max(over_s, replica.promised_until_s)
        replica.act(WriteLease(self._request, lease.version, taken))
