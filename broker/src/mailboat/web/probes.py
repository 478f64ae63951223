"""Probes for Kubernetes: is the process alive, does it serve, has it started.

    /livez     503 once a background task died or stalled: only a restart helps
    /readyz    503 while clients are not served, when the store has failed, while no client finds
               the broker because no name server takes it, or while it is a replica that neither
               leads nor follows
    /startupz  503 until the start is finished; the body says how far it is

A full disk is *not* unready: consumers go on reading, and only then is there room again. Nor is
one whose name servers do not answer: it serves the clients that it has.
"""

import msgspec
from aiohttp import web

from mailboat.broker.replicas.report import ReplicaReport
from mailboat.web.context import WebContext, is_stranger
from mailboat.web.replies import reply


class ProbeBody(msgspec.Struct, omit_defaults=True):
    """What a probe says; `reason` is there when the status is not good."""

    status: str
    reason: str | None = None


class RecoveryBody(msgspec.Struct):
    """What the store found when it was opened."""

    records: int
    torn_tail_bytes: int
    damaged_bytes: int


class StartupBody(msgspec.Struct, omit_defaults=True):
    """How far the start is; `recovered_physical_offset` moves while a broker's store recovers."""

    status: str
    phase: str
    uptime_seconds: float
    recovery: RecoveryBody | None = None
    recovered_physical_offset: int | None = None


def add_routes(app: web.Application, context: WebContext) -> None:
    """Serve the probes."""
    probes = Probes(context)
    app.router.add_get("/livez", probes.livez)
    app.router.add_get("/readyz", probes.readyz)
    app.router.add_get("/startupz", probes.startupz)


class Probes:
    """The handlers."""

    def __init__(self, context: WebContext) -> None:
        """Look at one process."""
        self._context = context

    async def livez(self, _: web.Request) -> web.Response:
        """Say whether the process can go on; that it answers shows that its loop runs."""
        failure = self._failure()
        if failure is not None:
            return reply(ProbeBody("failed", _told(failure)), status=503)
        return reply(ProbeBody("alive"))

    async def readyz(self, _: web.Request) -> web.Response:
        """Say whether clients are served."""
        reason = self._unready()
        if reason is not None:
            return reply(ProbeBody("unready", _told(reason)), status=503)
        return reply(ProbeBody("ready"))

    async def startupz(self, _: web.Request) -> web.Response:
        """Say how far the start is."""
        context, broker = self._context, self._context.broker
        started = context.phase != "starting"
        if is_stranger.get():
            return reply(ProbeBody(_start_status(started)), status=200 if started else 503)
        recovery = None
        if broker is not None and broker.store.is_open:
            report = broker.store.recovery
            damaged = sum(item.size_bytes for item in report.damaged)
            recovery = RecoveryBody(report.records, report.torn_bytes, damaged)
        body = StartupBody(
            status=_start_status(started),
            phase=broker.phase if broker is not None and not started else context.phase,
            uptime_seconds=round(context.uptime_s, 3),
            recovery=recovery,
            recovered_physical_offset=(
                broker.store.dispatch.dispatched_offset
                if broker is not None and not started
                else None
            ),
        )
        return reply(body, status=200 if started else 503)

    def _failure(self) -> str | None:
        broker = self._context.broker
        if self._context.failure is not None or broker is None:
            return self._context.failure
        return broker.supervisor.failure

    def _unready(self) -> str | None:
        context = self._context
        if context.phase != "serving":
            return f"the process is {context.phase}"
        failure = self._failure()
        if failure is not None or context.broker is None:
            return failure
        broker = context.broker
        if broker.phase not in ("serving", "draining"):
            return f"the broker is {broker.phase}"  # A master that was deposed begins anew.
        return (
            broker.store.commit_log.failure
            or broker.registration.refusal()
            or (None if broker.replicas is None else _unready_replica(broker.replicas.report()))
        )


def _told(reason: str) -> str | None:
    """Return a reason for whoever may know it: it may name addresses and files."""
    return None if is_stranger.get() else reason


def _start_status(started: bool) -> str:
    return "started" if started else "starting"


def _unready_replica(report: ReplicaReport) -> str | None:
    """Say why a replica is of no use; a slave that follows is, and a master that takes nothing."""
    if report.role != "joining":
        return None
    return report.alarm or report.write_trouble or "this replica neither leads nor follows a master"
