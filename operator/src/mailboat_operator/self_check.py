"""`python -m mailboat_operator.self_check`: can the operator do its work here? `helm test` runs it.

It looks with the operator's own ServiceAccount: whether the custom resources are known to the API
server, whether each right of `rbac` is granted, and whether a replica holds the Lease.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

from kubernetes.aio.client import ApiClient

from mailboat.errors import MailboatError
from mailboat_operator.kinds import CUSTOM_KINDS, GROUP, LEASE, Kind
from mailboat_operator.kube_api import KubeApi, KubeApiError, NotFoundError, load_configuration
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.rbac import (
    CLUSTER_RULES,
    KUBELET_RULE,
    LEASE_RULES,
    NAMESPACED_RULES,
    SECRET_RULE,
    Rule,
)
from mailboat_operator.settings import OperatorSettings, load_settings

_REVIEW = Kind(
    "SelfSubjectAccessReview",
    "authorization.k8s.io",
    "v1",
    "selfsubjectaccessreviews",
    is_namespaced=False,
)
_TIMEOUT_S = 15.0


async def problems(api: KubeApi, settings: OperatorSettings) -> AsyncIterator[str]:
    """Yield a sentence for each thing that keeps the operator from its work."""
    try:
        known = await api.get_path(f"/apis/{GROUP}/v1alpha1")
    except NotFoundError:
        yield f"the API server does not know {GROUP}; install the chart mailboat-crds"
    else:
        served = {resource["name"] for resource in known["resources"]}
        for kind in CUSTOM_KINDS:
            if kind.plural not in served:
                yield f"the API server does not know {kind.plural}.{GROUP}; upgrade mailboat-crds"
    for namespace, rule, verb in _rights(settings):
        if not await _is_allowed(api, namespace, rule, verb):
            where = f"in namespace {namespace}" if namespace else "in the cluster"
            yield f"no right to {verb} {rule.resource} {where}, needed for: {rule.purpose}"
    try:
        lease = await api.get(LEASE, settings.pod_namespace, settings.lease_name)
    except KubeApiError as error:
        yield f"no Lease {settings.lease_name}: {error}"
    else:
        if not lease["spec"].get("holderIdentity"):
            yield f"no replica holds the Lease {settings.lease_name}"


def _rights(settings: OperatorSettings) -> list[tuple[str, Rule, str]]:
    """Namespace ("" for all), rule and verb of every right; as the chart grants them."""
    wanted = [(settings.pod_namespace, rule) for rule in LEASE_RULES]
    wanted += [(name, rule) for name in settings.namespaces or ("",) for rule in NAMESPACED_RULES]
    if settings.is_cluster_wide:
        wanted += [
            ("", rule) for rule in CLUSTER_RULES if rule != KUBELET_RULE or settings.kubelet_stats
        ]
    if settings.secret_namespaces:
        # Elsewhere one is made for replicas, and none is read.
        made = replace(SECRET_RULE, verbs=("create",))
        wanted = [(place, made if rule == SECRET_RULE else rule) for place, rule in wanted]
        wanted += [(namespace, SECRET_RULE) for namespace in settings.secret_namespaces]
    return [(namespace, rule, verb) for namespace, rule in wanted for verb in rule.verbs]


async def _is_allowed(api: KubeApi, namespace: str, rule: Rule, verb: str) -> bool:
    resource, _, subresource = rule.resource.partition("/")
    attributes = {
        "namespace": namespace,
        "verb": verb,
        "group": rule.group,
        "resource": resource,
        "subresource": subresource,
    }
    review = {
        "apiVersion": _REVIEW.api_version,
        "kind": _REVIEW.kind,
        "spec": {"resourceAttributes": attributes},
    }
    # A review changes nothing, so it needs no Lease.
    answer = await api.create(_REVIEW, "", review, is_fenced=False)
    return bool(answer["status"]["allowed"])


async def _run() -> int:
    settings = load_settings(os.environ)
    async with ApiClient(await load_configuration()) as client:
        api = KubeApi(client, OperatorMetrics(), timeout_s=_TIMEOUT_S)
        found = [problem async for problem in problems(api, settings)]
    for problem in found:
        sys.stderr.write(f"{problem}\n")
    if not found:
        sys.stdout.write("resources, rights and Lease are as the operator needs them\n")
    return 1 if found else 0


def main() -> int:
    """Check, tell what is wrong, and return the exit code."""
    try:
        return asyncio.run(_run())
    except MailboatError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
