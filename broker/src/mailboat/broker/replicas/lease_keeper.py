"""Reads and writes the lease for one replica, and finds out whether who holds it is dead."""

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from mailboat.broker.replicas.lease_store import LeaseStore, LeaseStoreError
from mailboat.replication.events import Outcome
from mailboat.replication.lease import Holder, Lease, Member

_log: Final = logging.getLogger(__name__)

# A port may be closed for a moment, as while a process begins anew in its container.
_REFUSALS: Final = 2
_BETWEEN_REFUSALS_S: Final = 0.2
_CONNECT_TIMEOUT_S: Final = 1.0
_AGAIN_S: Final = 0.5
# Whoever is there by then takes no links: the lease decides.
_LOOK_FOR_S: Final = 10.0


class LeaseHandler(Protocol):
    """Gets what was read and written."""

    def lease_read(self, lease: Lease | None) -> None:
        """Take the lease as it was a moment ago, None where there is none."""

    def lease_written(self, request: int, outcome: Outcome, lease: Lease | None) -> None:
        """Take what became of a write."""

    def lease_failed(self, error: BaseException) -> None:
        """Take an error that nobody expected."""


class LeaseKeeper:
    """Asks the store for one replica: never for more than one read and one write at a time."""

    def __init__(self, store: LeaseStore, handler: LeaseHandler) -> None:
        """Ask nothing yet."""
        self._store = store
        self._handler = handler
        self._reading: asyncio.Task[None] | None = None
        self._is_read_again = self._is_unread = False
        self._writing: asyncio.Task[None] | None = None
        self._writes: deque[tuple[int, int | None, Lease]] = deque()
        self._forgotten = 0
        self._is_closed = False
        self._noted: tuple[int, frozenset[Member]] | None = None

    @property
    def trouble(self) -> str:
        """Why the store was of no use when it was asked last, empty where it was."""
        return self._store.trouble

    @property
    def alarm(self) -> str:
        """Why what is kept there is no lease, empty where it is one, or there is none."""
        return self._store.alarm

    def read(self) -> None:
        """Read the lease as it is from now on, and hand it on; nothing where nobody knows."""
        if self._is_closed:
            return
        self._is_read_again = True
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._reading.add_done_callback(self._read_done)

    async def read_now(self) -> bool:
        """Read the lease as it is from now on, hand it on, and tell whether that was done."""
        self.read()
        if self._reading is not None:
            await asyncio.wait({self._reading})
        return not (self._is_closed or self._is_unread)

    def write(self, request: int, replaced: int | None, lease: Lease) -> None:
        """Write the lease, after what is being written, and hand on what became of it."""
        if self._is_closed:
            return
        self._writes.append((request, replaced, lease))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
            self._writing.add_done_callback(self._write_done)

    def forget_writes(self) -> None:
        """Hand on nothing of what was asked before: nobody waits for it any more."""
        self._writes.clear()
        self._forgotten += 1

    async def close(self) -> None:
        """Ask no more; what is being written may or may not be done."""
        self._is_closed = True
        tasks = [task for task in (self._reading, self._writing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.close()

    async def _read(self) -> None:
        while self._is_read_again:
            self._is_read_again, self._is_unread = False, True
            try:
                lease = await self._store.read()
            except LeaseStoreError:
                continue  # The store says so; the next read comes with the next renewal.
            self._is_unread = False
            self._note(lease)
            self._handler.lease_read(lease)

    async def _write(self) -> None:
        while self._writes:
            request, replaced, lease = self._writes.popleft()
            forgotten = self._forgotten
            outcome, written = await self._store.write(replaced, lease)
            self._note(written)
            if forgotten == self._forgotten:
                self._handler.lease_written(request, outcome, written)

    def _note(self, lease: Lease | None) -> None:
        """Log who may lead from now on, whenever that changes."""
        if lease is not None and self._noted != (lease.epoch, lease.in_sync):
            self._noted = lease.epoch, lease.in_sync
            in_sync = ",".join(str(member.ordinal) for member in sorted(lease.in_sync))
            _log.info("lease epoch=%d in_sync=%s", lease.epoch, in_sync)

    def _read_done(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        self._done(task)

    def _write_done(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        self._done(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._handler.lease_failed(error)


class HolderWatch:
    """Finds out that a process is dead whose host lives: its port refuses connections.

    That is a guess: a wrong one costs a switch, and never a message.
    """

    def __init__(
        self, is_suspected: Callable[[Holder], bool], died: Callable[[Holder], Awaitable[None]]
    ) -> None:
        """Suspect nobody; `died` is told again and again while somebody is suspected and dead."""
        self._is_suspected = is_suspected
        self._died = died
        self._task: asyncio.Task[None] | None = None

    def suspect(self, holder: Holder, address: str) -> None:
        """Look whether a holder has died that listened at an address, "ip:port"."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._look(holder, address))

    async def close(self) -> None:
        """Suspect nobody any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self, holder: Holder, address: str) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _LOOK_FOR_S
        refusals = 0
        while self._is_suspected(holder) and loop.time() < until_s:
            # A process that dies closes its links before its port: it may still take some.
            refusals = refusals + 1 if await _refuses(address) else 0
            if refusals >= _REFUSALS and self._is_suspected(holder):
                _log.warning("replica %d is dead: %s refuses connections", holder.ordinal, address)
                await self._died(holder)
                refusals = 0
                await asyncio.sleep(_AGAIN_S)
            else:
                await asyncio.sleep(_BETWEEN_REFUSALS_S)


async def _refuses(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError as error:  # Among them TimeoutError.
        return error.errno == errno.ECONNREFUSED
    writer.close()
    return False
