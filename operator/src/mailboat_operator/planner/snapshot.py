"""What a planner looks at: one custom resource with all that belongs to it, at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from mailboat_operator.crds.broker import Broker
from mailboat_operator.crds.name_server import NameServer
from mailboat_operator.crds.topic import Topic
from mailboat_operator.crds.user import User

Manifest: TypeAlias = dict[str, Any]
"""A Kubernetes object as the API server's JSON has it."""


FRESH_S: Final = 60.0
"""Older words of a broker count as no words, where brokers are asked often enough for that."""

_LOOKS: Final = 3
"""So many looks at a broker may fail before its words are old."""


def fresh_for_s(collect_s: float) -> float:
    """Return how old a broker's words may be where it is asked every `collect_s` seconds."""
    return max(FRESH_S, _LOOKS * collect_s)


@dataclass(frozen=True, slots=True)
class Children:
    """The live objects of one resource, by name; each as the API server last sent it."""

    stateful_sets: Mapping[str, Manifest] = field(default_factory=dict)
    pods: Mapping[str, Manifest] = field(default_factory=dict)
    claims: Mapping[str, Manifest] = field(default_factory=dict)
    services: Mapping[str, Manifest] = field(default_factory=dict)
    config_maps: Mapping[str, Manifest] = field(default_factory=dict)
    disruption_budgets: Mapping[str, Manifest] = field(default_factory=dict)
    service_accounts: Mapping[str, Manifest] = field(default_factory=dict)
    network_policies: Mapping[str, Manifest] = field(default_factory=dict)
    leases: Mapping[str, Manifest] = field(default_factory=dict)
    endpoint_slices: Mapping[str, Manifest] = field(default_factory=dict)
    endpoints: Mapping[str, Manifest] = field(default_factory=dict)
    roles: Mapping[str, Manifest] = field(default_factory=dict)
    role_bindings: Mapping[str, Manifest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VolumeNumbers:
    """A volume's size and use, from the broker itself or, while it is down, from the kubelet."""

    capacity_bytes: int
    used_bytes: int
    available_bytes: int
    source: str
    """`broker` or `kubelet`."""

    @property
    def used_percent(self) -> int:
        """The used part of what can be filled, in whole per cent, rounded up as df does."""
        fillable = self.used_bytes + self.available_bytes
        return -(-100 * self.used_bytes // fillable) if fillable else 100


@dataclass(frozen=True, slots=True)
class UseSample:
    """One point of a volume's history; `monotonic_s` is the operator's own clock."""

    monotonic_s: float
    used_bytes: int
    written_bytes: int
    """The CommitLog's max physical offset: it only grows, whatever is deleted."""


@dataclass(frozen=True, slots=True)
class ConfigRefusal:
    """Live settings that a broker refused, and why."""

    values: Mapping[str, str]
    sentence: str
    monotonic_s: float
    """When; on the operator's own clock."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one broker pod last said over HTTP; any part is None when it has never been read."""

    pod_uid: str
    seen_monotonic_s: float | None
    """When the broker last answered; None if this operator never reached it."""

    error: str | None
    """Why the last try failed; None if it did not."""

    broker: Manifest | None
    """GET /api/v1/broker."""

    config: Mapping[str, str] | None
    """The effective values of GET /api/v1/config."""

    retention: Manifest | None
    """GET /api/v1/retention."""

    kubelet: VolumeNumbers | None
    """The kubelet's count of the volume, looked up when the broker does not answer."""

    samples: tuple[UseSample, ...]
    """The last hour, oldest first."""

    config_refusals: tuple[ConfigRefusal, ...] = ()
    """What this pod refused last, each key at most once; it may have been settled since."""

    silent_since_monotonic_s: float | None = None
    """Since when every try failed; None while the broker answers."""

    stranger: str | None = None
    """The name of another broker that answered at the pod's address; None if none did."""

    is_retention_older: bool = False
    """Whether settings were changed since `retention` was read."""

    replica: Manifest | None = None
    """GET /api/v1/replica; None where the broker is no replica."""

    start_moved_monotonic_s: float | None = None
    """When the broker's start was last seen to get on; None if it is not starting, or does not say
    how far it is."""


@dataclass(frozen=True, slots=True)
class EvictionRefusal:
    """Why a pod was not evicted when that was last asked for."""

    words: str
    has_many_budgets: bool = False
    """Whether more than one disruption budget selects the pod: then it is evicted once somebody has
    removed all but one, and not before."""


@dataclass(frozen=True, slots=True)
class LiveCertificate:
    """The Certificate of a resource that has cert-manager make its certificate."""

    is_kind_known: bool
    """Whether the cluster has cert-manager."""

    manifest: Manifest | None = None


@dataclass(frozen=True, slots=True)
class BrokerSnapshot:
    """A Broker with all that belongs to it."""

    resource: Broker
    children: Children
    storage_classes: Mapping[str, Manifest] | None
    """By name; None when the operator may not read them (rights in one namespace only)."""

    name_server: NameServer | None
    """The NameServer that `nameServers.ref` names; None if there is none."""

    observations: Mapping[str, Observation]
    """By pod name."""

    default_image: str
    now_s: float
    """Wall time, for what is shown: seconds since 1970."""

    monotonic_s: float
    """Elapsed time, for what is decided."""

    refused_sizes: Mapping[str, str] = field(default_factory=dict)
    """Claim's name -> the API server's words when it last refused a size."""

    refused_evictions: Mapping[str, EvictionRefusal] = field(default_factory=dict)
    """By pod name; a pod that may go is missing."""

    copied: frozenset[str] = frozenset()
    """The groups that got the others' topics although the status does not say so yet."""

    fresh_s: float = FRESH_S
    """How old the words of a broker may be; longer where brokers are asked seldom."""

    http_peers: tuple[Manifest, ...] | None = None
    """Who may reach every broker's HTTP, as NetworkPolicyPeers; None: no NetworkPolicy is made."""

    certificate: LiveCertificate | None = None
    """None where none is asked for."""


@dataclass(frozen=True, slots=True)
class NameServerSnapshot:
    """A NameServer with all that belongs to it."""

    resource: NameServer
    children: Children
    default_image: str
    now_s: float
    refused_evictions: Mapping[str, EvictionRefusal] = field(default_factory=dict)
    """As a Broker's."""

    http_peers: tuple[Manifest, ...] | None = None
    """Who may reach every name server's HTTP; None: no NetworkPolicy is made."""

    certificate: LiveCertificate | None = None
    """As a Broker's."""


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """A Topic, and what the broker of each group says of it."""

    resource: Topic
    broker: Broker | None
    """The Broker that `brokerRef` names; None if there is none."""

    endpoints: Mapping[str, str]
    """Group's StatefulSet name -> base URL of its broker's HTTP API; only pods that are ready."""

    topics: Mapping[str, Manifest | None]
    """Group's StatefulSet name -> GET /api/v1/topics/{topic}; None where the topic is unknown; a
    group that did not answer is missing."""

    now_s: float
    volumes: Mapping[str, str] = field(default_factory=dict)
    """Group's StatefulSet name -> its claim, of the Broker's groups that are no more too."""

    rivals: tuple[Manifest, ...] = ()
    """The Topics that stand for the same topic of the same Broker (`topic.is_same_topic`)."""


@dataclass(frozen=True, slots=True)
class UserSnapshot:
    """A User, the Secrets that it is in, and what each broker says of it."""

    resource: User
    broker: Broker | None
    """The Broker that `brokerRef` names; None if there is none."""

    name_server: NameServer | None
    """The NameServer that the Broker names; None if there is none."""

    broker_users: Manifest | None = field(repr=False)
    """The Secret with the Broker's users; None if there is none yet."""

    name_server_users: Manifest | None = field(repr=False)
    """That of the NameServer."""

    own_secret: Manifest | None = field(repr=False)
    """What the operator made for the user's clients; None if there is none."""

    given_secret: Manifest | None = field(repr=False)
    """The Secret that `secretRef` names; None if there is none, or none is named."""

    chance: str = field(repr=False)
    """What a new secret key would be."""

    servers: tuple[str, ...]
    """The pods of the Broker that may answer somebody."""

    name_server_pods: tuple[str, ...]
    """Those of the NameServer."""

    said: Mapping[str, str | None]
    """Pod of either -> the revision of the user that counts there; None: there is no such user. One
    that did not answer is missing."""

    now_s: float
    rivals: tuple[Manifest, ...] = ()
    """The Users with the same access key at the same Broker, itself among them."""

    other_users: tuple[Manifest, ...] = field(default=(), repr=False)
    """The Secrets with the users of the namespace's other NameServers: the Broker may have named
    one of them before."""
