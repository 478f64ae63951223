"""Conditions: what is so and what is not, each with a reason from one closed list.

A condition's `lastTransitionTime` stays as long as its status does, so writing the same conditions
again changes nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from mailboat_operator.crds.status import Condition

READY: Final = "Ready"
PROGRESSING: Final = "Progressing"
STORAGE_READY: Final = "StorageReady"
DISK_PRESSURE: Final = "DiskPressure"
CONFIG_APPLIED: Final = "ConfigApplied"
REPLICATED: Final = "Replicated"
SECRET_READY: Final = "SecretReady"  # noqa: S105 - a word
USER_APPLIED: Final = "Applied"
REACHABLE: Final = "Reachable"
CERTIFICATE_EXPIRING: Final = "CertificateExpiring"
FAILOVER_POSSIBLE: Final = "FailoverPossible"

ALL_GROUPS_SERVING: Final = "AllGroupsServing"
ALL_NAME_SERVERS_SERVING: Final = "AllNameServersServing"
PODS_NOT_READY: Final = "PodsNotReady"
WAITING_FOR_NAME_SERVERS: Final = "WaitingForNameServers"
NAME_TAKEN: Final = "NameTaken"
BROKER_NAME_TAKEN: Final = "BrokerNameTaken"
APPLY_REFUSED: Final = "ApplyRefused"
INVALID_SPEC: Final = "InvalidSpec"
SETTLED: Final = "Settled"
CREATING: Final = "Creating"
ROLLING: Final = "Rolling"
ROLL_BLOCKED: Final = "RollBlocked"
BUDGETS_OVERLAP: Final = "BudgetsOverlap"
RESIZING: Final = "Resizing"
CLAIM_DELETED: Final = "ClaimDeleted"
UPDATING: Final = "Updating"
DRAINING: Final = "Draining"
APPLIED: Final = "Applied"
PENDING: Final = "Pending"
UNKNOWN_KEY: Final = "UnknownKey"
INVALID_VALUE: Final = "InvalidValue"
REFUSED: Final = "Refused"
UNREACHABLE: Final = "Unreachable"
BROKER_MISSING: Final = "BrokerMissing"
TOPIC_PENDING: Final = "TopicPending"
TOPIC_READY: Final = "TopicReady"
QUEUES_IN_USE: Final = "QueuesInUse"
DELETING: Final = "Deleting"
ALL_IN_SYNC: Final = "AllInSync"
REPLICAS_BEHIND: Final = "ReplicasBehind"
NO_LEADER: Final = "NoLeader"
WAITING_FOR_REPLICAS: Final = "WaitingForReplicas"
LEASE_MISSING: Final = "LeaseMissing"
LEASE_UNREADABLE: Final = "LeaseUnreadable"
LEASE_TAKEN: Final = "LeaseTaken"
MEMBERS_LOST: Final = "MembersLost"
STORES_DIFFER: Final = "StoresDiffer"
IMAGE_TOO_OLD: Final = "ImageTooOld"
POSSIBLE: Final = "Possible"
TOO_FEW_IN_SYNC: Final = "TooFewInSync"
ADDRESSES_KNOWN: Final = "AddressesKnown"
ADDRESS_MISSING: Final = "AddressMissing"
CERTIFICATE_VALID: Final = "CertificateValid"
EXPIRES_SOON: Final = "ExpiresSoon"
CERTIFICATE_EXPIRED: Final = "CertificateExpired"
NOT_VALID_YET: Final = "NotValidYet"
FILES_REFUSED: Final = "FilesRefused"
CERT_MANAGER_MISSING: Final = "CertManagerMissing"
NOT_SAID: Final = "NotSaid"

USER_READY: Final = "UserReady"
USER_PENDING: Final = "UserPending"
NOT_AUTHENTICATED: Final = "NotAuthenticated"
SECRET_MISSING: Final = "SecretMissing"  # noqa: S105 - a word
SECRET_INVALID: Final = "SecretInvalid"  # noqa: S105 - a word
SECRET_PENDING: Final = "SecretPending"  # noqa: S105 - a word
SECRET_THERE: Final = "SecretThere"  # noqa: S105 - a word
ROTATING: Final = "Rotating"
ACL_INVALID: Final = "AclInvalid"

ROLL_STOPPED: Final = frozenset({ROLL_BLOCKED, BUDGETS_OVERLAP})
"""What Progressing says of a roll that does not go on."""

REASONS: Final[Mapping[str, Mapping[str, str]]] = {
    READY: {
        ALL_GROUPS_SERVING: "Every broker is ready.",
        ALL_NAME_SERVERS_SERVING: "Every name server is ready.",
        PODS_NOT_READY: "A pod is missing or not ready; the message names it and says why.",
        WAITING_FOR_NAME_SERVERS: "The NameServer that nameServers.ref names does not exist, or a"
        " broker is registered at no name server.",
        NAME_TAKEN: "An object that the operator would make exists and belongs to someone else.",
        BROKER_NAME_TAKEN: "A name server knows another broker of the same name, which lives, and"
        " refuses this one; the message has its address.",
        APPLY_REFUSED: "The API server (for a Topic also: a broker) refuses what the spec asks"
        " for, or has not taken it for a minute; the message has its words.",
        INVALID_SPEC: "The spec cannot be acted on; what it said before stays in force.",
        TOPIC_READY: "Every group has the topic as the spec has it.",
        TOPIC_PENDING: "A group does not answer, or does not have the topic as wanted yet.",
        QUEUES_IN_USE: "Read queues that are to go still hold messages; they stay until those are"
        " expired.",
        BROKER_MISSING: "The Broker that brokerRef names does not exist.",
        DELETING: "The topic is being removed from every group; a user is being forgotten by every"
        " broker.",
        USER_READY: "Every broker takes the user as the spec has it, and its Secret is there.",
        USER_PENDING: "A broker does not take the user as the spec has it yet, or does not say; the"
        " message names it.",
        NOT_AUTHENTICATED: "The Broker lets everybody in, so the User means nothing: set its"
        " spec.authentication.",
        SECRET_MISSING: "The Secret that secretRef names, or its key, is not there.",
        SECRET_INVALID: "What that Secret holds is no secret key.",
        SECRET_PENDING: "The secret key is not in the user's Secret yet.",
        ACL_INVALID: "A rule cannot be followed; the message says why, and the user stays as it"
        " was.",
    },
    SECRET_READY: {
        SECRET_THERE: "The Secret holds what clients sign with, and brokers take it.",
        SECRET_PENDING: "The Secret is made once every server takes what will be in it.",
        ROTATING: "Another secret key is under way: brokers take both until it is in the Secret,"
        " and for spec.authentication.overlap longer.",
        SECRET_MISSING: "The Secret that secretRef names, or its key, is not there; what brokers"
        " took before stays in force.",
        SECRET_INVALID: "What that Secret holds is no secret key.",
        NAME_TAKEN: "The name of the user, or that of its Secret, is somebody else's.",
    },
    USER_APPLIED: {
        APPLIED: "Every broker takes the user as the spec has it.",
        USER_PENDING: "A broker does not say so yet; the message names it.",
        NAME_TAKEN: "An older User has the access key at this Broker.",
        BROKER_MISSING: "The Broker that brokerRef names does not exist.",
        NOT_AUTHENTICATED: "The Broker lets everybody in.",
        ACL_INVALID: "A rule cannot be followed; the message says why.",
        SECRET_MISSING: "There is no secret key to apply.",
        SECRET_INVALID: "There is no secret key to apply.",
        DELETING: "The user is being forgotten by every broker.",
    },
    PROGRESSING: {
        SETTLED: "Nothing is being changed.",
        CREATING: "Pods are being made for the first time.",
        UPDATING: "Objects are being changed or removed; no pod is replaced for it so far.",
        ROLLING: "Pods are being replaced, one at a time.",
        ROLL_BLOCKED: "A pod of the present template cannot start, so nothing is replaced that"
        " ever ran; or what has to come first has not come for ten minutes. The message names it"
        " and says why.",
        BUDGETS_OVERLAP: "More than one PodDisruptionBudget selects a pod that is to be replaced:"
        " Kubernetes evicts no such pod, for a roll as little as for a drain of its node. Remove"
        " those that the operator has not made; it looks again within a minute.",
        RESIZING: "A volume is being made larger.",
        DRAINING: "A group that was scaled away takes no more messages; it goes when those that it"
        " holds are read, or expired. spec.scaleDown says whether that is waited for.",
        APPLY_REFUSED: "The API server refuses an object, or has not taken it for a minute; the"
        " message has its words. It is tried again; all else goes on.",
    },
    CONFIG_APPLIED: {
        APPLIED: "Every broker works with the settings of the spec.",
        PENDING: "A broker has yet to take over or to be restarted for a setting, or has not said"
        " what it works with.",
        UNKNOWN_KEY: "spec.config holds a key that the brokers do not know; it is left out.",
        INVALID_VALUE: "spec.config holds a value that no broker takes; it is left out.",
        REFUSED: "A running broker refused a live setting; the message has its words. It is asked"
        " again once a minute.",
        UNREACHABLE: "A broker whose pod is ready does not answer the operator over HTTP for two"
        " minutes, or another broker answers at its address; the operator needs port 8080 of the"
        " pods.",
    },
    REPLICATED: {
        ALL_IN_SYNC: "Every replica of every group has all that was acknowledged, and may lead.",
        REPLICAS_BEHIND: "A replica is not in the in-sync set of its group: it is away, or has yet"
        " to catch up; the message names it.",
        NO_LEADER: "Nobody leads a group, so it takes no messages; another replica takes over by"
        " itself if one of its in-sync set serves.",
        WAITING_FOR_REPLICAS: "A group has never had a leader, and not every replica has said what"
        " is in its store: the one with messages is to lead at first.",
        LEASE_MISSING: "The Lease of a group that has had a leader is gone. A leader that runs"
        " writes it again; without one it is made again once all replicas are there and none has"
        " lost anything, and else a person has to say which log counts.",
        LEASE_UNREADABLE: "The Lease of a group contradicts itself; nobody leads by it.",
        LEASE_TAKEN: "The Lease of a group's name belongs to somebody else; it is left alone.",
        MEMBERS_LOST: "None of the volumes is there any more that the Lease of a group names, so"
        " nobody may lead; a person has to say that what is there counts.",
        STORES_DIFFER: "Two volumes of a group have messages and no common history; a person has"
        " to say which one counts.",
        IMAGE_TOO_OLD: "spec.replicas is above 1, and brokers of the image cannot be replicas;"
        " nothing is changed for it.",
    },
    FAILOVER_POSSIBLE: {
        POSSIBLE: "The loss of any one replica stops no group.",
        TOO_FEW_IN_SYNC: "A group would take no messages with one replica less: it has no more in"
        " sync than it needs.",
        NO_LEADER: "Nobody leads a group.",
    },
    REACHABLE: {
        ADDRESSES_KNOWN: "Every listener of type NodePort or LoadBalancer has its addresses.",
        ADDRESS_MISSING: "A Service has no address yet, or no node port; the message names it.",
    },
    CERTIFICATE_EXPIRING: {
        CERTIFICATE_VALID: "What every broker shows is valid for a while; the message says until"
        " when.",
        EXPIRES_SOON: "What a broker shows ends within two weeks, and four fifths of its time are"
        " over: it should have been renewed.",
        CERTIFICATE_EXPIRED: "What a broker shows has expired; clients that check it stay away.",
        NOT_VALID_YET: "What a broker shows is not valid yet.",
        FILES_REFUSED: "A broker cannot use what the Secret holds now and goes on with what it held"
        " before; the message has its words.",
        CERT_MANAGER_MISSING: "spec.tls.issuerRef is set, and this cluster knows no Certificates:"
        " nobody makes or renews one. It is looked for again every half a minute.",
        NOT_SAID: "No broker has said what it shows: none answers, or all are too old to say.",
    },
    STORAGE_READY: {
        "VolumesReady": "Every volume has its size.",
        CLAIM_DELETED: "A claim is being deleted under its running pod, whose end would take the"
        " messages along; the operator restarts no such pod, and the message says what to do.",
        "VolumesPending": "A volume does not exist or is not bound yet.",
        "Resizing": "A volume is being made larger.",
        "ResizeRefused": "Kubernetes refused a larger size.",
        "ClassCannotGrow": "The storage class does not let its volumes grow.",
        "ResizeInfeasible": "The storage driver cannot make a volume as large as asked for.",
        "LargerThanSpec": "A volume is larger than the spec says; it stays as it is.",
        "ShrinkRefused": "The spec asks for less than a volume has; volumes never shrink.",
        "AtMaxSize": "A volume would grow and has reached autoGrow.maxSize.",
    },
    DISK_PRESSURE: {
        "Enough": "No volume has reached a threshold.",
        "Expiring": "A volume is above thresholds.expire: expired messages go at any hour.",
        "ForceCleaning": "A volume is above thresholds.forceClean: the oldest read messages go.",
        "RejectingWrites": "A volume is above thresholds.rejectWrites: producers are refused.",
        "NumbersStale": "A broker's numbers are too old to tell.",
    },
}
"""Every reason of every condition, with what it means; docs/operator.md has the same."""

_LONGEST_MESSAGE: Final = 32_768
"""So many characters the API server takes; with one more the whole status would be refused."""

_STATUS_NAMES: Final = {True: "True", False: "False", None: "Unknown"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What is so now; becomes a condition together with what was so before."""

    type: str
    holds: bool | None
    """None: not known."""

    reason: str
    message: str


def build_conditions(
    findings: Iterable[Finding],
    previous: Mapping[str, Any],
    *,
    generation: int,
    now_s: float,
) -> tuple[Condition, ...]:
    """Make conditions.

    Args:
        findings: What is so, each type once.
        previous: The status that was written last.
        generation: Of the spec that they are about.
        now_s: Wall time.
    """
    return tuple(_condition(finding, previous, generation, now_s) for finding in findings)


def previous_condition(previous: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a condition of the status that was written last; empty if there was none."""
    for condition in previous.get("conditions") or ():
        if condition.get("type") == name:
            return dict(condition)
    return {}


def timestamp(now_s: float) -> str:
    """Spell a time as Kubernetes does, in whole seconds."""
    return datetime.fromtimestamp(int(now_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(
    finding: Finding, previous: Mapping[str, Any], generation: int, now_s: float
) -> Condition:
    before = previous_condition(previous, finding.type)
    status: Literal["True", "False", "Unknown"] = _STATUS_NAMES[finding.holds]  # type: ignore[assignment]
    stays = before.get("status") == status and before.get("lastTransitionTime")
    return Condition(
        type=finding.type,
        status=status,
        reason=finding.reason,
        message=finding.message[:_LONGEST_MESSAGE],
        last_transition_time=before["lastTransitionTime"] if stays else timestamp(now_s),
        observed_generation=generation,
    )
