"""Listeners: further ports for RocketMQ clients, most of all for those outside of the cluster."""

from collections.abc import Collection, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from mailboat_operator.crds import pod_schema
from mailboat_operator.crds.common import Rule
from mailboat_operator.crds.security import TlsSpec

LISTENERS_MAX: Final = 8
NODE_PORT_MIN: Final = 30_000
NODE_PORT_MAX: Final = 32_767
NODE_PORTS_APART: Final = 64
"""How far the node ports of two replicas of a group lie apart: as many groups a Broker may have."""

LISTENER_CONFIG: Final = {
    "advertisedAddressesFile": "use spec.listeners",
    "listeners": "use spec.listeners",
}
"""Settings that spec.config must not hold: key -> what to do."""

_PIECE: Final = r"([a-zA-Z0-9]|\{(pod|ordinal|group|namespace)\})"
_LABEL: Final = rf"{_PIECE}(-*{_PIECE})*"
_HOST_PATTERN: Final = rf"^(\{{nodeIP\}}|{_LABEL}(\.{_LABEL})*)$"
# A port of a pod has no two hyphens in a row.
_NAME_PATTERN: Final = r"^[a-z](-?[a-z0-9])*$"
_OWN_NAMES: Final = ("ha", "http", "internal", "leader", "nodes", "remoting", "remoting-fast")
"""The name of the ports that are there anyway, of a NameServer's headless Service, and of ports of
pods: of two ports with one name the probes and Services would find the other one."""

_EXTERNAL: Final = ("NodePort", "LoadBalancer")


class AdvertisedSpec(msgspec.Struct, frozen=True, rename="camel"):
    """What clients are told instead of the address of the listener's Service."""

    host: Annotated[
        Annotated[str, Meta(min_length=1, max_length=253, pattern=_HOST_PATTERN)] | None,
        Meta(
            description="Host name or IPv4 address; {pod}, {ordinal}, {group} and {namespace} in"
            " it become those of each pod. Or {nodeIP} alone, the address of its node."
        ),
    ] = None
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65_535)] | None,
        Meta(description="Port. Default: the node port, or the listener's own port."),
    ] = None


class ListenerSpec(msgspec.Struct, frozen=True, rename="camel"):
    """One further port for RocketMQ clients, and how they get to it."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"!(self.name in {list(_OWN_NAMES)})",
            message=f"the names {', '.join(_OWN_NAMES)} are those of what is there anyway",
            field=".name",
        ),
        Rule(
            cel="self.tls != 'Disabled' || self.clientAuth == 'None'",
            message="clientAuth of a listener needs its tls",
            field=".clientAuth",
        ),
        Rule(
            cel="!has(self.nodePortBase) || self.type == 'NodePort'",
            message="nodePortBase of a listener needs type NodePort",
            field=".nodePortBase",
        ),
    )

    name: Annotated[
        str,
        Meta(
            description="Name of the listener; clients that ask a name server by its listener of"
            " this name are told the addresses of the brokers' listeners of this name.",
            min_length=1,
            max_length=15,
            pattern=_NAME_PATTERN,
        ),
    ]
    port: Annotated[
        int,
        Meta(description="Port in the pods, and of the Service.", ge=1_024, le=65_535),
    ]
    type: Annotated[
        Literal["Internal", "ClusterIP", "NodePort", "LoadBalancer"],
        Meta(description="What leads to the port: no Service (Internal), or one of this type."),
    ] = "NodePort"
    tls: Annotated[
        Literal["Disabled", "Permissive", "Enforcing"],
        Meta(description="What the port speaks, with the certificate of spec.tls.secretRef."),
    ] = "Disabled"
    client_auth: Annotated[
        Literal["None", "Optional", "Required"],
        Meta(description="Whether clients show a certificate of spec.tls.clientCA."),
    ] = "None"
    advertised: Annotated[
        AdvertisedSpec, Meta(description="What clients are told instead of the default.")
    ] = AdvertisedSpec()
    node_port_base: Annotated[
        Annotated[int, Meta(ge=NODE_PORT_MIN, le=NODE_PORT_MAX)] | None,
        Meta(
            description="Of a Broker: the node port of group g's pod r is nodePortBase + g +"
            f" {NODE_PORTS_APART} * r. Of a NameServer: its node port. Default: Kubernetes assigns"
            " them."
        ),
    ] = None
    annotations: Annotated[
        dict[str, Annotated[str, Meta(max_length=1024)]],
        Meta(description="Of the Services, such as load balancers need them.", max_length=32),
    ] = {}
    load_balancer_class: Annotated[
        Annotated[str, Meta(min_length=1, max_length=253)] | None,
        Meta(description="Which load balancer. Default: the cluster's."),
    ] = None
    external_traffic_policy: Annotated[
        Literal["Cluster", "Local"] | None,
        Meta(
            description="Local: only the pod's own node leads to it, and clients' addresses are"
            " seen. Default: Cluster."
        ),
    ] = None
    load_balancer_source_ranges: Annotated[
        tuple[Annotated[str, Meta(max_length=64)], ...],
        Meta(description="Who may use the load balancer, as CIDRs.", max_length=32),
    ] = ()
    network_policy_peers: Annotated[
        list[dict[str, Any]],
        Meta(
            description="Who may connect, as NetworkPolicyPeers. Default: everybody with NodePort"
            " and LoadBalancer, and otherwise those of networkPolicy.clientsFrom.",
            max_length=64,
            extra={"schema": pod_schema.NETWORK_POLICY_PEERS},
        ),
    ] = []

    def __post_init__(self) -> None:
        """Check what the API server checks, for manifests that did not come through it."""
        if self.name in _OWN_NAMES:
            raise ValueError(self.RULES[0].message)
        if self.client_auth != "None" and not self.speaks_tls:
            raise ValueError(self.RULES[1].message)
        if self.node_port_base is not None and self.type != "NodePort":
            raise ValueError(self.RULES[2].message)

    @property
    def is_external(self) -> bool:
        """Whether clients outside of the cluster are led to it."""
        return self.type in _EXTERNAL

    @property
    def has_service(self) -> bool:
        """Whether a Service leads to it."""
        return self.type != "Internal"

    @property
    def speaks_tls(self) -> bool:
        """Whether TLS is spoken at all."""
        return self.tls != "Disabled"


Listeners = Annotated[
    tuple[ListenerSpec, ...],
    Meta(
        description="Further ports for RocketMQ clients, such as those outside of the cluster.",
        max_length=LISTENERS_MAX,
        extra={"list_map_keys": ("name",)},
    ),
]


def listener_rules(taken: Collection[int]) -> tuple[Rule, ...]:
    """Return the rules of `spec.listeners`; `taken` are the server's own ports."""
    numbers = ", ".join(map(str, sorted(taken)))
    return (
        Rule(
            cel=f"!has(self.listeners) || self.listeners.all(l, !(l.port in [{numbers}]))",
            message=f"spec.listeners: the ports {numbers} are the server's own",
            field=".listeners",
        ),
        Rule(
            cel="!has(self.listeners) || self.listeners.all(l,"
            " self.listeners.exists_one(m, m.port == l.port))",
            message="spec.listeners: no two listeners may have one port",
            field=".listeners",
        ),
        Rule(
            cel="!has(self.listeners) || self.listeners.all(l, l.tls == 'Disabled'"
            " || (has(self.tls) && has(self.tls.secretRef)))",
            message="spec.listeners: tls needs spec.tls.secretRef, the Secret with certificate"
            " and key",
            field=".listeners",
        ),
        Rule(
            cel="!has(self.listeners) || self.listeners.all(l, l.clientAuth == 'None'"
            " || (has(self.tls) && has(self.tls.clientCA)))",
            message="spec.listeners: clientAuth needs spec.tls.clientCA, whose certificates are"
            " taken",
            field=".listeners",
        ),
    )


NODE_PORTS_RULE: Final = Rule(
    cel="!has(self.listeners) || self.listeners.all(l, !has(l.nodePortBase) || l.nodePortBase"
    f" + self.groups - 1 + {NODE_PORTS_APART} * (self.replicas - 1) <= {NODE_PORT_MAX})",
    message="spec.listeners: the node ports of all groups and replicas must end at"
    f" {NODE_PORT_MAX}",
    field=".listeners",
)


def check_listeners(
    listeners: Sequence[ListenerSpec], tls: TlsSpec | None, taken: Collection[int]
) -> None:
    """Check what the API server checks, for manifests that did not come through it.

    Raises:
        ValueError: a rule is broken.
    """
    _, twice, certificate, authority = listener_rules(taken)
    if len({listener.name for listener in listeners}) < len(listeners):
        raise ValueError("listeners: no two listeners may have one name")
    if any(listener.port in taken for listener in listeners):
        raise ValueError(listener_rules(taken)[0].message)
    if len({listener.port for listener in listeners}) < len(listeners):
        raise ValueError(twice.message)
    if any(one.speaks_tls for one in listeners) and (tls is None or tls.secret_ref is None):
        raise ValueError(certificate.message)
    if any(one.client_auth != "None" for one in listeners) and (
        tls is None or tls.client_ca is None
    ):
        raise ValueError(authority.message)


def node_port_of(listener: ListenerSpec, group: int = 0, ordinal: int = 0) -> int | None:
    """Return the node port of a pod; None where Kubernetes assigns it."""
    base = listener.node_port_base
    return None if base is None else base + group + NODE_PORTS_APART * ordinal
