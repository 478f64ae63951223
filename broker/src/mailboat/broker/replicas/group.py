"""One replica of a group at work: links, files, and the state machine that decides.

Events go to `mailboat.replication.Replica`, its actions are done here in their order: one that
touches the disk is done on a thread, and those behind it wait for it. The log itself is written on
the loop, as sends are.

There is no store of the lease: a person says who leads (`mailboat.replication.hand_election`), and
each link says whom its side believes to lead.
"""

import asyncio
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
from mailboat.replication.frames import Hello, Tables, TablesKept
from mailboat.replication.hand_election import HandElection
from mailboat.replication.lease import Holder, Lease, Member
from mailboat.replication.replica import Replica
from mailboat.replication.state import Settings
from mailboat.replication.wire import Message, Open
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
        self._is_begun = self._is_ended = self._has_begun_to_lead = False
        self._streams: dict[int, LogStream] = {}
        self._lease: Lease | None = None
        self.alarm = ""
        """Why a person is needed, empty while none is."""

        self.on_lead: Callable[[int], None] = lambda _epoch: None
        self.on_confirmed: Callable[[], None] = lambda: None
        self.on_deposed: Callable[[str], None] = lambda _reason: None
        self.on_written: Callable[[], None] = lambda: None
        self.on_view: Callable[[], None] = lambda: None

    # -- life cycle -----------------------------------------------------------------------------

    def begin(self, durable: Durable, peers: Peers) -> None:
        """Begin with an open store; `peers` has the links."""
        self._peers = peers
        self._make_replica(durable)
        self._is_begun = True

    def _make_replica(self, durable: Durable) -> None:
        self._streams.clear()
        self._todo.clear()
        self._has_begun_to_lead = False
        now_s = self._now_s()
        self.replica = Replica(self._settings, durable, self._store.commit_log.end, now_s)
        self._tables.begin(self.replica)

    async def run(self, progress: TaskProgress) -> None:
        """Let time pass for the replica; runs for ever."""
        while True:
            progress.beat()
            self.handle(Ticked())
            self._tables.tick()
            self._peers.keep_connected()
            await asyncio.sleep(_TICK_S)

    def end(self) -> None:
        """Do nothing more; what was begun may end."""
        self._is_ended = True
        self._tables.end()
        self._streams.clear()
        self._todo.clear()

    @property
    def is_leading(self) -> bool:
        """Whether messages are stored here: the epoch is on the disk, and everybody here knows."""
        return self._is_begun and self._has_begun_to_lead and self.replica.is_leading

    @property
    def leader(self) -> Holder | None:
        """Who leads, as far as is known here."""
        return None if self._lease is None else self._lease.holder

    @property
    def has_seen_nobody(self) -> bool:
        """Whether nobody has ever led, as far as this replica knows."""
        return self._is_begun and not self.replica.durable.seen

    def hears_leader(self) -> bool:
        """Tell whether this replica follows one that lives."""
        following = self.replica.following if self._is_begun else None
        return following is not None and following.is_joined

    def refusal(self) -> str:
        """Say why no message may be stored now; empty if it may."""
        if not self._is_begun:
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

    def received(self, link: Link, message: Message) -> None:
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
                self._pump(stream)

    def lost(self, link: Link) -> None:
        """Forget a link."""
        self._tables.lost(link)
        self._streams = {
            ordinal: stream for ordinal, stream in self._streams.items() if stream.link is not link
        }

    def view(self) -> tuple[Holder, int]:
        """Return whom this replica believes to lead, and since which epoch (0: nobody)."""
        lease = self._lease
        if lease is None or lease.holder is None:
            return Holder(-1, "", ""), 0
        return lease.holder, lease.epoch

    def _take_view(self, message: Open) -> None:
        known = 0 if self._lease is None else self._lease.epoch
        if message.epoch <= max(known, 0) or message.leader < 0:
            return
        holder = Holder(message.leader, message.leader_store_id, message.leader_boot)
        self._believe(holder, message.epoch)

    def _believe(self, holder: Holder, epoch: int) -> None:
        group = self._settings.by_hand
        assert group is not None
        version = 1 if self._lease is None else self._lease.version + 1
        members = frozenset({holder.member})
        self._lease = Lease(version, holder, epoch, members, group.min_in_sync)
        self._peers.say_open()
        self.on_view()
        self.handle(LeaseRead(self._lease))

    def _tell_appended(self) -> None:
        self._is_appended_due = False
        for stream in list(self._streams.values()):
            self._pump(stream)
        self.handle(LogAppended(self._store.commit_log.end))

    def _pump(self, stream: LogStream) -> None:
        try:
            is_more = self._is_current(stream) and stream.pump()
        except (OSError, ValueError) as error:
            stream.link.close(f"the log cannot be read at {stream.physical_offset}: {error}")
            return
        if is_more:
            self._loop.call_soon(self._pump, stream)

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
                self._alarm(
                    "the log has nothing in common with that of the master: move the store's "
                    "folder aside and start again, for a full copy"
                )
            case actions.WriteLog(physical_offset, _, records):
                return self._write(physical_offset, records)
            case actions.Send(ordinal, frame):
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
        self._loop.call_soon(self._pump, stream)

    def _write_lease(self, request: int, lease: Lease) -> None:
        """Have what the leader wants at once: nobody else writes it."""
        written = lease._replace(version=lease.version + 1)
        is_handed_over = written.holder is not None and written.holder != self.replica.me
        if is_handed_over and written.holder is not None:
            self._tables.tell_all()
            self._believe(written.holder, written.epoch)
        answer = LeaseWritten(request, Outcome.APPLIED, written)
        self._loop.call_soon(self.handle, answer)

    def _lead(self, epoch: int, start: int, *, may_have_lost: bool) -> None:
        _log.warning(
            "leading epoch=%d from=%d%s",
            epoch,
            start,
            ", and messages may have been lost" if may_have_lost else "",
        )
        self.alarm = ""
        self._store.dispatch.count_held()
        self._has_begun_to_lead = True
        self._believe(self.replica.me, epoch)
        self.on_lead(epoch)

    def _stop(self, reason: str) -> None:
        if self.replica.durable.seen and self._has_led:
            self.end()
            self.on_deposed(reason)
        else:
            self._begin_anew(reason)

    @property
    def _has_led(self) -> bool:
        return (
            self._lease is not None
            and self._lease.holder is not None
            and (self._lease.holder.boot == self.replica.me.boot)
        )

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
