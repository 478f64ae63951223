"""What has to be done for a User: its file at every broker, and the Secret for its clients.

A new secret key reaches the servers first: it stands in the clients' Secret only once every broker,
and every name server that the Broker names, takes it; the one of before is taken for `overlap`
longer. Servers read a mounted Secret, which may take each of them a minute and a half; each says
which revision of the user counts there.

A User that is deleted is waited for: its finalizer goes once no broker of the Broker knows it. Name
servers only lead to brokers, so it does not wait for them.

Name servers that the Broker names no more lose the file, also where the Broker itself is gone.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mailboat.errors import IllegalUserError
from mailboat_operator.crds.broker import Broker
from mailboat_operator.crds.name_server import NameServer
from mailboat_operator.crds.security import is_authenticated
from mailboat_operator.crds.status import UserStatus, status_manifest
from mailboat_operator.crds.user import User, access_key_of
from mailboat_operator.planner.actions import Notify, Plan, PutSecret, SetFinalizers, Step
from mailboat_operator.planner.children import controller_of, foreign
from mailboat_operator.planner.conditions import (
    ACL_INVALID,
    APPLIED,
    BROKER_MISSING,
    DELETING,
    NAME_TAKEN,
    NOT_AUTHENTICATED,
    READY,
    ROTATING,
    SECRET_INVALID,
    SECRET_MISSING,
    SECRET_PENDING,
    SECRET_READY,
    SECRET_THERE,
    USER_APPLIED,
    USER_PENDING,
    USER_READY,
    Finding,
    build_conditions,
    previous_condition,
)
from mailboat_operator.planner.progress import join_names
from mailboat_operator.planner.snapshot import Manifest, UserSnapshot
from mailboat_operator.resources import users as build
from mailboat_operator.resources.names import name_server_addresses

FINALIZER: Final = "mailboat.dev/user"
RETRY_S: Final = 5.0
"""When to ask a broker again that does not take the user as it is: it reads files now and then."""

LOOK_S: Final = 60.0
"""When to look again at a Secret that somebody else writes: no event tells of it."""

TAKEN_RETRY_S: Final = 30.0
"""When to look again whether an access key or a name is free."""

_VALID_UNTIL: Final = "validUntil"


class _SecretError(Exception):
    """There is no secret key; holds the reason for the condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a user's file should say."""

    text: str
    name_server_text: str
    """The same without what name servers do nothing with."""

    revision: str
    password: str
    previous: Mapping[str, str] | None
    rotated: str | None
    """None where the secret key is somebody else's."""


def plan_user(snapshot: UserSnapshot) -> Plan:
    """Decide what has to be done for a User, and what its status is."""
    user, broker = snapshot.resource, snapshot.broker
    is_gone = broker is None or broker.metadata.deletion_timestamp is not None
    if user.metadata.deletion_timestamp is not None:
        return _plan_deletion(snapshot, None if is_gone else broker)
    if broker is None or is_gone:
        message = f"there is no Broker {user.spec.broker_ref} in this namespace"
        steps = _former_steps(snapshot) or _finalizer_step(user, False)
        return _stopped(snapshot, BROKER_MISSING, message, steps=steps)
    owner = _owner(snapshot)
    if owner is not None:
        message = (
            f"access key {access_key_of(user)} of Broker {broker.name} belongs to the older User"
            f" {owner}: delete one of the two, or give spec.authentication.accessKey"
        )
        steps = _removal(snapshot, broker) or _finalizer_step(user, False)
        return _stopped(snapshot, NAME_TAKEN, message, steps=steps, again_s=TAKEN_RETRY_S)
    if not is_authenticated(broker.spec.authentication):
        message = f"Broker {broker.name} has no spec.authentication, so it lets everybody in"
        return _stopped(snapshot, NOT_AUTHENTICATED, message)
    taken = _taken(snapshot, broker)
    if taken is not None:
        return _stopped(snapshot, NAME_TAKEN, taken, again_s=TAKEN_RETRY_S)
    try:
        wanted = _wanted(snapshot)
    except _SecretError as error:
        return _stopped(snapshot, error.reason, str(error), again_s=LOOK_S)
    except IllegalUserError as error:
        return _stopped(snapshot, ACL_INVALID, str(error))
    rival = _rival_file(snapshot)
    if rival is not None and not _share_secret(rival[1], wanted):
        message = (
            f"access key {access_key_of(user)} is another one's at the NameServer that Broker"
            f" {broker.name} names ({rival[0]}): give spec.authentication.accessKey"
        )
        steps = _name_server_steps(snapshot, broker, None)
        return _stopped(snapshot, NAME_TAKEN, message, steps=steps, again_s=TAKEN_RETRY_S)
    return _plan(snapshot, broker, wanted)


def _plan(snapshot: UserSnapshot, broker: Broker, wanted: _Wanted) -> Plan:
    user = snapshot.resource
    file_steps = _file_steps(snapshot, broker, wanted)
    having = [pod for pod in snapshot.servers if snapshot.said.get(pod) == wanted.revision]
    behind = _behind(snapshot, wanted)
    is_applied = bool(having) and not behind and not file_steps
    secret_steps = _own_secret_steps(snapshot, broker, wanted) if is_applied else []
    applied = _applied_finding(snapshot, having, behind, is_applied)
    secret = _secret_finding(snapshot, wanted, is_there=not secret_steps)
    ready = _ready_finding(applied, secret)
    steps = [
        *_finalizer_step(user, True),
        *file_steps,
        *secret_steps,
        *_notices(snapshot, ready),
    ]
    status = _status(snapshot, [ready, secret, applied], having, wanted.previous)
    return Plan(tuple(steps), status, _again_s(snapshot, wanted, is_applied))


def _behind(snapshot: UserSnapshot, wanted: _Wanted) -> list[str]:
    """Return which servers do not take the user as it is to be, or do not say so."""
    pods = list(snapshot.servers)
    # Another Broker's User may have given the name servers their file of this access key.
    if _guarded_name_server(snapshot) is not None and _rival_file(snapshot) is None:
        pods += snapshot.name_server_pods
    silent = [f"{pod} does not answer" for pod in pods if pod not in snapshot.said]
    others = [
        f"{pod} does not take it so yet"
        for pod in pods
        if pod in snapshot.said and snapshot.said[pod] != wanted.revision
    ]
    return [*silent, *others]


def _guarded_name_server(snapshot: UserSnapshot) -> NameServer | None:
    """Return the NameServer of the Broker, if its name servers check who asks."""
    name_server = snapshot.name_server
    if name_server is None or not is_authenticated(name_server.spec.authentication):
        return None
    return name_server


def _stopped(
    snapshot: UserSnapshot,
    reason: str,
    message: str,
    *,
    steps: list[Step] | None = None,
    again_s: float | None = None,
) -> Plan:
    """Return the plan of a User that cannot be followed; what is in force stays."""
    types = [READY, USER_APPLIED]
    if reason in (SECRET_MISSING, SECRET_INVALID, NAME_TAKEN):
        types.insert(1, SECRET_READY)
    findings = [Finding(kind, False, reason, message) for kind in types]
    status = _status(snapshot, findings, [], None)
    notices = _notices(snapshot, findings[0])
    return Plan((*(steps or []), *notices), status, again_s, (message,))


def _plan_deletion(snapshot: UserSnapshot, broker: Broker | None) -> Plan:
    """Take the user's files away, and let it go once no broker knows it."""
    user = snapshot.resource
    if FINALIZER not in user.metadata.finalizers:
        return Plan((), user.status)
    removal = _removal(snapshot, broker) if broker is not None else _former_steps(snapshot)
    is_guarded = broker is not None and is_authenticated(broker.spec.authentication)
    waits = _waits_for(snapshot) if is_guarded else []
    if not removal and not waits:
        return Plan(tuple(_finalizer_step(user, False)), user.status)
    message = f"{access_key_of(user)} is being forgotten by every broker"
    if waits:
        message += f"; {join_names(waits)}"
    findings = [Finding(kind, False, DELETING, message) for kind in (READY, USER_APPLIED)]
    return Plan(tuple(removal), _status(snapshot, findings, [], None), again_after_s=RETRY_S)


def _waits_for(snapshot: UserSnapshot) -> list[str]:
    """Return what keeps the finalizer: a broker that takes the user still, or does not say."""
    found = []
    for pod in snapshot.servers:
        if pod not in snapshot.said:
            found.append(f"{pod} does not answer")
        elif (snapshot.said[pod] or "").startswith(_revision_prefix(snapshot.resource)):
            found.append(f"{pod} still knows it")
    return found


def _removal(snapshot: UserSnapshot, broker: Broker) -> list[Step]:
    """Return what takes the user's files out of the Secrets."""
    name, steps = snapshot.resource.name, []
    keys = (build.file_key(name), build.rotated_key(name))
    if any(_value(snapshot.broker_users, key) is not None for key in keys):
        manifest = build.broker_users_secret(broker)
        steps.append(Step("user file", (PutSecret(manifest, dict.fromkeys(keys)),), broker.name))
    key = build.name_server_file_key(broker.name, name)
    if snapshot.name_server is not None and _value(snapshot.name_server_users, key) is not None:
        manifest = build.name_server_users_secret(snapshot.name_server)
        action = PutSecret(manifest, {key: None})
        steps.append(Step("user file", (action,), snapshot.name_server.name))
    return steps + _former_steps(snapshot)


def _former_steps(snapshot: UserSnapshot) -> list[Step]:
    """Return what takes the user's file from name servers that its Broker names no more."""
    user, steps = snapshot.resource, []
    key = build.name_server_file_key(user.spec.broker_ref, user.name)
    for secret in snapshot.other_users:
        owner = controller_of(secret) or {}
        if owner.get("kind") == NameServer.KIND and _value(secret, key) is not None:
            metadata = {name: secret["metadata"][name] for name in ("name", "namespace")}
            manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
            steps.append(
                Step("user file", (PutSecret(manifest, {key: None}),), str(owner.get("name")))
            )
    return steps


# -- the file -----------------------------------------------------------------------------------


def _wanted(snapshot: UserSnapshot) -> _Wanted:
    """Return what the user's file should say, from what it says.

    Raises:
        _SecretError: there is no secret key.
        IllegalUserError: a rule cannot be followed.
    """
    user = snapshot.resource
    authentication = user.spec.authentication
    before = _file(snapshot)
    was = str(before["password"]) if before is not None else None
    rotated = _value(snapshot.broker_users, build.rotated_key(user.name))
    is_given = authentication.secret_ref is not None
    wants_new = rotated != (authentication.rotate or "") and not is_given
    if is_given:
        password = _given(snapshot)
    elif was is None:
        # What clients have stays good where only the file is lost.
        password = _published(snapshot) or snapshot.chance
    elif rotated is None or (wants_new and _is_published(snapshot, was)):
        password = snapshot.chance
    else:
        # One that is under way is waited for: a third one would drop what clients have.
        password, wants_new = was, False
    previous = _previous(snapshot, before, password)
    file = build.user_file(user, password, previous)
    revision = _next_revision(user, before, file)
    if is_given:
        # The mark of one that is not ours to hand out once `secretRef` is taken away.
        rotated = None
    elif wants_new or rotated is None:
        rotated = authentication.rotate or ""
    file["revision"] = revision
    text = build.spelled(file)
    for_name_servers = build.spelled(build.without_quotas(file))
    return _Wanted(text, for_name_servers, revision, password, previous, rotated)


def _previous(
    snapshot: UserSnapshot, before: build.UserFile | None, password: str
) -> Mapping[str, str] | None:
    """Return the secret key of before with its end, while it is still taken."""
    authentication = snapshot.resource.spec.authentication
    until = build.time_text(snapshot.now_s + authentication.overlap_s)
    if before is None:
        return None
    if before["password"] != password:
        if authentication.secret_ref is None:
            # Its end is not known before the new one is in the Secret.
            return {"password": before["password"]}
        lasts = authentication.overlap_s > 0
        return {"password": before["password"], _VALID_UNTIL: until} if lasts else None
    previous: Mapping[str, str] | None = before.get("previousPassword")
    if previous is None:
        return None
    if _VALID_UNTIL not in previous:
        if not _is_published(snapshot, password):
            return previous
        return {**previous, _VALID_UNTIL: until} if authentication.overlap_s > 0 else None
    return previous if build.time_s(previous[_VALID_UNTIL]) > snapshot.now_s else None


def _next_revision(user: User, before: build.UserFile | None, file: build.UserFile) -> str:
    """Return the name of a file's state: another one for each that says something else."""
    prefix = _revision_prefix(user)
    said = str((before or {}).get("revision") or "")
    number = said.removeprefix(prefix)
    if not said.startswith(prefix) or not number.isascii() or not number.isdigit():
        return f"{prefix}1"
    is_same = {key: value for key, value in (before or {}).items() if key != "revision"} == file
    return said if is_same else f"{prefix}{int(number) + 1}"


def _revision_prefix(user: User) -> str:
    return f"{user.metadata.uid}."


def _file_steps(snapshot: UserSnapshot, broker: Broker, wanted: _Wanted) -> list[Step]:
    name, steps = snapshot.resource.name, []
    values = {build.file_key(name): wanted.text, build.rotated_key(name): wanted.rotated}
    if any(_value(snapshot.broker_users, key) != value for key, value in values.items()):
        manifest = build.broker_users_secret(broker)
        steps.append(Step("user file", (PutSecret(manifest, dict(values)),), broker.name))
    text = None if _rival_file(snapshot) is not None else wanted.name_server_text
    return steps + _former_steps(snapshot) + _name_server_steps(snapshot, broker, text)


def _name_server_steps(snapshot: UserSnapshot, broker: Broker, text: str | None) -> list[Step]:
    """Return what has the name servers know the user by a file, or by none."""
    name_server = _guarded_name_server(snapshot)
    if name_server is None:
        return []
    key = build.name_server_file_key(broker.name, snapshot.resource.name)
    if _value(snapshot.name_server_users, key) == text:
        return []
    action = PutSecret(build.name_server_users_secret(name_server), {key: text})
    return [Step("user file", (action,), name_server.name)]


def _rival_file(snapshot: UserSnapshot) -> tuple[str, build.UserFile] | None:
    """Return what another Broker's User has the name servers know the access key by, and its key.

    A name server does not start with two files of one user: the first one there stays, and of two
    that came at a time the first by its name.
    """
    user = snapshot.resource
    if _guarded_name_server(snapshot) is None:
        return None
    own = build.name_server_file_key(user.spec.broker_ref, user.name)
    secret = snapshot.name_server_users
    keys = sorted((secret or {}).get("data") or ())
    for key in keys[: keys.index(own)] if own in keys else keys:
        file = _read(_value(secret, key))
        if file is not None and file.get("username") == access_key_of(user):
            return key, file
    return None


def _share_secret(file: build.UserFile, wanted: _Wanted) -> bool:
    """Return whether two files, of which one may be behind, are of the same secret key."""
    ours, theirs = wanted.previous or {}, file.get("previousPassword") or {}
    both = {wanted.password, ours.get("password")} & {file["password"], theirs.get("password")}
    return bool(both - {None})


def _file(snapshot: UserSnapshot) -> build.UserFile | None:
    """Return the user's file as it is; one that cannot be read is as none."""
    return _read(_value(snapshot.broker_users, build.file_key(snapshot.resource.name)))


def _read(text: str | None) -> build.UserFile | None:
    """Return what a user's file says; None if it is none."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("password"), str):
        return None
    previous = found.get("previousPassword")
    return found if previous is None or _is_previous(previous) else None


def _is_previous(value: Any) -> bool:
    """Return whether a value is a secret key of before, with its end or without."""
    if not isinstance(value, dict) or not isinstance(value.get("password"), str):
        return False
    try:
        build.time_s(value.get(_VALID_UNTIL, "1970-01-01T00:00:00Z"))
    except (TypeError, ValueError):
        return False
    return True


# -- Secrets ------------------------------------------------------------------------------------


def _given(snapshot: UserSnapshot) -> str:
    reference = snapshot.resource.spec.authentication.secret_ref
    assert reference is not None
    text = _value(snapshot.given_secret, reference.key)
    if text is None:
        words = "does not exist" if snapshot.given_secret is None else f"has no {reference.key}"
        raise _SecretError(SECRET_MISSING, f"Secret {reference.name} {words}")
    try:
        # What people write with an editor ends with a line feed.
        text = text.removesuffix("\n").removesuffix("\r")
        build.check_secret_key(text)
    except IllegalUserError as error:
        message = f"{reference.key} of Secret {reference.name}: {error}"
        raise _SecretError(SECRET_INVALID, message) from None
    return text


def _published(snapshot: UserSnapshot) -> str | None:
    """Return the secret key that clients have; None if there is none that could be one."""
    text = _value(snapshot.own_secret, build.SECRET_KEY)
    try:
        build.check_secret_key(text or "")
    except IllegalUserError:
        return None
    return text


def _is_published(snapshot: UserSnapshot, password: str) -> bool:
    return _value(snapshot.own_secret, build.SECRET_KEY) == password


def _own_secret_steps(snapshot: UserSnapshot, broker: Broker, wanted: _Wanted) -> list[Step]:
    user = snapshot.resource
    if user.spec.authentication.secret_ref is not None:
        return []
    servers = broker.spec.name_servers.addresses
    name_server = snapshot.name_server
    if name_server is not None:
        servers = name_server_addresses(
            name_server.name, name_server.namespace, name_server.spec.replicas
        )
    values = build.own_secret_values(access_key_of(user), wanted.password, servers)
    if all(_value(snapshot.own_secret, key) == value for key, value in values.items()):
        return []
    has_other = snapshot.own_secret is not None and not _is_published(snapshot, wanted.password)
    message = f"Secret {build.own_secret_name(user.name)} has another secret key"
    notices = [Notify("Normal", "SecretRotated", message)] if has_other else []
    return [Step("user secret", (PutSecret(build.own_secret(user), dict(values)), *notices))]


def _taken(snapshot: UserSnapshot, broker: Broker) -> str | None:
    """Return whose one of the Secrets is, if it is somebody else's."""
    found = [(snapshot.broker_users, broker.metadata.uid)]
    if snapshot.name_server is not None:
        found.append((snapshot.name_server_users, snapshot.name_server.metadata.uid))
    if snapshot.resource.spec.authentication.secret_ref is None:
        found.append((snapshot.own_secret, snapshot.resource.metadata.uid))
    problems = [foreign(secret, uid) for secret, uid in found if secret is not None]
    return next((problem for problem in problems if problem is not None), None)


def _value(secret: Manifest | None, key: str) -> str | None:
    """Return a value of a Secret as text; None if it is none."""
    encoded = ((secret or {}).get("data") or {}).get(key)
    if encoded is None:
        return None
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, ValueError):
        return None


# -- what is shown ------------------------------------------------------------------------------


def _applied_finding(
    snapshot: UserSnapshot, having: list[str], behind: list[str], is_applied: bool
) -> Finding:
    if is_applied:
        message = f"{len(having)} brokers take the user as the spec has it"
        return Finding(USER_APPLIED, True, APPLIED, message)
    if not snapshot.servers:
        return Finding(USER_APPLIED, False, USER_PENDING, "no broker runs")
    message = join_names(behind) or "the files of the servers are being changed"
    return Finding(USER_APPLIED, False, USER_PENDING, message)


def _secret_finding(snapshot: UserSnapshot, wanted: _Wanted, *, is_there: bool) -> Finding:
    reference = snapshot.resource.spec.authentication.secret_ref
    if reference is not None:
        message = f"brokers are given the secret key of Secret {reference.name}"
        return Finding(SECRET_READY, True, SECRET_THERE, message)
    name = build.own_secret_name(snapshot.resource.name)
    if snapshot.own_secret is None:
        message = f"Secret {name} is made once every server takes what will be in it"
        return Finding(SECRET_READY, False, SECRET_PENDING, message)
    if not is_there or not _is_published(snapshot, wanted.password):
        message = f"Secret {name} gets another secret key once every server takes it"
        return Finding(SECRET_READY, True, ROTATING, message)
    return Finding(SECRET_READY, True, SECRET_THERE, f"Secret {name} has what clients sign with")


def _ready_finding(applied: Finding, secret: Finding) -> Finding:
    if not applied.holds:
        return Finding(READY, False, applied.reason, applied.message)
    if not secret.holds:
        return Finding(READY, False, secret.reason, secret.message)
    return Finding(READY, True, USER_READY, applied.message)


def _notices(snapshot: UserSnapshot, ready: Finding) -> list[Step]:
    """Return the event of a User that has become ready, or cannot be followed."""
    before = previous_condition(snapshot.resource.status, READY).get("reason")
    if ready.reason == before or ready.reason in (USER_PENDING, SECRET_PENDING):
        return []
    if ready.holds:
        return [Step("events", (Notify("Normal", "UserApplied", ready.message),))]
    return [Step("events", (Notify("Warning", ready.reason, ready.message),))]


def _status(
    snapshot: UserSnapshot,
    findings: list[Finding],
    having: list[str],
    previous: Mapping[str, str] | None,
) -> Manifest:
    user = snapshot.resource
    reference = user.spec.authentication.secret_ref
    status = UserStatus(
        observed_generation=user.metadata.generation,
        conditions=build_conditions(
            findings, user.status, generation=user.metadata.generation, now_s=snapshot.now_s
        ),
        access_key=access_key_of(user),
        secret_name=reference.name if reference else build.own_secret_name(user.name),
        applied=f"{len(having)}/{len(snapshot.servers)}",
        applied_brokers=tuple(having),
        previous_secret_until=(previous or {}).get(_VALID_UNTIL),
    )
    return status_manifest(status)


def _again_s(snapshot: UserSnapshot, wanted: _Wanted, is_applied: bool) -> float | None:
    times = [] if is_applied else [RETRY_S]
    if _rival_file(snapshot) is not None:
        times.append(TAKEN_RETRY_S)
    if snapshot.resource.spec.authentication.secret_ref is not None:
        times.append(LOOK_S)
    if wanted.previous is not None and _VALID_UNTIL in wanted.previous:
        times.append(max(1.0, build.time_s(wanted.previous[_VALID_UNTIL]) - snapshot.now_s))
    return min(times, default=None)


def is_same_user(one: Manifest, other: Manifest) -> bool:
    """Return whether two Users have the same access key at the same Broker."""
    return _stands_for(one) == _stands_for(other)


def _stands_for(manifest: Manifest) -> tuple[Any, ...]:
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    authentication = spec.get("authentication") or {}
    name = authentication.get("accessKey") or metadata["name"]
    return metadata.get("namespace"), spec.get("brokerRef"), name


def _owner(snapshot: UserSnapshot) -> str | None:
    """Return the older User that has the access key; None if this one has it."""
    mine = snapshot.resource.metadata
    born = (mine.creation_timestamp or "", mine.uid)
    elders = [age for age in map(_age, snapshot.rivals) if age[:2] < born]
    return min(elders)[2] if elders else None


def _age(manifest: Manifest) -> tuple[str, str, str]:
    metadata: dict[str, Any] = manifest["metadata"]
    return str(metadata.get("creationTimestamp") or ""), str(metadata["uid"]), metadata["name"]


def _finalizer_step(user: User, is_wanted: bool) -> list[Step]:
    finalizers = user.metadata.finalizers
    if is_wanted == (FINALIZER in finalizers):
        return []
    others = tuple(name for name in finalizers if name != FINALIZER)
    wanted = (*finalizers, FINALIZER) if is_wanted else others
    return [Step("finalizer", (SetFinalizers(wanted, user.metadata.resource_version),))]
