"""How far each consumer group has read each queue.

Kept in memory, saved to `config/consumerOffset.json` every `flushConsumerOffsetInterval` and at
shutdown: after a crash a consumer may see the messages of that time again, and never skips one.
So an offset is saved only once the messages that it counts are durable, and one that lies beyond
its queue's end all the same is set back at the start: the group would skip what comes.

An offset that was reset stays so: until the group's next pull of that queue is sent to it, commits
of members that do not know yet are ignored. Resets that wait are in the file too, as
`resetOffsetTable`, which RocketMQ skips: it forgets them with a restart.

Other replicas are told what changes, soon and not at once. Clients commit at a slave while there is
no master; the master takes that over when it is back, where it is further, unless an offset was set
back or forgotten meanwhile: a group in a topic begins with another *generation* each time, and each
move back raises it, `generationTable` in the file. `takenOffsetTable` is what a slave has yet to
tell. Slaves are told of a group in a topic once its beginning is in the file: after a crash the
master would not know the generation for which they bring commits, as if all had been deleted.

Source: apache/rocketmq broker/offset/ConsumerOffsetManager.java @ rocketmq-all-5.3.3.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from mailboat.broker.journal import Journal
from mailboat.broker.state_saver import SavedTable, StateSaver
from mailboat.disk import Disk
from mailboat.disk.json_file import JsonFile
from mailboat.errors import BrokerError
from mailboat.model.data_version import DataVersion
from mailboat.model.names import TRANSACTIONS_GROUP
from mailboat.model.stored_configs import INT64_MAX
from mailboat.protocol.bodies import decode_body
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.json_slices import Member, compact_slices, pretty_slices, table_parts
from mailboat.protocol.stats_bodies import (
    ConsumerOffsetTable,
    consumer_offset_members,
    decode_consumer_offsets,
)

_log = logging.getLogger(__name__)

_SEPARATOR: Final = "@"
_VERSION_STEP: Final = 500  # commits per version, as consumerOffsetUpdateVersionStep

_SET_BACK_SHOWN: Final = 10
_MAX_QUEUE_ID: Final = (1 << 31) - 1

UNKNOWN_OFFSET: Final = -1

_BARE_KEY: Final = re.compile(rb"([{,]\s*)(-?[0-9]+)(?=\s*:)")


def _sane(key: str, queues: dict[int, int]) -> dict[int, int]:
    """Leave out what a file says that no broker has written: those queues have no offset."""
    sane = {
        queue_id: queue_offset
        for queue_id, queue_offset in queues.items()
        if 0 <= queue_id <= _MAX_QUEUE_ID and 0 <= queue_offset <= INT64_MAX
    }
    if len(sane) < len(queues):
        _log.warning(
            "consumer offsets ignored: %d of %r are out of range", len(queues) - len(sane), key
        )
    return sane


def refuse_own_group(group: str) -> None:
    """Refuse to change for somebody else what the broker itself has read.

    Raises:
        BrokerError: NO_PERMISSION, the group is the broker's own.
    """
    if group == TRANSACTIONS_GROUP:
        raise BrokerError(
            ResponseCode.NO_PERMISSION,
            f"{group} is the broker's own group: its offsets say which transactions are open, and "
            "nobody else may change them",
        )


class _ResetTable(msgspec.Struct, rename="camel"):
    """The part of the file that only mailboat has."""

    reset_offset_table: dict[str, dict[int, int]] = {}
    generation_table: dict[str, int] = {}
    taken_offset_table: dict[str, dict[int, int]] = {}


_OWN_TABLES: Final = (b"resetOffsetTable", b"generationTable", b"takenOffsetTable")
_resets: Final = msgspec.json.Decoder(_ResetTable, strict=False)


class SharedOffsets(NamedTuple):
    """What replicas tell each other of a group in a topic, whose key is "TOPIC@GROUP"."""

    key: str
    generation: int
    queues: dict[int, int]
    resets: dict[int, int]


class ConsumerOffsetManager(SavedTable):
    """The table of committed queue offsets."""

    def __init__(self, disk: Disk, config_dir: str) -> None:
        """Start empty; `load` reads the file."""
        self._disk = disk
        self._file = JsonFile(disk, f"{config_dir}/consumerOffset.json")
        self._saver = StateSaver(self._file, self._encode_file)
        self._table: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        self._resets: dict[str, dict[int, int]] = {}
        self._generations: dict[str, int] = {}
        self._taken: dict[str, dict[int, int]] = {}
        # The generations that are in no file yet, and that nobody was told of.
        self._begun: dict[str, int] = {}
        self._last_generation = 0
        self.journal: Journal | None = None
        """Takes note of what changes, where other replicas are to know it."""

        self.is_followed = False
        """Whether the table is that of another replica, but for what clients commit here."""

        self._topics_of: dict[str, set[str]] = {}
        self._groups_of: dict[str, set[str]] = {}
        self.commits = 0
        """How many commits moved an offset."""

        self.backward_commits = 0
        """How many commits moved an offset back, as a reset does."""
        self.lowered = 0
        """Moves on with every commit behind which a group may have more unread than before: one
        that goes back, and the first one of a queue."""

        self.removals = 0
        """How many times all offsets of a group in a topic were forgotten."""

        self.data_version = DataVersion()

    def load(self) -> None:
        """Read the file of an earlier run, if there is one.

        Raises:
            DamagedStoreError: neither the file nor its previous version can be read.
        """
        loaded = self._file.load(_decode_file)
        if loaded is None:
            return
        table, more = loaded
        self._resets, self._generations = more.reset_offset_table, more.generation_table
        if self.is_followed:
            self._taken = more.taken_offset_table
        self.data_version = table.data_version
        for key, queues in table.offset_table.items():
            topic, separator, group = key.partition(_SEPARATOR)
            if separator and topic and group:
                self._table[key] = _sane(key, queues)
                self._add_to_indexes(topic, group)
            else:
                _log.warning("consumer offset ignored: %r is not TOPIC@GROUP", key)

    def save_behind(self, flushed: Callable[[], Awaitable[None]]) -> None:
        """Write no offset before the log is durable as far as it reaches.

        Args:
            flushed: returns once everything that the log holds now is durable; raises OSError when
                that takes too long.
        """
        self._saver.before_write = flushed

    def set_back(self, end_of: Callable[[str, int], int]) -> int:
        """Set offsets beyond the ends of their queues back to these; return how many were.

        Args:
            end_of: gives the offset that a queue's next message gets, by topic and queue id.
        """
        found: list[str] = []
        for table in (self._table, self._resets):
            for key, queues in table.items():
                topic, _, group = key.partition(_SEPARATOR)
                for queue_id, queue_offset in queues.items():
                    end = end_of(topic, queue_id)
                    if queue_offset > end:
                        queues[queue_id] = end
                        found.append(
                            f"group={group} topic={topic} queue={queue_id} {queue_offset}->{end}"
                        )
        if found:
            more = len(found) - _SET_BACK_SHOWN
            _log.warning(
                "consumer offsets beyond the ends of their queues are set back, the log has lost "
                "its newest messages or whole queues count=%d: %s%s",
                len(found),
                "; ".join(found[:_SET_BACK_SHOWN]),
                f" and {more} more" if more > 0 else "",
            )
            self.lowered += 1
            self._saver.mark_changed()
        return len(found)

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Take note that `group` has read everything before `queue_offset`, which must not lie
        beyond the queue's end.

        Going back is allowed, it is how some tools reset offsets. A negative offset says nothing
        and is ignored (some clients commit -1), as is any while a reset waits to be noticed.
        """
        if queue_offset < 0 or (self._resets and self.is_reset(group, topic, queue_id)):
            return
        if self.is_followed:
            self._take(group, topic, queue_id, queue_offset)
            return
        self._set(group, topic, queue_id, queue_offset)

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Make a group go on at an offset, whatever its members commit before they know."""
        key = topic + _SEPARATOR + group
        self._resets.setdefault(key, {})[queue_id] = queue_offset
        self._generations[key] = self._generations.get(key, 0) + 1
        self._changed(key)
        self._set(group, topic, queue_id, queue_offset)

    @property
    def has_resets(self) -> bool:
        """Whether a reset waits to be noticed."""
        return bool(self._resets)

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Tell whether a queue waits for a group's next pull."""
        return queue_id in self._resets.get(topic + _SEPARATOR + group, ())

    def take_reset(
        self,
        group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        commit_offset: int | None,
    ) -> int | None:
        """Return where a pull has to go instead, None when it may go on; the reset is over then.

        A member that came after the reset pulls from the new offset and has nothing else to
        commit: sending it there would only make it wait.

        Args:
            group: who pulls.
            topic: from where.
            queue_id: the queue of the topic.
            queue_offset: what the pull asks for.
            commit_offset: what it commits, None when it commits nothing.
        """
        target = self._end_reset(topic + _SEPARATOR + group, queue_id)
        if target is None:
            return None
        if queue_offset == target and commit_offset in (None, target):
            return None
        return target

    def _end_reset(self, key: str, queue_id: int) -> int | None:
        queues = self._resets.get(key)
        if queues is None or queue_id not in queues:
            return None
        target = queues.pop(queue_id)
        if not queues:
            del self._resets[key]
        self._changed(key)
        return target

    def clone(self, source_group: str, target_group: str, topic: str) -> None:
        """Give a group the offsets of another one in a topic, in place of its own."""
        offsets = self.queues(source_group, topic)
        if not offsets:
            return
        self.remove(target_group, topic)
        for queue_id, queue_offset in offsets.items():
            self._set(target_group, topic, queue_id, queue_offset)
        self.lowered += 1

    def _set(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        key = topic + _SEPARATOR + group
        if key not in self._table and self.journal is not None:
            # Later than an earlier life, of which a slave may still have commits.
            self._last_generation = max(self._disk.wall_ms(), self._last_generation + 1)
            self._begun[key] = self._generations[key] = self._last_generation
        queues = self._queues(group, topic)
        known = queues.get(queue_id)
        if known == queue_offset:
            return
        if known is not None and queue_offset < known:
            self.backward_commits += 1
            self._generations[key] = self._generations.get(key, 0) + 1
        if known is None or queue_offset < known:
            self.lowered += 1
        queues[queue_id] = queue_offset
        self._changed(key)
        self.commits += 1
        if self.commits % _VERSION_STEP == 0:
            self.data_version.advance(self._disk.wall_ms())

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the committed offset of a queue, UNKNOWN_OFFSET (-1) if there is none."""
        queues = self._table.get(topic + _SEPARATOR + group)
        return UNKNOWN_OFFSET if queues is None else queues.get(queue_id, UNKNOWN_OFFSET)

    def record_pull(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Take note of the offset a group pulled from; kept in memory only."""
        self._pulled.setdefault(topic + _SEPARATOR + group, {})[queue_id] = queue_offset

    def query_pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset last pulled from, or the committed one, or UNKNOWN_OFFSET."""
        pulled = self._pulled.get(topic + _SEPARATOR + group, {}).get(queue_id)
        return self.query(group, topic, queue_id) if pulled is None else pulled

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return a copy of a group's offsets in a topic, by queue."""
        return dict(self._table.get(topic + _SEPARATOR + group, ()))

    def topics_of(self, group: str) -> set[str]:
        """Return the topics in which a group has offsets."""
        return set(self._topics_of.get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups that have offsets in a topic."""
        return set(self._groups_of.get(topic, ()))

    def groups(self) -> set[str]:
        """Return every group that has offsets."""
        return set(self._topics_of)

    def remove(self, group: str, topic: str) -> bool:
        """Forget the offsets of a group in a topic; return whether there were any."""
        key = topic + _SEPARATOR + group
        if self._table.pop(key, None) is None:
            return False
        self._pulled.pop(key, None)
        self._resets.pop(key, None)
        self._last_generation = max(self._last_generation, self._generations.pop(key, 0))
        self._begun.pop(key, None)
        self._taken.pop(key, None)
        for index, name, member in (
            (self._topics_of, group, topic),
            (self._groups_of, topic, group),
        ):
            index[name].discard(member)
            if not index[name]:
                del index[name]
        self.removals += 1
        self._changed(key)
        return True

    def _changed(self, key: str) -> None:
        self._saver.mark_changed()
        if self.journal is not None and key not in self._begun:
            self.journal.note(key)

    def remove_topic(self, topic: str) -> None:
        """Forget all offsets in a topic."""
        for _ in self.remove_topic_steps(topic):
            continue

    def remove_topic_steps(self, topic: str) -> Generator[None, None, None]:
        """Forget all offsets in a topic, those of one group with each step."""
        for group in self.groups_of(topic):
            self.remove(group, topic)
            yield

    def remove_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        for topic in self.topics_of(group):
            self.remove(group, topic)

    # -- replicas -------------------------------------------------------------------------------

    def shared(self) -> list[str]:
        """Return the keys of all groups in topics, "TOPIC@GROUP"."""
        return list(self._table)

    def held(self, key: str) -> int:
        """Return in how many queues a group in a topic has offsets, and resets that wait."""
        return len(self._table.get(key, ())) + len(self._resets.get(key, ()))

    def has_begun(self, key: str) -> bool:
        """Tell whether replicas may be told of a group in a topic: its beginning is in the file."""
        return key not in self._begun

    @property
    def has_unsaved_begins(self) -> bool:
        """Whether replicas wait for the file to be saved."""
        return bool(self._begun)

    def tell_begins(self) -> None:
        """Have replicas told of all: this one is about to save them, or to follow another one."""
        self._tell(self._begun)

    def _tell(self, begun: Mapping[str, int]) -> None:
        """Have replicas told of groups in topics that have not begun anew since."""
        for key, generation in [*begun.items()]:
            if self._begun.get(key) == generation:
                del self._begun[key]
                if self.journal is not None:
                    self.journal.note(key)

    def find_shared(self, key: str) -> SharedOffsets:
        """Return what other replicas are to know of a group in a topic; no queues: nothing."""
        generation = self._generations.get(key, 0)
        return SharedOffsets(key, generation, self._table.get(key, {}), self._resets.get(key, {}))

    def follow(self, shared: SharedOffsets) -> None:
        """Take over what the master has of a group in a topic.

        What was committed here and the master has not heard of stays, as long as nobody has set
        the group back. (A master that was killed may have forgotten that somebody did.)
        """
        key, generation, queues, resets = shared
        topic, _, group = key.partition(_SEPARATOR)
        taken = self._taken.get(key, {})
        if taken and (generation > self._generations.get(key, 0) or not queues):
            taken = {}
        taken = {
            queue_id: queue_offset
            for queue_id, queue_offset in taken.items()
            if queue_offset > queues.get(queue_id, UNKNOWN_OFFSET)
        }
        if not queues:
            self.remove(group, topic)
            return
        before = self._queues(group, topic)
        after = self._table[key] = {**queues, **taken}
        self.commits += 1
        if any(after[queue_id] < before.get(queue_id, INT64_MAX) for queue_id in after):
            self.lowered += 1
        for table, value in ((self._taken, taken), (self._resets, resets)):
            if value:
                table[key] = value
            else:
                table.pop(key, None)
        if generation:
            self._generations[key] = generation
        else:
            self._generations.pop(key, None)
        self._saver.mark_changed()

    def follow_untold(self, key: str, queues: Mapping[int, int], known: Mapping[int, int]) -> None:
        """Take over what a master says that is not told what clients commit here.

        The further one counts, unless the master has set its own back.

        Args:
            key: the group in a topic, "TOPIC@GROUP".
            queues: the master's offsets.
            known: what it said before, over the same connection.
        """
        topic, _, group = key.partition(_SEPARATOR)
        mine = self._queues(group, topic)
        for queue_id, queue_offset in queues.items():
            is_set_back = queue_offset < known.get(queue_id, queue_offset)
            if is_set_back or queue_offset > mine.get(queue_id, UNKNOWN_OFFSET):
                mine[queue_id] = queue_offset
                self._saver.mark_changed()

    def follow_further(self, shared: SharedOffsets) -> bool:
        """Take over what another broker has of a group in a topic where it is further than here.

        A group that was set back more often there, is as it is there; one that was set back more
        often here stays. Tells whether something has changed.
        """
        key, generation, queues, resets = shared
        mine = self.find_shared(key)
        if generation < mine.generation:
            return False
        if generation == mine.generation:
            behind = mine.queues
            further = {
                queue_id: max(queues.get(queue_id, UNKNOWN_OFFSET), behind.get(queue_id, 0))
                for queue_id in (*queues, *behind)
            }
            shared = SharedOffsets(key, generation, further, resets)
        if shared == mine:
            return False
        self.follow(shared)
        return True

    def _take(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Keep what a client commits here, until the master has it too."""
        key = topic + _SEPARATOR + group
        if queue_offset > self.query(group, topic, queue_id):
            self._queues(group, topic)[queue_id] = queue_offset
            self._taken.setdefault(key, {})[queue_id] = queue_offset
            self._saver.mark_changed()

    def taken(self) -> list[SharedOffsets]:
        """Return what clients have committed here and the master is to know."""
        return [
            SharedOffsets(key, self._generations.get(key, 0), queues, {})
            for key, queues in self._taken.items()
        ]

    def forget_taken(self) -> None:
        """Regard what clients have committed here as known to the master, or as its own table."""
        if self._taken:
            self._taken.clear()
            self._saver.mark_changed()

    def is_new(self, key: str) -> bool:
        """Tell whether a group in a topic has committed here what no master has heard of yet."""
        return key in self._taken and key not in self._generations

    def merge(self, shared: SharedOffsets, end_of: Callable[[str, int], int]) -> None:
        """Take over what clients have committed at a slave, where it is further than what is here.

        Args:
            shared: what the slave has taken.
            end_of: gives the offset that a queue's next message gets, by topic and queue id.
        """
        key, generation, queues, _ = shared
        topic, separator, group = key.partition(_SEPARATOR)
        if not (separator and topic and group) or generation < self._generations.get(key, 0):
            return
        for queue_id, queue_offset in queues.items():
            if self.query(group, topic, queue_id) < queue_offset <= end_of(topic, queue_id):
                self._end_reset(key, queue_id)  # No commit counted before it was noticed.
                self._set(group, topic, queue_id, queue_offset)

    def encode(self) -> Iterator[bytes]:
        """Return the whole table as the body of GET_ALL_CONSUMER_OFFSET, in slices."""
        return compact_slices(self._members())

    async def persist(self) -> None:
        """Make the table durable; does nothing while it is unchanged.

        Raises:
            OSError: the disk refused; the next call tries again.
        """
        begun = dict(self._begun)
        await super().persist()
        self._tell(begun)

    def _queues(self, group: str, topic: str) -> dict[int, int]:
        key = topic + _SEPARATOR + group
        queues = self._table.get(key)
        if queues is None:
            queues = self._table[key] = {}
            self._add_to_indexes(topic, group)
        return queues

    def _add_to_indexes(self, topic: str, group: str) -> None:
        self._topics_of.setdefault(group, set()).add(topic)
        self._groups_of.setdefault(topic, set()).add(group)

    def _members(self) -> Iterator[Member]:
        return consumer_offset_members(ConsumerOffsetTable(self._table, self.data_version))

    def _encode_file(self) -> Iterator[bytes]:
        members: list[Member] = [*self._members()]
        if self._resets:
            members.append(("resetOffsetTable", table_parts(self._resets, weigh=len)))
        if self._generations:
            members.append(("generationTable", table_parts(self._generations)))
        if self._taken:
            members.append(("takenOffsetTable", table_parts(self._taken, weigh=len)))
        return pretty_slices(members)


def _decode_file(content: bytes) -> tuple[ConsumerOffsetTable, _ResetTable]:
    """Read the file; Java writes the queue ids without quotes.

    The lenient reader of requests takes them too, but no more than a request may hold. The names in
    this file cannot contain what looks like such a key.
    """
    if _BARE_KEY.search(content):
        content = _BARE_KEY.sub(rb'\1"\2"', content)
    table = decode_consumer_offsets(content)
    if not any(name in content for name in _OWN_TABLES):
        return table, _ResetTable()
    return table, decode_body(content, _resets)
