"""One user as files have it, in RocketMQ's words.

    {
      "username": "orders",
      "password": "…",
      "previousPassword": {"password": "…", "validUntil": "2026-01-02T03:04:05Z"},
      "userType": "Normal",
      "userStatus": "enable",
      "revision": "7",
      "quotas": {"connections": 20, "publishBytesPerSecond": 1048576},
      "policies": [
        {
          "policyType": "Custom",
          "entries": [
            {
              "resource": "Topic:orders*",
              "actions": ["Pub", "Sub"],
              "sourceIps": ["10.0.0.0/8"],
              "decision": "Allow"
            }
          ]
        }
      ]
    }

Only `username` and `password` have to be there. `previousPassword` is valid beside the new one
while clients change over, until `validUntil` where that is given. `userType` is Normal (the
default) or Super, `userStatus` enable (the default) or disable, `policyType` Custom (the default)
or Default. `revision` names the state of the file to whoever writes it; nothing here follows from
it. An entry without `sourceIps` counts for every address. `quotas` are those of
`mailboat.security.quotas`. A word that is not known is an error: it is probably a rule that would
not be followed. Only a quota that is not known is left out, and told of.

A password is kept as it is: signatures are made with it.

Source: apache/rocketmq remoting/protocol/body/{UserInfo,AclInfo}.java @ rocketmq-all-5.3.3; the
fields previousPassword, revision and quotas are ours.
"""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeVar

import msgspec

from mailboat.errors import IllegalUserError
from mailboat.security.quotas import Quotas, parse_quotas, quotas_body
from mailboat.security.rules import (
    NO_RULES,
    PolicyEntry,
    PolicyRules,
    PolicyType,
    parse_entry,
    parse_policy_type,
)
from mailboat.security.users import User

NAME_MAX: Final = 255
"""Longest name of a user."""

PASSWORD_MAX: Final = 1024
"""Longest password."""

REVISION_MAX: Final = 255
"""Longest name of a state."""

USER_FILE_MAX_BYTES: Final = 1024 * 1024
"""Largest file with one user."""

USERS_MAX: Final = 10_000
"""Most users of one source."""

USERS_FILE_MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest file with all users."""

_T = TypeVar("_T")

_TYPES: Final = {"super": True, "normal": False}
_STATUSES: Final = {"enable": True, "disable": False}


@dataclass(frozen=True, slots=True)
class PreviousPassword:
    """The password of before, while it is still taken."""

    password: str = field(repr=False)
    valid_until_ms: int | None = None
    """Epoch milliseconds of the first moment at which it is not; None: as long as it stands
    there."""


@dataclass(frozen=True, slots=True)
class UserRecord:
    """One user as it is kept; everything in it has been checked."""

    name: str
    password: str = field(repr=False)
    previous: PreviousPassword | None = None
    is_super: bool = False
    is_enabled: bool = True
    rules: PolicyRules = field(default=NO_RULES, repr=False)
    revision: str = ""
    quotas: Quotas | None = None
    unknown_quotas: tuple[str, ...] = ()
    """Names of quotas that this version does not know: they do not hold."""

    def user(self, now_ms: int) -> User:
        """Return the user as requests meet it at a time, epoch milliseconds."""
        secrets = [self.password.encode()]
        previous = self.previous
        if previous is not None:
            until_ms = previous.valid_until_ms
            if until_ms is None or now_ms < until_ms:
                secrets.append(previous.password.encode())
        return User(
            self.name,
            tuple(secrets),
            self.rules,
            self.is_super,
            self.is_enabled,
            self.revision,
            self.quotas,
        )


class _PreviousBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    password: str
    valid_until: Annotated[datetime.datetime, msgspec.Meta(tz=True)] | None = None


class _EntryBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    resource: str
    actions: list[str]
    decision: str
    source_ips: list[str] | None = None


class _PolicyBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    entries: list[_EntryBody]
    policy_type: str = PolicyType.CUSTOM.value


class _UserBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    username: str
    password: str
    previous_password: _PreviousBody | None = None
    user_type: str | None = None
    user_status: str | None = None
    revision: Annotated[str, msgspec.Meta(max_length=REVISION_MAX)] = ""
    quotas: dict[str, object] | None = None
    policies: list[_PolicyBody] | None = None


class _UsersBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    users: list[_UserBody]
    version: int = 1


_user_decoder: Final = msgspec.json.Decoder(_UserBody)
_users_decoder: Final = msgspec.json.Decoder(_UsersBody)
_encoder: Final = msgspec.json.Encoder()


def decode_user(text: bytes) -> UserRecord:
    """Read a file with one user.

    Raises:
        IllegalUserError: it is too large or not such a file, or something in it is wrong; the text
            has no secret in it.
    """
    if len(text) > USER_FILE_MAX_BYTES:
        raise IllegalUserError(f"it has more than {USER_FILE_MAX_BYTES} bytes")
    return _record(_decode(_user_decoder, text))


def decode_users(text: bytes) -> dict[str, UserRecord]:
    """Read what `encode_users` wrote.

    Raises:
        IllegalUserError: it is not that, or something in it is wrong.
    """
    if len(text) > USERS_FILE_MAX_BYTES:
        raise IllegalUserError(f"it has more than {USERS_FILE_MAX_BYTES} bytes")
    body = _decode(_users_decoder, text)
    if body.version != 1:
        raise IllegalUserError(f"it has version {body.version}, and only version 1 is known here")
    records: dict[str, UserRecord] = {}
    for user in body.users:
        record = _record(user)
        if record.name in records:
            raise IllegalUserError(f"user {record.name} is in it twice")
        records[record.name] = record
    return records


def encode_users(records: Iterable[UserRecord]) -> bytes:
    """Write users as one file, indented for people."""
    body = _UsersBody([_body(record) for record in sorted(records, key=lambda one: one.name)])
    return msgspec.json.format(_encoder.encode(body), indent=1) + b"\n"


def check_name(name: str) -> None:
    """Refuse a name that no user can have: it stands in logs and in fields of requests.

    Raises:
        IllegalUserError: it is empty, too long, or has blanks or characters that are not printed.
    """
    if not name:
        raise IllegalUserError("The username is blank")
    if len(name) > NAME_MAX or not name.isprintable() or any(map(str.isspace, name)):
        raise IllegalUserError(
            f"a name of a user has at most {NAME_MAX} characters, none of them a blank or a control"
        )


def check_password(password: str) -> None:
    """Refuse a password that no user can have.

    Raises:
        IllegalUserError: it is blank or too long; the text does not show it.
    """
    if not password.strip():
        raise IllegalUserError("password can not be blank")
    if len(password) > PASSWORD_MAX:
        raise IllegalUserError(f"a password has at most {PASSWORD_MAX} characters")
    try:
        password.encode()
    except UnicodeEncodeError:
        raise IllegalUserError("a password has to be Unicode text") from None


def parse_type(word: str | None) -> bool:
    """Tell whether a type of user is Super; none means Normal.

    Raises:
        IllegalUserError: it is neither Super nor Normal.
    """
    return _parse(word or "Normal", _TYPES, "The user type is neither Super nor Normal.")


def parse_status(word: str | None) -> bool:
    """Tell whether a status of a user lets it in; none means enable.

    Raises:
        IllegalUserError: it is neither enable nor disable.
    """
    return _parse(word or "enable", _STATUSES, "The user status is neither enable nor disable.")


def type_word(record: UserRecord) -> str:
    """Return RocketMQ's word for the type of a user."""
    return "Super" if record.is_super else "Normal"


def status_word(record: UserRecord) -> str:
    """Return RocketMQ's word for the status of a user."""
    return "enable" if record.is_enabled else "disable"


def _parse(word: str, words: dict[str, bool], problem: str) -> bool:
    value = words.get(word.strip().lower())
    if value is None:
        raise IllegalUserError(problem)
    return value


def _decode(decoder: msgspec.json.Decoder[_T], text: bytes) -> _T:
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise IllegalUserError(f"it is not such a file: {error}") from None


def _record(body: _UserBody) -> UserRecord:
    check_name(body.username)
    try:
        check_password(body.password)
        quotas, unknown_quotas = parse_quotas(body.quotas or {})
        return UserRecord(
            name=body.username,
            password=body.password,
            previous=_previous(body.previous_password),
            is_super=parse_type(body.user_type),
            is_enabled=parse_status(body.user_status),
            rules=_rules(body.policies or ()),
            revision=body.revision,
            quotas=quotas,
            unknown_quotas=unknown_quotas,
        )
    except IllegalUserError as error:
        raise IllegalUserError(f"user {body.username}: {error}") from None


def _previous(body: _PreviousBody | None) -> PreviousPassword | None:
    if body is None:
        return None
    check_password(body.password)
    until = body.valid_until
    return PreviousPassword(
        body.password, None if until is None else round(until.timestamp() * 1000)
    )


def _rules(policies: Iterable[_PolicyBody]) -> PolicyRules:
    entries = []
    for policy in policies:
        policy_type = parse_policy_type(policy.policy_type)
        for one in policy.entries:
            entries.append(
                parse_entry(
                    one.resource, one.actions, one.source_ips or (), one.decision, policy_type
                )
            )
    return PolicyRules(entries) if entries else NO_RULES


def _body(record: UserRecord) -> _UserBody:
    previous = record.previous
    return _UserBody(
        username=record.name,
        password=record.password,
        previous_password=None if previous is None else _previous_body(previous),
        user_type=type_word(record),
        user_status=status_word(record),
        revision=record.revision,
        quotas=None if record.quotas is None else dict(quotas_body(record.quotas)),
        policies=[
            _PolicyBody([_entry_body(entry) for entry in entries], policy_type.value)
            for policy_type in PolicyType
            if (entries := record.rules.of_type(policy_type))
        ]
        or None,
    )


def _previous_body(previous: PreviousPassword) -> _PreviousBody:
    until_ms = previous.valid_until_ms
    until = None
    if until_ms is not None:
        until = datetime.datetime.fromtimestamp(until_ms / 1000, datetime.UTC)
    return _PreviousBody(previous.password, until)


def _entry_body(entry: PolicyEntry) -> _EntryBody:
    return _EntryBody(
        resource=str(entry.resource),
        actions=entry.action_words,
        decision=entry.decision.value,
        source_ips=entry.source_ips or None,
    )
