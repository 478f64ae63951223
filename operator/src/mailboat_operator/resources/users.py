"""Users in Secrets: one Secret for each Broker (and each NameServer) with a file for every user,
which brokers mount and read, and one Secret for each user, for its clients.

    mailboat-broker-users-<broker>            <user>.json, <user>.rotated
    mailboat-name-server-users-<name server>  <broker>.<user>.json
    <user>-mailboat-user                      accessKey, secretKey, namesrvAddr, tools.yml

The file of a user is the one place that remembers its secret keys: the present one, and the one of
before while that is still taken. `<user>.rotated` is the `rotate` that they were made for;
it is missing where the secret key is that of another Secret, which is not handed out. Where the
file itself is lost, what clients have counts again.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from mailboat.errors import IllegalUserError
from mailboat.security.rules import parse_entry
from mailboat.security.user_records import check_password
from mailboat_operator.crds.broker import Broker
from mailboat_operator.crds.name_server import NameServer
from mailboat_operator.crds.user import AclSpec, User, access_key_of
from mailboat_operator.resources.labels import (
    MANAGED_BY_LABEL,
    MANAGER,
    NAME_LABEL,
    broker_labels,
    child,
    name_server_labels,
)
from mailboat_operator.resources.names import (
    broker_users_name,
    join_addresses,
    name_server_users_name,
)

ACCESS_KEY: Final = "accessKey"
SECRET_KEY: Final = "secretKey"  # noqa: S105 - the key of a Secret
NAME_SERVERS: Final = "namesrvAddr"
TOOLS: Final = "tools.yml"

_QUOTAS: Final = "quotas"

UserFile = Mapping[str, Any]
"""A user's file as `mailboat.security.user_records` reads it."""


def file_key(user: str) -> str:
    """Return the key of a user's file among those of its Broker."""
    return f"{user}.json"


def rotated_key(user: str) -> str:
    """Return the key with the `rotate` that a user's secret key was made for."""
    return f"{user}.rotated"


def name_server_file_key(broker: str, user: str) -> str:
    """Return the key of a user's file among those whom a NameServer knows."""
    return f"{broker}.{user}.json"


def own_secret_name(user: str) -> str:
    """Return the name of the Secret with what a user's clients sign with."""
    return f"{user}-mailboat-user"


def broker_users_secret(broker: Broker) -> dict[str, Any]:
    """Return the Secret with a Broker's users, without what it holds."""
    name = broker_users_name(broker.name)
    return child("v1/Secret", broker, name, broker_labels(broker.name), type="Opaque")


def name_server_users_secret(name_server: NameServer) -> dict[str, Any]:
    """Return the Secret with the users whom a NameServer knows, without what it holds."""
    name = name_server_users_name(name_server.name)
    labels = name_server_labels(name_server.name)
    return child("v1/Secret", name_server, name, labels, type="Opaque")


def own_secret(user: User) -> dict[str, Any]:
    """Return the Secret for a user's clients, without what it holds."""
    labels = {NAME_LABEL: "mailboat", MANAGED_BY_LABEL: MANAGER}
    return child("v1/Secret", user, own_secret_name(user.name), labels, type="Opaque")


def own_secret_values(
    access_key: str, secret_key: str, name_servers: Sequence[str]
) -> dict[str, str]:
    """Return what the Secret for a user's clients holds."""
    # JSON texts are YAML too.
    tools = f"accessKey: {json.dumps(access_key)}\nsecretKey: {json.dumps(secret_key)}\n"
    return {
        ACCESS_KEY: access_key,
        SECRET_KEY: secret_key,
        NAME_SERVERS: join_addresses(name_servers),
        TOOLS: tools,
    }


def user_file(user: User, password: str, previous: Mapping[str, str] | None) -> dict[str, Any]:
    """Return a user's file, without its revision.

    Raises:
        IllegalUserError: a rule cannot be followed.
    """
    spec = user.spec
    made: dict[str, Any] = {
        "username": access_key_of(user),
        "password": password,
        "userType": spec.type,
        "userStatus": "disable" if spec.disabled else "enable",
    }
    if previous is not None:
        made["previousPassword"] = dict(previous)
    # A broker of before there were any takes no file with them.
    if spec.quotas is not None and (quotas := msgspec.to_builtins(spec.quotas)):
        made[_QUOTAS] = quotas
    if spec.acls:
        made["policies"] = [{"entries": [_entry(acl) for acl in spec.acls]}]
    return made


def without_quotas(file: UserFile) -> dict[str, Any]:
    """Return a user's file for a name server, which may be older than quotas and has none."""
    return {key: value for key, value in file.items() if key != _QUOTAS}


def check_secret_key(text: str) -> None:
    """Refuse what no broker takes as a secret key.

    Raises:
        IllegalUserError: it is blank or too long; the text does not show it.
    """
    check_password(text)


def spelled(file: UserFile) -> str:
    """Return the text of a user's file."""
    return json.dumps(file, sort_keys=True)


def time_text(at_s: float) -> str:
    """Spell a time as the files have it."""
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def time_s(text: str) -> float:
    """Return the seconds since 1970 of such a time.

    Raises:
        ValueError: it is none.
    """
    return datetime.fromisoformat(text).timestamp()


def _entry(acl: AclSpec) -> dict[str, Any]:
    resource = acl.resource
    name = {"Literal": resource.name, "Prefix": f"{resource.name}*", "Any": "*"}[resource.pattern]
    entry: dict[str, Any] = {
        "resource": f"{resource.type}:{name}",
        "actions": list(acl.actions),
        "decision": acl.decision,
    }
    if acl.source_cidrs:
        entry["sourceIps"] = list(acl.source_cidrs)
    try:
        parse_entry(entry["resource"], acl.actions, acl.source_cidrs, acl.decision)
    except IllegalUserError as error:
        raise IllegalUserError(f"the rule about {entry['resource']}: {error}") from None
    return entry
