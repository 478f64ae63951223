"""The OpenAPI document of the HTTP API, made from the types that the handlers answer with."""

from typing import Any, Final

import msgspec
from aiohttp import web

from mailboat import __version__
from mailboat.broker.pressure_watch import MAX_WAIT_S
from mailboat.broker.replicas.report import ReplicaReport
from mailboat.web import (
    administration,
    api,
    declarations,
    probes,
    produce,
    replication,
    replies,
    retention,
    users,
)

_JSON: Final = "application/json"
_PAGE: Final = [
    {
        "name": "limit",
        "in": "query",
        "description": "Most entries of the page.",
        "schema": {
            "type": "integer",
            "minimum": 1,
            "maximum": api.PAGE_MAX,
            "default": api.PAGE_DEFAULT,
        },
    },
    {
        "name": "after",
        "in": "query",
        "description": "Name behind which the page starts: `next` of the page before.",
        "schema": {"type": "string"},
    },
]


def _number(name: str, description: str, minimum: int, maximum: int) -> dict[str, Any]:
    schema = {"type": "integer", "minimum": minimum, "maximum": maximum}
    place = {"name": name, "in": "query", "required": True}
    return {**place, "description": description, "schema": schema}


class _Operation(msgspec.Struct):
    """One path with one method; `body` is the type of the request's body."""

    path: str
    summary: str
    answer: type[msgspec.Struct] | None
    errors: dict[int, str] = {}
    parameters: list[dict[str, Any]] = []
    body: Any = None
    method: str = "get"
    error_type: type[msgspec.Struct] = replies.ErrorBody


_NOT_STARTED: Final = {503: "The broker is not started, or stopping."}
_OPERATIONS: Final = [
    _Operation(
        "/livez",
        "Whether the process can go on.",
        probes.ProbeBody,
        {503: "Only a restart helps."},
        error_type=probes.ProbeBody,
    ),
    _Operation(
        "/readyz",
        "Whether clients are served; a full disk is not unready.",
        probes.ProbeBody,
        {503: "Clients are not served; the body says why."},
        error_type=probes.ProbeBody,
    ),
    _Operation(
        "/startupz",
        "How far the start is.",
        probes.StartupBody,
        {503: "The start is not finished."},
        error_type=probes.StartupBody,
    ),
    _Operation("/metrics", "Metrics in Prometheus' text format.", None),
    _Operation("/api/v1/cluster", "Brokers, clusters and name servers.", api.ClusterBody),
    _Operation(
        "/api/v1/topics",
        "Topics of this broker, in name order.",
        api.TopicsBody,
        {400: "The page is not one.", **_NOT_STARTED},
        _PAGE,
    ),
    _Operation(
        "/api/v1/users/{user}",
        "Which state of a user counts, without secrets and rules.",
        users.UserBody,
        {404: "There is no such user."},
    ),
    _Operation(
        "/api/v1/topics/{topic}",
        "One topic with its queues and consumer groups.",
        api.TopicBody,
        {404: "There is no such topic.", **_NOT_STARTED},
    ),
    _Operation(
        "/api/v1/topics/{topic}/messages",
        "Store messages in one queue, all of them or none.",
        produce.ProducedBody,
        {
            400: "A message is not legal; nothing is stored.",
            403: "The topic takes no messages.",
            404: "There is no such topic.",
            413: "The request is too large.",
            429: "The broker is overloaded; nothing is stored.",
            503: "The broker takes no messages now, for example because its disk is full.",
            504: "There was no answer in time: the outcome is unknown.",
        },
        body=produce.ProduceBody,
        method="post",
    ),
    _Operation(
        "/api/v1/topics/{topic}",
        "Make or change a topic.",
        api.TopicBody,
        {400: "The name, the queues or the permission are not legal.", **_NOT_STARTED},
        body=administration.TopicChangeBody,
        method="put",
    ),
    _Operation(
        "/api/v1/topics/{topic}",
        "Remove a topic, its messages and the offsets in it; an unknown one is no error.",
        administration.TopicDeletedBody,
        {
            400: "It is one of the broker's own.",
            412: "It is not the one that If-Match names.",
            **_NOT_STARTED,
        },
        [
            {
                "name": "If-Match",
                "in": "header",
                "description": "The topic's `incarnation` in quotes: only that one is removed.",
                "schema": {"type": "string"},
            }
        ],
        method="delete",
    ),
    _Operation(
        "/api/v1/broker",
        "Who the broker is, and where it is registered.",
        administration.BrokerStateBody,
        _NOT_STARTED,
    ),
    _Operation(
        "/api/v1/config",
        "Every setting in force, and which of them are live.",
        administration.ConfigBody,
        _NOT_STARTED,
    ),
    _Operation(
        "/api/v1/config",
        "Change live settings, all that are named or none; until the process ends.",
        administration.ConfigBody,
        {400: "A key is unknown or not live, or a value is bad; nothing is changed."}
        | _NOT_STARTED,
        body=dict[str, str],
        method="patch",
    ),
    _Operation(
        "/api/v1/replica",
        "How this replica and its group are.",
        ReplicaReport,
        {404: "The broker has no replicas.", **_NOT_STARTED},
    ),
    _Operation(
        "/api/v1/replica/promote",
        "Let this replica lead; answered once it does, or says why not (10 s).",
        replication.LeaderBody,
        {
            404: "The broker has no replicas.",
            409: "It does not lead; the body says why.",
            **_NOT_STARTED,
        },
        body=replication.PromotionBody,
        method="post",
    ),
    _Operation(
        "/api/v1/replica/handover",
        "Let another replica lead in place of this one; answered once it is to, or says why not.",
        replication.LeaderBody,
        {
            404: "The broker has no replicas.",
            409: "Nobody else leads; the body says why.",
            **_NOT_STARTED,
        },
        body=replication.HandoverBody,
        method="post",
    ),
    _Operation(
        "/api/v1/replica/copy",
        "Let this slave keep its log aside and get all of it anew; answered once it begins.",
        replication.ReplicaBody,
        {
            404: "The broker has no replicas.",
            409: "It takes no copy; the body says why.",
            **_NOT_STARTED,
        },
        body=replication.CopyBody,
        method="post",
    ),
    _Operation(
        "/api/v1/replica/import",
        "Take over what a stopped broker has and this slave has not; durable when answered.",
        replication.ImportedBody,
        {
            404: "The broker has no replicas.",
            409: "Nothing, or not all, was taken over; the body says why.",
            **_NOT_STARTED,
        },
        body=replication.ImportBody,
        method="post",
    ),
    _Operation(
        "/api/v1/retention",
        "Which messages go next and why, how full the disk is, and what is refused.",
        retention.RetentionDocument,
        _NOT_STARTED,
    ),
    _Operation(
        "/api/v1/retention/pressure",
        "Waits until the disk's pressure has moved by so much.",
        retention.PressureBody,
        {400: "A number is missing or out of its range.", **_NOT_STARTED},
        [
            _number("from_percent", "The pressure that is known.", 0, 100),
            _number("by_percent", "The smallest move to be told of.", 1, 100),
            _number("timeout_seconds", "Answer after so long at the latest.", 1, int(MAX_WAIT_S)),
        ],
    ),
    _Operation(
        "/api/v1/groups",
        "Consumer groups with their lag by queue, in name order.",
        api.GroupsBody,
        {400: "The page is not one.", **_NOT_STARTED},
        _PAGE,
    ),
    _Operation(
        "/api/v1/groups/{group}",
        "One consumer group with its lag by queue.",
        api.GroupBody,
        {404: "There is no such group.", **_NOT_STARTED},
    ),
    _Operation(
        "/api/v1/groups/{group}/offsets/{topic}",
        "Forget how far a group has read a topic that it no longer consumes, on this broker.",
        administration.OffsetsDeletedBody,
        {400: "Connected members subscribe to the topic.", **_NOT_STARTED},
        method="delete",
    ),
    _Operation(
        "/api/v1/declarations/topics",
        "Topics that somebody made, with all their settings, in name order.",
        declarations.DeclaredTopicsBody,
        {400: "The page is not one.", **_NOT_STARTED},
        _PAGE,
    ),
    _Operation(
        "/api/v1/declarations/groups",
        "Consumer groups with all their settings, in name order.",
        declarations.DeclaredGroupsBody,
        {400: "The page is not one.", **_NOT_STARTED},
        _PAGE,
    ),
    _Operation(
        "/api/v1/declarations",
        "Make topics and consumer groups that are not there; what is there stays as it is.",
        declarations.DeclaredBody,
        {400: "One of them is not legal, or there are too many.", **_NOT_STARTED},
        body=declarations.DeclarationsBody,
        method="post",
    ),
    _Operation("/api/v1/store", "The store's condition.", api.StoreBody, _NOT_STARTED),
]


def add_routes(app: web.Application) -> None:
    """Serve the document; it lists what this application serves."""
    paths = {
        resource.canonical for resource in app.router.resources() if resource.canonical is not None
    }
    document = replies.reply(build_document(paths)).body

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=document, content_type=_JSON)

    app.router.add_get("/openapi.json", answer)


def build_document(paths: set[str]) -> dict[str, Any]:
    """Return the document of the operations whose paths are served."""
    operations = [operation for operation in _OPERATIONS if operation.path in paths]
    types = {
        found
        for operation in operations
        for found in (operation.answer, operation.body, operation.error_type)
        if isinstance(found, type) and issubclass(found, msgspec.Struct)
    }
    ordered = sorted(types, key=lambda found: found.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    described: dict[str, Any] = {}
    for operation in operations:
        described.setdefault(operation.path, {})[operation.method] = _method(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mailboat", "version": __version__},
        "paths": described,
        "components": {"schemas": schemas},
    }


def _method(operation: _Operation) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done."}
    if operation.answer is None:
        answer["content"] = {"text/plain": {"schema": {"type": "string"}}}
    else:
        answer["content"] = _content(operation.answer)
    responses = {"200": answer}
    for status, description in operation.errors.items():
        responses[str(status)] = {
            "description": description,
            "content": _content(operation.error_type),
        }
    method: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    parameters = [*_path_parameters(operation.path), *operation.parameters]
    if parameters:
        method["parameters"] = parameters
    if operation.body is not None:
        method["requestBody"] = {"required": True, "content": _content(operation.body)}
    return method


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in path.split("/")
        if part.startswith("{")
    ]


def _content(body: Any) -> dict[str, Any]:
    if isinstance(body, type) and issubclass(body, msgspec.Struct):
        return {_JSON: {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}}
    return {_JSON: {"schema": msgspec.json.schema(body)}}
