"""The ServiceAccount of a resource's pods: it has no rights, and its token is not mounted."""

from typing import Any

from mailboat_operator.crds.common import Object
from mailboat_operator.resources.labels import child


def service_account(owner: Object[Any], name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Return the ServiceAccount."""
    return child("v1/ServiceAccount", owner, name, labels, automountServiceAccountToken=False)
