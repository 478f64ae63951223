"""One replica of a group at work: links, files, and the state machine that decides.

Events go to `mailboat.replication.Replica`, its actions are done here in their order: one that
touches the disk is done on a thread, and those behind it wait for it. The log itself is written on
the loop, as sends are.

There is no store of the lease: a person says who leads (`mailboat.replication.hand_election`), and
each link says whom its side believes to lead.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from mailboat.broker.replicas.link import Link
from mailboat.broker.replicas.log_stream import LogStream
from mailboat.broker.replicas.peers import Peers
from mailboat.broker.replicas.replica_file import ReplicaFile
from mailboat.broker.replicas.shared_tables import SharedTables
from mailboat.broker.supervisor import TaskProgress
from mailboat.disk import Disk
from mailboat.replication import actions
from mailboat.replication.durable import Durable
from mailboat.replication.events import (
    Event,
    HandOver,
    LeaseRead,
    LeaseWritten,
    LogAppended,
    LogFlushed,
    Outcome,
    Promote,
    Received,
    Ticked,
)
from mailboat.replication.frames import Hello, Tables, TablesKept, TakeOver
from mailboat.replication.hand_election import HandElection
from mailboat.replication.lease import Holder, Lease, Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import ByHand, Settings
from mailboat.replication.wire import Open, Told
from mailboat.store.message_inner import Runners
from mailboat.store.message_store import MessageStore

_log: Final = logging.getLogger(__name__)

_TICK_S: Final = 0.1


class ReplicaGroup:
    """This broker's part in its group.

    `on_view` is called when another one leads, `on_lead` once this one does, `on_written` when it
    has followed, `on_confirmed` when more of the log is confirmed, `on_deposed` when it led and
    does no more: the broker has to start anew.
    """

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        disk: Disk,
        runners: Runners,
        file: ReplicaFile,
        tables: SharedTables,
    ) -> None:
        """Describe the replica of an unopened store; `start` begins."""
        self._settings = settings
        self._store = store
        self._disk = disk
        self._runners = runners
        self._file = file
        self._tables = tables
        self._loop = asyncio.get_running_loop()
        self._todo: deque[actions.Action] = deque()
        self._is_busy = False
        self._is_appended_due = False
        self._replica: Replica | None = None
        self._is_ended = False
        self._has_led = self._has_begun_to_lead = False
        self._streams: dict[int, LogStream] = {}
        self._lease: Lease | None = None
        self._tick = asyncio.Event()
        self.alarm = ""
        """Why a person is needed, empty while none is."""

        self.on_lead: Callable[[int], None] = lambda _epoch: None
        self.on_confirmed: Callable[[], None] = lambda: None
        self.on_deposed: Callable[[str], None] = lambda _reason: None
        self.on_written: Callable[[], None] = lambda: None
        self.on_view: Callable[[], None] = lambda: None
        self.on_silent: Callable[[str], None] = lambda _address: None
        """Called with the address of who takes connections and is no replica."""

    # -- life cycle -----------------------------------------------------------------------------

    def begin(self, durable: Durable, peers: Peers) -> None:
        """Begin with an open store; `peers` has the links."""
        self._peers = peers
        self._make_replica(durable)

    def _make_replica(self, durable: Durable) -> None:
        self._streams.clear()
        self._todo.clear()
        self._has_begun_to_lead = False
        now_s = self._now_s()
        replica = Replica(self._settings, durable, self._store.commit_log.end, now_s)
        # What was written a moment ago need not be durable.
        replica.flushed_end = self._store.flushed_offset
        self._replica = replica
        self._tables.begin(replica)

    async def run(self, progress: TaskProgress) -> None:
        """Let time pass for the replica; runs for ever."""
        while True:
            progress.beat()
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

    def end(self) -> None:
        """Do nothing more; what was begun may end."""
        self._is_ended = True
        self._tables.end()
        self._streams.clear()
        self._todo.clear()
        self._wake()

    @property
    def by_hand(self) -> ByHand:
        """What the group is."""
        assert self._settings.by_hand is not None
        return self._settings.by_hand

    @property
    def flushed_end(self) -> int:
        """The physical offset below which the log is on the disk."""
        return self._store.flushed_offset

    def sent_end(self, ordinal: int) -> int | None:
        """Return the physical offset up to which a follower was sent the log, None without one."""
        stream = self._streams.get(ordinal)
        return None if stream is None else stream.physical_offset

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
        return None if self._lease is None else self._lease.holder

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
        self.handle(Promote(accepts_loss))

    @property
    def promotion_refusal(self) -> str:
        """Why the last promotion was refused, empty while none was."""
        election = self.replica.election
        return election.outcome if isinstance(election, HandElection) else ""

    def hand_over(self, ordinal: int) -> None:
        """Let another replica lead."""
        self.handle(HandOver(ordinal))

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
        """Note that the log is durable as far as the store says."""
        self.handle(LogFlushed(self._store.flushed_offset))

    def received(self, link: Link, message: Told) -> None:
        """Take a frame of another replica."""
        peer = link.peer
        assert peer is not None
        member = Member(peer.ordinal, peer.store_id)
        if isinstance(message, Open):
            self._take_view(message)
        elif isinstance(message, Tables):
            self._tables.received(link, message)
        elif isinstance(message, TablesKept):
            self._tables.kept(member, message)
        else:
            if isinstance(message, Hello):
                self._tables.greeted(member, message)
            self.handle(Received(member, message))

    def roomy(self, link: Link) -> None:
        """Send on what waited for a follower to read."""
        self._tables.roomy(link)
        for stream in list(self._streams.values()):
            if stream.link is link:
                stream.pump()

    def lost(self, link: Link) -> None:
        """Forget a link."""
        self._tables.lost(link)
        self._streams = {
            ordinal: stream for ordinal, stream in self._streams.items() if stream.link is not link
        }

    def silent(self, address: str) -> None:
        """Take note that whoever listens there does not speak as replicas do."""
        self.on_silent(address)

    def followed(self, end: int) -> None:
        """Note that the log was written as a master of RocketMQ has it, which confirms it."""
        self.replica.confirm(end)
        self.handle(LogAppended(end))
        self.on_written()

    def view(self) -> tuple[Holder, int]:
        """Return whom this replica believes to lead, and since which epoch (0: nobody)."""
        lease = self._lease
        if lease is None or lease.holder is None:
            return Holder(-1, "", ""), 0
        return lease.holder, lease.epoch

    def _take_view(self, message: Open) -> None:
        _, known = self.view()
        if message.epoch <= known or message.leader < 0:
            return
        holder = Holder(message.leader, message.leader_store_id, message.leader_boot)
        self._believe(holder, message.epoch)

    def _believe(self, holder: Holder, epoch: int) -> None:
        version = 1 if self._lease is None else self._lease.version + 1
        members = frozenset({holder.member})
        self._lease = Lease(version, holder, epoch, members, self.by_hand.min_in_sync)
        self._peers.say_open()
        self.on_view()
        self.handle(LeaseRead(self._lease))

    def _tell_appended(self) -> None:
        self._is_appended_due = False
        for stream in list(self._streams.values()):
            stream.pump()
        self.handle(LogAppended(self._store.commit_log.end))

    def _is_current(self, stream: LogStream) -> bool:
        return any(stream is current for current in self._streams.values())

    # -- actions --------------------------------------------------------------------------------

    def _perform_all(self) -> None:
        if self._is_busy:
            return  # What is being done comes first.
        self._is_busy = True
        while self._todo:
            if not self._perform(self._todo.popleft()):
                return  # A thread does it; `_done` goes on.
        self._is_busy = False

    def _perform(self, action: actions.Action) -> bool:
        """Do an action; tell whether the next one may begin."""
        match action:
            case actions.Persist(state):
                return self._on_thread(action, partial(self._file.write, state))
            case actions.CutLog(end):
                return self._on_thread(action, partial(self._keep_aside, end))
            case actions.BeginLog(physical_offset):
                self._store.replica.begin_at(physical_offset)
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
                if self._lease is not None and not self.replica.is_leading:
                    self._loop.call_soon(self.handle, LeaseRead(self._lease))
            case actions.WriteLease(request, _, lease):
                self._write_lease(request, lease)
            case actions.Lead(epoch, start, may_have_lost):
                self._lead(epoch, start, may_have_lost=may_have_lost)
            case actions.Confirm(end):
                self._store.replica.confirmed_offset = end
                self._store.settle()
                self.on_confirmed()
            case actions.Stop(reason):
                self._stop(reason)
            case actions.Alarm(text):
                self._alarm(text)
        return True

    def _on_thread(self, action: actions.Action, job: Callable[[], None]) -> bool:
        self._runners.files(job, partial(self._done, action))
        return False

    def _done(self, action: actions.Action, _: Any, error: BaseException | None) -> None:
        self._is_busy = False
        if self._is_ended:
            return
        if error is None:
            error = self._finish(action)
        if error is not None:
            if not isinstance(error, OSError):
                raise error
            self._begin_anew(f"a file of the replica cannot be written: {error}")
        self._perform_all()

    def _finish(self, action: actions.Action) -> OSError | None:
        """Do on the loop what follows a call on a thread."""
        if isinstance(action, actions.CutLog):
            try:
                self._store.replica.cut(action.end)
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

    def _write(self, physical_offset: int, records: object) -> bool:
        assert isinstance(records, bytes)
        try:
            self._store.replica.follow(records, physical_offset)
        except (OSError, ValueError) as error:
            self._peers.close_all(f"what it sent cannot be stored: {error}")
            self._begin_anew(f"the log cannot be followed at {physical_offset}: {error}")
            return True
        self.on_written()
        return True

    def _stream(self, ordinal: int, session: int, epoch: int, physical_offset: int) -> None:
        link = self._peers.link_to(ordinal)
        if link is None or link.peer is None:
            return
        self._tables.send_all(Member(ordinal, link.peer.store_id), link, session)
        stream = LogStream(
            link,
            self._store.replica,
            self._runners.reads,
            self._is_current,
            session,
            epoch,
            physical_offset,
        )
        self._streams[ordinal] = stream
        self._loop.call_soon(stream.pump)

    def _write_lease(self, request: int, lease: Lease) -> None:
        """Have what the leader wants at once: nobody else writes it."""
        answer = LeaseWritten(request, Outcome.APPLIED, lease._replace(version=lease.version + 1))
        self._loop.call_soon(self.handle, answer)

    def _lead(self, epoch: int, start: int, *, may_have_lost: bool) -> None:
        _log.warning(
            "leading epoch=%d from=%d%s",
            epoch,
            start,
            ", and messages may have been lost" if may_have_lost else "",
        )
        self.alarm = ""
        self._has_led = True
        self._store.dispatch.count_held()
        self._has_begun_to_lead = True
        self._believe(self.replica.me, epoch)
        self.on_lead(epoch)

    def _stop(self, reason: str) -> None:
        if self._has_led or self._file.begins_anew:
            self.end()
            self.on_deposed(reason)
        else:
            self._begin_anew(reason)

    def _begin_anew(self, reason: str) -> None:
        """Begin again with what the disk holds, as a follower."""
        _log.warning("replication begins again: %s", reason)
        durable = self._file.read()
        assert durable is not None
        self._make_replica(durable)

    def _alarm(self, text: str) -> None:
        self.alarm = text
        _log.error("replication needs a person: %s", text)

    def _now_s(self) -> float:
        return self._disk.monotonic()
