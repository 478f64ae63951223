"""A group of replicas in this process that a Lease leads, and the API server that keeps it."""

import asyncio
import socket
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from kube_stub import KubeStub
from replica_nodes import ReplicaNodes

from mailboat.client import Message, Producer
from mailboat.errors import MailboatError
from mailboat.replication.lease import Lease, Member
from mailboat.replication.lease_manifest import decode_lease, encode_lease

GROUP = "mq-g1"
KEY = f"leases/{GROUP}"
LEASE_S = 6
"""As short as a lease may be."""


LEADERS_IP = "127.0.0.1"


def own_ip(ordinal: int) -> str:
    """Return the address of a pod."""
    return f"127.0.0.{10 + ordinal}"


class LeaseNodes(ReplicaNodes):
    """Replicas that are pods of one group."""

    def __init__(
        self,
        root: Path,
        replicas: int,
        monkeypatch: pytest.MonkeyPatch,
        options: Mapping[str, str] | None = None,
        *,
        master_role: str = "SYNC_MASTER",
    ) -> None:
        """Keep the data below `root`; nothing is started before `async with`."""
        super().__init__(root, replicas, options, master_role=master_role)
        self.kube = KubeStub(root, monkeypatch)
        self._pod_uids: dict[int, str] = {}
        self._silent: list[socket.socket] = []

    async def __aenter__(self) -> Self:
        """Start everything; nobody leads before there is a Lease."""
        await self.kube.__aenter__()
        try:
            return await super().__aenter__()
        except BaseException:
            await self.kube.__aexit__(None, None, None)
            raise

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End everything."""
        try:
            await super().__aexit__(exc_type, exc, traceback)
        finally:
            for silent in self._silent:
                silent.close()
            await self.kube.__aexit__(exc_type, exc, traceback)

    def own_options(self, ordinal: int) -> dict[str, str]:
        """Return what the operator and the pod tell a replica."""
        ports = [self.ports(other)[1] for other in range(self.replicas)]
        name = f"{GROUP}-{ordinal}"
        return {
            "brokerRole": self.master_role,
            "haMasterAddress": ";".join(f"127.0.0.1:{port}" for port in ports),
            # The group's Service, and the pod.
            "bindAddress": "0.0.0.0",
            "brokerIP1": LEADERS_IP,
            "brokerIP2": own_ip(ordinal),
            "leaseName": GROUP,
            "leaseSeconds": str(LEASE_S),
            "podName": name,
            "podUid": self._pod_uids.setdefault(ordinal, str(uuid.uuid4())),
            "kubeApiFolder": self.kube.pod(name),
        }

    def make_pod_anew(self, ordinal: int) -> None:
        """Give a replica that does not run another pod."""
        del self._pod_uids[ordinal]

    def token(self, ordinal: int) -> str:
        """Return by which token the API server knows a replica."""
        return f"token-of-{GROUP}-{ordinal}"

    # -- the lease ------------------------------------------------------------------------------

    @property
    def lease(self) -> Lease:
        """The lease as it is in the API server."""
        return decode_lease(self.kube.objects[KEY])

    def make_lease(self, members: tuple[int, ...] = (0,)) -> None:
        """Write the first content, as the operator does once all replicas have reported."""
        stores = {ordinal: self.group(ordinal).replica.me.store_id for ordinal in members}
        in_sync = frozenset(Member(*item) for item in stores.items())
        first = Lease(0, None, 0, in_sync, 2, lease_s=LEASE_S)
        now = datetime.now(UTC)
        self.kube.put(KEY, encode_lease(first, GROUP, {}, now=now))

    async def begin(self) -> None:
        """Make the lease of a new group, and wait until all are in sync."""
        self.make_lease()
        await self.in_sync()

    # -- ends -----------------------------------------------------------------------------------

    async def kill(self, ordinal: int, *, is_refused: bool = True) -> None:
        """End a replica as if its process had died: it says nothing to anybody any more.

        Unless `is_refused`, connections to where it listened for replicas are taken all the same,
        so that nobody learns from them that it is dead.
        """
        replicas = self.broker(ordinal).replicas
        assert replicas is not None
        replicas.group.end()
        await replicas.peers.close()
        if not is_refused:
            # Before anybody else gets to know that the links have ended.
            self._silent.append(socket.create_server(("", self.ports(ordinal)[1])))
        await replicas.close()
        await self.stop(ordinal)

    async def send_at_last(self, producer: Producer, body: bytes) -> float:
        """Send until it is acknowledged; return how long that took, in seconds."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(30):
            while True:
                try:
                    await producer.send(Message("topic", body))
                except MailboatError:
                    await asyncio.sleep(0.02)
                else:
                    return loop.time() - began_s
