"""What replicas share beside the log: topics, groups, offsets, locks, what is gone or delivered.

A leader tells its followers (`LeadingTables`); a follower takes it over here, keeps it in the same
files as a master, and says so once it is on the disk. How new its tables are lies beside them, in
`mailboat/replicaTables.json`: of two replicas with the same log the one with the newer tables is to
lead.

    {"format_version": 1, "epoch": 9, "number": 17}
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from mailboat.broker.blocking_calls import on_thread
from mailboat.broker.groups import SubscriptionGroupManager
from mailboat.broker.journal import Journal
from mailboat.broker.offsets import ConsumerOffsetManager
from mailboat.broker.queue_locks import QueueLockManager
from mailboat.broker.replicas.link import Link
from mailboat.broker.replicas.tables import (
    GroupsTable,
    Kind,
    LocksTable,
    OffsetsTable,
    Table,
    TopicsTable,
    decode_commits,
    decode_deletions,
    encode_commits,
)
from mailboat.broker.replicas.tables_leading import (
    BEGINS,
    ENDS,
    FIRST_NUMBER,
    LeadingTables,
    not_known,
)
from mailboat.broker.schedule import ScheduleMessageService
from mailboat.broker.supervisor import TaskProgress
from mailboat.broker.topics import TopicConfigManager
from mailboat.disk import Disk
from mailboat.disk.json_file import JsonFile
from mailboat.errors import RemoteProtocolError
from mailboat.protocol.delay_offsets import decode_delay_offsets
from mailboat.remoting.turns import in_turns
from mailboat.replication.frames import Hello, Tables, TablesKept
from mailboat.replication.lease import Member
from mailboat.replication.replica import Replica
from mailboat.store.message_store import MessageStore

_log: Final = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1

_RETRY_S: Final = 1.0
# A disk that hangs is no reason to restart: it may come back.
_SAVE_MAY_TAKE_S: Final = 600.0
# A follower that has said what was committed here need not say it again.
_COMMITS_EVERY_S: Final = 0.5
_COMMITS_FOR_S: Final = 5.0
_BEGINS_EVERY_S: Final = 0.2


class _Content(msgspec.Struct):
    format_version: int
    epoch: int
    number: int


class Managers(Protocol):
    """The parts of a broker that have the tables."""

    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    queue_locks: QueueLockManager
    schedule: ScheduleMessageService
    store: MessageStore


class SharedTables:
    """The tables of one replica, whether it leads or follows."""

    def __init__(self, managers: Managers, disk: Disk, own_dir: str, timeout_s: float) -> None:
        """Follow until `lead`; nobody waits for others longer than `timeout_s`."""
        self._managers = managers
        self._timeout_s = timeout_s
        self._file = JsonFile(disk, f"{own_dir}/replicaTables.json")
        self._loop = asyncio.get_running_loop()
        self._replica: Replica | None = None
        self.leading: LeadingTables | None = None
        self._tables: Sequence[Table] = (
            TopicsTable(managers.topics, Journal(self._changed)),
            GroupsTable(managers.groups, Journal(self._changed)),
            LocksTable(managers.queue_locks, Journal(self._changed)),
            OffsetsTable(managers.offsets, Journal(lambda: None)),
        )
        self._by_kind = {table.kind: table for table in self._tables}
        self._seen: dict[int, set[str]] = {}
        self._position = self._kept_position = (0, 0)
        self._session: tuple[Link | None, int, int] = (None, 0, 0)
        self._whole_of = (0, 0)
        self._greetings: dict[Member, tuple[str, int]] = {}
        self._taken_told_s = self._taken_since_s = self._begins_saved_s = 0.0
        self._saving: asyncio.Task[None] | None = None
        self._due = asyncio.Event()
        self._kept = asyncio.Event()
        self._deleting = 0
        self.on_deleted: Callable[[], None] = lambda: None
        """Called once `is_deleting` holds no more."""

        self._are_offsets_due = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.follow()

    def load(self) -> None:
        """Read how new the tables are; on any thread.

        Raises:
            DamagedStoreError: the file cannot be understood.
            OSError: it cannot be read.
        """
        found = self._file.load(lambda content: msgspec.json.decode(content, type=_Content))
        if found is not None:
            self._position = (found.epoch, found.number)

    def begin(self, replica: Replica) -> None:
        """Take part with a replica that knows nothing yet of the tables, and follows at first."""
        if self.leading is not None:
            self.leading.end()
            self.leading = None
            self.follow()
        self._replica = replica
        self._whole_of = (0, 0)  # The numbers of sessions begin anew.
        replica.tables = self._position

    # -- leading --------------------------------------------------------------------------------

    def follow(self) -> None:
        """Make nothing here by itself: the tables are those of whoever leads."""
        managers = self._managers
        managers.topics.is_followed = managers.groups.is_followed = True
        managers.offsets.is_followed = True

    def lead(self, epoch: int) -> None:
        """Have the tables from now on, and tell followers."""
        managers, store = self._managers, self._managers.store
        for table in self._tables:
            table.journal.clear()  # Every follower begins with all there is.
        if self.leading is not None:
            self.leading.end()  # It led before, in another epoch.
        else:
            managers.groups.is_followed = managers.offsets.is_followed = False
            managers.offsets.forget_taken()
            managers.queue_locks.take_up()
            managers.schedule.take_up()
        self.leading = LeadingTables(
            epoch,
            self._tables,
            store.replica.deletions,
            lambda: managers.schedule.progress.encode(),
            lambda: store.commit_log.end,
            self._timeout_s,
        )
        managers.topics.begin_to_lead(epoch)
        self._note_position(epoch, FIRST_NUMBER)

    def end(self) -> None:
        """Tell nobody any more."""
        self.tell_all()
        if self.leading is not None:
            self.leading.end()
        for task in self._tasks:
            task.cancel()

    async def known(self) -> None:
        """Return once every replica in the in-sync set knows what has changed so far.

        Raises:
            BrokerError: that is not known in time.
        """
        leading, replica = self.leading, self._replica
        if leading is None or replica is None or replica.leading is None:
            raise not_known()
        if not replica.leading.has_enough:
            raise not_known()
        await leading.known(replica.leading.required() - {replica.member})
        position = (leading.epoch, leading.number)
        if self._position < position:
            self._note_position(*position)
        try:
            async with asyncio.timeout(self._timeout_s):
                # Others may have changed more meanwhile, which is nothing to wait for.
                while self._kept_position < position:
                    await self._kept.wait()
        except TimeoutError:
            raise not_known() from None

    def deleted(self, topic: str) -> None:
        """Tell followers that a topic's messages are gone."""
        if self.leading is not None:
            ends = self._managers.store.replica.deletions()
            if topic in ends:
                self.leading.deleted(topic, ends[topic])

    def greeted(self, member: Member, hello: Hello) -> None:
        """Keep a follower out of the set until it has all tables."""
        leading = None if self._replica is None else self._replica.leading
        greeting = (hello.boot, hello.session)
        if leading is not None and self._greetings.get(member) != greeting:
            # Whatever volumes were in its place before are none of the group any more.
            for other in [other for other in self._greetings if other.ordinal == member.ordinal]:
                del self._greetings[other]
                leading.uninformed.discard(other)
            self._greetings[member] = greeting
            leading.uninformed.add(member)

    def send_all(self, member: Member, link: Link, session: int) -> None:
        """Send a follower all there is."""
        if self.leading is not None:
            self.leading.begin(member, link, session)

    def lost(self, link: Link) -> None:
        """Forget whoever was linked."""
        if self.leading is not None:
            self.leading.lost(link)

    def roomy(self, link: Link) -> None:
        """Go on with what waited for a follower to read."""
        if self.leading is not None:
            self.leading.roomy(link)

    def tell_all(self) -> None:
        """Tell followers of everything before another one leads."""
        if self.leading is not None:
            self._managers.offsets.tell_begins()
            self.leading.tell_all()

    def tick(self) -> None:
        """Let time pass."""
        replica = self._replica
        if replica is None:
            return
        if self.leading is not None and replica.leading is not None:
            required = replica.leading.required() - {replica.member}
            self.leading.tick(required, replica.leading.acked)
            if self.leading.has_followers and self._managers.offsets.has_unsaved_begins:
                self._save_begins()
        elif self.leading is None:
            self._tell_commits()

    def _save_begins(self) -> None:
        """Save offsets before their time: followers are not told before of new groups in topics."""
        now_s = self._loop.time()
        if self._saving is None and now_s >= self._begins_saved_s + _BEGINS_EVERY_S:
            self._saving = self._loop.create_task(self._save_offsets())
            self._tasks.add(self._saving)
            self._saving.add_done_callback(self._tasks.discard)

    async def _save_offsets(self) -> None:
        try:
            await self._managers.offsets.persist()
        except OSError as error:
            _log.warning("offsets of new consumer groups are not saved yet: %s", error)
        finally:
            self._begins_saved_s, self._saving = self._loop.time(), None

    def kept(self, member: Member, frame: TablesKept) -> None:
        """Take note of how far a follower has the tables."""
        leading = None if self._replica is None else self._replica.leading
        if self.leading is not None and leading is not None and self.leading.kept(member, frame):
            leading.uninformed.discard(member)

    def _changed(self) -> None:
        if self.leading is not None:
            self.leading.changed()

    # -- following ------------------------------------------------------------------------------

    def received(self, link: Link, frame: Tables) -> None:
        """Take over what the leader sends, or what clients have committed at a follower.

        Raises:
            RemoteProtocolError: it cannot be read.
        """
        try:
            if frame.kind == Kind.COMMITS:
                self._merge(frame)
            elif self._is_mine(frame):
                self._take(link, frame)
        except (msgspec.MsgspecError, ValueError) as error:
            text = f"tables of kind {frame.kind} cannot be read: {error}"
            raise RemoteProtocolError(text) from error

    def _is_mine(self, frame: Tables) -> bool:
        following = None if self._replica is None else self._replica.following
        return (
            following is not None
            and following.is_joined
            and (frame.session, frame.epoch) == (following.session, following.epoch)
        )

    def _take(self, link: Link, frame: Tables) -> None:
        table = self._by_kind.get(Kind(frame.kind))
        if frame.kind == Kind.DELETIONS:
            self._delete(decode_deletions(frame.body))
        elif frame.kind == Kind.DELAY:
            self._managers.schedule.progress.follow(decode_delay_offsets(frame.body))
        elif table is not None:
            if frame.part & BEGINS:
                self._seen[frame.kind] = set()
            keys = table.follow(frame.body)
            seen = self._seen.get(frame.kind)
            if seen is not None:
                seen.update(keys)
                if frame.part & ENDS:
                    del self._seen[frame.kind]
                    table.remove([key for key in table.keys() if key not in seen])
        self._are_offsets_due |= bool(frame.number) and frame.kind == Kind.OFFSETS
        if frame.kind == Kind.ALL:
            self._whole_of = (frame.session, frame.epoch)
        if frame.number and self._whole_of == (frame.session, frame.epoch):
            # Before that, some of it may be older than what was there.
            self._session = (link, frame.session, frame.epoch)
            self._position = (frame.epoch, frame.number)
            self._due.set()

    @property
    def is_deleting(self) -> bool:
        """Whether queues of deleted topics are still there, which new ones would share files with.

        Nothing may be stored meanwhile.
        """
        return self._deleting > 0

    def _delete(self, ends: dict[str, int]) -> None:
        """Delete the queues of topics as the master has."""
        store = self._managers.store
        for topic, log_end in ends.items():
            if store.replica.expect_deletion(topic, log_end):
                # What clients have committed here is of its former life too.
                self._managers.offsets.remove_topic(topic)
                self._deleting += 1
                task = self._loop.create_task(self._delete_queues(topic, log_end))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _delete_queues(self, topic: str, log_end: int) -> None:
        store = self._managers.store
        try:
            await in_turns(store.delete_topic_steps(topic, log_end))
            await on_thread(store.runners.files, store.deletion_job())
        except OSError as error:
            _log.error("the queues of the deleted topic %s are still there: %s", topic, error)
        finally:
            self._deleting -= 1
            self._due.set()
            if not self._deleting:
                self.on_deleted()

    # -- what clients commit at a follower ------------------------------------------------------

    def _merge(self, frame: Tables) -> None:
        if self.leading is None or frame.epoch != self.leading.epoch:
            return
        store = self._managers.store
        for shared in decode_commits(frame.body):
            self._managers.offsets.merge(shared, store.max_offset)

    def _tell_commits(self) -> None:
        """Tell the leader what clients have committed here, until it has it too."""
        following = None if self._replica is None else self._replica.following
        link, session, epoch = self._session
        now_s = self._loop.time()
        offsets = self._managers.offsets
        taken = offsets.taken()
        if (
            not taken
            or link is None
            or following is None
            or not following.is_joined
            or (following.session, following.epoch) != (session, epoch)
        ):
            self._taken_since_s = now_s
            return
        if now_s >= self._taken_since_s + _COMMITS_FOR_S:
            offsets.forget_taken()  # It had its reasons.
        elif now_s >= self._taken_told_s + _COMMITS_EVERY_S:
            self._tell_some_commits(encode_commits(taken))

    def _tell_some_commits(self, bodies: Iterator[bytes]) -> None:
        """Tell the leader one frame of it, and the others in the loop's next rounds."""
        link, session, epoch = self._session
        self._taken_told_s = self._loop.time()
        body = next(bodies, None)
        if link is not None and body is not None:
            link.send(Tables(session, epoch, 0, Kind.COMMITS, 0, body))
            self._loop.call_soon(self._tell_some_commits, bodies)

    # -- the disk -------------------------------------------------------------------------------

    def _note_position(self, epoch: int, number: int) -> None:
        self._session = (None, 0, 0)
        self._position = (epoch, number)
        self._due.set()

    async def keep(self, progress: TaskProgress) -> None:
        """Have the tables on the disk, and tell the leader; runs for ever."""
        while True:
            progress.beat(math.inf)
            await self._due.wait()
            self._due.clear()
            if self.is_deleting:
                continue  # The last one of them sets it again.
            progress.beat(_SAVE_MAY_TAKE_S)
            try:
                await self._keep_now()
            except OSError as error:
                _log.warning("the tables of the replica are not saved yet: %s", error)
                await asyncio.sleep(_RETRY_S)
                self._due.set()

    async def _keep_now(self) -> None:
        (link, session, epoch), position = self._session, self._position
        # Offsets may go back with a switch, but not behind what somebody has set. What comes while
        # they are written is for the next round.
        are_offsets_due, self._are_offsets_due = self._are_offsets_due, False
        try:
            for table in self._tables:
                if table.is_awaited or are_offsets_due:
                    await table.persist()
        except OSError:
            self._are_offsets_due |= are_offsets_due
            raise
        content = msgspec.json.encode(_Content(FORMAT_VERSION, *position)) + b"\n"
        await asyncio.to_thread(self._file.save, content)
        if self._replica is not None:
            self._replica.tables = position
        if link is not None:
            link.send(TablesKept(session, epoch, position[1]))
        else:
            self._kept_position = position
            self._kept.set()
            self._kept.clear()
