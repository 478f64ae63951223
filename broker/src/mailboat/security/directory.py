"""All users of one server, from wherever they come.

    1. files: the folder `authUsersPath`, then plain_acl.yml
    2. `innerClientAuthenticationCredentials`: a Super user
    3. those that requests 3001-3010 made, kept in `<store>/mailboat/users.json`
    4. `initAuthenticationUser`: a Super user that is one of 3 where no other has its name

A name counts once, by the first of these that has it. The exception: a file whose password for the
user of 2 is another one does not count, for servers could not come to each other then. What files
have is changed in the files, what requests made by requests. Files are read again when they change;
a file that cannot be taken leaves what it said before, and is one of `problems`. At the start it
stops the start.

`users.json` has no `.bak` beside it, as other tables have: a user that was deleted must not be
there again after a damage. Nobody but the owner of the process can read it.

`look`, `load` and `save` block; the rest belongs to the thread of the event loop.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from mailboat.config.security import SecurityConfig
from mailboat.disk import Disk, read_file, replace_file
from mailboat.errors import ConfigError, DamagedStoreError, IllegalUserError
from mailboat.security.audit import shown
from mailboat.security.configured_users import INNER_KEY, initial_user, inner_user
from mailboat.security.user_files import Records, UserFile, UserFolder, UserSource
from mailboat.security.user_records import (
    USERS_FILE_MAX_BYTES,
    USERS_MAX,
    UserRecord,
    decode_users,
    encode_users,
)
from mailboat.security.users import User

_log = logging.getLogger(__name__)

LOOK_PERIOD_S: Final = 2.0
"""So often files are looked at."""

_PROBLEMS_MAX: Final = 100
_QUOTAS_SHOWN: Final = 10


def no_user() -> ConfigError:
    """Return the error where nobody could get in."""
    reason = (
        "there is no user: set initAuthenticationUser, or have one in authUsersPath or plainAclFile"
    )
    return ConfigError("authenticationEnabled", "true", reason)


class Directory:
    """`mailboat.security.users.UserDirectory` over all sources."""

    def __init__(self, config: SecurityConfig, disk: Disk, users_path: str | None) -> None:
        """Know where users come from; `users_path` is where those of requests are kept.

        Without it there are none: a name server has no store.

        Raises:
            ConfigError: a setting with a user in it is wrong, or aclEnable names no file.
        """
        self.revision = 0
        self.on_changed: list[Callable[[], None]] = []
        self.problems: list[str] = []
        """What is wrong with files, in sentences without secrets."""

        self._disk = disk
        self._users_path = users_path
        self._sources: list[tuple[str, str, UserSource]] = []
        if config.auth_users_path:
            path = os.path.expanduser(config.auth_users_path)
            self._sources.append(("authUsersPath", path, UserFolder(path)))
        if config.acl_enable:
            path = os.path.expanduser(config.plain_acl_file)
            if not path:
                raise ConfigError("aclEnable", "true", "needs plainAclFile, the file of accounts")
            # Only who has such a file needs a reader of YAML.
            from mailboat.security.plain_acl import PLAIN_ACL_MAX_BYTES, decode_plain_acl

            source = UserFile(path, decode_plain_acl, PLAIN_ACL_MAX_BYTES)
            self._sources.append(("plainAclFile", path, source))
        inner = inner_user(config)
        self._inner: Records = {} if inner is None else {inner.name: inner}
        self._initial = initial_user(config)
        self._made: Records = {}
        self._records: Records = {}
        self._users: dict[str, User] = {}
        self._is_new = False
        self._next_expiry_ms: int | None = None

    def get(self, access_key: str) -> User | None:
        """Return the user with an access key, also a disabled one."""
        return self._users.get(access_key)

    @property
    def records(self) -> Mapping[str, UserRecord]:
        """All users by name, as they are kept; never to be changed."""
        return self._records

    @property
    def made(self) -> Mapping[str, UserRecord]:
        """Those of them that requests made and can change."""
        return {name: one for name, one in self._made.items() if self._records.get(name) is one}

    def kept(self) -> Records:
        """Return a copy of what `users.json` has, also what does not count."""
        return dict(self._made)

    # -- files ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Read everything; users count from then on.

        Raises:
            ConfigError: a file with users cannot be taken.
            DamagedStoreError: `users.json` cannot be taken.
            OSError: the file system refuses.
        """
        if self._users_path is not None and self._disk.exists(self._users_path):
            try:
                self._made = decode_users(read_file(self._disk, self._users_path))
            except IllegalUserError as error:
                raise DamagedStoreError(
                    f"{self._users_path} cannot be read ({error}); put back a good copy, or move "
                    "it away to start without the users that requests made"
                ) from None
        for key, path, source in self._sources:
            source.look()
            if source.problems:
                raise ConfigError(key, path, source.problems[0])
        initial = self._initial
        if initial is not None and initial.name not in self._joined():
            # It is in the file with the first change: a start leaves a store as it found it.
            self._made[initial.name] = initial
        if not self._joined():
            raise no_user()
        self._put()

    def look(self) -> None:
        """Look at all files; `refresh` makes what they say count."""
        for _, _, source in self._sources:
            self._is_new |= source.look()

    def refresh(self) -> None:
        """Make what `look` found count, and what has become invalid in the meantime."""
        expiry_ms = self._next_expiry_ms
        if self._is_new or (expiry_ms is not None and self._disk.wall_ms() >= expiry_ms):
            self._is_new = False
            self._put()

    # -- changes by requests --------------------------------------------------------------------

    def save(self, made: Mapping[str, UserRecord]) -> None:
        """Make users of requests durable; they count after `put`.

        Raises:
            IllegalUserError: they are too many or too large.
            OSError: the disk refused; what was there before, or this, is there whole.
        """
        if len(made) > USERS_MAX:
            raise IllegalUserError(f"more than {USERS_MAX} users")
        content = encode_users(made.values())
        if len(content) > USERS_FILE_MAX_BYTES:
            raise IllegalUserError(f"all users have more than {USERS_FILE_MAX_BYTES} bytes")
        if self._users_path is not None:
            self._disk.make_dirs(self._users_path.rpartition("/")[0])
            replace_file(self._disk, self._users_path, content, is_private=True)

    def put(self, made: Mapping[str, UserRecord]) -> None:
        """Let these be the users of requests."""
        self._made = dict(made)
        self._put()

    def _joined(self) -> Records:
        """All users, each name from the first source that has it."""
        joined: Records = {}
        for records in (self._made, self._inner, *(s.records for _, _, s in self._sources[::-1])):
            joined.update(records)
        for name, own in self._inner.items():
            if own.password not in _passwords(joined[name]):
                joined[name] = own
        return joined

    def _put(self) -> None:
        now_ms = self._disk.wall_ms()
        before, users_before = self._records, self._users
        self._records = self._joined()
        self._users = {
            name: users_before[name]
            if before.get(name) is record and record.previous is None
            else record.user(now_ms)
            for name, record in self._records.items()
        }
        self._next_expiry_ms = min(_expiries(self._records.values(), now_ms), default=None)
        self._tell_problems()
        self.revision += 1
        for listener in self.on_changed:
            listener()

    def _tell_problems(self) -> None:
        problems = [text for _, _, source in self._sources for text in source.problems]
        problems += [
            f"{self._users_path}: user {name} does not count, a file or {INNER_KEY} has it too"
            for name, record in self._made.items()
            if self._records[name] is not record
        ]
        problems += [
            f"{key}: user {name} does not count, {INNER_KEY} has another password for it; "
            "give one of them another name"
            for name, own in self._inner.items()
            for key, _, source in self._sources
            if name in source.records and self._records[name] is own
        ]
        problems += [
            f"user {name}: quotas that this version does not know do not hold: "
            + ", ".join(map(shown, record.unknown_quotas[:_QUOTAS_SHOWN]))
            for name, record in self._records.items()
            if record.unknown_quotas
        ]
        del problems[_PROBLEMS_MAX:]
        for text in problems:
            if text not in self.problems:
                _log.warning("users that do not count as they are written: %s", text)
        self.problems = problems


def _passwords(record: UserRecord) -> tuple[str, ...]:
    """Return what a user's requests may be signed with, now or until a time."""
    previous = () if record.previous is None else (record.previous.password,)
    return (record.password, *previous)


def _expiries(records: Iterable[UserRecord], now_ms: int) -> Iterable[int]:
    for record in records:
        if record.previous is not None and record.previous.valid_until_ms is not None:
            if record.previous.valid_until_ms > now_ms:
                yield record.previous.valid_until_ms
