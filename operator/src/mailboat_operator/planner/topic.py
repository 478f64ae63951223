"""What has to be done for a Topic: the topic on every group of its Broker.

Write queues come and go as the spec says. Read queues only go while they are empty: a queue that
nobody reads any more would take its messages with it, so a queue that holds some stays readable and
the condition says so.

A Topic has a finalizer only while it is to take the topic with it (`reclaimPolicy: Delete`), and it
is given back as soon as there is no Broker to remove anything from. A volume that was kept of a
group that was scaled away has the topic too, so it is waited for.

Two Topics may stand for the same topic of one Broker. It belongs to the older one, as nobody could
follow both; the other one does nothing, and takes nothing along when it goes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mailboat_operator.crds.status import TopicStatus, TopicStatusEntry, status_manifest
from mailboat_operator.crds.topic import Topic, topic_name_of
from mailboat_operator.planner.actions import (
    Action,
    DeleteTopic,
    Plan,
    PutTopic,
    SetFinalizers,
    Step,
)
from mailboat_operator.planner.conditions import (
    BROKER_MISSING,
    DELETING,
    NAME_TAKEN,
    QUEUES_IN_USE,
    READY,
    TOPIC_PENDING,
    TOPIC_READY,
    Finding,
    build_conditions,
)
from mailboat_operator.planner.snapshot import Manifest, TopicSnapshot
from mailboat_operator.resources.names import group_name

FINALIZER: Final = "mailboat.dev/topic"
RETRY_S: Final = 15.0
"""When to ask a group again that did not answer."""

TAKEN_RETRY_S: Final = 30.0
"""When to look again whether the topic of an older Topic is free."""

PERMISSIONS: Final[Mapping[str, int]] = {"RW": 6, "R": 4, "W": 2}
"""RocketMQ's bits: 4 read, 2 write."""

_PERMISSION_NAMES: Final = {bits: name for name, bits in PERMISSIONS.items()}


@dataclass(frozen=True, slots=True)
class _OnGroup:
    """The topic on one group."""

    name: str
    url: str | None
    live: Manifest | None
    has_answered: bool
    read_queues: int
    write_queues: int
    perm: int

    @property
    def is_there(self) -> bool:
        """Whether the group has the topic as the spec has it, as far as its queues allow."""
        live = self.live
        return live is not None and (
            live["read_queue_nums"],
            live["write_queue_nums"],
            live["perm"],
        ) == (self.read_queues, self.write_queues, self.perm)


def plan_topic(snapshot: TopicSnapshot) -> Plan:
    """Decide what has to be done for a Topic, and what its status is."""
    topic, broker = snapshot.resource, snapshot.broker
    is_gone = broker is None or broker.metadata.deletion_timestamp is not None
    owner = _owner(snapshot)
    if topic.metadata.deletion_timestamp is not None:
        return _plan_deletion(snapshot, is_gone or owner is not None)
    if owner is not None:
        return _plan_taken(snapshot, owner)
    steps = [*_finalizer_step(topic, topic.spec.reclaim_policy == "Delete" and not is_gone)]
    groups = [] if is_gone else _groups(snapshot)
    puts = [_put(topic, group, group.url) for group in groups if group.url and _differs(group)]
    steps += [Step("topic", (put,)) for put in puts]
    finding = _missing_broker(topic) if is_gone else _ready(topic, groups)
    status = _status(snapshot, groups, finding)
    is_waiting = any(not group.is_there for group in groups)
    return Plan(
        tuple(steps),
        status,
        again_after_s=RETRY_S if is_waiting else None,
        failures=(finding.message,) if is_gone else (),
    )


def is_same_topic(one: Manifest, other: Manifest) -> bool:
    """Return whether two Topics stand for the same topic of the same Broker."""
    return _stands_for(one) == _stands_for(other)


def release(manifest: Manifest) -> tuple[Action, ...]:
    """Return what lets a Topic go that nobody can read: nothing tells what to remove with it."""
    metadata = manifest["metadata"]
    finalizers = tuple(metadata.get("finalizers") or ())
    if FINALIZER not in finalizers:
        return ()
    return (SetFinalizers(_without(finalizers), metadata["resourceVersion"]),)


def _stands_for(manifest: Manifest) -> tuple[Any, ...]:
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    name = spec.get("topicName") or metadata["name"]
    return metadata.get("namespace"), spec.get("brokerRef"), name


def _age(manifest: Manifest) -> tuple[str, str, str]:
    """Return creation time, uid and name; the smallest is the oldest."""
    metadata = manifest["metadata"]
    return str(metadata.get("creationTimestamp") or ""), str(metadata["uid"]), metadata["name"]


def _owner(snapshot: TopicSnapshot) -> str | None:
    """Return the older Topic that the topic belongs to; None if it belongs to this one."""
    mine = snapshot.resource.metadata
    born = mine.creation_timestamp or ""
    elders = [age for age in map(_age, snapshot.rivals) if age[:2] < (born, mine.uid)]
    return min(elders)[2] if elders else None


def _plan_taken(snapshot: TopicSnapshot, owner: str) -> Plan:
    """Leave the topic to the older Topic that has it."""
    topic = snapshot.resource
    message = (
        f"topic {topic_name_of(topic)} of Broker {topic.spec.broker_ref} belongs to the older Topic"
        f" {owner}: delete one of the two"
    )
    status = _status(snapshot, [], Finding(READY, False, NAME_TAKEN, message))
    return Plan(tuple(_finalizer_step(topic, False)), status, TAKEN_RETRY_S, (message,))


def _plan_deletion(snapshot: TopicSnapshot, is_gone: bool) -> Plan:
    """Remove the topic from every group, then let the resource go.

    There is nothing to remove if the Broker is gone or the topic belongs to another Topic.
    """
    topic = snapshot.resource
    if FINALIZER not in topic.metadata.finalizers:
        return Plan((), topic.status)
    if is_gone or topic.spec.reclaim_policy != "Delete":
        return Plan(tuple(_finalizer_step(topic, False)), topic.status)
    groups = _groups(snapshot)
    name = topic_name_of(topic)
    removals: list[Action] = [
        DeleteTopic(group.url, name, group.live.get("incarnation"))
        for group in groups
        if group.url and group.live is not None
    ]
    silent = [group.name for group in groups if not group.has_answered]
    kept = _kept_volumes(snapshot, groups)
    steps = [Step("topic", tuple(removals))] if removals else []
    if not (silent or removals or kept):
        steps += _finalizer_step(topic, False)
    waits = f"; {', '.join(silent)} does not answer" if silent else ""
    if kept:
        waits += (
            f"; it may be on {', '.join(kept)}, kept of groups that were scaled away: delete the"
            " claims, raise spec.groups of the Broker, or set reclaimPolicy to Retain"
        )
    finding = Finding(READY, False, DELETING, f"topic {name} is being removed{waits}")
    return Plan(tuple(steps), _status(snapshot, groups, finding), again_after_s=RETRY_S)


def _finalizer_step(topic: Topic, is_wanted: bool) -> list[Step]:
    finalizers = topic.metadata.finalizers
    if is_wanted == (FINALIZER in finalizers):
        return []
    wanted = (*finalizers, FINALIZER) if is_wanted else _without(finalizers)
    return [Step("finalizer", (SetFinalizers(wanted, topic.metadata.resource_version),))]


def _without(finalizers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in finalizers if name != FINALIZER)


def _groups(snapshot: TopicSnapshot) -> list[_OnGroup]:
    assert snapshot.broker is not None
    spec = snapshot.resource.spec
    found = []
    for index in range(snapshot.broker.spec.groups):
        name = group_name(snapshot.broker.name, index)
        live = snapshot.topics.get(name)
        found.append(
            _OnGroup(
                name=name,
                url=snapshot.endpoints.get(name),
                live=live,
                has_answered=name in snapshot.topics,
                read_queues=max(spec.queues.read, _queues_in_use(live)),
                write_queues=spec.queues.write,
                perm=PERMISSIONS[spec.perm],
            )
        )
    return found


def _kept_volumes(snapshot: TopicSnapshot, groups: list[_OnGroup]) -> list[str]:
    """Return the claims of groups that are no more: the topic would come back with them."""
    wanted = {group.name for group in groups}
    return sorted(claim for group, claim in snapshot.volumes.items() if group not in wanted)


def _queues_in_use(live: Manifest | None) -> int:
    """Return how many queues must stay readable: up to the last one that holds a message.

    A broker that does not say what is in its queues keeps all of them.
    """
    if live is None:
        return 0
    queues = live.get("queues")
    if queues is None:
        return int(live["read_queue_nums"])
    held = [
        int(queue["queue_id"]) + 1 for queue in queues if queue["max_offset"] > queue["min_offset"]
    ]
    return min(max(held, default=0), int(live["read_queue_nums"]))


def _differs(group: _OnGroup) -> bool:
    return group.has_answered and not group.is_there


def _put(topic: Topic, group: _OnGroup, url: str) -> PutTopic:
    return PutTopic(
        url=url,
        topic=topic_name_of(topic),
        read_queue_nums=group.read_queues,
        write_queue_nums=group.write_queues,
        perm=group.perm,
    )


def _missing_broker(topic: Topic) -> Finding:
    message = f"there is no Broker {topic.spec.broker_ref} in this namespace"
    return Finding(READY, False, BROKER_MISSING, message)


def _ready(topic: Topic, groups: list[_OnGroup]) -> Finding:
    silent = [group.name for group in groups if not group.has_answered]
    if silent:
        return Finding(READY, False, TOPIC_PENDING, f"{', '.join(silent)} does not answer")
    pending = [group.name for group in groups if not group.is_there]
    if pending:
        message = f"{', '.join(pending)} does not have the topic as wanted yet"
        return Finding(READY, False, TOPIC_PENDING, message)
    wide = [group for group in groups if group.read_queues > topic.spec.queues.read]
    if wide:
        message = ", ".join(
            f"{group.name} keeps {group.read_queues} read queues until they are empty"
            for group in wide
        )
        return Finding(READY, True, QUEUES_IN_USE, message)
    return Finding(READY, True, TOPIC_READY, f"{len(groups)} groups have the topic")


def _status(snapshot: TopicSnapshot, groups: list[_OnGroup], finding: Finding) -> Manifest:
    topic = snapshot.resource
    there = sum(group.is_there for group in groups)
    status = TopicStatus(
        observed_generation=topic.metadata.generation,
        conditions=build_conditions(
            [finding], topic.status, generation=topic.metadata.generation, now_s=snapshot.now_s
        ),
        topic_name=topic_name_of(topic),
        ready=f"{there}/{len(groups)}",
        brokers=tuple(_entry(group) for group in groups),
    )
    return status_manifest(status)


def _entry(group: _OnGroup) -> TopicStatusEntry:
    live: Mapping[str, Any] = group.live or {}
    return TopicStatusEntry(
        name=group.name,
        read_queues=live.get("read_queue_nums"),
        write_queues=live.get("write_queue_nums"),
        perm=_PERMISSION_NAMES.get(live.get("perm", -1)),
    )
