"""A group of replicas in this process: real brokers, sockets and files, one name server."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from promises import promised

from mailboat.broker.controller import BrokerController
from mailboat.broker.replicas.group import ReplicaGroup
from mailboat.config import load_settings
from mailboat.namesrv.route_info import RouteInfoManager
from mailboat.node import Node
from mailboat.testing.cluster import SMALL_STORE
from mailboat.testing.kept_ports import KeptPorts

_LOCAL = {"bindAddress": "127.0.0.1", "listenPort": "0", "httpPort": "-1"}


class ReplicaNodes:
    """Replicas of one group, by ordinal; the first one is its master at the beginning."""

    def __init__(
        self,
        root: Path,
        replicas: int,
        options: Mapping[str, str] | None = None,
        *,
        master_role: str = "SYNC_MASTER",
        namesrv_options: Mapping[str, str] | None = None,
    ) -> None:
        """Keep the data below `root`; nothing is started before `async with`."""
        self.master_role = master_role
        self._root = root
        self.replicas = replicas
        self._options = dict(options or {})
        self._namesrv_options = dict(namesrv_options or {})
        self._namesrv: Node | None = None
        self._nodes: dict[int, Node] = {}
        self._watches: dict[int, asyncio.Task[str]] = {}
        self._kept_ports = KeptPorts()
        self._ports: dict[int, tuple[int, int]] = {}

    async def __aenter__(self) -> Self:
        """Start everything; nobody need lead yet."""
        try:
            if "namesrvAddr" not in self._options:
                overrides = _LOCAL | self._namesrv_options
                self._namesrv = Node(load_settings("namesrv", overrides=overrides))
                await self._namesrv.start()
            for ordinal in range(self.replicas):
                await self.start(ordinal)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End everything."""
        await self._end()

    @property
    def namesrv(self) -> str:
        """The name server's address: one of its own, unless the options name another one."""
        if "namesrvAddr" in self._options:
            return self._options["namesrvAddr"]
        assert self._namesrv is not None
        return self._namesrv.addresses()["namesrv"]

    @property
    def routes(self) -> RouteInfoManager:
        """The name server's table."""
        assert self._namesrv is not None
        assert self._namesrv.namesrv is not None
        return self._namesrv.namesrv.routes

    @property
    def running(self) -> list[int]:
        """The replicas that run, by ordinal."""
        return sorted(self._nodes)

    def broker(self, ordinal: int) -> BrokerController:
        """Return a replica that runs."""
        broker = self._nodes[ordinal].broker
        assert broker is not None
        return broker

    def has_begun(self, ordinal: int) -> bool:
        """Tell whether a replica takes part: one that begins anew does so after a while."""
        broker = self._nodes[ordinal].broker
        return broker is not None and broker.replicas is not None and broker.replicas.is_begun

    def has_begun_anew(self, ordinal: int, former: BrokerController) -> bool:
        """Tell whether one that was deposed takes part again, as another broker of its process."""
        broker = self._nodes[ordinal].broker
        if broker is None or broker is former or broker.replicas is None:
            return False
        return broker.replicas.is_begun

    def group(self, ordinal: int) -> ReplicaGroup:
        """Return the replication of one that runs."""
        replicas = self.broker(ordinal).replicas
        assert replicas is not None
        return replicas.group

    def addresses(self, ordinal: int) -> dict[str, str]:
        """Return where a replica that runs serves, by the name of the part."""
        return self._nodes[ordinal].addresses()

    async def wait_http(self) -> None:
        """Wait until the replicas answer HTTP; `options` has to give them a port."""
        for node in self._nodes.values():
            await node.wait_http()

    def leader(self) -> int | None:
        """Return who leads, None while nobody does."""
        leading = [ordinal for ordinal in self._nodes if self.group(ordinal).is_leading]
        return leading[0] if leading else None

    def own_options(self, ordinal: int) -> dict[str, str]:
        """Return what is another one's for each replica, beside places and names."""
        masters = [f"127.0.0.1:{ha}" for _, ha in self._ports.values()]
        return {
            "brokerRole": "SLAVE" if ordinal else self.master_role,
            "haMasterAddress": ";".join(masters),
        }

    def ports(self, ordinal: int) -> tuple[int, int]:
        """Return where a replica listens for clients and for replicas, always the same ports."""
        if ordinal not in self._ports:
            self._ports[ordinal] = self._kept_ports.take(), self._kept_ports.take()
        return self._ports[ordinal]

    async def start(self, ordinal: int) -> None:
        """Start a replica, at the ports that it had before."""
        own_options = self.own_options(ordinal)
        port, ha_port = self.ports(ordinal)
        node = Node(
            load_settings(
                "broker",
                overrides={
                    **_LOCAL,
                    **SMALL_STORE,
                    "namesrvAddr": self.namesrv,
                    "brokerName": "broker-a",
                    "brokerId": str(ordinal),
                    "totalReplicas": str(self.replicas),
                    "storePathRootDir": str(self._root / f"replica-{ordinal}"),
                    **own_options,
                    **self._options,
                    "listenPort": str(port),
                    "haListenPort": str(ha_port),
                },
            )
        )
        await node.start()
        self._nodes[ordinal] = node
        # It begins anew by itself once it is deposed.
        self._watches[ordinal] = asyncio.create_task(node.wait_failed())

    async def failure(self, ordinal: int) -> str:
        """Return why a replica's process has failed, once it has."""
        return await asyncio.shield(self._watches[ordinal])

    def swap_ports(self, one: int, other: int) -> None:
        """Have two replicas that do not run start at each other's ports."""
        self._ports[one], self._ports[other] = self._ports[other], self._ports[one]

    async def stop(self, ordinal: int) -> None:
        """End a replica in order."""
        node = self._nodes.pop(ordinal)
        await node.shutdown()
        self._watches.pop(ordinal).cancel()

    async def switch(self, ordinal: int) -> None:
        """Stop whoever leads, and have another replica lead."""
        leader = self.leader()
        if leader is not None:
            await self.stop(leader)
        await self.promote(ordinal)

    async def promote(self, ordinal: int) -> None:
        """Have a replica lead while nobody does."""
        refusal = await self.try_to_promote(ordinal)
        assert not refusal, refusal
        await self.broker(ordinal).registration.register_now()

    async def try_to_promote(self, ordinal: int) -> str:
        """Have a replica lead; return why it does not, empty if it does."""
        group = self.group(ordinal)
        while True:
            group.promote(accepts_loss=False)
            await self.until(lambda: group.is_leading or bool(group.promotion_refusal))
            # The others have just lost their leader.
            if group.is_leading or "hears from" not in group.promotion_refusal:
                return group.promotion_refusal

    async def until(self, holds: Callable[[], bool], timeout_s: float = 20) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(timeout_s):
            while not holds():  # noqa: ASYNC110 - there is no event for all of it
                await asyncio.sleep(0.02)

    async def in_sync(self) -> None:
        """Wait until somebody leads and every replica that runs is in its set."""

        def are_in_sync() -> bool:
            brokers = [node.broker for node in self._nodes.values()]
            parts = [None if broker is None else broker.replicas for broker in brokers]
            if any(part is None or not part.is_begun for part in parts):
                return False  # One begins anew.
            leader = self.leader()
            if leader is None:
                return False
            leading = self.group(leader).replica.leading
            assert leading is not None
            groups = map(self.group, self._nodes)
            # Before that they do not count where another one is to lead.
            are_whole = all(group.replica.durable.is_whole for group in groups)
            is_whole = are_whole and len(leading.recorded) == len(self._nodes)
            return is_whole and not self.group(leader).refusal()

        await self.until(are_in_sync)

    def log_bytes(self, ordinal: int) -> bytes:
        """Return all that a replica has in its log."""
        log = self.broker(ordinal).store.commit_log
        pieces = [
            segment.read(0, min(segment.end, log.end) - segment.start) for segment in log.segments
        ]
        return b"".join(pieces)

    async def _end(self) -> None:
        try:
            for ordinal in sorted(self._nodes, reverse=True):
                await self.stop(ordinal)
        finally:
            self._kept_ports.close()
            if self._namesrv is not None:
                await self._namesrv.shutdown()


def same_log(one: bytes, other: bytes) -> bool:
    """Compare the logs of two replicas: one may lack the other's end for a while, and no more."""
    with promised("replicas have the same log"):
        assert one.startswith(other) or other.startswith(one), "the logs differ"
    return one == other
