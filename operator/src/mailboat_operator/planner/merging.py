"""How the API server merges lists: by position, or by a key that tells the entries apart."""

from collections.abc import Mapping
from typing import Any, Final

_LIST_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Lists whose entries the API server merges by a key; others may have added entries."""


def list_keys(path: str, items: Any) -> tuple[str, ...] | None:
    """Return the fields that tell a list's entries apart; None if it is taken as a whole.

    Args:
        path: Where the list stands, such as `spec.ports`.
        items: Its entries.
    """
    name = path.rpartition(".")[2]
    if name == "ports":
        return (
            "containerPort" if items and "containerPort" in items[0] else "port",
            "protocol",
        )
    return _LIST_KEYS.get(name)


def entry_key(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    """Return what tells an entry apart from the others of its list."""
    return tuple(item.get(key, "TCP" if key == "protocol" else None) for key in keys)
