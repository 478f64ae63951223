"""One replica of a group at work: links, files, and the state machine that decides.

Events go to `mailboat.replication.Replica`, its actions are done here in their order: one that
touches the disk is done on a thread, and those behind it wait for it. The log itself is written on
the loop, as sends are.

Where there is no store of the lease, a person says who leads
(`mailboat.replication.hand_election`), and each link says whom its side believes to lead. Where
there is one (`lease_store`), it is asked, and what links say is only a reason to ask it at once.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from mailboat.broker.replicas.confirmed_log import ConfirmedLog
from mailboat.broker.replicas.held_links import HeldLinks
from mailboat.broker.replicas.known_lease import KnownLease
from mailboat.broker.replicas.lease_keeper import HolderWatch, LeaseKeeper
from mailboat.broker.replicas.lease_store import LeaseStore
from mailboat.broker.replicas.link import Link
from mailboat.broker.replicas.log_repair import LogRepair
from mailboat.broker.replicas.log_streams import LogStreams
from mailboat.broker.replicas.pace import Pace
from mailboat.broker.replicas.peers import Peers
from mailboat.broker.replicas.replica_file import ReplicaFile
from mailboat.broker.replicas.shared_tables import SharedTables
from mailboat.broker.replicas.write_trouble import WriteTrouble
from mailboat.broker.supervisor import TaskProgress
from mailboat.disk import Disk
from mailboat.replication import actions
from mailboat.replication.durable import Durable
from mailboat.replication.events import (
    Event,
    HandOver,
    HolderDied,
    Leave,
    LinkClosed,
    Linked,
    LogAppended,
    LogFlushed,
    Promote,
    Received,
    Release,
    Ticked,
)
from mailboat.replication.frames import (
    Answer,
    Ask,
    Fetch,
    Fetched,
    Hello,
    Tables,
    TablesKept,
    TakeOver,
)
from mailboat.replication.lease import Holder, Lease, Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import ByHand, Settings
from mailboat.replication.wire import Open, Told
from mailboat.store.message_inner import Runners
from mailboat.store.message_store import MessageStore
from mailboat.store.moving_aside import aside_bytes

_log: Final = logging.getLogger(__name__)

_TICK_S: Final = 0.1


class ReplicaGroup:
    """This broker's part in its group.

    `on_view` is called when another one leads, `on_lead` once this one does, `on_written` when it
    has followed, `on_confirmed` when more of the log is confirmed, `on_deposed` when it led and
    does no more: the broker has to start anew. `on_handing_over` comes before a handover, and
    `on_leading_on` after one that failed.
    """

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        disk: Disk,
        runners: Runners,
        file: ReplicaFile,
        tables: SharedTables,
        pace: Pace,
    ) -> None:
        """Describe the replica of an unopened store; `start` begins."""
        self._settings = settings
        self._store = store
        self._disk = disk
        self._runners = runners
        self._file = file
        self._tables = tables
        tables.on_deleted = self._go_on
        self._loop = asyncio.get_running_loop()
        self._todo: deque[actions.Action] = deque()
        self._is_busy = False
        self._is_noting = self._is_held_up = False
        self._to_note: Durable | None = None
        self._after_flush: Callable[[], None] | None = None
        self._confirmed = ConfirmedLog(store, lambda: self.on_confirmed())
        self._is_appended_due = False
        self._replica: Replica | None = None
        self._is_ended = False
        # What nobody expected of an action: those behind it must not be done.
        self._failure: Exception | None = None
        self._has_begun_to_lead = False
        self.has_led = False
        """Whether it leads, or has led since its start."""

        self._write_trouble = WriteTrouble(store.paths.root)
        self._held = HeldLinks()
        self.repair = LogRepair(store, disk, runners, lambda: self.replica, self._links)
        self._streams = LogStreams(store.replica, runners.reads, pace, self.repair.note)
        self._asked = 0
        self._answers: dict[int, Answer] = {}
        self._known = KnownLease(settings.by_hand, self.handle, self._view_changed, self._fail)
        self._watch: HolderWatch | None = None
        self._tick = asyncio.Event()
        self.aside_bytes = 0
        """How much of logs that had diverged is kept in `mailboat/diverged`."""

        self.alarm = ""
        """Why a person is needed, empty while none is."""

        self.on_lead: Callable[[int], None] = lambda _epoch: None
        self.on_confirmed: Callable[[], None] = lambda: None
        self.on_deposed: Callable[[str], None] = lambda _reason: None
        self.on_handing_over: Callable[[], None] = lambda: None
        self.on_leading_on: Callable[[], None] = lambda: None
        self.on_written: Callable[[], None] = lambda: None
        self.on_view: Callable[[], None] = lambda: None
        self.on_silent: Callable[[str], None] = lambda _address: None
        """Called with the address of who takes connections and is no replica."""

    # -- life cycle -----------------------------------------------------------------------------

    def begin(self, durable: Durable, peers: Peers, leases: LeaseStore | None = None) -> None:
        """Begin with an open store; `peers` has the links, `leases` the lease of a group that is
        not led by hand."""
        self._peers = peers
        if leases is not None:
            self._known.keep_in(leases)
            self._watch = HolderWatch(self._is_suspected, self._holder_died)
        self._make_replica(durable)

    def _make_replica(self, durable: Durable) -> None:
        self._streams.clear()
        self._todo.clear()
        self._to_note = None
        self._has_begun_to_lead = False
        now_s = self._now_s()
        replica = Replica(self._settings, durable, self._store.commit_log.end, now_s)
        # What was written a moment ago need not be durable.
        replica.flushed_end = self._store.flushed_offset
        self._replica = replica
        if self.keeper is not None:
            self.keeper.forget_writes()
        self._tables.begin(replica)

    async def run(self, progress: TaskProgress) -> None:
        """Let time pass for the replica; runs for ever."""
        while True:
            progress.beat()
            if self._failure is not None:
                raise self._failure
            self._forget_write_failures()
            self.handle(Ticked())
            self._tables.tick()
            self._peers.keep_connected()
            self._wake()
            await asyncio.sleep(_TICK_S)

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        """Wait until something holds, this replica ends, or a time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not (holds() or self._is_ended):
                    await self._tick.wait()

    def _wake(self) -> None:
        self._tick.set()
        self._tick.clear()

    def leave(self) -> None:
        """Tell whom this replica follows that it is about to end."""
        self.handle(Leave())

    async def release(self, timeout_s: float, *, leaves: bool) -> None:
        """Give the lease back where this replica still leads, and stores nothing more.

        With `leaves` it does not lead again before it has followed another one.
        """
        if self.keeper is not None and self.is_leading:
            self.handle(Release(leaves))
            await self.until(lambda: not self.replica.is_releasing, timeout_s)

    def end(self) -> None:
        """Do nothing more; what was begun may end."""
        self._is_ended = True
        self._confirmed.close()
        self._tables.end()
        self._streams.clear()
        self._todo.clear()
        self._wake()

    async def close(self) -> None:
        """Ask no more for the lease, after `end`."""
        if self._watch is not None:
            await self._watch.close()
        if self.keeper is not None:
            await self.keeper.close()

    @property
    def by_hand(self) -> ByHand | None:
        """What the group is where a person says who leads, None where a lease does."""
        return self._settings.by_hand

    @property
    def min_in_sync(self) -> int:
        """How many replicas have what is confirmed, at least: by the lease, once it is known."""
        return self._known.min_in_sync

    @property
    def lease(self) -> Lease | None:
        """The lease as it is known here; led by hand it says no more than who leads."""
        return self._known.lease

    @property
    def keeper(self) -> LeaseKeeper | None:
        """Who asks for the lease, None where a person says who leads."""
        return self._known.keeper

    @property
    def flushed_end(self) -> int:
        """The physical offset below which the log is on the disk."""
        return self._store.flushed_offset

    def is_linked(self, ordinal: int) -> bool:
        """Whether there is a link to another replica."""
        return self._peers.link_to(ordinal) is not None

    def sent_end(self, ordinal: int) -> int | None:
        """Return the physical offset up to which a follower was sent the log, None without one."""
        return self._streams.sent_end(ordinal)

    @property
    def is_halted(self) -> bool:
        """Whether this replica does nothing more before a person has decided; `alarm` says why."""
        return self.replica.is_halted

    @property
    def replica(self) -> Replica:
        """The state machine, once it has begun."""
        assert self._replica is not None
        return self._replica

    @property
    def is_leading(self) -> bool:
        """Whether messages are stored here: the epoch is on the disk, and everybody here knows."""
        return self._has_begun_to_lead and self.replica.is_leading

    @property
    def is_following(self) -> bool:
        """Whether another replica that leads has taken this one up."""
        following = None if self._replica is None else self._replica.following
        return following is not None and following.is_joined

    @property
    def leader(self) -> Holder | None:
        """Who leads, as far as is known here."""
        return self._known.holder

    def needed_from(self) -> int:
        """Return the physical offset from which on a replica of the set may lack the log."""
        leading = self.replica.leading
        ends = [self.replica.end]
        if leading is not None:
            others = leading.required() - {self.replica.member}
            ends += [leading.acked.get(member, 0) for member in others]
        return min(ends)

    @property
    def has_seen_nobody(self) -> bool:
        """Whether nobody has ever led, as far as this replica knows."""
        return self._replica is not None and not self._replica.durable.seen

    def refusal(self) -> str:
        """Say why no message may be stored now; empty if it may."""
        if self._replica is None:
            return "this replica has just started"
        if self.replica.is_leading and not self._has_begun_to_lead:
            return "this replica is about to lead"
        return self.replica.refusal()

    def promote(self, *, accepts_loss: bool) -> None:
        """Begin to lead, if the others let it; `promotion_refusal` says why not."""
        self.handle(Promote(accepts_loss, frozenset(self._peers.links())))

    @property
    def write_trouble(self) -> str:
        """Why this replica cannot store what it is sent, and what to do; empty if it can."""
        return self._store.commit_log.failure or self._write_trouble.sentence

    @property
    def promotion_refusal(self) -> str:
        """Why the last promotion was refused, empty while none was, and once this one leads."""
        return self.replica.election.outcome

    @property
    def promotion_refused_s_ago(self) -> float | None:
        """How long ago that was, None where none was refused."""
        election = self.replica.election
        return self._now_s() - election.refused_s if election.outcome else None

    def hand_over(self, ordinal: int) -> None:
        """Let another replica lead."""
        self.handle(HandOver(ordinal))

    async def ask_others(self, timeout_s: float) -> list[Answer]:
        """Return what those say of themselves who are linked and answer in time."""
        ordinals = list(self._peers.links())
        self._asked, self._answers = self.replica.next_number(), {}
        for ordinal in ordinals:
            self._peers.send(ordinal, Ask(self._asked))
        await self.until(lambda: len(self._answers) >= len(ordinals), timeout_s)
        return list(self._answers.values())

    def begin_empty(self, reason: str) -> None:
        """Keep the whole log aside and start anew, as another replica without any."""
        self.replica.act(actions.ResetLog())
        self.replica.stop(reason)
        self.handle(Ticked())

    # -- what happens ---------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Tell the replica, and do what it wants."""
        if self._is_ended:
            return
        self.replica.log_start = self._store.replica.start
        self._todo += self.replica.handle(event, self._now_s())
        self._perform_all()

    def appended(self) -> None:
        """Note that the log was written; followers get it at the end of this round of the loop."""
        if not self._is_appended_due and not self._is_ended and self.replica.is_leading:
            self._is_appended_due = True
            self._loop.call_soon(self._tell_appended)

    def flushed(self) -> None:
        """Note that the log is durable as far as the store says, and no flush is running."""
        after, self._after_flush = self._after_flush, None
        if after is not None:
            after()
        if self._store.commit_log.failure is not None and not self._file.is_log_lost:
            self._note_lost_log()
        self.handle(LogFlushed(self._store.flushed_offset))

    def _note_lost_log(self) -> None:
        """Note that messages may be missing after the next start that were acknowledged here."""
        if self._replica is not None and not self._settings.is_sync_flush:
            self._file.is_log_lost = True
            self._todo.append(actions.Persist(self._replica.durable))
            self._perform_all()

    def received(self, link: Link, message: Told) -> None:
        """Take a frame of another replica."""
        peer = link.peer
        assert peer is not None
        member = Member(peer.ordinal, peer.store_id)
        if isinstance(message, Open):
            self._known.take_view(message)
        elif isinstance(message, Tables):
            self._tables.received(link, message)
        elif isinstance(message, TablesKept):
            self._tables.kept(member, message)
        elif isinstance(message, Fetch | Fetched):
            self.repair.received(link, message)
        else:
            if isinstance(message, Hello):
                self._tables.greeted(member, message)
            elif isinstance(message, Answer) and message.attempt == self._asked:
                self._answers[member.ordinal] = message
            self.handle(Received(member, message))
            if self._is_busy:
                self._held.note(link, message, len(self._todo))

    def roomy(self, link: Link) -> None:
        """Send on what waited for a follower to read."""
        self._tables.roomy(link)
        self._streams.roomy(link)

    def linked(self, link: Link) -> None:
        """Take note of the link to a replica that counts from now on."""
        assert link.peer is not None
        self.handle(Linked(Member(link.peer.ordinal, link.peer.store_id)))

    def lost(self, link: Link, *, is_last: bool) -> None:
        """Forget a link; `is_last`: there is no other one to that replica."""
        self._tables.lost(link)
        self.repair.lost(link)
        self._held.forget(link)
        self._streams.lost(link)
        holder = self.leader
        if is_last and link.peer is not None:
            self.handle(LinkClosed(Member(link.peer.ordinal, link.peer.store_id)))
            if self._watch is not None and holder is not None and self._is_suspected(holder):
                if holder.ordinal == link.peer.ordinal:
                    self._watch.suspect(holder, link.peer.address)

    def silent(self, address: str) -> None:
        """Take note that whoever listens there does not speak as replicas do."""
        self.on_silent(address)

    def followed(self, end: int, *, is_confirmed: bool = True) -> None:
        """Note that the log was written as another master has it; RocketMQ's confirms it."""
        if is_confirmed:
            self.replica.confirm(end)
        self.handle(LogAppended(end))
        self.on_written()

    def view(self) -> tuple[Holder, int]:
        """Return whom this replica believes to lead, and since which epoch (0: nobody)."""
        return self._known.view()

    def _view_changed(self) -> None:
        if not self._is_ended:
            self._peers.say_open()
            self.on_view()

    def _fail(self, error: BaseException) -> None:
        if self._failure is None and isinstance(error, Exception):
            self._failure = error

    def _is_suspected(self, holder: Holder) -> bool:
        """Tell whether another replica is still believed to lead, and there is no link to it."""
        is_other = holder.ordinal != self.replica.me.ordinal and self.leader == holder
        return is_other and not self._is_ended and self._peers.link_to(holder.ordinal) is None

    async def _holder_died(self, holder: Holder) -> None:
        # By the version that counts now: who tries to replace another one fails.
        assert self.keeper is not None
        if await self.keeper.read_now() and self._is_suspected(holder):
            self.handle(HolderDied())

    def _tell_appended(self) -> None:
        self._is_appended_due = False
        self._streams.pump()
        self.handle(LogAppended(self._store.commit_log.end))

    def _links(self) -> dict[int, Link]:
        return self._peers.links()

    # -- actions --------------------------------------------------------------------------------

    def _perform_all(self) -> None:
        if self._is_busy:
            return  # What is being done comes first.
        self._is_busy = True
        try:
            while self._todo:
                if not self._perform(self._todo.popleft()):
                    return  # A thread does it; `_done` goes on.
        except Exception as error:
            self._failure = error  # Whoever has sent a frame only sees the end of its link.
            raise
        self._is_busy = False
        self._held.release()

    def _perform(self, action: actions.Action) -> bool:
        """Do an action; tell whether the next one may begin."""
        match action:
            case actions.Persist() | actions.ResetLog() if self._is_noting:
                return self._hold_up(action)  # One writes the file at a time.
            case actions.WriteLog() | actions.Lead() if self._tables.is_deleting:
                return self._hold_up(action)
            case actions.Persist(state):
                self._to_note = None
                return self._on_thread(action, partial(self._file.write, state))
            case actions.Note(state):
                self._to_note = state
                self._note()
            case actions.CutLog(end):
                return self._on_thread(action, partial(self._keep_aside, end))
            case actions.BeginLog(physical_offset):
                self._begin_log(physical_offset)
            case actions.ResetLog():
                self._file.begins_anew = True
                return self._on_thread(action, partial(self._file.write, self.replica.durable))
            case actions.WriteLog(physical_offset, _, records):
                return self._write(physical_offset, records)
            case actions.Send(ordinal, frame):
                if isinstance(frame, TakeOver):
                    self._tables.tell_all()
                self._peers.send(ordinal, frame)
            case actions.Stream(ordinal, session, epoch, physical_offset):
                self._stream(ordinal, session, epoch, physical_offset)
            case actions.ReadLease():
                self._known.read(is_leading=self.replica.is_leading)
            case actions.WriteLease(request, replaced, lease):
                self._known.write(request, replaced, lease)
            case actions.Lead(epoch, start, may_have_lost):
                self._lead(epoch, start, may_have_lost=may_have_lost)
            case actions.Confirm(end):
                self._confirmed.confirm(end)
            case actions.Stop(reason):
                self._stop(reason)
            case actions.Alarm(text):
                self._alarm(text)
        return True

    def _on_thread(self, action: actions.Action, job: Callable[[], None]) -> bool:
        self._runners.files(job, partial(self._done, action))
        return False

    def _hold_up(self, action: actions.Action) -> bool:
        """Wait with an action, and those behind it, for what calls `_go_on`."""
        self._todo.appendleft(action)
        self._is_held_up = True
        return False

    def _go_on(self) -> None:
        if self._is_held_up and not self._is_ended:
            self._is_busy = self._is_held_up = False
            self._perform_all()

    def _note(self) -> None:
        if self._to_note is not None and not self._is_noting:
            state, self._to_note = self._to_note, None
            self._is_noting = True
            self._runners.files(partial(self._file.write, state), self._noted)

    def _noted(self, _: Any, error: BaseException | None) -> None:
        self._is_noting = False
        if self._is_ended:
            return
        self._written_or_begin_anew(actions.Persist, error)
        self._go_on()
        self._note()

    def _done(self, action: actions.Action, _: Any, error: BaseException | None) -> None:
        if self._is_ended:
            return
        if isinstance(action, actions.CutLog) and error is None:
            if self._store.flusher.is_running:
                # It would call durable what is cut off meanwhile, and what is written there next.
                self._after_flush = partial(self._done, action, None, None)
                return
            error = self._cut(action.end)
        # While it is busy, nothing is done that was to come after it.
        self._written_or_begin_anew(type(action), error)
        self._is_busy = False
        self._perform_all()

    def _written_or_begin_anew(
        self, kind: type[actions.Action], error: BaseException | None
    ) -> None:
        """Begin again after a file could not be written; what nobody expected ends the process."""
        if error is None:
            self._write_trouble.is_over(kind)
        elif isinstance(error, OSError):
            self._cannot_write(kind, "a file of the replica cannot be written", error)
        elif isinstance(error, Exception):
            self._failure = error
            raise error

    def _cannot_write(
        self, kind: type[actions.Action], what: str, error: OSError | ValueError
    ) -> None:
        """Say what is wrong for as long as it is, and begin again."""
        self._begin_anew(self._write_trouble.note(kind, what, error))

    def _forget_write_failures(self) -> None:
        """Forget what could not be written of the log where nothing of it is missing any more."""
        following = None if self._replica is None else self._replica.following
        if following is not None and following.is_joined:
            if following.leader_end <= self._store.commit_log.end:
                self._write_trouble.log_is_whole()

    def _cut(self, end: int) -> OSError | None:
        try:
            self._store.replica.cut(end)
        except OSError as error:
            return error
        return None

    def _keep_aside(self, end: int) -> None:
        _log.warning(
            "cutting the log at %d, as the master has it; it ended at %d",
            end,
            self._store.commit_log.end,
        )
        self._store.replica.keep_aside(end, self._store.paths.diverged)
        self.aside_bytes = aside_bytes(self._disk, self._store.paths)

    def _begin_log(self, physical_offset: int) -> None:
        try:
            self._store.replica.begin_at(physical_offset)
        except OSError as error:
            what = f"the log cannot begin at {physical_offset}"
            self._cannot_write(actions.WriteLog, what, error)

    def _write(self, physical_offset: int, records: object) -> bool:
        assert isinstance(records, bytes)
        try:
            self._store.replica.follow(records, physical_offset)
        except (OSError, ValueError) as error:
            self._leave_set()
            self._peers.close_all(f"what it sent cannot be stored: {error}")
            what = f"the log cannot be followed at {physical_offset}"
            self._cannot_write(actions.WriteLog, what, error)
            return True
        self._write_trouble.is_over(actions.WriteLog)
        self.on_written()
        return True

    def _leave_set(self) -> None:
        """Let nobody wait for what this replica cannot store."""
        replica = self.replica
        replica.end = self._store.commit_log.end
        replica.flushed_end = min(self._store.flushed_offset, replica.end)
        for action in replica.handle(Leave(), self._now_s()):
            if isinstance(action, actions.Send):
                self._peers.send(action.ordinal, action.frame)

    def _stream(self, ordinal: int, session: int, epoch: int, physical_offset: int) -> None:
        link = self._peers.link_to(ordinal)
        if link is None or link.peer is None:
            return
        self._tables.send_all(Member(ordinal, link.peer.store_id), link, session)
        self._streams.begin(ordinal, link, session, epoch, physical_offset)

    def _lead(self, epoch: int, start: int, *, may_have_lost: bool) -> None:
        _log.warning(
            "leading epoch=%d from=%d%s",
            epoch,
            start,
            ", and messages may have been lost" if may_have_lost else "",
        )
        self.alarm = ""
        self._write_trouble.forget()
        self.has_led = True
        if not self._has_begun_to_lead:
            # In another epoch of the same leader it has counted what it stored.
            self._store.dispatch.count_held()
        self._has_begun_to_lead = True
        if self.keeper is None:
            self._known.believe(self.replica.me, epoch)
        else:
            self._known.note(self.replica.lease)
        self.on_lead(epoch)

    def _stop(self, reason: str) -> None:
        if self.has_led or self._file.begins_anew:
            self.end()
            self.on_deposed(reason)
        else:
            self._begin_anew(reason)

    def _begin_anew(self, reason: str) -> None:
        """Begin again with what the disk holds, as a follower."""
        if self.has_led:
            # Who waits for an answer here must not get it for what another one writes there.
            self.replica.stop(reason)
            self._stop(reason)
            return
        _log.warning("replication begins again: %s", reason)
        durable = self._file.read()
        assert durable is not None
        self._make_replica(durable)

    def _alarm(self, text: str) -> None:
        self.alarm = (
            f"{text}: to keep the rest, stop the leader and `mailboat replica promote "
            "--accept-loss` here; to give it up, `mailboat replica copy --accept-loss` here, which "
            "keeps this log in mailboat/diverged"
        )
        _log.error("replication needs a person: %s", self.alarm)

    def _now_s(self) -> float:
        return self._disk.monotonic()
