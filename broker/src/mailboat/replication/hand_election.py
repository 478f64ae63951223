"""When a replica leads where a person says so, and no store keeps a lease.

Each message is confirmed on `min_in_sync` replicas at least, the leader among them. Who is to lead
after another one needs answers of all but `min_in_sync - 1` of the replicas: one of them has each
message that was confirmed, and the longest log of the newest epoch has them all. They promise to
follow no earlier epoch before the new one begins. So nothing is lost, whoever is in sync.

Who led last, or begins a new group, goes on by itself once `min_in_sync - 1` others say that they
know of no later epoch: without that many nobody else can have been promoted.

The number of an epoch says whose it is, so that no two replicas ever lead the same one.
"""

from typing import Final

from mailboat.replication.epochs import epoch_after, leader_of
from mailboat.replication.events import Outcome
from mailboat.replication.frames import Answer, Ask
from mailboat.replication.lease import Lease, Member
from mailboat.replication.state import ByHand, ReplicaState

# Between the epoch of who leads at the risk of losing something, and those before.
_GAP: Final = 8_000


class HandElection:
    """The attempts of one replica, one at a time."""

    def __init__(self, replica: ReplicaState, group: ByHand) -> None:
        """Begin without an attempt."""
        self._replica = replica
        self._group = group
        self._attempt = 0
        self._asked_s = 0.0
        self._answers: dict[Member, Answer] = {}
        self._epoch = 0
        self._is_wanted = self._accepts_loss = False
        self._retry_s = replica.now_s
        self.tried_epoch = 0
        self.outcome = ""
        """Why the last promotion was refused, empty while none was."""

    def forget(self) -> None:
        """End the attempt."""
        self._attempt = self._epoch = 0
        self._retry_s = self._replica.now_s + self._replica.times.retry_s

    def lease_written(self, request: int, outcome: Outcome, lease: Lease | None) -> None:
        """Do nothing: there is no lease to write."""

    def promote(self, *, accepts_loss: bool) -> None:
        """Begin to lead, if the others let it."""
        self.outcome = ""
        if not self._replica.is_leading:
            self._is_wanted, self._accepts_loss = True, accepts_loss
            self._ask(0)

    def answered(self, sender: Member, answer: Answer) -> None:
        """Take the answer of another replica."""
        if answer.attempt == self._attempt:
            self._answers[sender] = answer

    def consider(self) -> None:
        """Begin to try, or go on."""
        replica = self._replica
        if replica.is_leading or replica.stopped or replica.is_halted:
            return
        if not self._attempt:
            if self._may_go_on and replica.now_s >= self._retry_s:
                self._ask(0)
        elif replica.now_s >= self._asked_s + replica.times.ask_s:
            self._decide()

    @property
    def _may_go_on(self) -> bool:
        """Whether it led last, or is the one that begins."""
        replica = self._replica
        seen = replica.durable.seen
        if replica.last_epoch:
            is_last = leader_of(replica.last_epoch) == replica.member.ordinal
        else:
            is_last = self._group.begins
        return is_last and (not seen or leader_of(seen) == replica.member.ordinal)

    @property
    def _others_needed(self) -> int:
        if self._accepts_loss and self._is_wanted:
            return 0
        if self._is_wanted:
            return self._group.replicas - self._group.min_in_sync
        return self._group.min_in_sync - 1

    def _ask(self, epoch: int) -> None:
        replica = self._replica
        self._attempt, self._epoch = replica.next_number(), epoch
        self._asked_s = replica.now_s
        self._answers = {}
        for ordinal in range(self._group.replicas):
            if ordinal != replica.member.ordinal:
                replica.send(ordinal, Ask(self._attempt, epoch))

    def _decide(self) -> None:
        epoch, answers = self._epoch, self._answers
        self.forget()
        refusal = self._refusal(answers)
        if refusal:
            if self._is_wanted:
                self._is_wanted, self.outcome = False, refusal
        elif epoch and all(answer.seen == epoch for answer in answers.values()):
            self._lead(epoch)
        else:
            # The others have not promised anything yet.
            self._stop_following(answers)

    def _stop_following(self, answers: dict[Member, Answer]) -> None:
        replica = self._replica
        replica.stop_following()
        seen = max([replica.durable.seen, *(answer.seen for answer in answers.values())])
        if self._accepts_loss and self._is_wanted:
            seen += _GAP
        epoch = self.tried_epoch = epoch_after(seen, replica.member.ordinal)
        replica.persist(replica.durable._replace(seen=epoch))
        self._ask(epoch)

    def _refusal(self, answers: dict[Member, Answer]) -> str:
        """Say why it must not lead, empty if it may."""
        replica = self._replica
        for member, answer in answers.items():
            name = f"replica {member.ordinal}"
            if answer.hears_authority:
                return f"{name} leads, or hears from who does: stop that one first"
            if not self._is_wanted and answer.seen > max(replica.durable.seen, self._epoch):
                return f"{name} knows of epoch {answer.seen}"
            mine = replica.last_epoch, replica.end
            if not self._accepts_loss and (
                (answer.last_epoch, answer.end) > mine or answer.confirmed > replica.end
            ):
                return f"{name} has more of the log: let it lead"
            if (
                self._is_wanted
                and not self._accepts_loss
                and (*mine, *replica.tables) < (answer.last_epoch, answer.end, *answer.tables)
            ):
                return f"{name} has newer topics, groups, offsets or locks: let it lead"
        if replica.is_suspect and not self._accepts_loss:
            return "this replica may have lost what it had not flushed"
        # An empty replica has everything as long as nobody has led.
        is_new = not replica.last_epoch
        counted = [
            answer
            for answer in answers.values()
            if not answer.is_suspect or (is_new and not answer.last_epoch and not answer.end)
        ]
        missing = self._others_needed - len(counted)
        if missing > 0:
            return f"{missing} more replicas must answer that have everything"
        return ""

    def _lead(self, epoch: int) -> None:
        replica = self._replica
        self._is_wanted = False
        version = 0 if replica.lease is None else replica.lease.version
        in_sync = frozenset({replica.member})
        lease = Lease(version + 1, replica.me, epoch, in_sync, self._group.min_in_sync)
        lost = self._accepts_loss
        replica.lead(lease, replica.now_s, replica.now_s, lost=lost)
