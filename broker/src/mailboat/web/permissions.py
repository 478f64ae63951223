"""What each HTTP route needs: the same as the remoting request of the same effect.

A route that has no row here is refused to everybody, so that a new one is not open by oversight.
Probes and the OpenAPI document are open to all; a stranger hears from a probe only its status.
`/metrics` needs somebody who says who it is, no rule: whoever scrapes needs no right to anything
else.

Source: apache/rocketmq auth/authorization/builder/DefaultAuthorizationContextBuilder.java @ develop
of 2026-08, whose table has a row for (nearly) every request.
"""

import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, TypeAlias

from aiohttp import web

from mailboat.config import Settings
from mailboat.http_connections import Handler
from mailboat.model.names import RETRY_PREFIX
from mailboat.security.access import Action, Need, ResourceKind
from mailboat.security.audit import AuditLog
from mailboat.security.needs import ALL_NAMES, send_needs
from mailboat.security.users import User
from mailboat.web.authentication import Authentication, source_ip
from mailboat.web.context import is_stranger
from mailboat.web.declarations import read_declarations

_READS: Final = frozenset({"GET", "HEAD"})

CALLER: Final = web.RequestKey("caller", User)
"""Who sends a request, where that is asked."""

_log = logging.getLogger(__name__)


class Open(Enum):
    """Rows that need no rule."""

    TO_ALL = "to all"
    PROBE = "to all, who are told less than others"
    METRICS = "to everybody who says who it is, or to all (httpMetricsOpen)"


Needs: TypeAlias = Callable[[web.Request, Settings], Awaitable[list[Need]]]
"""Says what a request needs; nothing at all is nothing that may be granted."""


def _of_cluster(action: Action) -> Needs:
    async def needs(_: web.Request, settings: Settings) -> list[Need]:
        # A name server belongs to no cluster.
        is_of_none = settings.role == "namesrv"
        name = ALL_NAMES if is_of_none else settings.broker.broker_cluster_name
        return [Need(ResourceKind.CLUSTER, name, frozenset({action}))]

    return needs


def _of_all(kind: ResourceKind) -> Needs:
    async def needs(_: web.Request, __: Settings) -> list[Need]:
        return [Need(kind, ALL_NAMES, frozenset({Action.LIST}))]

    return needs


def _of_topic(action: Action) -> Needs:
    async def needs(request: web.Request, _: Settings) -> list[Need]:
        return [Need(ResourceKind.TOPIC, request.match_info["topic"], frozenset({action}))]

    return needs


def _of_group(action: Action) -> Needs:
    async def needs(request: web.Request, _: Settings) -> list[Need]:
        return [Need(ResourceKind.GROUP, request.match_info["group"], frozenset({action}))]

    return needs


async def _of_shown_topic(request: web.Request, _: Settings) -> list[Need]:
    return [_readable(request.match_info["topic"], Action.GET)]


async def _of_messages(request: web.Request, _: Settings) -> list[Need]:
    return list(send_needs(request.match_info["topic"]))


async def _of_offsets(request: web.Request, _: Settings) -> list[Need]:
    """Return what a reset of offsets needs, of which this is one."""
    group = Need(ResourceKind.GROUP, request.match_info["group"], frozenset({Action.UPDATE}))
    return [_readable(request.match_info["topic"], Action.UPDATE), group]


async def _of_declarations(request: web.Request, _: Settings) -> list[Need]:
    body = await read_declarations(request)
    create = frozenset({Action.CREATE})
    topics = [Need(ResourceKind.TOPIC, item.topic_name, create) for item in body.topics]
    return topics + [Need(ResourceKind.GROUP, item.group_name, create) for item in body.groups]


def _readable(topic: str, action: Action) -> Need:
    """Return the need of a topic; a retry topic is its group's."""
    kind, name = ResourceKind.TOPIC, topic
    if topic.startswith(RETRY_PREFIX):
        kind, name = ResourceKind.GROUP, topic.removeprefix(RETRY_PREFIX)
    return Need(kind, name, frozenset({action}))


_READ: Final = _of_cluster(Action.GET)
_MANAGE: Final = _of_cluster(Action.UPDATE)

ROWS: Final[dict[tuple[str, str], Open | Needs]] = {
    ("GET", "/livez"): Open.PROBE,
    ("GET", "/readyz"): Open.PROBE,
    ("GET", "/startupz"): Open.PROBE,
    ("GET", "/openapi.json"): Open.TO_ALL,
    ("GET", "/metrics"): Open.METRICS,
    ("GET", "/api/v1/cluster"): _READ,
    ("GET", "/api/v1/broker"): _READ,
    ("GET", "/api/v1/store"): _READ,
    ("GET", "/api/v1/retention"): _READ,
    ("GET", "/api/v1/retention/pressure"): _READ,
    ("GET", "/api/v1/config"): _READ,
    ("PATCH", "/api/v1/config"): _MANAGE,
    ("GET", "/api/v1/topics"): _of_all(ResourceKind.TOPIC),
    ("GET", "/api/v1/topics/{topic}"): _of_shown_topic,
    ("PUT", "/api/v1/topics/{topic}"): _of_topic(Action.CREATE),
    ("DELETE", "/api/v1/topics/{topic}"): _of_topic(Action.DELETE),
    ("POST", "/api/v1/topics/{topic}/messages"): _of_messages,
    ("GET", "/api/v1/groups"): _of_all(ResourceKind.GROUP),
    ("GET", "/api/v1/groups/{group}"): _of_group(Action.GET),
    ("DELETE", "/api/v1/groups/{group}/offsets/{topic}"): _of_offsets,
    ("GET", "/api/v1/declarations/topics"): _of_all(ResourceKind.TOPIC),
    ("GET", "/api/v1/declarations/groups"): _of_all(ResourceKind.GROUP),
    ("POST", "/api/v1/declarations"): _of_declarations,
    # As a request for a user (3004), without its rules.
    ("GET", "/api/v1/users/{user}"): _READ,
    ("GET", "/api/v1/replica"): _READ,
    ("POST", "/api/v1/replica/promote"): _MANAGE,
    ("POST", "/api/v1/replica/handover"): _MANAGE,
    ("POST", "/api/v1/replica/copy"): _MANAGE,
    ("POST", "/api/v1/replica/import"): _MANAGE,
}
"""By method and path as routes have them; HEAD is as GET."""


def row_of(route: web.AbstractRoute) -> Open | Needs | None:
    """Return the row of a route, None where it has none."""
    resource = route.resource
    if resource is None:
        return None
    method = "GET" if route.method == "HEAD" else route.method
    return ROWS.get((method, resource.canonical))


class HttpGuard:
    """Stands in front of every handler of a locked HTTP port."""

    def __init__(self, settings: Settings, authentication: Authentication, audit: AuditLog) -> None:
        """Guard the routes of one process; refusals and changes are noted in `audit`."""
        self._settings = settings
        self._authentication = authentication
        self._audit = audit
        self._needs_rules = settings.security.needs_rules
        self._opens_metrics = settings.security.http_metrics_open

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through, or raise what refuses it."""
        row = row_of(request.match_info.route)
        if row is Open.TO_ALL or (row is Open.METRICS and self._opens_metrics):
            return await handler(request)
        if row is Open.PROBE:
            is_stranger.set(not await self._is_known(request))
            return await handler(request)
        caller = request[CALLER] = await self._caller(request)
        if row is not Open.METRICS and request.match_info.http_exception is None:
            await self._check(request, caller, row)
            if request.method not in _READS and row is not _of_messages:
                self._note("allowed", request, caller.name)
        return await handler(request)

    async def _is_known(self, request: web.Request) -> bool:
        # Whoever guesses secrets at a probe is noted as anywhere else; a kubelet shows none.
        find = self._caller if "Authorization" in request.headers else self._authentication.caller
        try:
            await find(request)
        except (web.HTTPUnauthorized, web.HTTPServiceUnavailable):
            return False
        return True

    async def _caller(self, request: web.Request) -> User:
        try:
            return await self._authentication.caller(request)
        except web.HTTPUnauthorized:
            self._note("refused", request, "", reason="not authenticated")
            raise

    async def _check(self, request: web.Request, caller: User, row: Needs | None) -> None:
        """Refuse what a caller may not do.

        Raises:
            HTTPForbidden: it needs a rule that the caller has not, or nobody may do it.
            HTTPBadRequest: the body does not say what it is about.
        """
        if row is None:
            route = request.match_info.route
            _log.error("the route %r has no row in the table of permissions", route)
            raise self._refused(request, caller, "no row", "nobody may do this over HTTP")
        if caller.is_super or not self._needs_rules:
            return
        address, needs = source_ip(request), await row(request, self._settings)
        if not needs:
            text = "the request names nothing that could be allowed"
            raise self._refused(request, caller, "nothing named", text)
        for need in needs:
            reason = caller.rules.refusal(need, address)
            if reason is not None:
                resource = f"{need.kind.value}:{need.name}"
                actions = "|".join(sorted(action.value for action in need.actions))
                text = f"User:{caller.name} has no permission to access {resource} from {address}"
                raise self._refused(
                    request, caller, f"no {actions} of {resource}", f"{text}, {reason}."
                )

    def _refused(
        self, request: web.Request, caller: User, reason: str, text: str
    ) -> web.HTTPForbidden:
        self._note("refused", request, caller.name, reason=reason)
        return web.HTTPForbidden(text=text)

    def _note(self, event: str, request: web.Request, user: str, **values: str) -> None:
        asked = f"{request.method} {request.rel_url.raw_path}"
        self._audit.note(event, address=source_ip(request), user=user, request=asked, **values)
