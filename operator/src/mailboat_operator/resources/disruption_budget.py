"""How many pods of a resource an eviction, such as that of a node's drain, may take at a time."""

from typing import Any

from mailboat_operator.crds.common import Object
from mailboat_operator.resources.labels import child, selector_of


def disruption_budget(owner: Object[Any], name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Return a budget of one pod at a time: over all groups, or of a group with replicas.

    A pod that does not serve may always be evicted: a broker that cannot start must not keep a node
    from being drained.
    """
    return child(
        "policy/v1/PodDisruptionBudget",
        owner,
        name,
        labels,
        spec={
            "maxUnavailable": 1,
            "selector": {"matchLabels": selector_of(labels)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    )
