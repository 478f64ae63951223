"""The running name server: one port, the tables, and the search for silent brokers.

Source: apache/rocketmq namesrv/NamesrvController.java @ rocketmq-all-5.3.3
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from pathlib import Path

from mailboat.config import Settings
from mailboat.disk.json_file import JsonFile
from mailboat.disk.real import RealDisk
from mailboat.namesrv.kv_config import KvConfigManager
from mailboat.namesrv.processor import NamesrvProcessor
from mailboat.namesrv.route_info import RouteInfoManager
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.limits import RemotingLimits
from mailboat.remoting.server import RemotingServer
from mailboat.remoting.turns import listed_in_turns

logger = logging.getLogger(__name__)


class NamesrvController:
    """Starts and stops a name server; all but the key-value table is gone with the process.

    Brokers register again within their period (30 s at most) after a restart, and at once when they
    see the connection close.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare a name server; `clock` counts seconds and never goes back."""
        config = settings.namesrv
        self._config = config
        self.routes = RouteInfoManager(
            clock=clock,
            expired_timeout_s=config.broker_expired_timeout / 1000,
            delete_unlisted_topics=config.delete_topic_with_broker_registration,
        )
        self.kv_config = KvConfigManager(_kv_config_file(settings))
        self._dispatcher = Dispatcher()
        self._dispatcher.on_connection_closed.append(self.routes.connection_closed)
        NamesrvProcessor(settings, routes=self.routes, kv_config=self.kv_config).register(
            self._dispatcher
        )
        self._server = RemotingServer(
            self._dispatcher, RemotingLimits.from_config(settings.remoting), name="namesrv"
        )
        self._scan: asyncio.Task[None] | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self.routes.on_left = self._clean_soon

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._server.port

    @property
    def connection_count(self) -> int:
        """How many clients and brokers are connected."""
        return self._server.connection_count

    async def start(self) -> None:
        """Read the key-value table and listen.

        Raises:
            DamagedStoreError: the file of the table is damaged.
            OSError: it cannot be read, or the address cannot be listened on.
        """
        self.kv_config.load()
        await self._server.start(self._config.bind_address, self._config.listen_port)
        self._scan = asyncio.get_running_loop().create_task(self._scan_forever())

    async def wait_failed(self) -> str:
        """Return what failed once the name server can no longer do its work; normally never."""
        assert self._scan is not None
        await asyncio.wait([self._scan])
        error = None if self._scan.cancelled() else self._scan.exception()
        return f"the search for silent brokers ended: {error!r}"

    async def shutdown(self) -> None:
        """Stop accepting, let written answers drain, close."""
        if self._scan is not None:
            self._scan.cancel()
            with suppress(asyncio.CancelledError):
                await self._scan
        await self._server.close()
        if self._cleaning is not None:
            await self._cleaning

    def _clean_soon(self) -> None:
        if self._cleaning is None or self._cleaning.done():
            # Whoever made it left behind is not to wait for it, nor it for them.
            self._cleaning = asyncio.get_running_loop().create_task(
                self._clean(), context=Context()
            )

    async def _clean(self) -> None:
        await listed_in_turns(self.routes.clean())

    async def _scan_forever(self) -> None:
        while True:
            await asyncio.sleep(self._config.scan_not_active_broker_interval / 1000)
            for connection in self.routes.drop_silent():
                if isinstance(connection, Connection):
                    connection.close()


def _kv_config_file(settings: Settings) -> JsonFile | None:
    """Return the file of the key-value table; beside a broker it has a place of its own."""
    if settings.namesrv.kv_config_path:
        path = Path(settings.namesrv.kv_config_path).expanduser()
    elif settings.role == "standalone":
        path = settings.store.root_dir / "namesrv" / "kvConfig.json"
    else:
        return None
    return JsonFile(RealDisk(), str(path.absolute()))
