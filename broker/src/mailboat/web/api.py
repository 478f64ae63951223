"""The JSON API for administration: topics, groups with their lag, the store, the cluster.

Lists come in name order and in pages: `limit` names at most, fewer where they have very many
queues; the next page starts behind `next`.
"""

import heapq
from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

import msgspec
from aiohttp import web

from mailboat.broker.controller import BrokerController
from mailboat.config import MessageStoreConfig
from mailboat.model.topic import TopicConfig
from mailboat.remoting.turns import in_turns, sorted_steps
from mailboat.store.store_state import StoreState
from mailboat.web.context import WebContext
from mailboat.web.lag import (
    LagCounter,
    QueueBounds,
    Steps,
    TopicLagBody,
    group_topics,
    queue_bounds,
)
from mailboat.web.replies import reply

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1_000
"""Most entries of one page."""

GROUPS_MAX: Final = 1_000
"""Most groups that are named of one topic."""

TOPICS_MAX: Final = 5_000
"""Most topics that are shown of one group; the others count for its lag alone."""

_NAMES_A_STEP: Final = 2_000

QUEUES_MAX: Final = 20_000
"""A page that has looked at more queues ends, and a group shows no more of them."""


class QueueBody(msgspec.Struct):
    """One queue; `max_offset` is that of the next message."""

    queue_id: int
    min_offset: int
    max_offset: int


class TopicBody(msgspec.Struct, omit_defaults=True):
    """One topic on this broker; `queues`, `groups` and `incarnation` (for If-Match of a DELETE)
    only where one topic was asked for. `groups_omitted` counts those beyond the first 1,000."""

    topic: str
    perm: int
    read_queue_nums: int
    write_queue_nums: int
    is_system: bool
    message_count: int
    attributes: dict[str, str] = {}
    queues: list[QueueBody] | None = None
    groups: list[str] | None = None
    groups_omitted: int = 0
    incarnation: str | None = None


class TopicsBody(msgspec.Struct):
    """One page of topics."""

    topics: list[TopicBody]
    next: str | None


class MemberBody(msgspec.Struct):
    """One connected member of a group."""

    client_id: str
    address: str
    language: str
    version: int


class GroupBody(msgspec.Struct, omit_defaults=True):
    """One consumer group; `lag` is the number of messages it has not consumed. `topics_omitted`
    counts its topics beyond the first 5,000, whose messages are in `lag`."""

    group: str
    message_model: str | None
    lag: int
    members: list[MemberBody]
    topics: list[TopicLagBody]
    topics_omitted: int = 0


class GroupsBody(msgspec.Struct):
    """One page of groups."""

    groups: list[GroupBody]
    next: str | None


class RetentionBody(msgspec.Struct):
    """The rules by which old messages go."""

    file_reserved_time_hours: int
    delete_when: str
    disk_max_used_space_ratio: int
    disk_space_clean_forcibly_ratio: int
    disk_space_warning_level_ratio: int


class StoreBody(msgspec.Struct):
    """The store's condition; `writable` is false while sends are refused, `state.refusal` says
    why."""

    root: str
    flush_disk_type: str
    writable: bool
    retention: RetentionBody
    state: StoreState


class BrokerBody(msgspec.Struct):
    """The brokers that share one name, by broker id; 0 is the master."""

    cluster: str
    addresses: dict[int, str]


class ClusterBody(msgspec.Struct, omit_defaults=True):
    """What is known of the cluster: a name server knows the brokers, a broker its name servers.

    `name_servers` tells by address whether the last registration there succeeded.
    """

    clusters: dict[str, list[str]]
    brokers: dict[str, BrokerBody]
    name_servers: dict[str, bool] | None = None


def add_routes(app: web.Application, context: WebContext) -> None:
    """Serve the API."""
    api = AdminApi(context)
    app.router.add_get("/api/v1/cluster", api.cluster)
    if context.settings.role != "namesrv":
        app.router.add_get("/api/v1/topics", api.topics)
        app.router.add_get("/api/v1/topics/{topic}", api.topic)
        app.router.add_get("/api/v1/groups", api.groups)
        app.router.add_get("/api/v1/groups/{group}", api.group)
        app.router.add_get("/api/v1/store", api.store)


class AdminApi:
    """The handlers."""

    def __init__(self, context: WebContext) -> None:
        """Show one process."""
        self._context = context

    async def topics(self, request: web.Request) -> web.Response:
        """List topics."""
        broker = serving_broker(self._context)
        names, following = await page_of(broker.topics.table, request)
        return reply(await in_turns(_topics(broker, names, following)))

    async def topic(self, request: web.Request) -> web.Response:
        """Show one topic with its queues and the groups that consume it."""
        broker = serving_broker(self._context)
        name = request.match_info["topic"]
        config = broker.topics.select(name)
        if config is None:
            raise web.HTTPNotFound(text=f"there is no topic {name}")
        return reply(await in_turns(topic_steps(broker, config)))

    async def groups(self, request: web.Request) -> web.Response:
        """List consumer groups with their lag in every queue."""
        broker = serving_broker(self._context)
        names, following = await page_of(_group_names(broker), request)
        return reply(await in_turns(_groups(broker, names, following)))

    async def group(self, request: web.Request) -> web.Response:
        """Show one consumer group with its lag in every queue."""
        broker = serving_broker(self._context)
        name = request.match_info["group"]
        if not _is_group(broker, name):
            raise web.HTTPNotFound(text=f"there is no consumer group {name}")
        return reply(await in_turns(_group(broker, LagCounter(broker), name)))

    async def store(self, _: web.Request) -> web.Response:
        """Show the store's condition."""
        broker = serving_broker(self._context)
        state, config = broker.store.state(), broker.settings.store
        body = StoreBody(
            root=str(config.root_dir),
            flush_disk_type=config.flush_disk_type,
            writable=state.refusal is None,
            retention=_retention(config),
            state=state,
        )
        return reply(body)

    async def cluster(self, _: web.Request) -> web.Response:
        """Show brokers and name servers."""
        body = ClusterBody({}, {})
        namesrv, broker = self._context.namesrv, self._context.broker
        if broker is not None:
            config = broker.settings.broker
            body.clusters[config.broker_cluster_name] = [config.broker_name]
            addresses = {config.broker_id: broker.address}
            body.brokers[config.broker_name] = BrokerBody(config.broker_cluster_name, addresses)
            body.name_servers = broker.registration.name_servers
        if namesrv is not None:
            info = namesrv.routes.cluster_info()
            body.clusters.update(info.cluster_addr_table)
            for name, data in info.broker_addr_table.items():
                body.brokers[name] = BrokerBody(data.cluster, data.broker_addrs)
        return reply(body)


def serving_broker(context: WebContext) -> BrokerController:
    """Return the broker once its store is open.

    Raises:
        HTTPServiceUnavailable: it is not, or no longer.
    """
    broker = context.broker
    if broker is None or not broker.store.is_open:
        # A master that was deposed begins anew while its process serves.
        phase = context.phase if broker is None or context.phase != "serving" else broker.phase
        raise web.HTTPServiceUnavailable(text=f"the broker is {phase}; try again later")
    return broker


async def page_of(names: Iterable[str], request: web.Request) -> tuple[list[str], str | None]:
    """Return one page of names in order, each once, and where the next one starts.

    Raises:
        HTTPBadRequest: `limit` is not a number from 1 to PAGE_MAX.
    """
    limit_text = request.query.get("limit", str(PAGE_DEFAULT))
    is_number = limit_text.isascii() and limit_text.isdigit() and len(limit_text) < 6
    if not is_number or not 1 <= int(limit_text) <= PAGE_MAX:
        raise web.HTTPBadRequest(text=f"limit must be a number from 1 to {PAGE_MAX}")
    limit, after = int(limit_text), request.query.get("after", "")
    # Others may change the table between two steps.
    page = await in_turns(first_names(list(names), limit + 1, after))
    return page[:limit], page[limit - 1] if len(page) > limit else None


def first_names(names: list[str], count: int, after: str = "") -> Steps[list[str]]:
    """Return the first names in order that come after another one, each once."""
    first: list[str] = []
    for begin in range(0, len(names), _NAMES_A_STEP):
        some = (name for name in names[begin : begin + _NAMES_A_STEP] if name > after)
        first = heapq.nsmallest(count, {*first, *some})
        yield
    return first


def topic_steps(broker: BrokerController, config: TopicConfig) -> Steps[TopicBody]:
    """Describe one topic with its queues and the groups that consume it."""
    name = config.topic_name
    bounds = yield from queue_bounds(broker, name)
    body = _topic(broker, config, bounds)
    body.queues = [QueueBody(*each) for each in bounds]
    body.incarnation = broker.topics.incarnation(name)
    groups = broker.offsets.groups_of(name)
    yield
    groups.update(broker.consumers.groups_on_topic(name))
    yield
    names = list(groups)
    yield
    body.groups = yield from first_names(names, GROUPS_MAX)
    body.groups_omitted = len(names) - len(body.groups)
    return body


def _topics(broker: BrokerController, names: list[str], following: str | None) -> Steps[TopicsBody]:
    """Describe a page of topics; it ends early where they have very many queues."""
    bodies: list[TopicBody] = []
    looked_at = 0
    for name in names:
        config = broker.topics.select(name)
        if config is None:
            continue
        if looked_at > QUEUES_MAX:
            return TopicsBody(bodies, bodies[-1].topic)
        bounds = yield from queue_bounds(broker, name)
        looked_at += len(bounds)
        bodies.append(_topic(broker, config, bounds))
        yield
    return TopicsBody(bodies, following)


def _groups(broker: BrokerController, names: list[str], following: str | None) -> Steps[GroupsBody]:
    """Describe a page of groups; it ends early where they have very many queues."""
    counter = LagCounter(broker)
    bodies: list[GroupBody] = []
    shown = 0
    for name in names:
        if shown > QUEUES_MAX:
            return GroupsBody(bodies, bodies[-1].group)
        body = yield from _group(broker, counter, name)
        shown += body.topics_omitted
        shown += sum(len(topic.queues) or topic.queues_omitted or 1 for topic in body.topics)
        bodies.append(body)
    return GroupsBody(bodies, following)


def _topic(broker: BrokerController, config: TopicConfig, bounds: list[QueueBounds]) -> TopicBody:
    name = config.topic_name
    return TopicBody(
        topic=name,
        perm=config.perm,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        is_system=broker.topics.is_system(name),
        message_count=sum([each.max_offset - each.min_offset for each in bounds]),
        attributes=config.attributes,
    )


def _group_names(broker: BrokerController) -> Iterable[str]:
    return chain(broker.groups.table, broker.offsets.groups(), broker.consumers.groups)


def _is_group(broker: BrokerController, name: str) -> bool:
    return (
        broker.groups.select(name) is not None
        or name in broker.consumers.groups
        or bool(broker.offsets.topics_of(name))
    )


def _group(broker: BrokerController, counter: LagCounter, group: str) -> Steps[GroupBody]:
    names = yield from sorted_steps(group_topics(broker, group))
    topics: list[TopicLagBody] = []
    left = QUEUES_MAX
    for topic in names[:TOPICS_MAX]:
        body = yield from counter.body(group, topic, left)
        left -= len(body.queues)
        topics.append(body)
    lag = sum(topic.lag for topic in topics)
    for topic in names[TOPICS_MAX:]:
        lag += yield from counter.lag(group, topic)
    info = broker.consumers.groups.get(group)
    return GroupBody(
        group=group,
        message_model=None if info is None else info.message_model,
        lag=lag,
        members=[
            MemberBody(member.client_id, member.connection.peer, member.language, member.version)
            for member in islice(info.members if info is not None else (), PAGE_MAX)
        ],
        topics=topics,
        topics_omitted=len(names) - len(topics),
    )


def _retention(config: MessageStoreConfig) -> RetentionBody:
    return RetentionBody(
        file_reserved_time_hours=config.file_reserved_time,
        delete_when=config.delete_when,
        disk_max_used_space_ratio=config.disk_max_used_space_ratio,
        disk_space_clean_forcibly_ratio=config.disk_space_clean_forcibly_ratio,
        disk_space_warning_level_ratio=config.disk_space_warning_level_ratio,
    )
