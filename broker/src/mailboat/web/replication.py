"""The part of the JSON API about replicas: which one leads, and where it gets its log.

GET  /api/v1/replica             how this replica and its group are
POST /api/v1/replica/promote     let this replica lead, if the others let it
POST /api/v1/replica/handover    let another one lead in place of this one
POST /api/v1/replica/copy        let this one, a slave, get its whole log anew
POST /api/v1/replica/import      take over what the store of a stopped broker has beyond this one
"""

import asyncio
import contextlib
from typing import Final

import msgspec
from aiohttp import web

from mailboat.broker.replicas.by_hand import copy_anew, hand_over, promote
from mailboat.broker.replicas.service import ReplicaService
from mailboat.broker.replicas.store_import import ImportRefusedError
from mailboat.errors import StoreError
from mailboat.web.api import serving_broker
from mailboat.web.context import WebContext
from mailboat.web.replies import read_json, reply

_TAKE_OVER_S: Final = 12.0
"""Longer than whoever is to lead tries."""

_LOOK_EVERY_S: Final = 0.05


class PromotionBody(msgspec.Struct, forbid_unknown_fields=True):
    """How to promote; with `accept_loss` the other replicas are not waited for."""

    accept_loss: bool = False


class HandoverBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which replica is to lead; without an ordinal the one that has most."""

    to: int | None = None


class LeaderBody(msgspec.Struct):
    """Which replica leads now, by its ordinal."""

    leader: int


class CopyBody(msgspec.Struct, forbid_unknown_fields=True):
    """How to copy; with `accept_loss` also where too few others have what was acknowledged."""

    accept_loss: bool = False


class ReplicaBody(msgspec.Struct):
    """Which replica it is, by its ordinal."""

    replica: int


class ImportBody(msgspec.Struct, forbid_unknown_fields=True):
    """The folder of the stopped broker's store, on the broker's machine."""

    path: str


class ImportedBody(msgspec.Struct):
    """What was taken over: bytes of the log, whose end is a physical offset, and of the tables."""

    size_bytes: int
    end: int
    torn_bytes: int
    """Of a last record there that is not whole, and was left out."""

    topics: int
    groups: int
    offsets: int
    delay_levels: int


_copy_decoder: Final = msgspec.json.Decoder(CopyBody)
_import_decoder: Final = msgspec.json.Decoder(ImportBody)
_promotion_decoder: Final = msgspec.json.Decoder(PromotionBody)
_handover_decoder: Final = msgspec.json.Decoder(HandoverBody)


def add_routes(app: web.Application, context: WebContext) -> None:
    """Serve this part of the API."""
    api = ReplicaApi(context)
    app.router.add_get("/api/v1/replica", api.show)
    app.router.add_post("/api/v1/replica/promote", api.promote)
    app.router.add_post("/api/v1/replica/handover", api.hand_over)
    app.router.add_post("/api/v1/replica/copy", api.copy)
    app.router.add_post("/api/v1/replica/import", api.import_store)


class ReplicaApi:
    """The handlers."""

    def __init__(self, context: WebContext) -> None:
        """Act on the broker of one process."""
        self._context = context

    async def show(self, _: web.Request) -> web.Response:
        """Show the replica and what it knows of the others."""
        return reply(self._replicas().report())

    async def promote(self, request: web.Request) -> web.Response:
        """Let this replica lead."""
        body = await read_json(request, _promotion_decoder)
        group = self._replicas().group
        refusal = await promote(group, accepts_loss=body.accept_loss)
        me = group.replica.me.ordinal
        if refusal:
            raise web.HTTPConflict(text=f"replica {me} does not lead: {refusal}")
        return reply(LeaderBody(me))

    async def hand_over(self, request: web.Request) -> web.Response:
        """Let another replica lead."""
        body = await read_json(request, _handover_decoder)
        group = self._replicas().group
        leader, refusal = await hand_over(group, body.to)
        if refusal:
            me = group.replica.me.ordinal
            raise web.HTTPConflict(text=f"replica {me} does not hand over: {refusal}")
        if not await self._is_led_by(leader):
            raise web.HTTPConflict(
                text=f"replica {leader} was told to lead and does not yet: its status says why"
            )
        return reply(LeaderBody(leader))

    async def copy(self, request: web.Request) -> web.Response:
        """Let this replica get its whole log anew."""
        body = await read_json(request, _copy_decoder)
        group = self._replicas().group
        me = group.replica.me.ordinal
        refusal = await copy_anew(group, accepts_loss=body.accept_loss)
        if refusal:
            raise web.HTTPConflict(text=f"replica {me} takes no copy: {refusal}")
        return reply(ReplicaBody(me))

    async def import_store(self, request: web.Request) -> web.Response:
        """Take over what the store of a stopped broker has and this one has not."""
        body = await read_json(request, _import_decoder)
        broker = serving_broker(self._context)
        replicas = self._replicas()
        me = replicas.group.replica.me.ordinal
        try:
            imported = await replicas.import_store(body.path, broker.flush.flushed)
        except (ImportRefusedError, StoreError) as error:
            raise web.HTTPConflict(text=f"replica {me} does not import: {error}") from error
        except OSError as error:
            text = f"replica {me} has not imported all of {body.path}: {error}"
            raise web.HTTPInternalServerError(text=text) from error
        size_bytes, end, torn_bytes, tables = imported
        return reply(ImportedBody(size_bytes, end, torn_bytes, *tables))

    async def _is_led_by(self, ordinal: int) -> bool:
        """Wait until it is known here that another one leads; this broker begins anew meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAKE_OVER_S):
                while True:
                    broker = self._context.broker
                    replicas = None if broker is None else broker.replicas
                    leader = None if replicas is None else replicas.group.leader
                    if leader is not None and leader.ordinal == ordinal:
                        return True
                    await asyncio.sleep(_LOOK_EVERY_S)
        return False

    def _replicas(self) -> ReplicaService:
        broker = serving_broker(self._context)
        replicas = broker.replicas
        if replicas is None:
            raise web.HTTPNotFound(
                text="this broker has no replicas: its brokerRole is ASYNC_MASTER, and it has no "
                "haListenPort"
            )
        if not replicas.is_begun:
            raise web.HTTPServiceUnavailable(text="the broker is starting; try again later")
        return replicas
