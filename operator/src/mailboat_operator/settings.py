"""The operator's own settings: read once from the environment, typed, and wrong ones refused."""

import difflib
import json
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mailboat.errors import ConfigError

PREFIX = "MAILBOAT_OPERATOR_"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

# Kubernetes itself puts such variables into a container for every Service of the namespace: one
# that is called `mailboat-operator` yields names with our prefix, and they are no settings.
_SERVICE_LINK = re.compile(
    r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$"
)


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """What one operator process is told; each field is one `MAILBOAT_OPERATOR_<FIELD>`."""

    image: str
    """The image of brokers and name servers whose resource names none."""

    pod_name: str
    """This replica's name in the Lease, in events and in logs."""

    pod_namespace: str
    """Where the Lease lives."""

    namespaces: tuple[str, ...] = ()
    """The namespaces that are served; empty: all of them."""

    lease_name: str = "mailboat-operator"
    """The Lease that lets one replica of several act."""

    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""

    log_format: str = "text"
    """`text` for key=value lines, `json` for one object per line."""

    http_host: str = ""
    """The address that probes and metrics are served on; empty: every one."""

    http_port: int = 8090
    """The port of probes and metrics; 0 takes a free one and logs it."""

    collect_seconds: float = 15.0
    """How often each broker is asked for its numbers, which are old after three times that (at
    least a minute); at most 300."""

    resync_seconds: float = 300.0
    """How often everything is listed and planned again although nothing was seen to change."""

    kubelet_stats: bool = True
    """`true`: the kubelet counts the volume of a broker that is down; needs `nodes/stats`."""

    kubelet_ca: str = ""
    """File with the authority of the kubelets' certificates; empty: the API server's."""

    kubelet_verify: bool = True
    """`false`: the token is sent to whoever answers at a node's port 10250."""

    broker_token_file: str = ""
    """File whose first line is the bearer token shown to brokers; empty: none is shown."""

    secret_namespaces: tuple[str, ...] = ()
    """Where Secrets may be read and changed, for `self_check`; empty: wherever it looks."""

    network_policies: bool = True
    """`true`: each Broker and NameServer gets a NetworkPolicy, unless it says otherwise."""

    pod_selector: tuple[str, ...] = ()
    """Labels (key=value, with commas) of the operator's pods; empty: all of its namespace."""

    http_peers: tuple[dict[str, Any], ...] = ()
    """JSON list of NetworkPolicyPeers that may reach every HTTP port, beside the operator."""

    workers: int = 4
    """How many resources are worked on at once."""

    request_timeout_seconds: float = 15.0
    """How long one call of the API server may take."""

    watch_seconds: float = 40.0
    """How long one watch request lasts before the next one continues it."""

    deaf_seconds: float = 90.0
    """How long a watch may be silent before /livez fails."""

    @property
    def is_cluster_wide(self) -> bool:
        """Whether every namespace is served."""
        return not self.namespaces

    def all_http_peers(self) -> tuple[dict[str, Any], ...] | None:
        """Who may reach the HTTP of every broker and name server; None without policies."""
        if not self.network_policies:
            return None
        labels = dict(label.split("=", 1) for label in self.pod_selector)
        namespace = {"matchLabels": {"kubernetes.io/metadata.name": self.pod_namespace}}
        own: dict[str, Any] = {"namespaceSelector": namespace}
        if labels:
            own["podSelector"] = {"matchLabels": dict(sorted(labels.items()))}
        return (own, *self.http_peers)


def load_settings(environment: Mapping[str, str]) -> OperatorSettings:
    """Read the settings from the environment.

    Raises:
        ConfigError: a name is unknown, a value is wrong, or one that must be given is missing.
    """
    given = _given(environment)
    values: dict[str, Any] = {name: _parse(name, text) for name, text in given.items()}
    values.setdefault("pod_name", socket.gethostname())
    if "image" not in values:
        raise ConfigError(f"{PREFIX}IMAGE", "", "is not set; name the image of the brokers")
    if "pod_namespace" not in values:
        values["pod_namespace"] = _own_namespace()
    settings = OperatorSettings(**values)
    if settings.deaf_seconds <= settings.watch_seconds + 10:
        raise ConfigError(
            f"{PREFIX}DEAF_SECONDS",
            f"{settings.deaf_seconds:g}",
            f"must be more than WATCH_SECONDS ({settings.watch_seconds:g}) + 10",
        )
    return settings


def _given(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that the environment has, by field name; an unknown one is an error."""
    known = [field.name for field in fields(OperatorSettings)]
    given: dict[str, str] = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        suffix = variable.removeprefix(PREFIX)
        name = suffix.lower()
        if name in known:
            given[name] = text.strip()
        elif not _SERVICE_LINK.match(suffix):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {PREFIX}{near[0].upper()}?" if near else ""
            raise ConfigError(variable, text, f"is not a setting of the operator{hint}")
    return given


def _own_namespace() -> str:
    """The namespace of the pod's service account, where there is one."""
    if _NAMESPACE_FILE.is_file():
        return _NAMESPACE_FILE.read_text(encoding="ascii").strip()
    raise ConfigError(
        f"{PREFIX}POD_NAMESPACE", "", "is not set; name the namespace of the operator's Lease"
    )


def _parse(name: str, text: str) -> Any:
    try:
        return _PARSERS.get(name, _text)(text)
    except ValueError as error:
        raise ConfigError(f"{PREFIX}{name.upper()}", text, str(error)) from None


def _text(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name):
            raise ValueError(f"{name!r} is not the name of a namespace")
    return names


def _labels(text: str) -> tuple[str, ...]:
    labels = tuple(label.strip() for label in text.split(",") if label.strip())
    for label in labels:
        if not re.fullmatch(r"[-A-Za-z0-9_./]+=[-A-Za-z0-9_.]*", label):
            raise ValueError(f"{label!r} is no label such as app=mailboat")
    return labels


def _peers(text: str) -> tuple[dict[str, Any], ...]:
    try:
        peers = json.loads(text or "[]")
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from None
    known = {"podSelector", "namespaceSelector", "ipBlock"}
    if not isinstance(peers, list) or not all(
        isinstance(peer, dict) and peer and peer.keys() <= known for peer in peers
    ):
        raise ValueError(f"must be a list of objects with {', '.join(sorted(known))}")
    return tuple(peers)


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise ValueError(f"must be one of {', '.join(choices)}")

    return parse


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise ValueError(f"must be a number from {low:g} to {high:g}")
        return value

    return parse


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return parse


_PARSERS: dict[str, Callable[[str], Any]] = {
    "namespaces": _names,
    "secret_namespaces": _names,
    "log_level": _one_of("DEBUG", "INFO", "WARNING", "ERROR"),
    "log_format": _one_of("text", "json"),
    "http_host": str,
    "http_port": _whole(0, 65535),
    "collect_seconds": _number(0.1, 300),
    "resync_seconds": _number(1, 86400),
    "broker_token_file": str,
    "kubelet_ca": str,
    "kubelet_stats": _truth,
    "kubelet_verify": _truth,
    "network_policies": _truth,
    "pod_selector": _labels,
    "http_peers": _peers,
    "workers": _whole(1, 64),
    "request_timeout_seconds": _number(1, 30),
    "watch_seconds": _number(1, 600),
    "deaf_seconds": _number(11, 3600),
}
