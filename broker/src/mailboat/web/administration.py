"""The part of the JSON API by which an operator runs a broker: who it is, its settings, its topics,
and what groups left behind.

GET    /api/v1/broker            identity, phase, name servers
GET    /api/v1/config            effective settings, and which of them are live
PATCH  /api/v1/config            change live settings, all that are named or none
PUT    /api/v1/topics/{topic}    make or change a topic
DELETE /api/v1/topics/{topic}    remove a topic; one that is not there is no error; with `If-Match:
                                 "<incarnation>"` only the topic that a GET showed so, else 412
DELETE /api/v1/groups/{group}/offsets/{topic}
                                 forget what a group has read of a topic; nothing is no error
"""

import dataclasses
from typing import Annotated, Final

import msgspec
from aiohttp import web

from mailboat import __version__
from mailboat.broker import administration
from mailboat.config import live_keys, properties_of
from mailboat.errors import ConfigError
from mailboat.model.stored_configs import MAX_QUEUE_NUMS
from mailboat.model.topic import TopicConfig
from mailboat.remoting.turns import in_turns
from mailboat.security.tls import ServerTls
from mailboat.web.api import serving_broker, topic_steps
from mailboat.web.context import WebContext
from mailboat.web.replies import read_json, reply

_QueueNums = Annotated[int, msgspec.Meta(ge=0, le=MAX_QUEUE_NUMS)]


class NameServerBody(msgspec.Struct):
    """One name server, and what became of the last registration there."""

    address: str
    registered: bool
    last_success_timestamp_ms: int | None
    error: str | None
    held_by: str | None
    """Address of another broker that has this one's name there."""


class TlsBody(msgspec.Struct):
    """The certificate that is shown by TLS."""

    valid_from_timestamp_ms: int
    valid_until_timestamp_ms: int
    problem: str
    """Why the files are not used as they are now, empty while they are."""


class BrokerStateBody(msgspec.Struct):
    """One broker process."""

    version: str
    broker_name: str
    cluster_name: str
    address: str
    phase: str
    uptime_seconds: float
    start_timestamp_ms: int
    name_servers: list[NameServerBody]
    tls: TlsBody | None
    """None where no port speaks TLS."""


class ConfigBody(msgspec.Struct):
    """Every setting as it is in force, and the keys that may be changed while the broker runs."""

    values: dict[str, str]
    live_keys: list[str]


class TopicChangeBody(msgspec.Struct, forbid_unknown_fields=True):
    """A topic's queues and permission (4 read + 2 write)."""

    read_queue_nums: _QueueNums
    write_queue_nums: _QueueNums
    perm: Annotated[int, msgspec.Meta(ge=0, le=7)]


class TopicDeletedBody(msgspec.Struct):
    """What a deletion found."""

    topic: str
    deleted: bool


class OffsetsDeletedBody(msgspec.Struct):
    """What a deletion of offsets found."""

    group: str
    topic: str
    deleted: bool


_changes_decoder: Final = msgspec.json.Decoder(dict[str, str])
_topic_decoder: Final = msgspec.json.Decoder(TopicChangeBody)


def add_routes(app: web.Application, context: WebContext) -> None:
    """Serve this part of the API."""
    api = OperatorApi(context)
    app.router.add_get("/api/v1/broker", api.broker)
    app.router.add_get("/api/v1/config", api.config)
    app.router.add_patch("/api/v1/config", api.change_config)
    app.router.add_put("/api/v1/topics/{topic}", api.put_topic)
    app.router.add_delete("/api/v1/topics/{topic}", api.delete_topic)
    app.router.add_delete("/api/v1/groups/{group}/offsets/{topic}", api.delete_offsets)


class OperatorApi:
    """The handlers."""

    def __init__(self, context: WebContext) -> None:
        """Act on the broker of one process."""
        self._context = context

    async def broker(self, _: web.Request) -> web.Response:
        """Show who the broker is and where it is registered."""
        broker = serving_broker(self._context)
        config = broker.settings.broker
        body = BrokerStateBody(
            version=__version__,
            broker_name=config.broker_name,
            cluster_name=config.broker_cluster_name,
            address=broker.address,
            phase=broker.phase,
            uptime_seconds=round(self._context.uptime_s, 3),
            start_timestamp_ms=broker.stats.boot_timestamp_ms,
            name_servers=[NameServerBody(*state) for state in broker.registration.states()],
            tls=None if broker.tls is None else _tls_body(broker.tls),
        )
        return reply(body)

    async def config(self, _: web.Request) -> web.Response:
        """Show every setting."""
        settings = serving_broker(self._context).settings
        return reply(ConfigBody(properties_of(settings), sorted(live_keys(settings.role))))

    async def change_config(self, request: web.Request) -> web.Response:
        """Change live settings, all that are named or none."""
        broker = serving_broker(self._context)
        changes = await read_json(request, _changes_decoder)
        try:
            broker.change_config(changes)
        except ConfigError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        return await self.config(request)

    async def put_topic(self, request: web.Request) -> web.Response:
        """Make or change a topic; what is not named here stays as it is."""
        broker = serving_broker(self._context)
        name = request.match_info["topic"]
        body = await read_json(request, _topic_decoder)
        known = broker.topics.select(name) or TopicConfig(name, 0, 0)
        config = dataclasses.replace(
            known,
            read_queue_nums=body.read_queue_nums,
            write_queue_nums=body.write_queue_nums,
            perm=body.perm,
        )
        await administration.update_topic(broker, config)
        return reply(await in_turns(topic_steps(broker, config)))

    async def delete_topic(self, request: web.Request) -> web.Response:
        """Remove a topic with its messages and the offsets in it."""
        broker = serving_broker(self._context)
        name = request.match_info["topic"]
        is_there = broker.topics.select(name) is not None
        wanted = request.headers.get("If-Match")
        if is_there and wanted not in (None, "*", f'"{broker.topics.incarnation(name)}"'):
            raise web.HTTPPreconditionFailed(
                text=f"topic {name} is not the one that If-Match names; nothing was deleted"
            )
        await administration.delete_topic(broker, name)
        return reply(TopicDeletedBody(name, is_there))

    async def delete_offsets(self, request: web.Request) -> web.Response:
        """Forget what a group has read of a topic that it no longer consumes."""
        broker = serving_broker(self._context)
        group, topic = request.match_info["group"], request.match_info["topic"]
        deleted = await administration.delete_offsets(broker, group, topic)
        return reply(OffsetsDeletedBody(group, topic, deleted))


def _tls_body(tls: ServerTls) -> TlsBody:
    validity = tls.validity
    assert validity is not None
    from_ms, until_ms = round(validity.not_before_s * 1000), round(validity.not_after_s * 1000)
    return TlsBody(from_ms, until_ms, tls.problem)
