"""Every route of the HTTP API that needs somebody, and a request by it.

Tests ask each by everybody (`test_http_permissions`), and docs/access-matrix.md is made of it.
"""

from typing import Any, NamedTuple

from locked_http import GROUP, TOPIC


class Ask(NamedTuple):
    """A request that succeeds for whoever may send it, or would if the broker had replicas."""

    method: str
    path: str
    body: Any = None
    answered: int = 200


_QUEUES = {"read_queue_nums": 2, "write_queue_nums": 2, "perm": 6}
_PRESSURE = "from_percent=100&by_percent=1&timeout_seconds=1"
ASKS = {
    ("GET", "/api/v1/cluster"): Ask("GET", "/api/v1/cluster"),
    ("GET", "/api/v1/broker"): Ask("GET", "/api/v1/broker"),
    ("GET", "/api/v1/store"): Ask("GET", "/api/v1/store"),
    ("GET", "/api/v1/retention"): Ask("GET", "/api/v1/retention"),
    ("GET", "/api/v1/retention/pressure"): Ask("GET", f"/api/v1/retention/pressure?{_PRESSURE}"),
    ("GET", "/api/v1/config"): Ask("GET", "/api/v1/config"),
    ("PATCH", "/api/v1/config"): Ask("PATCH", "/api/v1/config", {"fileReservedTime": "7"}),
    ("GET", "/api/v1/topics"): Ask("GET", "/api/v1/topics"),
    ("GET", "/api/v1/topics/{topic}"): Ask("GET", f"/api/v1/topics/{TOPIC}"),
    ("PUT", "/api/v1/topics/{topic}"): Ask("PUT", "/api/v1/topics/new", _QUEUES),
    ("DELETE", "/api/v1/topics/{topic}"): Ask("DELETE", f"/api/v1/topics/{TOPIC}"),
    ("POST", "/api/v1/topics/{topic}/messages"): Ask(
        "POST", f"/api/v1/topics/{TOPIC}/messages", {"messages": [{"body": "x"}]}
    ),
    ("GET", "/api/v1/groups"): Ask("GET", "/api/v1/groups"),
    ("GET", "/api/v1/groups/{group}"): Ask("GET", f"/api/v1/groups/{GROUP}"),
    ("DELETE", "/api/v1/groups/{group}/offsets/{topic}"): Ask(
        "DELETE", f"/api/v1/groups/{GROUP}/offsets/{TOPIC}"
    ),
    ("GET", "/api/v1/declarations/topics"): Ask("GET", "/api/v1/declarations/topics"),
    ("GET", "/api/v1/declarations/groups"): Ask("GET", "/api/v1/declarations/groups"),
    ("POST", "/api/v1/declarations"): Ask(
        "POST", "/api/v1/declarations", {"groups": [{"group_name": "newGroup"}]}
    ),
    ("GET", "/api/v1/users/{user}"): Ask("GET", "/api/v1/users/producer"),
    ("GET", "/api/v1/replica"): Ask("GET", "/api/v1/replica", answered=404),
    ("POST", "/api/v1/replica/promote"): Ask("POST", "/api/v1/replica/promote", {}, 404),
    ("POST", "/api/v1/replica/handover"): Ask("POST", "/api/v1/replica/handover", {}, 404),
    ("POST", "/api/v1/replica/copy"): Ask("POST", "/api/v1/replica/copy", {}, 404),
    ("POST", "/api/v1/replica/import"): Ask(
        "POST", "/api/v1/replica/import", {"path": "/tmp"}, 404
    ),
}
"""By row; what changes most comes last for those who may do all."""

PRODUCE = ("POST", "/api/v1/topics/{topic}/messages")
LAST = ("DELETE", "/api/v1/topics/{topic}")
OPEN = {("GET", path) for path in ("/livez", "/readyz", "/startupz", "/openapi.json", "/metrics")}
