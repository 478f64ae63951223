"""Which topics and groups there are because a user used them: the names, in a file of the store.

A name counts for as long as there is such a topic or group. What an administrator makes counts for
nobody. Only users with quotas are looked at.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import Final

import msgspec

from mailboat.broker.state_saver import SavedTable, StateSaver
from mailboat.disk import Disk
from mailboat.disk.json_file import JsonFile, refuse_newer
from mailboat.protocol.json_slices import pretty_slices, table_parts

_FORMAT_VERSION: Final = 1
# A name that was let through and is not there by then will not be.
_MADE_WITHIN_S: Final = 30.0
_LOOK_EVERY_S: Final = 1.0
# Of a user whose names are not bounded: what is gone is forgotten from then on.
_UNBOUNDED_KEPT: Final = 10_000


class Kind(Enum):
    """What a name is of."""

    TOPIC = "topics"
    GROUP = "groups"


class _User(msgspec.Struct):
    topics: list[str] = []
    groups: list[str] = []


class _File(msgspec.Struct, rename="camel"):
    format_version: int
    users: dict[str, _User] = {}


class _Names:
    """The names of one kind of one user, each with the time when it was let through."""

    __slots__ = ("looked_s", "times")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.times = dict.fromkeys(names, -math.inf)
        self.looked_s = -math.inf


_OfUser = dict[Kind, _Names]


class MadeNames(SavedTable):
    """The names by user, bounded by their quotas."""

    def __init__(
        self,
        disk: Disk,
        own_dir: str,
        exists: Callable[[Kind, str], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without names; `load` reads those of an earlier run."""
        self._file = JsonFile(disk, f"{own_dir}/madeByUsers.json")
        self._saver = StateSaver(self._file, self._encode)
        self.exists = exists
        """Tells whether there is a topic or group of a name."""

        self._clock = clock
        self._users: dict[str, _OfUser] = {}

    def load(self) -> None:
        """Read the names of an earlier run.

        Raises:
            DamagedStoreError: neither the file nor its previous version can be read.
        """
        loaded = self._file.load(_decode)
        if loaded is not None:
            for user, names in loaded.users.items():
                self._users[user] = {
                    Kind.TOPIC: _Names(names.topics),
                    Kind.GROUP: _Names(names.groups),
                }

    def count(self, user: str, kind: Kind) -> int:
        """Return how many there are because a user used them."""
        of_user = self._users.get(user)
        return 0 if of_user is None else len(self._present(kind, of_user[kind].times))

    def may_make(self, user: str, kind: Kind, name: str, quota: int | None) -> bool:
        """Tell whether a user may make what is not there; then it counts from now on.

        Whether those that it has made are still there is looked at once a second at most: there may
        be many, and whoever is refused asks often.
        """
        of_user = self._users.get(user)
        names = _Names() if of_user is None else of_user[kind]
        now_s = self._clock()
        if name not in names.times:
            most = _UNBOUNDED_KEPT if quota is None else quota
            if len(names.times) >= most and now_s - names.looked_s >= _LOOK_EVERY_S:
                names.looked_s = now_s
                names.times = self._present(kind, names.times)
            if quota is not None and len(names.times) >= quota:
                return False
            if of_user is None:
                of_user = self._users[user] = {one: _Names() for one in Kind}
                names = of_user[kind]
            self._saver.mark_changed()
        names.times[name] = now_s
        return True

    def keep_users(self, is_there: Callable[[str], bool]) -> None:
        """Forget the names of users that are gone."""
        for user in [user for user in self._users if not is_there(user)]:
            del self._users[user]
            self._saver.mark_changed()

    def _present(self, kind: Kind, times: dict[str, float]) -> dict[str, float]:
        young_s = self._clock() - _MADE_WITHIN_S
        exists = partial(self.exists, kind)
        return {name: at_s for name, at_s in times.items() if at_s > young_s or exists(name)}

    def _encode(self) -> Iterator[bytes]:
        users = table_parts(self._users, _encode_users, weigh=_weight)
        return pretty_slices([("formatVersion", b"%d" % _FORMAT_VERSION), ("users", users)])


def _weight(names: _OfUser) -> int:
    return 1 + sum(len(one.times) for one in names.values())


def _encode_users(users: dict[str, _OfUser]) -> bytes:
    return msgspec.json.encode(
        {
            user: _User(sorted(names[Kind.TOPIC].times), sorted(names[Kind.GROUP].times))
            for user, names in users.items()
        }
    )


def _decode(content: bytes) -> _File:
    loaded = msgspec.json.decode(content, type=_File)
    refuse_newer(loaded.format_version, _FORMAT_VERSION)
    return loaded
