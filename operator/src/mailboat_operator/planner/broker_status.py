"""The status of a Broker: whole, rounded, and the same as before as long as nothing changes."""

from collections.abc import Iterable, Mapping, Sequence

from mailboat_operator.crds.broker import cluster_name_of
from mailboat_operator.crds.status import (
    BrokerStatus,
    BrokerStatusEntry,
    ListenerStatusEntry,
    ReplicaGroupStatusEntry,
    StorageStatusEntry,
    status_manifest,
)
from mailboat_operator.errors import InvalidResourceError
from mailboat_operator.planner.conditions import (
    ALL_GROUPS_SERVING,
    BROKER_NAME_TAKEN,
    INVALID_SPEC,
    NAME_TAKEN,
    PODS_NOT_READY,
    READY,
    WAITING_FOR_NAME_SERVERS,
    Finding,
    build_conditions,
)
from mailboat_operator.planner.fitness import (
    fresh_observation,
    is_unknown_everywhere,
    unregistered,
)
from mailboat_operator.planner.groups import Group, kept_claims
from mailboat_operator.planner.pods import is_ready, trouble
from mailboat_operator.planner.progress import describe_pod, join_names, selector_text
from mailboat_operator.planner.rollout import Member, is_outdated
from mailboat_operator.planner.snapshot import BrokerSnapshot, Manifest
from mailboat_operator.resources.labels import broker_labels
from mailboat_operator.resources.names import BROKER_PORT, group_of


def ready_finding(
    snapshot: BrokerSnapshot,
    members: Sequence[Member],
    problems: Sequence[str],
    knows_name_servers: bool,
) -> Finding:
    """Return the Ready condition: what is most in the way comes first."""
    if problems:
        return Finding(READY, False, NAME_TAKEN, "; ".join(problems))
    if not knows_name_servers:
        name = snapshot.resource.spec.name_servers.ref
        message = f"there is no NameServer {name} in this namespace"
        return Finding(READY, False, WAITING_FOR_NAME_SERVERS, message)
    taken = [text for item in members if (text := _taken(snapshot, item)) is not None]
    if taken:
        message = f"{join_names(taken)}; no two brokers at the same name servers may have one name:"
        return Finding(READY, False, BROKER_NAME_TAKEN, f"{message} see spec.brokerNamePrefix")
    unready = [describe_pod(item) for item in members if item.pod is None or not is_ready(item.pod)]
    if unready:
        return Finding(READY, False, PODS_NOT_READY, join_names(unready))
    unknown = [item.name for item in members if _is_unknown(snapshot, item)]
    if unknown:
        message = f"registered at no name server: {join_names(unknown)}"
        return Finding(READY, False, WAITING_FOR_NAME_SERVERS, message)
    return Finding(READY, True, ALL_GROUPS_SERVING, f"{len(members)} brokers serve")


def broker_entry(
    snapshot: BrokerSnapshot,
    group: Group,
    members: Mapping[str, Member],
    *,
    is_new: bool,
) -> BrokerStatusEntry:
    """Return what is shown of one group: of the broker that serves its clients.

    Args:
        snapshot: The Broker.
        group: Which group.
        members: The pods of all groups, by name.
        is_new: Whether it has yet to get topics.
    """
    member = members[group.leader.name]
    pod, address = member.pod, group.address
    observation = fresh_observation(snapshot, member.name, pod)
    said = observation.broker if observation is not None else None
    stateful_set = member.stateful_set
    pods = [members[item.name].pod for item in group.pods]
    up_to_date = None
    if pod is not None and stateful_set is not None:
        up_to_date = not any(item and is_outdated(item, stateful_set) for item in pods)
    return BrokerStatusEntry(
        name=group.name,
        broker_name=said.get("broker_name") if said is not None else None,
        pod=member.name,
        address=f"{address}:{BROKER_PORT}" if address else None,
        ready=pod is not None and is_ready(pod),
        up_to_date=up_to_date,
        registered=not unregistered(said) if said is not None else None,
        version=said.get("version") if said is not None else None,
        topics="Pending" if is_new else None,
        message=trouble(pod) if pod is not None else None,
    )


def retained_entries(snapshot: BrokerSnapshot) -> tuple[StorageStatusEntry, ...]:
    """Return what is shown of volumes whose group or replica is no more."""
    return tuple(_retained_entry(snapshot, claim) for claim in kept_claims(snapshot))


def broker_status(
    snapshot: BrokerSnapshot,
    findings: Iterable[Finding],
    brokers: tuple[BrokerStatusEntry, ...],
    replica_groups: tuple[ReplicaGroupStatusEntry, ...],
    storage: tuple[StorageStatusEntry, ...],
    *,
    disk: str | None,
    retention: str | None,
    listeners: tuple[ListenerStatusEntry, ...],
) -> Manifest:
    """Return the whole status."""
    broker = snapshot.resource
    generation = broker.metadata.generation
    ready = sum(bool(entry.ready) for entry in brokers)
    versions = sorted({entry.version for entry in brokers if entry.version})
    return status_manifest(
        BrokerStatus(
            observed_generation=generation,
            conditions=build_conditions(
                findings, broker.status, generation=generation, now_s=snapshot.now_s
            ),
            groups=len(brokers),
            ready_groups=ready,
            ready=f"{ready}/{len(brokers)}",
            selector=selector_text(broker_labels(broker.name)),
            version=",".join(versions) or None,
            cluster_name=cluster_name_of(broker),
            disk=disk,
            retention=retention,
            brokers=brokers,
            replica_groups=replica_groups,
            storage=storage,
            listeners=listeners,
        )
    )


def invalid_status(
    previous: Manifest, error: InvalidResourceError, *, generation: int, now_s: float
) -> Manifest:
    """Return the status of a resource of any kind whose spec cannot be acted on.

    What was known before stays; only Ready says what has to be mended.
    """
    finding = Finding(READY, False, INVALID_SPEC, str(error))
    ready = build_conditions([finding], previous, generation=generation, now_s=now_s)
    others = [item for item in previous.get("conditions") or () if item.get("type") != READY]
    document = status_manifest(BrokerStatus(conditions=ready))
    return {
        **previous,
        "observedGeneration": generation,
        "conditions": [*document["conditions"], *others],
    }


def _taken(snapshot: BrokerSnapshot, member: Member) -> str | None:
    """Return who else has a broker's name at a name server; None if nobody has."""
    observation = fresh_observation(snapshot, member.name, member.pod)
    said = observation.broker if observation is not None else None
    for server in (said or {}).get("name_servers") or ():
        if server.get("held_by") and not server.get("registered"):
            place = f"the name of {member.name} at name server {server.get('address')}"
            return f"{server['held_by']} has {place}"
    return None


def _is_unknown(snapshot: BrokerSnapshot, member: Member) -> bool:
    observation = fresh_observation(snapshot, member.name, member.pod)
    if observation is None or observation.broker is None:
        return False
    return is_unknown_everywhere(observation.broker)


def _retained_entry(snapshot: BrokerSnapshot, claim: Manifest) -> StorageStatusEntry:
    name = claim["metadata"]["name"]
    requests = (claim["spec"].get("resources") or {}).get("requests") or {}
    capacity = ((claim.get("status") or {}).get("capacity") or {}).get("storage")
    return StorageStatusEntry(
        pod=name.removeprefix("data-"),
        claim=name,
        capacity=capacity,
        requested_size=requests.get("storage"),
        message=_kept_text(snapshot, name.removeprefix("data-")),
    )


def _kept_text(snapshot: BrokerSnapshot, pod: str) -> str:
    what = "replica" if group_of(pod) in snapshot.children.stateful_sets else "group"
    return f"kept although its {what} was scaled away; the {what} takes it up when it comes back"
