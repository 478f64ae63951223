"""The rights on the Kubernetes API that a driver with executors as pods needs, and nothing more.

The chart renders a Role (never a ClusterRole) in the job's namespace from the same list; a test
holds the two together. A job with `--master local[N]` needs no rights and no token.
"""

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on one resource of the core API group, and what calls them."""

    resource: str
    verbs: tuple[str, ...]
    used_for: str


DRIVER_RULES: Final = (
    Rule(
        "pods",
        ("create", "delete", "deletecollection", "get", "list", "watch"),
        "executors; the driver's own pod, which owns them; leftovers of an earlier run",
    ),
    Rule(
        "configmaps",
        ("create", "deletecollection"),
        "the executors' Spark settings; cleaning up at the end",
    ),
    Rule("services", ("deletecollection",), "Spark cleans up by label at the end"),
    Rule(
        "persistentvolumeclaims",
        ("deletecollection", "list"),
        "Spark looks for claims that it made on demand, of which we have none",
    ),
)
"""Sorted verbs, one rule for each resource."""


def role_rules() -> list[dict[str, Any]]:
    """Return the `rules` of the Role."""
    return [
        {"apiGroups": [""], "resources": [rule.resource], "verbs": list(rule.verbs)}
        for rule in DRIVER_RULES
    ]
