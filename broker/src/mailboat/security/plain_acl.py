"""plain_acl.yml, the accounts of RocketMQ 4 (ACL 1.0), read as users with rules.

    accounts:
    - accessKey: RocketMQ        # both longer than 6 characters
      secretKey: 12345678
      admin: false
      defaultTopicPerm: DENY     # missing or misspelt means DENY
      defaultGroupPerm: SUB
      topicPerms: [topicA=DENY, topicB=PUB|SUB]   # names as they are, no patterns
      groupPerms: [groupA=DENY, groupB=SUB]

An account says of a topic or group what its own entry says, and else what its default says. As
rules: the own entry allows its permissions as a Custom entry and denies all else as a Default one,
so that the default of the account, another Default entry, never adds to it. DENY is a Custom entry.
An account without an entry for RMQ_SYS_TRACE_TOPIC may publish to it.

An `admin` without topicPerms and groupPerms is a Super user. With them it is bound to them, and may
do what administrators do.

White addresses let requests pass without a signature. They are not taken, and a file that has some
is refused: rules know addresses too, of a user that shows who it is. Nor are anchors, aliases and
tags of YAML: `secretKey: *abcdefg` was meant to be in quotes.

Source: apache/rocketmq acl/plain/{PlainPermissionManager,PlainAccessResource}.java and
acl/common/Permission.java @ rocketmq-all-4.9.8. The way to rules differs from 5.3's own migration,
where a misspelt permission allows everything.
"""

import logging
from collections.abc import Iterable
from typing import Any, Final

import yaml

from mailboat.errors import IllegalUserError
from mailboat.model.names import TRACE_TOPIC
from mailboat.model.printable import printable
from mailboat.security.access import Action, ResourceKind
from mailboat.security.rules import (
    Decision,
    PolicyEntry,
    PolicyRules,
    PolicyType,
    Resource,
    literal_resource,
)
from mailboat.security.user_records import USERS_MAX, UserRecord, check_name, check_password

_log = logging.getLogger(__name__)

PLAIN_ACL_MAX_BYTES: Final = 1024 * 1024
"""Largest file of accounts."""

_KEY_MIN: Final = 7
# The file, the list of accounts, one of them, its list of permissions; and one to spare. What makes
# objects of YAML calls itself for each level.
_DEPTH_MAX: Final = 5
_SHOWN_MAX: Final = 255
_FILE_KEYS: Final = frozenset({"accounts", "globalWhiteRemoteAddresses", "dataVersion"})
_ACCOUNT_KEYS: Final = frozenset(
    {
        "accessKey",
        "secretKey",
        "whiteRemoteAddress",
        "admin",
        "defaultTopicPerm",
        "defaultGroupPerm",
        "topicPerms",
        "groupPerms",
    }
)
_NOTHING: Final[frozenset[Action]] = frozenset()
_ALL: Final = frozenset({Action.ALL})
_PERMISSIONS: Final = {
    "DENY": _NOTHING,
    "PUB": frozenset({Action.PUB}),
    "SUB": frozenset({Action.SUB}),
    "PUB|SUB": frozenset({Action.PUB, Action.SUB}),
    "SUB|PUB": frozenset({Action.PUB, Action.SUB}),
}
_ADMINISTRATION: Final = (
    PolicyEntry(Resource(ResourceKind.CLUSTER), _ALL, Decision.ALLOW),
    *(
        PolicyEntry(
            Resource(kind),
            frozenset({Action.CREATE, Action.UPDATE, Action.DELETE, Action.GET, Action.LIST}),
            Decision.ALLOW,
        )
        for kind in (ResourceKind.TOPIC, ResourceKind.GROUP)
    ),
)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses what YAML takes silently: a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Make a dict of keys that differ."""
        keys = [key.value for key, _ in node.value]
        if len(set(map(str, keys))) < len(keys):
            raise IllegalUserError(f"a key is there twice{_near(node.start_mark)}")
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return found


def decode_plain_acl(content: bytes) -> dict[str, UserRecord]:
    """Read a file of accounts.

    Raises:
        IllegalUserError: it is not such a file, or something in it is wrong; the text has no secret
            in it.
    """
    document = _load(content)
    if not isinstance(document, dict):
        raise IllegalUserError("it is not a plain_acl.yml: there are no accounts in it")
    _check_keys(document, _FILE_KEYS, "the file")
    if document.get("globalWhiteRemoteAddresses"):
        raise IllegalUserError(_no_white("globalWhiteRemoteAddresses"))
    accounts = document.get("accounts")
    if not isinstance(accounts, list):
        raise IllegalUserError("accounts has to be a list")
    if len(accounts) > USERS_MAX:
        raise IllegalUserError(f"more than {USERS_MAX} accounts")
    records: dict[str, UserRecord] = {}
    for number, account in enumerate(accounts, 1):
        try:
            record = _record(account)
            if record.name in records:
                raise IllegalUserError("its accessKey is in the file twice")
        except IllegalUserError as error:
            raise IllegalUserError(f"account {number}: {error}") from None
        records[record.name] = record
    return records


def _load(content: bytes) -> Any:
    depth = 0
    try:
        for event in yaml.parse(content, _Loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEPTH_MAX:
                raise IllegalUserError(f"it is no list of accounts{_near(event.start_mark)}")
            tag = getattr(event, "tag", None)
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or tag:
                raise IllegalUserError(
                    "a text that begins with *, & or ! has to be in quotes"
                    + _near(event.start_mark)
                )
        return yaml.load(content, _Loader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        # The error's own text quotes the file, which has secrets in it.
        near = _near(error.problem_mark)
        raise IllegalUserError(f"it is not YAML that can be read{near}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise IllegalUserError("it is not YAML that can be read") from None


def _near(mark: Any) -> str:
    return "" if mark is None else f" (near line {mark.line + 1})"


def _record(account: Any) -> UserRecord:
    if not isinstance(account, dict):
        raise IllegalUserError("it has to be keys with values")
    _check_keys(account, _ACCOUNT_KEYS, "an account")
    name, password = _text(account, "accessKey"), _text(account, "secretKey")
    for key, value in (("accessKey", name), ("secretKey", password)):
        if len(value) < _KEY_MIN:
            raise IllegalUserError(f"the {key} has to be longer than {_KEY_MIN - 1} characters")
    check_name(name)
    check_password(password)
    if _text(account, "whiteRemoteAddress"):
        raise IllegalUserError(_no_white("whiteRemoteAddress"))
    entries = [
        *_entries(account, "topicPerms", ResourceKind.TOPIC),
        *_entries(account, "groupPerms", ResourceKind.GROUP),
    ]
    is_admin = _flag(account, "admin")
    if is_admin and not entries:
        return UserRecord(name, password, is_super=True)
    if is_admin:
        entries += _ADMINISTRATION
    trace = literal_resource(ResourceKind.TOPIC, TRACE_TOPIC)
    if all(entry.resource != trace for entry in entries):
        entries.append(PolicyEntry(trace, _PERMISSIONS["PUB"], Decision.ALLOW))
    entries += _default(account, "defaultTopicPerm", ResourceKind.TOPIC)
    entries += _default(account, "defaultGroupPerm", ResourceKind.GROUP)
    return UserRecord(name, password, rules=PolicyRules(entries))


def _entries(account: dict[str, Any], key: str, kind: ResourceKind) -> Iterable[PolicyEntry]:
    texts = account.get(key) or []
    if not isinstance(texts, list):
        raise IllegalUserError(f"{key} has to be a list")
    seen = set()
    for text in texts:
        parts = text.split("=") if isinstance(text, str) else []
        if len(parts) != 2:
            raise IllegalUserError(f"{key}: {_shown(text)} is not a name, =, and a permission")
        resource = literal_resource(kind, parts[0].strip())
        if resource in seen:
            raise IllegalUserError(f"{key}: {resource.name} is there twice")
        seen.add(resource)
        allowed = _permission(parts[1], f"{key} {resource.name}")
        if not allowed:
            yield PolicyEntry(resource, _ALL, Decision.DENY)
            continue
        yield PolicyEntry(resource, allowed, Decision.ALLOW)
        yield PolicyEntry(resource, _ALL, Decision.DENY, policy_type=PolicyType.DEFAULT)


def _default(account: dict[str, Any], key: str, kind: ResourceKind) -> Iterable[PolicyEntry]:
    allowed = _permission(_text(account, key) or "DENY", key)
    if allowed:
        yield PolicyEntry(Resource(kind), allowed, Decision.ALLOW, policy_type=PolicyType.DEFAULT)


def _permission(word: str, place: str) -> frozenset[Action]:
    allowed = _PERMISSIONS.get(word.strip())
    if allowed is None:
        _log.warning("plain_acl.yml: %s is no permission and means DENY in %s", word, place)
        return _NOTHING
    return allowed


def _text(mapping: dict[str, Any], key: str) -> str:
    """Return a text; whole numbers without quotes are texts, as in RocketMQ."""
    value = mapping.get(key)
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise IllegalUserError(f"the {key} has to be a text: put it in quotes")


def _flag(mapping: dict[str, Any], key: str) -> bool:
    value = mapping.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise IllegalUserError(f"{key} has to be true or false")
    return value


def _check_keys(mapping: dict[Any, Any], known: frozenset[str], where: str) -> None:
    for key in mapping:
        if key not in known:
            # Without a blank behind the colon the value is part of the key.
            raise IllegalUserError(f"{where} has no key {_shown(str(key).partition(':')[0])}")


def _no_white(key: str) -> str:
    return (
        f"{key} is not taken: no address is let in without a signature; give a user rules with "
        "sourceIps instead"
    )


def _shown(value: Any) -> str:
    return printable(str(value)[:_SHOWN_MAX])
