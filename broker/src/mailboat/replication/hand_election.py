"""When a replica leads where a person says so, and no store keeps a lease.

Each message is confirmed on `min_in_sync` replicas at least, the leader among them. Who is to lead
after another one needs answers of `replicas - min_in_sync + 1` of them, itself included, that still
have whatever they acknowledged: one of these has each message that was confirmed, and who has as
much as any of them, by the newest epoch and then by length, has them all. They promise to follow no
earlier epoch before the new one begins. So nothing is lost, whoever is in sync.

Who led last goes on by itself once `min_in_sync - 1` others say that they know of no later epoch,
and promise: without one of so many nobody else can have been promoted. Where everybody answers, and
nobody lost power, there is nothing else to be known: so a new group begins.

A volume that is not whole, as one that replaces another, has forgotten what was promised on the
other one. It counts for nothing before it has asked everybody for the newest epoch, and got from
its leader, or a later one, all that was confirmed.

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
    """The attempts of one replica, one at a time: it asks who knows better, then for promises."""

    def __init__(self, replica: ReplicaState, group: ByHand) -> None:
        """Begin without an attempt."""
        self._replica = replica
        self._group = group
        self._attempt = 0
        self._asked_s = 0.0
        self._answers: dict[int, Answer] = {}
        self._reachable: frozenset[int] = frozenset()
        self._told: dict[int, int] = {}
        self._epoch = 0
        self._known = 0
        self._is_wanted = self._accepts_loss = False
        self._wanted_until_s = replica.now_s
        self._retry_s = replica.now_s
        self.tried_epoch = 0
        self.outcome = ""
        """Why the last promotion was refused, empty while none was, and once this one leads."""

        self.refused_s = 0.0
        """When that was."""

    def forget(self) -> None:
        """End the attempt."""
        self._attempt = 0
        self._retry_s = self._replica.now_s + self._replica.times.retry_s

    def lease_written(self, request: int, outcome: Outcome, lease: Lease | None) -> None:
        """Do nothing: there is no lease to write."""

    def promote(self, *, accepts_loss: bool, reachable: frozenset[int] | None = None) -> None:
        """Begin to lead, if the others let it."""
        replica = self._replica
        self.outcome = ""
        if not replica.is_leading:
            self._is_wanted, self._accepts_loss = True, accepts_loss
            replica.is_halted = False
            self._ask(0, reachable)

    def take_over(self) -> None:
        """Try to lead for a while: the leader has just stopped, and others may not know it yet."""
        self._wanted_until_s = self._replica.now_s + self._replica.times.lease_s
        self.promote(accepts_loss=False)

    def answered(self, sender: Member, answer: Answer) -> None:
        """Take the answer of another replica."""
        if answer.attempt != self._attempt:
            return
        self._answers[sender.ordinal] = answer
        self._told[sender.ordinal] = answer.seen
        replica = self._replica
        if not replica.knows_newest and len(self._told) == self._group.replicas - 1:
            replica.knows_newest = True
            seen = max(replica.durable.seen, *self._told.values())
            replica.persist(replica.durable._replace(seen=seen))
        if self._reachable <= self._answers.keys():
            self._decide()  # Nobody else can be expected to answer.

    def consider(self) -> None:
        """Begin to try, or go on."""
        replica = self._replica
        if replica.is_leading or replica.stopped or replica.is_halted:
            return
        if self._attempt:
            is_alone = self._group.replicas == 1
            if is_alone or replica.now_s >= self._asked_s + replica.times.ask_s:
                self._decide()
        elif replica.now_s >= self._retry_s and (
            self._is_wanted or self._led_last or not replica.knows_newest
        ):
            self._ask(0)

    @property
    def _led_last(self) -> bool:
        """Whether it goes on by itself: it led last, or is the one that begins."""
        replica = self._replica
        seen = replica.durable.seen
        if replica.lease is not None and replica.lease.epoch > seen:
            return False  # It has heard of who led later.
        ordinal = replica.member.ordinal
        begins = not replica.last_epoch and self._group.begins
        led = replica.last_epoch > 0 and leader_of(replica.last_epoch) == ordinal
        return (begins or led) and (not seen or leader_of(seen) == ordinal)

    def _ask(self, epoch: int, reachable: frozenset[int] | None = None) -> None:
        """Ask all others what they know, or for the promise of an epoch.

        It waits no longer once all have answered who are reachable, if that is known.
        """
        replica = self._replica
        self._attempt, self._epoch = replica.next_number(), epoch
        self._asked_s = replica.now_s
        self._answers = {}
        others = frozenset(range(self._group.replicas)) - {replica.member.ordinal}
        self._reachable = others if reachable is None else reachable
        for ordinal in sorted(others):
            replica.send(ordinal, Ask(self._attempt, epoch, self._known))

    def _decide(self) -> None:
        replica = self._replica
        epoch, answers = self._epoch, self._answers
        self.forget()
        if not (self._is_wanted or self._led_last):
            return  # It only wanted to know the newest epoch.
        if not epoch:
            self._known = self._epoch_to_go_on_from(answers)
        refusal = self._refusal(epoch, answers)
        if not refusal:
            if epoch:
                self._lead(epoch)
            else:
                self._prepare(answers)
        elif self._is_wanted and replica.now_s >= self._wanted_until_s:
            self._is_wanted, self.outcome, self.refused_s = False, refusal, replica.now_s

    def _epoch_to_go_on_from(self, answers: dict[int, Answer]) -> int:
        """Return the epoch it led if there is none later, as far as anybody knows; otherwise 0."""
        replica = self._replica
        epoch = replica.last_epoch
        is_kept = replica.durable.is_whole and not replica.is_suspect
        is_mine = leader_of(epoch) == replica.member.ordinal and is_kept
        # An attempt of its own may hide an epoch between, that somebody else led.
        is_last = (
            epoch == replica.durable.seen >= max((a.seen for a in answers.values()), default=0)
        )
        return epoch if is_mine and is_last else 0

    def _prepare(self, answers: dict[int, Answer]) -> None:
        """Promise as much as the others shall."""
        reachable = frozenset(answers)
        replica = self._replica
        replica.stop_following()
        # Whoever is believed to lead may be heard of from nobody who answers: a later epoch than
        # that one, or who believes so deposes this one at once.
        believed = 0 if replica.lease is None else replica.lease.epoch
        seen = max([replica.durable.seen, believed, *(answer.seen for answer in answers.values())])
        if self._accepts_loss and self._is_wanted:
            seen += _GAP
        epoch = self.tried_epoch = epoch_after(seen, replica.member.ordinal)
        replica.persist(replica.durable._replace(seen=epoch))
        self._known = self._known or epoch
        self._ask(epoch, reachable)

    def _refusal(self, epoch: int, answers: dict[int, Answer]) -> str:
        """Say why it must not lead, empty if it may."""
        replica = self._replica
        if epoch and replica.durable.seen != epoch:
            return f"epoch {replica.durable.seen} is about to begin"
        for ordinal, answer in sorted(answers.items()):
            if answer.hears_authority:
                return f"replica {ordinal} leads, or hears from who does: stop that one first"
            if answer.seen > replica.durable.seen and (epoch or not self._is_wanted):
                return f"replica {ordinal} knows of epoch {answer.seen}"
        if self._is_wanted and self._accepts_loss:
            return ""
        # Somebody else may have been promoted while it was away.
        missing = self._group.min_in_sync - 1 - len(answers)
        if not self._is_wanted and missing > 0:
            return f"{missing} more replicas must say that they know of no later epoch"
        # Should a volume have been set back to an old state of itself, or a disk have lost some.
        if any(answer.confirmed > replica.end for answer in answers.values()):
            return "another replica knows of more that was confirmed: let that one lead"
        if replica.durable.confirmed > replica.end and self._group.replicas > 1:
            return f"it has lost what was confirmed below {replica.durable.confirmed}"
        promised = {o: answer for o, answer in answers.items() if not epoch or answer.seen == epoch}
        return self._what_lacks(promised) or self._where_tables_are_newer(answers)

    def _where_tables_are_newer(self, answers: dict[int, Answer]) -> str:
        """Say who has newer tables beside a log that has nothing which this one lacks."""
        replica = self._replica
        # Who takes over was in the set, and so has whatever was answered.
        if not self._is_wanted or replica.now_s < self._wanted_until_s:
            return ""
        for ordinal, answer in sorted(answers.items()):
            if answer.is_whole and self._has_newer_tables(answer):
                text = f"replica {ordinal} has newer topics, groups, offsets or locks"
                if (answer.last_epoch, answer.end) >= (replica.last_epoch, replica.end):
                    return f"{text}: let it lead"
                return (
                    f"{text}, and less of the log, so that neither may lead: have the former "
                    "leader back, or accept the loss here, that of such changes and of no message"
                )
        return ""

    def _what_lacks(self, answers: dict[int, Answer]) -> str:
        """Say why a confirmed message may be missing from the log, empty if none is."""
        replica, group = self._replica, self._group
        if group.replicas == 1:
            return ""  # What it has lost, nobody has.
        keeps = {o: a for o, a in answers.items() if a.is_whole and not a.is_suspect}
        is_any_suspect = replica.is_suspect or any(a.is_suspect for a in answers.values())
        is_everybody = len(answers) == group.replicas - 1 and not is_any_suspect
        for ordinal, answer in sorted((answers if is_everybody else keeps).items()):
            if self._has_more(answer):
                return f"replica {ordinal} has more of the log: let it lead"
        if is_everybody:
            return ""
        is_last = 0 < self._known == replica.last_epoch
        # Promises outlast a loss of power.
        if is_last and sum(a.is_whole for a in answers.values()) >= group.min_in_sync - 1:
            return ""
        kept_here = replica.durable.is_whole and not replica.is_suspect
        missing = group.replicas - group.min_in_sync + 1 - len(keeps) - kept_here
        if missing > 0:
            more = "1 more replica" if missing == 1 else f"{missing} more replicas"
            return f"{more} must answer, with all that it acknowledged"
        return ""

    def _has_more(self, answer: Answer) -> bool:
        """Tell whether another log may have confirmed messages that this one has not."""
        replica = self._replica
        is_mine = leader_of(replica.last_epoch) == replica.member.ordinal
        is_kept = replica.durable.is_whole and not replica.is_suspect
        if answer.last_epoch == replica.last_epoch > 0 and is_mine and is_kept:
            return False  # Nothing of its own epoch was confirmed that it did not have.
        return (answer.last_epoch, answer.end) > (replica.last_epoch, replica.end)

    def _has_newer_tables(self, answer: Answer) -> bool:
        """Tell whether tables beside another log may hold an answered change that these do not."""
        replica = self._replica
        epoch, _ = replica.tables
        if epoch == answer.tables[0] and leader_of(epoch) == replica.member.ordinal:
            return False  # Nothing of its own epoch was answered that it did not keep.
        return replica.tables < answer.tables

    def _lead(self, epoch: int) -> None:
        replica = self._replica
        lost = self._is_wanted and self._accepts_loss
        self._is_wanted, self.outcome = False, ""
        version = 0 if replica.lease is None else replica.lease.version
        in_sync = frozenset({replica.member})
        lease = Lease(version + 1, replica.me, epoch, in_sync, self._group.min_in_sync)
        replica.lead(lease, replica.now_s, replica.now_s, lost=lost)
