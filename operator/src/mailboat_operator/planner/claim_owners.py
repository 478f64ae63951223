"""Whose a Broker's claims are: the Broker's itself, where `pvcRetention.whenDeleted` is Delete.

When the Broker is deleted, Kubernetes' garbage collector then removes the claims without the
operator. The StatefulSet's own policy of that name would make the StatefulSet their owner, and who
deletes that by hand would lose the messages with it.

An owner keeps a claim from being removed with another owner. Therefore a claim that is to go with
its pod (`whenScaled: Delete`) belongs to nobody else from before that begins.
"""

from collections.abc import Collection, Mapping
from typing import Any

from mailboat_operator.planner.actions import Patch, Step
from mailboat_operator.planner.children import patch_of
from mailboat_operator.planner.snapshot import BrokerSnapshot, Manifest
from mailboat_operator.resources.labels import dependent_reference
from mailboat_operator.resources.names import group_index, group_of, pod_of_claim


def plan_claim_owners(snapshot: BrokerSnapshot, busy: Collection[str]) -> list[Step]:
    """Return what gives every claim the owner that it should have.

    Args:
        snapshot: The Broker.
        busy: Claims that this plan changes otherwise: a second change would be refused.
    """
    steps = []
    for name, claim in sorted(snapshot.children.claims.items()):
        pod = pod_of_claim(snapshot.resource.name, name)
        if pod is None or name in busy or claim["metadata"].get("deletionTimestamp"):
            continue
        is_wanted = snapshot.resource.spec.pvc_retention.when_deleted == "Delete"
        if is_wanted and (_goes_with_its_pod(snapshot, pod) or _is_of_a_pod(claim)):
            is_wanted = False
        if is_wanted != is_owned(snapshot, claim):
            steps.append(Step("claim owners", (_patch(snapshot, claim, is_wanted),)))
    return steps


def is_owned(snapshot: BrokerSnapshot, claim: Manifest) -> bool:
    """Return whether a claim goes when the Broker is deleted."""
    uid = snapshot.resource.metadata.uid
    return any(reference.get("uid") == uid for reference in _owners(claim))


def _goes_with_its_pod(snapshot: BrokerSnapshot, pod: str) -> bool:
    """Whether the pod's group is being scaled away, and its volume with it."""
    spec, live, group = snapshot.resource.spec, snapshot.children, group_of(pod)
    index = group_index(snapshot.resource.name, group)
    is_wanted = index is not None and index < spec.groups
    is_there = group in live.stateful_sets or pod in live.pods
    return spec.pvc_retention.when_scaled == "Delete" and not is_wanted and is_there


def _is_of_a_pod(claim: Manifest) -> bool:
    """Whether Kubernetes has decided already that the claim goes with its pod."""
    return any(reference.get("kind") == "Pod" for reference in _owners(claim))


def _patch(snapshot: BrokerSnapshot, claim: Manifest, is_wanted: bool) -> Patch:
    broker = snapshot.resource
    owners = [dict(item) for item in _owners(claim) if item.get("uid") != broker.metadata.uid]
    if is_wanted:
        owners.append(dependent_reference(broker))
    policy = broker.spec.pvc_retention
    return patch_of(
        claim,
        {"metadata": {"ownerReferences": owners}},
        f"pvcRetention is {policy.when_deleted} when deleted, {policy.when_scaled} when scaled",
    )


def _owners(claim: Manifest) -> list[Mapping[str, Any]]:
    return list(claim["metadata"].get("ownerReferences") or ())
