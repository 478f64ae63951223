"""Which member of a group may consume a queue in order: the locks of orderly consumers.

A member that consumes in order locks a queue before it reads it, renews the lock every 20 s and
takes the lock for lost 30 s after the last answer. Here a lock lasts 60 s: a member that died keeps
its queues until then. It is not taken away earlier when its connection ends, since the member may
live, still consume what it has fetched, and come back on another connection.

RocketMQ forgets the locks when a broker restarts: the queue of a member that still consumes can be
given to another one, which breaks the order. Here every new holder is in `mailboat/queueLocks.json`
before it is told so; after a restart a lock goes to its old holder at once, and to another member
only after the 30 s in which the old one may still believe in it.

Source: apache/rocketmq broker/client/rebalance/RebalanceLockManager.java @ rocketmq-all-5.3.3.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final

import msgspec

from mailboat.broker.journal import Journal
from mailboat.broker.state_saver import SavedTable, StateSaver
from mailboat.disk import Disk
from mailboat.disk.json_file import JsonFile, refuse_newer
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.bodies import encode_body
from mailboat.remoting.shares import Shares

_log = logging.getLogger(__name__)

LOCK_LIFE_S: Final = 60.0  # rocketmq.broker.rebalance.lockMaxLiveTime
CLIENT_LOCK_LIFE_S: Final = 30.0  # rocketmq.client.rebalance.lockMaxLiveTime

MAX_LOCKS: Final = 262_144
"""Most locks of all groups; one address may hold a quarter. Each is written with every change."""

_FORMAT_VERSION: Final = 1
_SLICE_BYTES: Final = 65_536
EXPIRED_A_STEP: Final = 500
"""So many locks are looked at in one slice of work."""

_Place = tuple[str, int]


class _Lock(msgspec.Struct, gc=False):
    """Who holds a queue, and until when on the monotonic clock."""

    client_id: str
    expires_s: float
    is_known: bool = True
    """Whether the other replicas know it, without which its holder must not be told."""

    owner: str = ""
    """The user who locked it, where that is known."""

    host: str = ""
    """The address that locked it, where that is known."""


class _Holder(msgspec.Struct, rename="camel", gc=False):
    topic: str
    queue_id: int
    client_id: str


class _File(msgspec.Struct, rename="camel"):
    format_version: int
    groups: dict[str, list[_Holder]] = {}


class QueueLockManager(SavedTable):
    """The locks of all groups, so many in all and of each address."""

    def __init__(
        self, disk: Disk, own_dir: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start without locks; `load` reads the holders of an earlier run."""
        self._file = JsonFile(disk, f"{own_dir}/queueLocks.json")
        self._saver = StateSaver(self._file, self._encode_file)
        self._clock = clock
        self._groups: dict[str, dict[_Place, _Lock]] = {}
        self._owned: Counter[str] = Counter()
        self._shares = Shares(MAX_LOCKS)
        self.journal: Journal | None = None
        """Takes note of the groups whose holders change, where other replicas are to know it."""

    def load(self) -> None:
        """Give the queues back to those who held them, for as long as they may believe in it.

        Raises:
            DamagedStoreError: neither the file nor its previous version can be read.
        """
        loaded = self._file.load(_decode_file)
        if loaded is None:
            return
        expires_s = self._clock() + CLIENT_LOCK_LIFE_S
        for group, holders in loaded.groups.items():
            self._groups[group] = {
                (holder.topic, holder.queue_id): _Lock(holder.client_id, expires_s)
                for holder in holders
            }
            self._shares.take("", len(self._groups[group]))

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        owner: str = "",
        host: str = "",
    ) -> set[MessageQueue]:
        """Lock queues for a member, or renew its locks; return those that it holds now.

        They count for the user that the member is of, its `owner`, where there is one, and for the
        address `host`. What would be too many there is not locked.

        A new holder must not be told before `persist` has returned.
        """
        now_s = self._clock()
        locks = self._groups.setdefault(group, {})
        held = set()
        for queue in queues:
            place = (queue.topic, queue.queue_id)
            lock = locks.get(place)
            if lock is None or (lock.client_id != client_id and lock.expires_s < now_s):
                excess = self._shares.excess(host, 1)
                if excess is not None:
                    text = "queue not locked, there are too many locks, %s group=%s host=%s"
                    _log.warning(text, excess, group, host)
                    continue
                _log_holder(logging.INFO, "locked", group, queue, client_id, lock)
                if lock is not None:
                    self._disown(lock)
                lock = _Lock(client_id, now_s + LOCK_LIFE_S, self.journal is None)
                locks[place] = lock
                self._own(lock, owner, host)
                self._changed(group)
            elif lock.client_id == client_id:
                lock.expires_s = now_s + LOCK_LIFE_S
                if (lock.owner, lock.host) != (owner, host):
                    self._disown(lock)
                    self._own(lock, owner, host)
            else:
                _log_holder(logging.DEBUG, "lock refused", group, queue, client_id, lock)
                continue
            held.add(queue)
        if not locks:
            del self._groups[group]
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Let other members lock queues; what the member does not hold is left as it is."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            place = (queue.topic, queue.queue_id)
            lock = locks.get(place)
            if lock is not None and lock.client_id == client_id:
                _log_holder(logging.INFO, "unlocked", group, queue, client_id, lock)
                del locks[place]
                self._disown(lock)
                self._changed(group)
        if not locks:
            del self._groups[group]

    def held_by(self, owner: str) -> int:
        """Return how many queues the members of a user hold, as far as that is known."""
        return self._owned[owner]

    def would_count(self, group: str, client_id: str, queue: MessageQueue, owner: str) -> bool:
        """Tell whether a queue that a member locks would count for its user from then on.

        Whoever says that it is the member of another user gets that one's locks as its own.
        """
        lock = self._groups.get(group, {}).get((queue.topic, queue.queue_id))
        if lock is None or lock.owner == owner:
            return lock is None
        if lock.expires_s < self._clock():
            return True
        # Whose locks these are that were held before a restart is not known.
        return lock.client_id == client_id and bool(lock.owner)

    def _own(self, lock: _Lock, owner: str, host: str) -> None:
        lock.owner, lock.host = owner, host
        self._shares.take(host, 1)
        if owner:
            self._owned[owner] += 1

    def _disown(self, lock: _Lock) -> None:
        self._shares.give(lock.host, 1)
        if lock.owner:
            self._owned[lock.owner] -= 1
            if not self._owned[lock.owner]:
                del self._owned[lock.owner]

    def _changed(self, group: str) -> None:
        self._saver.mark_changed()
        if self.journal is not None:
            self.journal.note(group)

    # -- replicas -------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return the groups of which members hold queues."""
        return list(self._groups)

    def held(self, group: str) -> int:
        """Return how many queues members of a group hold."""
        return len(self._groups.get(group, ()))

    def holders(self, group: str) -> list[tuple[str, int, str]]:
        """Return topic, queue and holder of what members of a group hold."""
        locks = self._groups.get(group, {})
        return [(topic, queue_id, lock.client_id) for (topic, queue_id), lock in locks.items()]

    def follow(self, group: str, holders: Iterable[tuple[str, int, str]]) -> None:
        """Take over the holders of a group as the master has them; `take_up` lets them begin."""
        expires_s = self._clock() + CLIENT_LOCK_LIFE_S
        locks = {
            (topic, queue_id): _Lock(client_id, expires_s) for topic, queue_id, client_id in holders
        }
        for lock in self._groups.get(group, {}).values():
            self._disown(lock)
        self._shares.take("", len(locks))
        if locks:
            self._groups[group] = locks
        else:
            self._groups.pop(group, None)
        self._saver.mark_changed()

    def are_known(self, group: str, queues: Iterable[MessageQueue]) -> bool:
        """Tell whether the other replicas know who holds these queues."""
        locks = self._groups.get(group, {})
        found = (locks.get((queue.topic, queue.queue_id)) for queue in queues)
        return all(lock is None or lock.is_known for lock in found)

    def note_known(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Note that the other replicas know that a member holds these queues."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get((queue.topic, queue.queue_id))
            if lock is not None and lock.client_id == client_id:
                lock.is_known = True

    def take_up(self) -> None:
        """Lead in place of another: a holder may believe in its lock for a while, as after a
        restart."""
        expires_s = self._clock() + CLIENT_LOCK_LIFE_S
        for locks in self._groups.values():
            for lock in locks.values():
                lock.expires_s = expires_s

    def has_live_locks(self, group: str) -> bool:
        """Tell whether a member of a group consumes in order."""
        now_s = self._clock()
        return any(lock.expires_s >= now_s for lock in self._groups.get(group, {}).values())

    def holder(self, group: str, topic: str, queue_id: int) -> str | None:
        """Return the id of the member that holds a queue."""
        lock = self._groups.get(group, {}).get((topic, queue_id))
        return None if lock is None or lock.expires_s < self._clock() else lock.client_id

    def expire(self) -> Generator[None, None, None]:
        """Forget the locks that nobody renewed; yields after each slice of work.

        What is locked, renewed or let go between two slices stays so.
        """
        now_s = self._clock()
        looked_at = 0
        for group, locks in list(self._groups.items()):
            for place, lock in list(locks.items()):
                if self._groups.get(group) is not locks:
                    break  # Another broker leads, and these are no more.
                if lock.expires_s < now_s and locks.get(place) is lock:
                    self._disown(locks.pop(place))
                    self._changed(group)
                    if not locks:
                        del self._groups[group]
                looked_at += 1
                if looked_at % EXPIRED_A_STEP == 0:
                    yield

    def _encode_file(self) -> Iterator[bytes]:
        """Write the holders, one a line; a slice may end within a group: one may have them all."""
        some = bytearray(b'{\n "formatVersion": %d,\n "groups": {' % _FORMAT_VERSION)
        comma = b""
        for group, locks in list(self._groups.items()):
            some += comma + b"\n  " + encode_body(group) + b": ["
            comma, inner_comma = b",", b""
            for topic, queue_id in list(locks):
                lock = locks.get((topic, queue_id))
                if lock is None:
                    continue
                holder = encode_body(_Holder(topic, queue_id, lock.client_id))
                some += inner_comma + b"\n   " + holder
                inner_comma = b","
                if len(some) >= _SLICE_BYTES:
                    yield bytes(some)
                    some.clear()
            some += b"\n  ]"
        yield bytes(some + b"\n }\n}\n")


def _decode_file(content: bytes) -> _File:
    loaded = msgspec.json.decode(content, type=_File)
    refuse_newer(loaded.format_version, _FORMAT_VERSION)
    return loaded


def _log_holder(
    level: int, event: str, group: str, queue: MessageQueue, client_id: str, lock: _Lock | None
) -> None:
    _log.log(
        level,
        "queue %s group=%s topic=%s queue=%d client=%s holder=%s",
        event,
        group,
        queue.topic,
        queue.queue_id,
        client_id,
        "-" if lock is None else lock.client_id,
    )
