"""When a replica may try to lead, and how it tries: whom it asks, and what it writes."""

from typing import Final

from mailboat.replication.actions import WriteLease
from mailboat.replication.events import Outcome
from mailboat.replication.frames import Answer, Ask
from mailboat.replication.lease import Lease, Member
from mailboat.replication.state import ReplicaState

# Between the epoch of who leads at the risk of losing something, and those before.
_GAP: Final = 1000


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
        self._is_forced = False
        self.tried_epoch = 0
        """The epoch of the last write of the lease."""

        self.outcome = ""
        """Why a person could not have this replica lead at the last try, empty while none was
        refused, and once this one leads."""

        self.refused_s = 0.0
        """When that was."""

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
        if self._is_forced:
            if replica.now_s >= self._asked_s + replica.times.ask_s:
                self._decide_for_person()
        elif lease is None or not self.may_try(lease):
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
        if holder == replica.me:
            return False
        if holder is not None and holder.is_other_run_of(replica.me):
            return True
        if holder is not None and replica.holder_died_version == lease.version:
            return True
        if replica.now_s < replica.promised_until_s:
            return False
        over_s = replica.lease_changed_s + replica.respected_s(lease)
        return holder is None or replica.now_s >= over_s

    def promote(self, *, accepts_loss: bool, reachable: frozenset[int] | None) -> None:
        """Lead whatever the lease says, unless somebody who answers hears of a leader.

        Without accepting the loss of what only others have it does nothing: the lease says who
        leads.
        """
        replica = self._replica
        if not accepts_loss or replica.is_leading or self._request:
            return
        self.outcome = ""
        self._is_forced, replica.is_halted = True, False
        self._attempt, self._answers = replica.next_number(), {}
        self._asked_s = replica.now_s
        for ordinal in sorted(reachable or ()):
            replica.send(ordinal, Ask(self._attempt))

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
            lost = self._replica.is_suspect or self._is_forced
            self._is_forced, self.outcome = False, ""
            self._replica.lead(lease, self._sent_s, self._authority_from_s, lost=lost)
        else:
            if self._is_forced:
                self._refuse("the Lease could not be written, or was written by somebody else")
            self._replica.read_lease()

    def _decide_for_person(self) -> None:
        replica, answers = self._replica, self._answers
        self.forget()
        hearing = sorted(m.ordinal for m, answer in answers.items() if answer.hears_authority)
        if hearing or replica.now_s < replica.authority_heard_until_s:
            ordinal = hearing[0] if hearing else replica.member.ordinal
            self._refuse(f"replica {ordinal} leads, or hears from who does: stop that one first")
            return
        replica.stop_following()
        before = replica.lease
        known = max([replica.durable.seen, *(answer.seen for answer in answers.values())])
        if before is None:
            before = Lease(0, None, 0, frozenset(), replica.settings.min_in_sync)
        taken = before._replace(
            holder=replica.me,
            epoch=max(before.epoch, known) + _GAP,
            in_sync=frozenset({replica.member}),
            renewals=before.renewals + 1,
            is_sole=False,
        )
        self._send_write(None if replica.lease is None else before.version, taken)

    def _refuse(self, reason: str) -> None:
        self._is_forced, self.outcome, self.refused_s = False, reason, self._replica.now_s

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
        holder = lease.holder
        is_others = holder is not None and holder.member != replica.member
        if holder is not None and is_others and len(in_sync) > lease.min_in_sync:
            in_sync -= {holder.member}
        epoch = max(lease.epoch, replica.durable.seen) + 1
        # It may be its own former process that had not waited long enough.
        is_sole = holder is None or (holder.is_other_run_of(replica.me) and lease.is_sole)
        taken = lease._replace(
            holder=replica.me,
            epoch=epoch,
            in_sync=in_sync,
            renewals=lease.renewals + 1,
            is_sole=is_sole,
        )
        self._send_write(lease.version, taken)

    def _send_write(self, replaced: int | None, taken: Lease) -> None:
        replica = self._replica
        self.tried_epoch = taken.epoch
        self._request = replica.next_number()
        self._sent_s = self._authority_from_s = replica.now_s
        if not taken.is_sole:
            over_s = replica.lease_changed_s + replica.respected_s(replica.lease)
            self._authority_from_s = max(over_s, replica.promised_until_s)
        replica.act(WriteLease(self._request, replaced, taken))
