"""The words of RocketMQ's ACL 2.0: what there is to be allowed, and what one request needs.

Source: apache/rocketmq auth/authorization/model/Resource.java, common/action/Action.java,
auth/authorization/context/DefaultAuthorizationContext.java @ rocketmq-all-5.3.3
"""

from dataclasses import dataclass
from enum import Enum


class Action(Enum):
    """What may be done to a resource; the value is RocketMQ's spelling in rules."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class ResourceKind(Enum):
    """What a rule or a need is about; the value is RocketMQ's spelling before the colon."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    ANY = "*"
    """Of rules only: whatever it is."""


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a request needs: any one of `actions` on one resource.

    A request with several needs is allowed only where each of them is. `name` is the plain name of
    a topic or group; "*" asks for all of them (RocketMQ's `List` of `Topic:*`).
    """

    kind: ResourceKind
    name: str
    actions: frozenset[Action]
