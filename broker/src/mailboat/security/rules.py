"""What one user may do: RocketMQ's policies, decoded once and looked up for each need.

A need is decided by the most specific entries that match it, by resource, by any one of its
actions, and by the address that asks:

    1. Custom before Default: Default entries count only where no Custom entry matches
    2. a typed resource ("Topic:a") before "*"
    3. a literal name before a prefix ("Topic:a*") before any ("Topic:*")
    4. the longer prefix first
    5. Deny before Allow

Without any match it is refused. RocketMQ 5.3.3 puts shorter prefixes first, and Allow before Deny;
both go against its own documentation and are not followed here. Nor is its comparison of source
addresses as text, in which another spelling of an IPv6 address slips past a Deny.

Source: apache/rocketmq auth/authorization/chain/AclAuthorizationHandler.java,
auth/authorization/model/{Policy,PolicyEntry,Resource,Environment}.java @ rocketmq-all-5.3.3
"""

import functools
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from mailboat.errors import IllegalMessageError, IllegalUserError
from mailboat.model import names
from mailboat.model.printable import printable
from mailboat.security.access import Action, Need, ResourceKind

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

NO_MATCH: Final = "no matched policies"
DENIED: Final = "the decision is deny"

ENTRIES_MAX: Final = 10_000
"""Most entries of one user."""

SOURCE_IPS_MAX: Final = 1_000
"""Most source addresses of one entry."""

_CLUSTER_NAME_MAX: Final = 255
_IPV4_IN_IPV6_BITS: Final = 96  # ::ffff:0:0/96
_ADDRESSES_KEPT: Final = 4096
_ALL_NAMES: Final = "*"


class PolicyType(Enum):
    """Which entries count first; the value is RocketMQ's spelling."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Decision(Enum):
    """What a matching entry does; the value is RocketMQ's spelling."""

    ALLOW = "Allow"
    DENY = "Deny"


# Members of an enumeration are slow to come by.
_ALLOW: Final = Decision.ALLOW
_DENY: Final = Decision.DENY
_TOPIC: Final = ResourceKind.TOPIC
_GROUP: Final = ResourceKind.GROUP


class Pattern(Enum):
    """How the name of a resource is meant."""

    LITERAL = "literal"
    PREFIX = "prefix"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Resource:
    """What an entry is about."""

    kind: ResourceKind
    pattern: Pattern = Pattern.ANY
    name: str = ""
    """The name or its beginning; empty with `ANY`."""

    def __str__(self) -> str:
        """Spell it as RocketMQ does: `Topic:a`, `Topic:a*`, `Topic:*`, `*`."""
        if self.kind is ResourceKind.ANY:
            return _ALL_NAMES
        star = "" if self.pattern is Pattern.LITERAL else _ALL_NAMES
        return f"{self.kind.value}:{self.name}{star}"


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One rule."""

    resource: Resource
    actions: frozenset[Action]
    decision: Decision
    networks: tuple[Network, ...] = ()
    """The addresses that it counts for; none: all."""

    policy_type: PolicyType = PolicyType.CUSTOM

    @property
    def source_ips(self) -> list[str]:
        """The networks as they are written, one address without its mask."""
        return [
            str(net.network_address if net.prefixlen == net.max_prefixlen else net)
            for net in self.networks
        ]

    @property
    def action_words(self) -> list[str]:
        """The actions in RocketMQ's words and order."""
        return [action.value for action in Action if action in self.actions]


class PolicyRules:
    """All entries of one user; made anew on a change."""

    __slots__ = ("_custom", "_default", "entries")

    def __init__(self, entries: Iterable[PolicyEntry] = ()) -> None:
        """Sort the entries for lookups.

        Raises:
            IllegalUserError: they are too many.
        """
        self.entries = tuple(entries)
        if len(self.entries) > ENTRIES_MAX:
            raise IllegalUserError(f"more than {ENTRIES_MAX} entries of one user")
        self._custom = _Policy(self.of_type(PolicyType.CUSTOM))
        self._default = _Policy(self.of_type(PolicyType.DEFAULT))

    def refusal(self, need: Need, source_ip: str) -> str | None:
        """Return None where a need is allowed from an address, else why not."""
        decision = self._custom.decide(need, source_ip)
        if decision is None:
            decision = self._default.decide(need, source_ip)
        if decision is None:
            return NO_MATCH
        return DENIED if decision is _DENY else None

    def of_type(self, policy_type: PolicyType) -> list[PolicyEntry]:
        """Return the entries of one type."""
        return [entry for entry in self.entries if entry.policy_type is policy_type]


class _Policy:
    """The entries of one type; a lookup takes as many steps as there are lengths of prefixes."""

    __slots__ = ("_anything", "_cluster", "_group", "_topic")

    def __init__(self, entries: Iterable[PolicyEntry]) -> None:
        self._topic = _Names()
        self._group = _Names()
        self._cluster = _Names()
        self._anything: list[_Looked] = []
        names = {_TOPIC: self._topic, _GROUP: self._group, ResourceKind.CLUSTER: self._cluster}
        for entry in entries:
            if entry.resource.kind is ResourceKind.ANY:
                self._anything.append(_looked(entry))
            else:
                names[entry.resource.kind].add(entry)

    def decide(self, need: Need, source_ip: str) -> Decision | None:
        """Return what the most specific matching entries say, None where none matches."""
        kind = need.kind
        typed = self._topic if kind is _TOPIC else self._group if kind is _GROUP else self._cluster
        decision = typed.decide(need.name, need.actions, source_ip)
        if decision is None and self._anything:
            return _decide(self._anything, need.actions, source_ip)
        return decision


class _Names:
    """The entries of one type about one kind of resource."""

    __slots__ = ("_any", "_lengths", "_literals", "_prefixes")

    def __init__(self) -> None:
        self._literals: dict[str, list[_Looked]] = {}
        self._prefixes: dict[str, list[_Looked]] = {}
        self._lengths: list[int] = []
        self._any: list[_Looked] = []

    def add(self, entry: PolicyEntry) -> None:
        """Sort one entry in."""
        name, looked = entry.resource.name, _looked(entry)
        if entry.resource.pattern is Pattern.LITERAL:
            self._literals.setdefault(name, []).append(looked)
        elif entry.resource.pattern is Pattern.ANY:
            self._any.append(looked)
        else:
            self._prefixes.setdefault(name, []).append(looked)
            if len(name) not in self._lengths:
                self._lengths = sorted([*self._lengths, len(name)], reverse=True)

    def decide(self, name: str, actions: frozenset[Action], source_ip: str) -> Decision | None:
        """Return what the most specific matching entries say, None where none matches."""
        found = self._literals.get(name)
        if found is not None:
            decision = _decide(found, actions, source_ip)
            if decision is not None:
                return decision
        for length in self._lengths:
            # A shorter name is cut to itself, which is a prefix of its own length only.
            found = self._prefixes.get(name[:length]) if length <= len(name) else None
            if found is not None:
                decision = _decide(found, actions, source_ip)
                if decision is not None:
                    return decision
        return _decide(self._any, actions, source_ip) if self._any else None


class _Looked(NamedTuple):
    """What of an entry is looked at for each need; without Python's own hashes of enumerations."""

    actions: frozenset[Action] | None
    """None: all."""

    networks: tuple[Network, ...]
    is_deny: bool


def _looked(entry: PolicyEntry) -> _Looked:
    actions = None if Action.ALL in entry.actions else entry.actions
    return _Looked(actions, entry.networks, entry.decision is Decision.DENY)


def _decide(entries: list[_Looked], actions: frozenset[Action], source_ip: str) -> Decision | None:
    """Return what entries of one rank say about some actions, any one of which suffices."""
    decision = None
    for covered, networks, is_deny in entries:
        if covered is not None and covered.isdisjoint(actions):
            continue
        if networks and not _counts_for(networks, source_ip, is_deny):
            continue
        if is_deny:
            return _DENY
        decision = _ALLOW
    return decision


def _counts_for(networks: tuple[Network, ...], source_ip: str, is_deny: bool) -> bool:
    """Tell whether an address is in one of some networks.

    One that cannot be read is in each network that denies, and in none that allows.
    """
    address = parse_address(source_ip)
    if address is None:
        return is_deny
    return any(address in network for network in networks)


def parse_entry(
    resource: str,
    actions: Iterable[str],
    source_ips: Iterable[str],
    decision: str,
    policy_type: PolicyType = PolicyType.CUSTOM,
) -> PolicyEntry:
    """Read one entry in RocketMQ's words; small and capital letters of its words are the same.

    Raises:
        IllegalUserError: something in it is no such word. RocketMQ drops actions that it does not
            know, and what is left of the entry counts.
    """
    return PolicyEntry(
        resource=parse_resource(resource),
        actions=parse_actions(actions),
        decision=parse_decision(decision),
        networks=parse_networks(source_ips),
        policy_type=policy_type,
    )


def parse_resource(text: str) -> Resource:
    """Read `Topic:a`, `Topic:a*`, `Topic:*` (the same of `Group` and `Cluster`), or `*`.

    Raises:
        IllegalUserError: it is none of these, or no topic or group can have such a name.
    """
    text = text.strip()
    if not text:
        raise IllegalUserError("The resource is null.")
    if text == _ALL_NAMES:
        return Resource(ResourceKind.ANY)
    word, colon, name = text.partition(":")
    kind = _KINDS.get(word.lower())
    if not colon or kind is None:
        raise IllegalUserError(
            f"The resource {_shown(text)} is not *, or Topic:, Group: or Cluster: and a name."
        )
    if name == _ALL_NAMES:
        return Resource(kind)
    is_prefix = name.endswith(_ALL_NAMES)
    name = name.removesuffix(_ALL_NAMES)
    _check_name(kind, name, text)
    return Resource(kind, Pattern.PREFIX if is_prefix else Pattern.LITERAL, name)


def literal_resource(kind: ResourceKind, name: str) -> Resource:
    """Return the resource of exactly one name, whatever stars are in it.

    Raises:
        IllegalUserError: no topic, group or cluster can have such a name.
    """
    _check_name(kind, name, f"{kind.value}:{name}")
    return Resource(kind, Pattern.LITERAL, name)


def parse_actions(words: Iterable[str]) -> frozenset[Action]:
    """Read the names of actions.

    Raises:
        IllegalUserError: there is none, or one is not an action.
    """
    actions = set()
    for word in words:
        action = _ACTIONS.get(word.strip().lower())
        if action is None:
            if word.strip().lower() == "any":
                raise IllegalUserError("The actions can not be Any.")
            raise IllegalUserError(
                f"The action {_shown(word)} is none of {', '.join(a.value for a in Action)}."
            )
        actions.add(action)
    if not actions:
        raise IllegalUserError("The actions is empty.")
    return frozenset(actions)


def parse_decision(word: str) -> Decision:
    """Read `Allow` or `Deny`.

    Raises:
        IllegalUserError: it is neither.
    """
    decision = _DECISIONS.get(word.strip().lower())
    if decision is None:
        raise IllegalUserError("The decision is null or illegal.")
    return decision


def parse_policy_type(word: str) -> PolicyType:
    """Read `Custom` or `Default`; nothing at all means `Custom`, as in RocketMQ.

    Raises:
        IllegalUserError: it is neither.
    """
    if not word.strip():
        return PolicyType.CUSTOM
    policy_type = _POLICY_TYPES.get(word.strip().lower())
    if policy_type is None:
        raise IllegalUserError("The policy type is illegal.")
    return policy_type


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read addresses and CIDR blocks.

    Raises:
        IllegalUserError: one is neither, or they are too many.
    """
    networks = tuple(dict.fromkeys(map(_parse_network, texts)))
    if len(networks) > SOURCE_IPS_MAX:
        raise IllegalUserError(f"more than {SOURCE_IPS_MAX} source addresses in one entry")
    return networks


@functools.lru_cache(_ADDRESSES_KEPT)
def parse_address(text: str) -> Address | None:
    """Return the address of a peer, None where it is none; IPv4 in IPv6 is IPv4."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _parse_network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise IllegalUserError(f"The source ip is invalid. ({_shown(text)})") from None
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= _IPV4_IN_IPV6_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return ipaddress.IPv4Network((mapped, network.prefixlen - _IPV4_IN_IPV6_BITS))
    return network


def _check_name(kind: ResourceKind, name: str, text: str) -> None:
    # A rule about a name that nothing can have would be a Deny that never counts.
    if kind is ResourceKind.CLUSTER:
        if not name.strip() or len(name) > _CLUSTER_NAME_MAX or _ALL_NAMES in name:
            raise IllegalUserError(f"The resource {_shown(text)} names no cluster.")
        return
    try:
        if kind is ResourceKind.TOPIC:
            names.check_topic(name)
        else:
            names.check_group(name)
    except IllegalMessageError as error:
        raise IllegalUserError(f"The resource {_shown(text)}: {error}") from None


def _shown(text: str) -> str:
    return printable(text[:_CLUSTER_NAME_MAX])


_KINDS: Final = {kind.value.lower(): kind for kind in ResourceKind if kind is not ResourceKind.ANY}
_ACTIONS: Final = {action.value.lower(): action for action in Action}
_DECISIONS: Final = {decision.value.lower(): decision for decision in Decision}
_POLICY_TYPES: Final = {policy_type.value.lower(): policy_type for policy_type in PolicyType}

NO_RULES: Final = PolicyRules()
"""Of a user that was given none."""
