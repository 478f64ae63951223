"""What of somebody else's choice an apply would leave beside ours, so that it is refused.

Server-side apply removes only what the operator itself gave before. Where fields exclude each other
(a budget's minAvailable and maxUnavailable, the handlers of a probe, the source of a volume, text
and bytes of one name in a ConfigMap), one that somebody else put there stays when ours is added,
and the API server takes no object with both: it would refuse every apply from then on, and with it
every later change of the spec. A limit that somebody put below a request of ours is not among them:
it may be a policy's, which would put it there again.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mailboat_operator.planner.merging import entry_key, list_keys

_UNIONS: Final[tuple[frozenset[str], ...]] = (
    frozenset({"maxUnavailable", "minAvailable"}),
    frozenset({"exec", "grpc", "httpGet", "sleep", "tcpSocket"}),
    frozenset({"value", "valueFrom"}),
    frozenset({"configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"}),
)
"""Fields of one map of which there may be only one."""

_WHOLE_CHOICES: Final = frozenset({"appArmorProfile", "seccompProfile", "updateStrategy"})
"""Maps whose `type` decides what else may stand in them."""

_ENTRY_CHOICES: Final = frozenset({"volumes"})
"""Lists whose entries have, beside their name, nothing but the one choice."""

_ABSENT: Final = (None, "")

Path = tuple[str, ...]
"""The way to a field; a list's entry is named as `[its key]`."""


def leftovers(wanted: Any, live: Any, path: Path = ()) -> Iterator[Path]:
    """Yield where a live field excludes one that is wanted, and an apply would leave it there."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        for name in sorted(_rivals(wanted, live, path)):
            yield (*path, name)
        if not path:
            both = set(wanted.get("data") or ()) & set(live.get("binaryData") or ())
            yield from (("binaryData", key) for key in sorted(both))
            yield from _fixed_class(wanted, live)
        for key in sorted(wanted):
            yield from leftovers(wanted[key], live.get(key), (*path, key))
    elif isinstance(wanted, list | tuple) and isinstance(live, list | tuple):
        yield from _in_entries(wanted, live, path)


def _fixed_class(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the class of a load balancer, which goes with its Service only.

    An apply is tried before: one that somebody else gave stays, and nothing is refused.
    """
    specs = [manifest.get("spec") or {} for manifest in (wanted, live)]
    is_one = live.get("kind") == "Service" and {it.get("type") for it in specs} == {"LoadBalancer"}
    if is_one and specs[1].get("loadBalancerClass") and "loadBalancerClass" not in specs[0]:
        yield ("spec", "loadBalancerClass")


def _in_entries(wanted: Any, live: Any, path: Path) -> Iterator[Path]:
    keys = list_keys(path[-1], wanted) if path else None
    if keys is None:
        return  # Such a list is put there whole.
    by_key = {entry_key(item, keys): item for item in live}
    for item in wanted:
        key = entry_key(item, keys)
        yield from leftovers(item, by_key.get(key), (*path, f"[{'/'.join(map(str, key))}]"))


def _rivals(wanted: Mapping[str, Any], live: Mapping[str, Any], path: Path) -> set[str]:
    """Return the fields of a live map that ours cannot stand beside."""
    others = {key for key in live if key not in wanted and live[key] not in _ABSENT}
    is_entry = len(path) > 1 and path[-2] in _ENTRY_CHOICES
    if is_entry or (path[-1:] and path[-1] in _WHOLE_CHOICES):
        return others
    return {key for union in _UNIONS if union & set(wanted) for key in union & others}
