"""Users kept in files that others write: a folder such as a mounted Secret, or one file.

A file that changed is found by its `stat`, and read again as a whole. Kubernetes replaces what is
mounted at once, by the link `..data` to a folder of one generation: all files are read from that
one, so that none of before stands beside one of after.

One file that cannot be taken takes nothing away from the others: what it said before still counts,
and `problems` says so. A user whose file is gone is gone; if the folder is gone, all stay.

Names that begin with a dot are not looked at, nor what does not end with `.json`.

All of this blocks and knows no event loop: one thread at a time may look.
"""

import hashlib
import os
import stat
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeAlias

from mailboat.errors import IllegalUserError
from mailboat.security.user_records import (
    USER_FILE_MAX_BYTES,
    USERS_MAX,
    UserRecord,
    decode_user,
)

Records: TypeAlias = dict[str, UserRecord]
"""Users by name."""

_GENERATION: Final = "..data"
_SUFFIX: Final = ".json"
_TRIES: Final = 3
# Clocks of file systems tick: what was written so lately may be written again in the same tick.
_SETTLED_AFTER_NS: Final = 2_000_000_000


class UserSource(Protocol):
    """Where users come from."""

    records: Records
    """What was found by the last look, or still counts."""

    problems: list[str]
    """What is wrong there, in sentences without secrets."""

    def look(self) -> bool:
        """Look again, and tell whether records or problems are other ones."""
        ...


class _Stamp(NamedTuple):
    """What differs once a file was written or replaced."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class UserFile:
    """One file with any number of users."""

    def __init__(self, path: str, decode: Callable[[bytes], Records], max_bytes: int) -> None:
        """Know where it lies, how it is read and how large it may be; nothing is read yet."""
        self.records: Records = {}
        self.problems: list[str] = []
        self._path = path
        self._decode = decode
        self._max_bytes = max_bytes
        self._stamp: _Stamp | None = None
        self._digest = b""

    def look(self) -> bool:
        """Look again, and tell whether records or problems are other ones."""
        return self.look_at(self._path)

    def look_at(self, path: str) -> bool:
        """Do the same where the file lies elsewhere by now."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            return self._note(path, error)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise IllegalUserError("it is not a file")
            stamp = _Stamp(
                found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
            )
            if stamp == self._stamp:
                return False
            content = _read(fd, self._max_bytes)
            latest_ns = max(stamp.modified_ns, stamp.changed_ns)
            is_settled = time.time_ns() - latest_ns > _SETTLED_AFTER_NS
            self._stamp = stamp if is_settled else None
            return self._take(content)
        except (OSError, IllegalUserError) as error:
            return self._note(path, error)
        finally:
            os.close(fd)

    def _take(self, content: bytes) -> bool:
        digest = hashlib.blake2b(content, digest_size=16).digest()
        if digest == self._digest:
            return False
        self.records = self._decode(content)
        self.problems = []
        self._digest = digest
        return True

    def _note(self, path: str, error: OSError | IllegalUserError) -> bool:
        # What it says the next time counts, even where that is what it said before.
        self._digest = b""
        text = error.strerror if isinstance(error, OSError) else str(error)
        problems = [f"{path}: {text}"]
        if problems == self.problems:
            return False
        self.problems = problems
        return True


class UserFolder:
    """A folder with one file for each user."""

    def __init__(self, path: str) -> None:
        """Know where it lies; nothing is read yet."""
        self.records: Records = {}
        self.problems: list[str] = []
        self._path = path
        self._files: dict[str, UserFile] = {}
        # By user: the name of the file that counts.
        self._owners: dict[str, str] = {}

    def look(self) -> bool:
        """Look again, and tell whether records or problems are other ones."""
        try:
            folder, names = self._list()
        except (OSError, IllegalUserError) as error:
            text = error.strerror if isinstance(error, OSError) else str(error)
            return self._put(self.records, [f"{self._path}: {text}"])
        self._files = {name: self._files.get(name) or _one_user(name) for name in names}
        problems: list[str] = []
        for name, file in self._files.items():
            file.look_at(os.path.join(folder, name))
            problems += file.problems
        records: Records = {}
        self._owners = self._find_owners()
        for name, file in self._files.items():
            for user, record in file.records.items():
                owner = self._owners[user]
                if owner == name:
                    records[user] = record
                else:
                    path = os.path.join(folder, name)
                    problems.append(f"{path}: user {user} is that of {owner} already")
        return self._put(records, problems)

    def _find_owners(self) -> dict[str, str]:
        """Say which file counts for each user: that of before while it has it, else the first."""
        owners: dict[str, str] = {}
        for name, file in self._files.items():
            for user in file.records:
                # A copy whose username was not changed yet takes nobody's rights.
                if user not in owners or self._owners.get(user) == name:
                    owners[user] = name
        return owners

    def _put(self, records: Records, problems: list[str]) -> bool:
        is_new = records != self.records or problems != self.problems
        self.records, self.problems = records, problems
        return is_new

    def _list(self) -> tuple[str, list[str]]:
        """Return the folder of the generation that there is now, and the names in it."""
        generation = os.path.join(self._path, _GENERATION)
        tries = _TRIES
        while True:
            is_mounted = os.path.lexists(generation)
            folder = os.path.realpath(generation) if is_mounted else self._path
            tries -= 1
            try:
                found = os.listdir(folder)
            except FileNotFoundError:
                # Replaced between the two looks.
                if tries and is_mounted:
                    continue
                raise
            break
        names = [name for name in found if name.endswith(_SUFFIX) and not name.startswith(".")]
        if len(names) > USERS_MAX:
            raise IllegalUserError(f"more than {USERS_MAX} files in one folder")
        return folder, sorted(names)


def _one_user(path: str) -> UserFile:
    return UserFile(path, _decode_one, USER_FILE_MAX_BYTES)


def _decode_one(content: bytes) -> Records:
    record = decode_user(content)
    return {record.name: record}


def _read(fd: int, max_bytes: int) -> bytes:
    content = b""
    while piece := os.read(fd, max_bytes + 1 - len(content)):
        content += piece
        if len(content) > max_bytes:
            raise IllegalUserError(f"it has more than {max_bytes} bytes")
    return content
