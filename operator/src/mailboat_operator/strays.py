"""Objects that ours depend on and that the usual path misses.

A claim that somebody made under the right name (out of a snapshot, say) lacks our labels, so no
watch shows it although the broker works on it. And a Broker that is deleted at the moment when its
StatefulSet is away (it is made anew when a volume grows) leaves a pod that nobody owns any more.
"""

from collections.abc import Iterable, Mapping

from mailboat_operator.kinds import ResourceKey, owner_of
from mailboat_operator.planner.actions import Delete
from mailboat_operator.planner.children import controller_of
from mailboat_operator.planner.snapshot import Manifest
from mailboat_operator.resources.labels import MANAGED_BY_LABEL, MANAGER
from mailboat_operator.resources.names import VOLUME, claim_name, group_of


def unseen_claims(
    pods: Mapping[str, Manifest],
    claims: Mapping[str, Manifest],
    stateful_sets: Mapping[str, Manifest],
) -> dict[str, dict[str, str]]:
    """Return the claims that running pods have mounted and that are not among `claims`.

    Returns:
        Claim's name -> the labels that its StatefulSet would have given it.
    """
    found = {}
    for pod in pods.values():
        if (pod.get("status") or {}).get("phase") != "Running":
            continue
        pod_name = pod["metadata"]["name"]
        name, stateful_set = claim_name(pod_name), stateful_sets.get(group_of(pod_name))
        if name not in claims and stateful_set is not None and name in _mounted(pod):
            labels = _claim_labels(stateful_set)
            if labels:
                found[name] = labels
    return found


def ownerless_pods(key: ResourceKey, pods: Iterable[Manifest]) -> list[Delete]:
    """Return the removal of each pod that was made for a resource that is gone.

    A pod that a StatefulSet still controls is left to Kubernetes; one that somebody has labelled as
    another one's, or that is going already, is left alone.
    """
    return [
        Delete(
            kind="Pod",
            name=pod["metadata"]["name"],
            uid=pod["metadata"]["uid"],
            # Should anything adopt it meanwhile, its version is another one.
            resource_version=pod["metadata"]["resourceVersion"],
            orphan=False,
            reason=f"{key} is gone and nothing controls the pod",
        )
        for pod in pods
        if owner_of(pod) == key
        and (pod["metadata"].get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGER
        and controller_of(pod) is None
        and not pod["metadata"].get("deletionTimestamp")
    ]


def _mounted(pod: Manifest) -> set[str]:
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in volumes
        if "persistentVolumeClaim" in volume
    }


def _claim_labels(stateful_set: Manifest) -> dict[str, str]:
    for template in (stateful_set.get("spec") or {}).get("volumeClaimTemplates") or ():
        if template["metadata"]["name"] == VOLUME:
            return dict(template["metadata"].get("labels") or {})
    return {}
