"""Who may connect to a resource's pods."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mailboat_operator.crds import pod_schema

_PEERS = {"max_length": 64, "extra": {"schema": pod_schema.NETWORK_POLICY_PEERS}}


class NetworkPolicySpec(msgspec.Struct, frozen=True, rename="camel"):
    """The NetworkPolicy of the pods, which the cluster's network has to support."""

    enabled: Annotated[
        bool,
        Meta(description="Whether there is one, where the operator makes any."),
    ] = True
    clients_from: Annotated[
        list[dict[str, Any]],
        Meta(
            description="Who may connect to the ports for RocketMQ clients, as the `from` of a"
            " NetworkPolicy. This must include every client of the topics, such as Spark jobs; for"
            " name servers also brokers of other namespaces, those of this one are let in anyway."
            " Default: everybody.",
            **_PEERS,
        ),
    ] = []
    http_from: Annotated[
        list[dict[str, Any]],
        Meta(
            description="Who may connect to the HTTP port, which also changes settings and topics,"
            " besides the operator and what it is set to let in (Prometheus).",
            **_PEERS,
        ),
    ] = []
