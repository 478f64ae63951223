"""What 3001-3010 ask for: changes of users and rules, and looks at them.

Each function looks at all users and returns those of requests as they are to be, without changing
anything: whoever calls it makes that durable. The answers are RocketMQ's, word for word.

Three things differ. A name or a subject in the body has to be that of the request, since RocketMQ
decides by one and acts on the other. A user that a file or a setting has cannot be changed by
requests. And no answer has a password in it.

Source: apache/rocketmq broker/processor/AdminBrokerProcessor.java,
auth/authentication/manager/AuthenticationMetadataManagerImpl.java,
auth/authorization/manager/AuthorizationMetadataManagerImpl.java @ rocketmq-all-5.3.3
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from mailboat.errors import BrokerError, IllegalUserError
from mailboat.protocol.auth_bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from mailboat.protocol.codes import ResponseCode
from mailboat.security.rules import (
    NO_RULES,
    PolicyEntry,
    PolicyRules,
    PolicyType,
    parse_entry,
    parse_policy_type,
    parse_resource,
)
from mailboat.security.user_records import (
    UserRecord,
    check_name,
    check_password,
    parse_status,
    parse_type,
    status_word,
    type_word,
)

_USER: Final = "User:"
_SUPER_CREATES: Final = "The super user can only be create by super user"
_SUPER_UPDATES: Final = "The super user can only be update by super user"


@dataclass(frozen=True, slots=True)
class Users:
    """The users that a change looks at."""

    records: Mapping[str, UserRecord]
    """All of them, by name."""

    made: Mapping[str, UserRecord]
    """Those of them that requests can change."""


def create_user(users: Users, name: str, info: UserInfo, *, by_super: bool) -> UserRecord:
    """Return a new user (3001).

    Raises:
        BrokerError: INVALID_PARAMETER, the name or a word is not legal; SYSTEM_ERROR, only a Super
            user makes another one; NO_PERMISSION, there is such a user, or it has no password.
    """
    _check_name(name, info)
    is_super = _parsed_type(info)
    if is_super and not by_super:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, _SUPER_CREATES)
    if name in users.records:
        raise _refused("The user is existed")
    password = info.password or ""
    _check_password(password)
    return UserRecord(name, password, is_super=is_super, is_enabled=_parsed_status(info))


def update_user(users: Users, name: str, info: UserInfo, *, by_super: bool) -> UserRecord:
    """Return a user with what a body changes (3002).

    A password of before is not valid beside a new one.

    Raises:
        BrokerError: INVALID_PARAMETER, the name or a word is not legal; SYSTEM_ERROR, only a Super
            user makes another one, or a file has the user; NO_PERMISSION, there is no such user, or
            only a Super user changes it.
    """
    _check_name(name, info)
    if info.user_type and _parsed_type(info) and not by_super:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, _SUPER_UPDATES)
    record = users.records.get(name)
    if record is None:
        raise _refused("The user is not exist")
    _check_changeable(users, record, by_super=by_super)
    if info.password and info.password.strip():
        _check_password(info.password)
        record = replace(record, password=info.password, previous=None)
    if info.user_type:
        record = replace(record, is_super=_parsed_type(info))
    if info.user_status:
        record = replace(record, is_enabled=_parsed_status(info))
    return record


def check_deletable(users: Users, name: str, *, by_super: bool) -> None:
    """Refuse to delete a user (3003) that may not be; one that is not there may.

    Raises:
        BrokerError: INVALID_PARAMETER, the name is blank; SYSTEM_ERROR, a file has the user;
            NO_PERMISSION, only a Super user deletes it.
    """
    if not name.strip():
        raise BrokerError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    record = users.records.get(name)
    if record is not None:
        _check_changeable(users, record, by_super=by_super)


def user_info(record: UserRecord) -> UserInfo:
    """Return what is told of a user (3004)."""
    return UserInfo(record.name, user_type=type_word(record), user_status=status_word(record))


def user_infos(users: Users, name_filter: str) -> list[UserInfo]:
    """Return what is told of the users whose names have a text in them (3005)."""
    return [user_info(one) for name, one in sorted(users.records.items()) if name_filter in name]


def update_acl(users: Users, subject: str, info: AclInfo, *, by_super: bool) -> UserRecord:
    """Return a user with rules that are new, or in place of those about the same (3006, 3007).

    Raises:
        BrokerError: INVALID_PARAMETER, the subject of the body is another one; SYSTEM_ERROR, a file
            has the user; NO_PERMISSION, there is no such user, a rule is wrong, or only a Super
            user changes it.
    """
    if info.subject and subject.strip() and info.subject != subject:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER, "the subject of the body is not that of the request"
        )
    record = _subject(users, subject.strip() or info.subject or "")
    _check_changeable(users, record, by_super=by_super)
    entries = _entries(info)
    replaced = {(entry.policy_type, entry.resource) for entry in entries}
    kept = [
        entry
        for entry in record.rules.entries
        if (entry.policy_type, entry.resource) not in replaced
    ]
    return _with_rules(record, [*kept, *entries])


def delete_acl(
    users: Users, subject: str, policy_type: str, resource: str, *, by_super: bool
) -> UserRecord:
    """Return a user without the rules about a resource, or without any if none is named (3008).

    Raises:
        BrokerError: SYSTEM_ERROR, a file has the user; NO_PERMISSION, there is no such user, or it
            has no rules, or only a Super user changes it.
    """
    record = _subject(users, subject)
    _check_changeable(users, record, by_super=by_super)
    if not record.rules.entries:
        raise _refused("The acl is not exist.")
    if not resource.strip():
        return replace(record, rules=NO_RULES)
    try:
        removed = (parse_policy_type(policy_type), parse_resource(resource))
    except IllegalUserError as error:
        raise _refused(str(error)) from None
    kept = [
        entry for entry in record.rules.entries if (entry.policy_type, entry.resource) != removed
    ]
    return _with_rules(record, kept)


def acl_info(users: Users, subject: str) -> AclInfo | None:
    """Return the rules of a user (3009), None where it has none or there is no such user.

    Raises:
        BrokerError: NO_PERMISSION, the subject is no user.
    """
    record = users.records.get(_name_of(subject))
    return None if record is None else _acl_info(record, "")


def acl_infos(users: Users, subject_filter: str, resource_filter: str) -> list[AclInfo]:
    """Return the rules (3010) about resources that have a text in them, of users that have one."""
    infos = (
        _acl_info(record, resource_filter)
        for name, record in sorted(users.records.items())
        if subject_filter in _USER + name
    )
    return [info for info in infos if info is not None]


def _check_name(name: str, info: UserInfo) -> None:
    try:
        check_name(name)
    except IllegalUserError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from None
    if info.username and info.username != name:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER, "the username of the body is not that of the request"
        )


def _check_password(password: str) -> None:
    try:
        check_password(password)
    except IllegalUserError as error:
        raise _refused(str(error)) from None


def _check_changeable(users: Users, record: UserRecord, *, by_super: bool) -> None:
    if record.is_super and not by_super:
        raise _refused(_SUPER_UPDATES)
    if users.made.get(record.name) is not record:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"a file or a setting of this server has the user {record.name}: change it there",
        )


def _parsed_type(info: UserInfo) -> bool:
    try:
        return parse_type(info.user_type)
    except IllegalUserError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from None


def _parsed_status(info: UserInfo) -> bool:
    try:
        return parse_status(info.user_status)
    except IllegalUserError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, str(error)) from None


def _name_of(subject: str) -> str:
    if not subject.startswith(_USER):
        raise _refused("The subject is not User: and the name of a user.")
    return subject.removeprefix(_USER)


def _subject(users: Users, subject: str) -> UserRecord:
    record = users.records.get(_name_of(subject))
    if record is None:
        raise _refused(f"The subject of {subject} is not exist.")
    return record


def _entries(info: AclInfo) -> list[PolicyEntry]:
    if not info.policies:
        raise _refused("The policies is empty.")
    entries = []
    try:
        for policy in info.policies:
            policy_type = parse_policy_type(policy.policy_type or "")
            if not policy.entries:
                raise _refused("The policies is empty.")
            for one in policy.entries:
                entries.append(
                    parse_entry(
                        one.resource or "",
                        one.actions or (),
                        one.source_ips or (),
                        one.decision or "",
                        policy_type,
                    )
                )
    except IllegalUserError as error:
        raise _refused(str(error)) from None
    return entries


def _with_rules(record: UserRecord, entries: list[PolicyEntry]) -> UserRecord:
    try:
        return replace(record, rules=PolicyRules(entries) if entries else NO_RULES)
    except IllegalUserError as error:
        raise _refused(str(error)) from None


def _acl_info(record: UserRecord, resource_filter: str) -> AclInfo | None:
    policies = []
    for policy_type in PolicyType:
        entries = [
            PolicyEntryInfo(
                resource=str(entry.resource),
                actions=entry.action_words,
                source_ips=entry.source_ips,
                decision=entry.decision.value,
            )
            for entry in record.rules.of_type(policy_type)
            if resource_filter in str(entry.resource)
        ]
        if entries:
            policies.append(PolicyInfo(policy_type.value, entries))
    return AclInfo(_USER + record.name, policies) if policies else None


def _refused(remark: str) -> BrokerError:
    return BrokerError(ResponseCode.NO_PERMISSION, remark)
