"""The part of the JSON API by which a new broker of a cluster gets what the others were told:
topics and consumer groups with all their settings, in pages.

GET  /api/v1/declarations/topics    topics that somebody made: not the broker's own, and none that
                                    belongs to a group (retries, dead letters)
GET  /api/v1/declarations/groups    consumer groups, but for the broker's own
POST /api/v1/declarations           make those that are not there; what is there stays as it is
"""

from typing import Final

import msgspec
from aiohttp import web

from mailboat.broker import administration
from mailboat.model.names import SYSTEM_GROUPS, is_retry_or_dlq
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.remoting.turns import in_turns
from mailboat.web.api import PAGE_MAX, page_of, serving_broker
from mailboat.web.context import WebContext
from mailboat.web.lag import Steps
from mailboat.web.replies import decode_part, read_json, reply


class DeclaredTopicsBody(msgspec.Struct):
    """One page of topics; the next one starts behind `next`."""

    topics: list[TopicConfig]
    next: str | None


class DeclaredGroupsBody(msgspec.Struct):
    """One page of consumer groups; the next one starts behind `next`."""

    groups: list[SubscriptionGroupConfig]
    next: str | None


class DeclarationsBody(msgspec.Struct, forbid_unknown_fields=True):
    """What there should be: at most 1,000 topics and groups together."""

    topics: list[TopicConfig] = []
    groups: list[SubscriptionGroupConfig] = []


class DeclaredBody(msgspec.Struct):
    """How many were not there and are now."""

    topics: int
    groups: int


class _RawDeclarationsBody(msgspec.Struct, forbid_unknown_fields=True):
    """The same, each topic and group as it came."""

    topics: list[msgspec.Raw] = []
    groups: list[msgspec.Raw] = []


_decoder: Final = msgspec.json.Decoder(_RawDeclarationsBody)
_topic: Final = msgspec.json.Decoder(TopicConfig)
_group: Final = msgspec.json.Decoder(SubscriptionGroupConfig)
_MOST_ITEM_BYTES: Final = 32_768
"""Longest topic or group: names, numbers and 4 KiB of attributes, each letter written as 6."""

_MOST_BYTES: Final = PAGE_MAX * 4_096


def add_routes(app: web.Application, context: WebContext) -> None:
    """Serve this part of the API."""
    api = DeclarationsApi(context)
    app.router.add_get("/api/v1/declarations/topics", api.topics)
    app.router.add_get("/api/v1/declarations/groups", api.groups)
    app.router.add_post("/api/v1/declarations", api.declare)


class DeclarationsApi:
    """The handlers."""

    def __init__(self, context: WebContext) -> None:
        """Act on the broker of one process."""
        self._context = context

    async def topics(self, request: web.Request) -> web.Response:
        """Show a page of topics."""
        topics = serving_broker(self._context).topics
        declared = (
            name for name in topics.table if not (topics.is_system(name) or is_retry_or_dlq(name))
        )
        names, following = await page_of(declared, request)
        # One of them may be gone by now.
        found = filter(None, map(topics.select, names))
        return reply(DeclaredTopicsBody(list(found), following))

    async def groups(self, request: web.Request) -> web.Response:
        """Show a page of consumer groups."""
        groups = serving_broker(self._context).groups
        declared = (name for name in groups.table if name not in SYSTEM_GROUPS)
        names, following = await page_of(declared, request)
        found = filter(None, map(groups.select, names))
        return reply(DeclaredGroupsBody(list(found), following))

    async def declare(self, request: web.Request) -> web.Response:
        """Make what is not there, all of it or nothing if one of them is not legal."""
        broker = serving_broker(self._context)
        body = await read_declarations(request)
        topics = [item for item in body.topics if broker.topics.select(item.topic_name) is None]
        groups = [item for item in body.groups if broker.groups.select(item.group_name) is None]
        await administration.declare(broker, topics, groups)
        return reply(DeclaredBody(len(topics), len(groups)))


async def read_declarations(request: web.Request) -> DeclarationsBody:
    """Read what a request declares, in turns.

    Raises:
        HTTPBadRequest: the body is nothing of the kind, or declares too much.
    """
    raw = await read_json(request, _decoder, _MOST_BYTES)
    if len(raw.topics) + len(raw.groups) > PAGE_MAX:
        raise web.HTTPBadRequest(text=f"more than {PAGE_MAX} topics and groups in one request")
    return await in_turns(_declared(raw))


def _declared(raw: _RawDeclarationsBody) -> Steps[DeclarationsBody]:
    body = DeclarationsBody([], [])
    for index, item in enumerate(raw.topics):
        body.topics.append(decode_part(item, _topic, f"topic {index}", _MOST_ITEM_BYTES))
        yield
    for index, item in enumerate(raw.groups):
        body.groups.append(decode_part(item, _group, f"group {index}", _MOST_ITEM_BYTES))
        yield
    return body
