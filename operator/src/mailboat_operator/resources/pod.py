"""The pod of a broker and of a name server: what both have in common.

Everything fits Pod Security "restricted". The user's `podTemplate` comes last and reaches only what
`PodTemplateSpec` names, so it can add a label and never take away a safeguard.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mailboat_operator.crds.pod_template import PodTemplateSpec
from mailboat_operator.resources.labels import GROUP_LABEL, selector_of
from mailboat_operator.resources.names import HTTP

USER_ID: Final = 10_001
"""User and group that the image's process runs as."""

CONFIG_FOLDER: Final = "/etc/mailboat"
CONFIG_VOLUME: Final = "config"

_TMP_VOLUME: Final = "tmp"
_TMP_LIMIT: Final = "64Mi"
_STARTUP_PERIOD_S: Final = 1
_STARTUP_PATIENCE_S: Final = 24 * 3600
"""A store that is repaired after a crash may take hours; killing it would begin anew."""


@dataclass(frozen=True, slots=True)
class Process:
    """What runs in a pod."""

    name: str
    """Of the container, and the command of `mailboat`."""

    config_file: str
    config_map: str
    ports: Mapping[str, int]
    image: str
    image_pull_policy: str | None
    resources: Mapping[str, Any] | None
    service_account: str
    grace_seconds: int
    volumes: Mapping[str, str] = field(default_factory=dict)
    """Name -> path of volumes that the StatefulSet makes."""

    env: Sequence[Mapping[str, Any]] = ()
    """Beside those of the podTemplate, which are no settings of ours."""

    mounted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Path -> volume that is mounted there to be read."""

    affinity: Mapping[str, Any] | None = None
    """What the podTemplate's own takes the place of."""

    spread: Sequence[Mapping[str, Any]] = ()
    """As well, beside that over nodes."""

    probe_scheme: str | None = None
    """How the kubelet asks over HTTP; None: plainly."""


def pod_template(
    process: Process,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    template: PodTemplateSpec | None,
) -> dict[str, Any]:
    """Return a StatefulSet's pod template."""
    added = template or PodTemplateSpec()
    metadata: dict[str, Any] = {"labels": dict(sorted((added.labels | dict(labels)).items()))}
    if added.annotations or annotations:
        metadata["annotations"] = dict(sorted((added.annotations | dict(annotations)).items()))
    spec: dict[str, Any] = {
        "serviceAccountName": process.service_account,
        "automountServiceAccountToken": False,
        # A Service called mailboat would put variables into the pod that look like settings.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": process.grace_seconds,
        "securityContext": _pod_security(),
        "containers": [_container(process, added)],
        "volumes": [
            {"name": CONFIG_VOLUME, "configMap": {"name": process.config_map}},
            {"name": _TMP_VOLUME, "emptyDir": {"sizeLimit": _TMP_LIMIT}},
            *(dict(volume) for volume in process.mounted.values()),
        ],
        "topologySpreadConstraints": _spread(process, labels, added),
    }
    spec |= {
        key: value
        for key, value in (
            ("affinity", added.affinity or process.affinity),
            ("imagePullSecrets", list(added.image_pull_secrets)),
            ("nodeSelector", dict(sorted(added.node_selector.items()))),
            ("priorityClassName", added.priority_class_name),
            ("tolerations", list(added.tolerations)),
        )
        if value
    }
    return {"metadata": metadata, "spec": spec}


def _container(process: Process, added: PodTemplateSpec) -> dict[str, Any]:
    mounts = {CONFIG_FOLDER: CONFIG_VOLUME, "/tmp": _TMP_VOLUME}  # noqa: S108 - a volume of the pod
    mounts |= {path: name for name, path in process.volumes.items()}
    mounts |= {path: volume["name"] for path, volume in process.mounted.items()}
    read_only = {CONFIG_VOLUME, *(volume["name"] for volume in process.mounted.values())}
    env = [*process.env, *added.env]
    container: dict[str, Any] = {
        "name": process.name,
        "image": process.image,
        "command": ["mailboat", process.name, "-c", f"{CONFIG_FOLDER}/{process.config_file}"],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in process.ports.items()
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
        "startupProbe": _probe(
            process, "/startupz", _STARTUP_PERIOD_S, _STARTUP_PATIENCE_S // _STARTUP_PERIOD_S
        ),
        "livenessProbe": _probe(process, "/livez", 20, 3),
        "readinessProbe": _probe(process, "/readyz", 2, 3),
        "volumeMounts": [
            {"name": name, "mountPath": path} | ({"readOnly": True} if name in read_only else {})
            for path, name in sorted(mounts.items())
        ],
    }
    if process.image_pull_policy is not None:
        container["imagePullPolicy"] = process.image_pull_policy
    if process.resources:
        container["resources"] = _texts(process.resources)
    if env:
        container["env"] = [dict(variable) for variable in env]
    return container


def _pod_security() -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        # Else every start changes the owner of every file.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _probe(process: Process, path: str, period_s: int, failures: int) -> dict[str, Any]:
    scheme = {} if process.probe_scheme is None else {"scheme": process.probe_scheme}
    return {
        "httpGet": {"path": path, "port": HTTP, **scheme},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _spread(
    process: Process, labels: Mapping[str, str], added: PodTemplateSpec
) -> list[dict[str, Any]]:
    """Return the user's wish, or several nodes where that is possible."""
    if added.topology_spread_constraints:
        return [dict(constraint) for constraint in added.topology_spread_constraints]
    every_pod = {key: value for key, value in selector_of(labels).items() if key != GROUP_LABEL}
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": every_pod},
        },
        *(dict(constraint) for constraint in process.spread),
    ]


def _texts(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Spell every amount as a text, as the API server does."""
    return {
        part: {name: str(amount) for name, amount in sorted(amounts.items())}
        for part, amounts in sorted(resources.items())
        if amounts
    }
