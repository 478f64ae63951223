"""One replica acts: a Lease of the API server, held, renewed, given back.

Rules that make it safe whatever the clocks of the machines say:

* Nobody's wall clock is compared with another's. A standby watches the Lease itself: only when the
  record has not changed for a whole lease time *of its own monotonic clock* may it take over.
* The holder counts from the moment *before* it sent the renewal that succeeded, and stops writing
  ten seconds later; a standby waits fifteen seconds from the moment it saw that renewal, which is
  never earlier. Each write checks this itself, to the API server and to brokers alike, and waits
  for its answer no longer than the writing lasts. So what was sent last has five seconds to arrive
  before anybody else writes, and a process that was paused sends nothing when it wakes up.
* A Lease that somebody deletes is lost to its holder at the next renewal, and a standby that knew a
  holder waits as if it had been renewed in the moment in which it went.
* Every change of the Lease names the resourceVersion it was made for: of two that try at once, one
  gets a conflict.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from mailboat.errors import MailboatError
from mailboat_operator.kinds import LEASE, micro_time
from mailboat_operator.kube_api import ConflictError, KubeApi, KubeApiError, NotFoundError
from mailboat_operator.kube_api import KubeUnreachableError as Unreachable
from mailboat_operator.planner.snapshot import Manifest

logger = logging.getLogger(__name__)

LEASE_S = 15.0
RENEW_S = 5.0
HOLD_S = 10.0
"""How long a holder writes on after its last renewal."""

POLL_S = 1.0
_RETRY_S = 1.0
_CALL_S = 4.0
_RELEASE_S = 2.0


class NotLeaderError(MailboatError):
    """This process does not hold the Lease, so it must not write."""

    retriable = True


class LeaseLostError(MailboatError):
    """The Lease could not be renewed in time, or another replica has it."""


class LeaseApi(Protocol):
    """Where the Lease is kept."""

    async def read(self) -> Manifest | None:
        """The Lease, or None if there is none."""

    async def create(self, lease: Manifest) -> Manifest:
        """Make it; ConflictError if it exists."""

    async def replace(self, lease: Manifest) -> Manifest:
        """Change it; ConflictError if it is another version by now."""


class KubeLeaseApi:
    """The Lease object of the API server."""

    def __init__(self, api: KubeApi, namespace: str, name: str) -> None:
        """Name the Lease."""
        self._api, self._namespace, self._name = api, namespace, name

    async def read(self) -> Manifest | None:
        """The Lease, or None if there is none."""
        try:
            return await self._api.get(LEASE, self._namespace, self._name)
        except NotFoundError:
            return None

    async def create(self, lease: Manifest) -> Manifest:
        """Make it."""
        lease["metadata"] = {"name": self._name, "namespace": self._namespace}
        return await self._api.create(LEASE, self._namespace, lease, is_fenced=False)

    async def replace(self, lease: Manifest) -> Manifest:
        """Change it."""
        return await self._api.replace(LEASE, self._namespace, lease, is_fenced=False)


class LeaderElector:
    """Takes, holds and releases the Lease for one replica."""

    def __init__(
        self,
        api: LeaseApi,
        identity: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """The clocks can be replaced; `wall` only labels the record."""
        self._api = api
        self._identity = identity
        self._monotonic = monotonic
        self._wall = wall
        self._held: Manifest | None = None
        self._renewed_s = float("-inf")
        self._is_lost = False
        self.last_answer_s = monotonic()
        """When the API server last answered a call about the Lease."""

    @property
    def is_leader(self) -> bool:
        """Whether this replica may write at this moment."""
        return (
            self._held is not None
            and not self._is_lost
            and self._monotonic() < self._renewed_s + HOLD_S
        )

    def check_may_write(self) -> float:
        """Refuse unless this replica holds the Lease now; return for how many seconds it does."""
        if not self.is_leader:
            raise NotLeaderError("this replica does not hold the Lease; nothing was written")
        return self._renewed_s + HOLD_S - self._monotonic()

    async def acquire(self) -> None:
        """Wait until the Lease is ours."""
        seen: tuple[str | None, str | None] | None = None
        seen_s = self._monotonic()
        while True:
            pause_s = POLL_S
            try:
                lease = await self._read()
                holder = _holder(lease) if lease is not None else None
                # One that was deleted while it was held may have a holder who does not know it yet.
                was_taken_away = lease is None and seen is not None
                if not was_taken_away and holder in (None, "", self._identity):
                    if await self._take(lease):
                        return
                    seen = None
                else:
                    version = None if lease is None else lease["metadata"].get("resourceVersion")
                    record = (holder, version)
                    if record != seen:
                        seen, seen_s = record, self._monotonic()
                    rest_s = seen_s + LEASE_S - self._monotonic()
                    if rest_s <= 0:
                        logger.info("the Lease of %s was not renewed; taking it", holder)
                        if await self._take(lease):
                            return
                        seen = None
                    pause_s = min(POLL_S, max(rest_s, 0.05))
            except (Unreachable, KubeApiError, TimeoutError) as error:
                logger.warning("the Lease cannot be read or taken: %s", error or "no answer")
            await asyncio.sleep(pause_s)

    async def hold(self) -> None:
        """Renew the Lease until it is lost.

        Raises:
            LeaseLostError: always, in the end; `is_leader` is False by then.
        """
        try:
            while True:
                await asyncio.sleep(max(0.0, self._renewed_s + RENEW_S - self._monotonic()))
                await self._renew_in_time()
        finally:
            self._is_lost = True

    async def release(self) -> None:
        """Give the Lease back, so that the next replica need not wait; silent if it fails."""
        held, self._held, self._is_lost = self._held, None, True
        if held is None:
            return
        spec = {**held["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            async with asyncio.timeout(_RELEASE_S):
                await self._api.replace({**held, "spec": spec})
            logger.info("the Lease is released")
        except (Unreachable, KubeApiError, TimeoutError) as error:
            logger.warning("the Lease is not released and runs out by itself: %s", error)

    async def _renew_in_time(self) -> None:
        while True:
            rest_s = self._renewed_s + HOLD_S - self._monotonic()
            if rest_s <= 0:
                raise LeaseLostError(f"the Lease could not be renewed for {HOLD_S:g} s")
            try:
                async with asyncio.timeout(min(rest_s, _CALL_S)):
                    await self._renew()
                return
            except ConflictError:
                await self._check_still_ours(rest_s)
            except NotFoundError as error:
                raise LeaseLostError("the Lease is gone") from error
            except (Unreachable, KubeApiError, TimeoutError) as error:
                logger.warning("the Lease is not renewed, trying again: %s", error or "no answer")
                await asyncio.sleep(min(_RETRY_S, max(0.0, rest_s)))

    async def _renew(self) -> None:
        assert self._held is not None
        before_s = self._monotonic()
        spec = {**self._held["spec"], "renewTime": self._now()}
        held = await self._api.replace({**self._held, "spec": spec})
        self._accept(held, before_s)

    async def _check_still_ours(self, rest_s: float) -> None:
        """After a conflict: somebody else wrote; go on only if the Lease still names us."""
        try:
            async with asyncio.timeout(min(rest_s, _CALL_S)):
                lease = await self._read()
        except (Unreachable, KubeApiError, TimeoutError) as error:
            logger.warning("the Lease cannot be read: %s", error or "no answer")
            return
        if lease is None or _holder(lease) != self._identity:
            holder = "gone" if lease is None else f"held by {_holder(lease) or 'nobody'}"
            raise LeaseLostError(f"the Lease is {holder}")
        self._held = lease

    async def _read(self) -> Manifest | None:
        async with asyncio.timeout(_CALL_S):
            lease = await self._api.read()
        self.last_answer_s = self._monotonic()
        return lease

    async def _take(self, lease: Manifest | None) -> bool:
        before_s = self._monotonic()
        old = (lease or {}).get("spec") or {}
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(LEASE_S),
            "acquireTime": self._now(),
            "renewTime": self._now(),
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (lease is not None),
        }
        try:
            async with asyncio.timeout(_CALL_S):
                if lease is None:
                    fresh = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "spec": spec}
                    held = await self._api.create(fresh)
                else:
                    held = await self._api.replace({**lease, "spec": spec})
        except ConflictError:
            return False
        self._accept(held, before_s)
        logger.info("this replica holds the Lease as %s", self._identity)
        return True

    def _accept(self, held: Manifest, before_s: float) -> None:
        if _holder(held) != self._identity or not (held.get("metadata") or {}).get(
            "resourceVersion"
        ):
            # Whoever answered so, it was not the API server about what was written.
            raise Unreachable("the answer is no Lease of this replica")
        self._held = held
        self._renewed_s = before_s
        self.last_answer_s = self._monotonic()

    def _now(self) -> str:
        return micro_time(self._wall())


def _holder(lease: Manifest) -> str | None:
    holder: str | None = (lease.get("spec") or {}).get("holderIdentity")
    return holder
