"""What the API server of a model cluster does to a manifest: merging, defaults, validation."""

import pickle
from typing import Any

from mailboat_operator.crds.quantity import parse_quantity

KEYS = {
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
AMOUNTS = {"1024Mi": "1Gi", "0.5": "500m", "8192Mi": "8Gi"}


class RefusedError(Exception):
    """The API server does not do it."""


def duplicate(value: Any) -> Any:
    """Copy a manifest with all that is in it."""
    return pickle.loads(pickle.dumps(value))


def merge(live: Any, before: Any, wanted: Any, name: str) -> Any:
    """Merge as server-side apply does for the one manager: what it gave before and not now goes."""
    if isinstance(wanted, dict):
        live = live if isinstance(live, dict) else {}
        before = before if isinstance(before, dict) else {}
        for key in set(before) - set(wanted):
            live.pop(key, None)
        for key, value in wanted.items():
            live[key] = merge(live.get(key), before.get(key), value, key)
        return live
    key = KEYS.get(name) or (
        "containerPort"
        if name == "ports" and wanted and "containerPort" in wanted[0]
        else "port"
        if name == "ports"
        else None
    )
    if not isinstance(wanted, list) or key is None:
        return AMOUNTS.get(wanted, wanted) if isinstance(wanted, str) else wanted
    old = {item[key]: item for item in before or []}
    rest = {item[key]: item for item in live or [] if isinstance(item, dict)}
    merged = [merge(rest.pop(item[key], None), old.get(item[key]), item, "") for item in wanted]
    return merged + [item for found, item in rest.items() if found not in old]


def merge_patch(live: Any, patch: Any) -> Any:
    """Change a value as a JSON merge patch (RFC 7386) says."""
    if not isinstance(patch, dict):
        return duplicate(patch)
    merged = dict(live) if isinstance(live, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def refuse_invalid(manifest: dict[str, Any]) -> None:
    """Refuse what the API server's validation refuses: fields that exclude each other."""
    spec = manifest.get("spec", {})
    if {"minAvailable", "maxUnavailable"} <= set(spec):
        raise RefusedError("minAvailable and maxUnavailable cannot both be set")
    if manifest["kind"] != "StatefulSet":
        return
    if spec["updateStrategy"]["type"] == "OnDelete" and "rollingUpdate" in spec["updateStrategy"]:
        raise RefusedError("rollingUpdate is only allowed for updateStrategy RollingUpdate")
    pod = spec["template"]["spec"]
    seccomp = pod["securityContext"]["seccompProfile"]
    if seccomp["type"] != "Localhost" and "localhostProfile" in seccomp:
        raise RefusedError("localhostProfile is for the type Localhost")
    for volume in pod["volumes"]:
        if len(volume) > 2:
            raise RefusedError(f"volume {volume['name']} has more than one source")
    for container in pod["containers"]:
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            if len({"exec", "grpc", "httpGet", "tcpSocket"} & set(container[name])) != 1:
                raise RefusedError(f"{name} needs one handler")
        for variable in container.get("env", []):
            if variable.get("value") and "valueFrom" in variable:
                raise RefusedError(f"env {variable['name']} has value and valueFrom")
        resources = container.get("resources", {})
        for name, limit in resources.get("limits", {}).items():
            asked = resources.get("requests", {}).get(name)
            if asked is not None and parse_quantity(asked) > parse_quantity(limit):
                raise RefusedError(f"the request of {name} is above its limit")


def refuse_another_class(service: dict[str, Any], live: dict[str, Any] | None) -> None:
    """Refuse another class of a load balancer that stays one, as ValidateServiceUpdate does."""
    specs = [(one or {}).get("spec", {}) for one in (service, live)]
    is_one = all(spec.get("type") == "LoadBalancer" for spec in specs)
    if is_one and specs[0].get("loadBalancerClass") != specs[1].get("loadBalancerClass"):
        raise RefusedError("spec.loadBalancerClass may not change once set")


def set_defaults(manifest: dict[str, Any]) -> None:
    """Add what the API server adds."""
    spec = manifest.get("spec", {})
    if manifest["kind"] == "Service":
        spec |= {"sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}
    if manifest["kind"] != "StatefulSet":
        return
    for claim in spec.get("volumeClaimTemplates", []):
        claim["spec"]["volumeMode"] = "Filesystem"
        claim["status"] = {"phase": "Pending"}
        amounts = claim["spec"]["resources"]["requests"]
        amounts["storage"] = AMOUNTS.get(amounts["storage"], amounts["storage"])
    pod = spec["template"]["spec"]
    pod |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}
    for container in pod["containers"]:
        container["terminationMessagePath"] = "/dev/termination-log"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            container[probe]["successThreshold"] = 1
            container[probe]["httpGet"].setdefault("scheme", "HTTP")
    for volume in pod["volumes"]:
        if "configMap" in volume:
            volume["configMap"]["defaultMode"] = 420
