"""A whole cluster in this process, for tests: name servers and brokers on free ports.

    async with Cluster(tmp_path, brokers=2) as cluster:
        producer = Producer("group", namesrv=cluster.namesrv_addresses)

Real sockets and real files; only the process boundary is missing. Brokers are called broker-a,
broker-b, ... and keep their data below the folder given, so a broker that is stopped and started
again finds its messages.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from mailboat.broker.controller import BrokerController
from mailboat.config import load_settings
from mailboat.namesrv.controller import NamesrvController
from mailboat.node import Node
from mailboat.testing.kept_ports import KeptPorts

SMALL_STORE: Final[Mapping[str, str]] = {
    "mappedFileSizeCommitLog": str(4 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    # A test machine's disk may be rather full, which is nothing a test of something else is about.
    "diskMaxUsedSpaceRatio": "95",
    "diskSpaceCleanForciblyRatio": "100",
    "diskSpaceWarningLevelRatio": "100",
}
"""Files of a size that a test fills quickly."""

_LOCAL: Final = {"bindAddress": "127.0.0.1", "listenPort": "0", "httpPort": "-1"}


class Cluster:
    """Name servers and brokers that start and end with an `async with` block."""

    def __init__(
        self,
        root: Path,
        *,
        brokers: int = 1,
        name_servers: int = 1,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a cluster with its data below `root`.

        Args:
            root: an empty folder, or that of an earlier cluster.
            brokers: how many there are at the start.
            name_servers: how many there are.
            options: configuration keys of every broker, over `SMALL_STORE`; httpPort=0 adds HTTP.
        """
        self._root = root
        self._options = {**SMALL_STORE, **(options or {})}
        self._name_server_count = name_servers
        self._broker_count = brokers
        self._name_servers: list[Node] = []
        self._brokers: dict[int, Node] = {}
        self._kept_ports = KeptPorts()
        self._ports: dict[int, int] = {}

    async def __aenter__(self) -> Self:
        """Start everything; on return every broker is registered everywhere."""
        try:
            for _ in range(self._name_server_count):
                node = Node(load_settings("namesrv", overrides=_LOCAL))
                self._name_servers.append(node)
                await node.start()
            await asyncio.gather(*map(self.start_broker, range(self._broker_count)))
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
        """End everything, brokers first."""
        await self._end()

    @property
    def namesrv_addresses(self) -> str:
        """All name servers, `host:port` joined by `;`, as clients take them."""
        return ";".join(node.addresses()["namesrv"] for node in self._name_servers)

    def name_server(self, index: int = 0) -> NamesrvController:
        """Return a name server."""
        namesrv = self._name_servers[index].namesrv
        assert namesrv is not None
        return namesrv

    def broker(self, index: int = 0) -> BrokerController:
        """Return a broker that runs."""
        broker = self._brokers[index].broker
        assert broker is not None
        return broker

    async def http_address(self, index: int = 0) -> str:
        """Return `host:port` of a broker's HTTP, once it answers."""
        node = self._brokers[index]
        await node.wait_http()
        addresses = node.addresses()
        return addresses.get("http") or addresses["https"]

    async def start_broker(self, index: int) -> BrokerController:
        """Start a broker, on the port that it had before if it ran before."""
        name = f"broker-{chr(ord('a') + index)}"
        if index not in self._ports:
            self._ports[index] = self._kept_ports.take()
        overrides = {
            **_LOCAL,
            "namesrvAddr": self.namesrv_addresses,
            "brokerName": name,
            "storePathRootDir": str(self._root / name),
            "listenPort": str(self._ports[index]),
            **self._options,
        }
        node = Node(load_settings("broker", overrides=overrides))
        await node.start()
        self._brokers[index] = node
        return self.broker(index)

    async def stop_broker(self, index: int = 0) -> None:
        """End a broker in order."""
        await self._brokers.pop(index).shutdown()

    async def _end(self) -> None:
        try:
            for index in list(self._brokers):
                await self.stop_broker(index)
        finally:
            self._kept_ports.close()
            for node in self._name_servers:
                await node.shutdown()
