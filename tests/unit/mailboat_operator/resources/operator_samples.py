"""Small resources for tests, as a user would write them."""

from typing import Any

from mailboat_operator.crds.broker import Broker, parse_broker
from mailboat_operator.crds.name_server import NameServer, parse_name_server
from mailboat_operator.crds.topic import Topic, parse_topic
from mailboat_operator.crds.user import User, parse_user

BROKER_SPEC: dict[str, Any] = {
    "nameServers": {"addresses": ["ns.example:9876"]},
    "storage": {"size": "8Gi"},
}


def metadata(name: str, **more: Any) -> dict[str, Any]:
    """Return the metadata of a resource that the API server has taken."""
    return {
        "name": name,
        "namespace": "shop",
        "uid": f"uid-of-{name}",
        "generation": 1,
        "resourceVersion": "1",
        **more,
    }


def sample_broker(
    name: str = "orders", *, status: dict[str, Any] | None = None, **spec: Any
) -> Broker:
    """Return a Broker; keywords replace parts of its spec."""
    return parse_broker(
        {"metadata": metadata(name), "spec": BROKER_SPEC | spec, "status": status or {}}
    )


def sample_name_server(name: str = "ns", **spec: Any) -> NameServer:
    """Return a NameServer."""
    return parse_name_server({"metadata": metadata(name), "spec": spec})


def sample_topic(
    name: str = "orders-topic", *, more: dict[str, Any] | None = None, **spec: Any
) -> Topic:
    """Return a Topic of the Broker `orders`; `more` goes into its metadata."""
    manifest = {
        "metadata": metadata(name, **(more or {})),
        "spec": {"brokerRef": "orders", **spec},
    }
    return parse_topic(manifest)


LOCKED: dict[str, Any] = {
    "authentication": {"superUserSecretRef": {"name": "admin"}},
    "authorization": {},
    "http": {"tokenSecretRef": {"name": "http"}},
}
"""What of a spec lets nobody in without a user."""


def sample_user(
    name: str = "till",
    *,
    more: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> User:
    """Return a User of the Broker `orders`; `more` goes into its metadata."""
    return parse_user(
        {
            "metadata": metadata(name, **(more or {})),
            "spec": {"brokerRef": "orders", **spec},
            "status": status or {},
        }
    )
