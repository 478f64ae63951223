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
from mailboat.config.listeners import parse_listeners
from mailboat.disk.json_file import JsonFile
from mailboat.disk.real import RealDisk
from mailboat.namesrv.kv_config import KvConfigManager
from mailboat.namesrv.processor import NamesrvProcessor
from mailboat.namesrv.route_info import RouteInfoManager
from mailboat.remoting.connection import Connection
from mailboat.remoting.dispatcher import Dispatcher
from mailboat.remoting.guarded import GuardedDispatcher
from mailboat.remoting.limits import RemotingLimits
from mailboat.remoting.server import RemotingServer
from mailboat.remoting.turns import listed_in_turns
from mailboat.security.guard import make_guard
from mailboat.security.needs import namesrv_rows
from mailboat.security.tls import CHECK_INTERVAL_S, ServerTls
from mailboat.security.users import UserDirectory

logger = logging.getLogger(__name__)


class NamesrvController:
    """Starts and stops a name server; all but the key-value table is gone with the process.

    Brokers register again within their period (30 s at most) after a restart, and at once when they
    see the connection close.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        users: UserDirectory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a name server.

        Args:
            settings: all of them.
            users: who there is, where requests are authenticated.
            clock: counts seconds and never goes back.

        Raises:
            ConfigError: a file of TLS cannot be used, or requests are to be authenticated and
                nobody says who there is.
        """
        config = settings.namesrv
        self._config = config
        self._listeners = parse_listeners(config.listeners)
        self.tls = ServerTls.of(settings.tls, self._listeners)
        """What its ports show by TLS, None where none speaks it."""

        self.routes = RouteInfoManager(
            clock=clock,
            expired_timeout_s=config.broker_expired_timeout / 1000,
            delete_unlisted_topics=config.delete_topic_with_broker_registration,
        )
        self.kv_config = KvConfigManager(_kv_config_file(settings))
        self.guard = make_guard(settings.security, users, namesrv_rows())
        self.dispatcher = Dispatcher() if self.guard is None else GuardedDispatcher(self.guard)
        self.dispatcher.on_connection_closed.append(self.routes.connection_closed)
        NamesrvProcessor(settings, routes=self.routes, kv_config=self.kv_config).register(
            self.dispatcher
        )
        limits = RemotingLimits.from_config(settings.remoting)
        self._server = RemotingServer(self.dispatcher, limits, name="namesrv", tls=self.tls)
        self.listener_ports: dict[str, int] = {}
        """The ports of its listeners, once it has started."""

        self._scan: asyncio.Task[None] | None = None
        self._tls_watch: asyncio.Task[None] | None = None
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
            OSError: it cannot be read, or an address cannot be listened on; nothing is left open.
        """
        self.kv_config.load()
        try:
            await self._listen()
        except OSError:
            await self._server.close()
            raise
        loop = asyncio.get_running_loop()
        self._scan = loop.create_task(self._scan_forever())
        if self.tls is not None:
            self._tls_watch = loop.create_task(_look_forever(self.tls))

    async def _listen(self) -> None:
        host = self._config.bind_address
        await self._server.start(host, self._config.listen_port)
        for listener in self._listeners:
            self.listener_ports[listener.name] = await self._server.start_listener(host, listener)

    async def wait_failed(self) -> str:
        """Return what failed once the name server can no longer do its work; normally never."""
        assert self._scan is not None
        tasks = {self._scan: "search for silent brokers"}
        if self._tls_watch is not None:
            tasks[self._tls_watch] = "watch of the files of TLS"
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = done.pop()
        error = None if ended.cancelled() else ended.exception()
        return f"the {tasks[ended]} ended: {error!r}"

    async def shutdown(self) -> None:
        """Stop accepting, let written answers drain, close."""
        for task in filter(None, (self._scan, self._tls_watch)):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self._server.close()
        if self._cleaning is not None:
            await self._cleaning
        if self.guard is not None:
            await asyncio.to_thread(self.guard.close)

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


async def _look_forever(tls: ServerTls) -> None:
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        await asyncio.to_thread(tls.look)


def _kv_config_file(settings: Settings) -> JsonFile | None:
    """Return the file of the key-value table; beside a broker it has a place of its own."""
    if settings.namesrv.kv_config_path:
        path = Path(settings.namesrv.kv_config_path).expanduser()
    elif settings.role == "standalone":
        path = settings.store.root_dir / "namesrv" / "kvConfig.json"
    else:
        return None
    return JsonFile(RealDisk(), str(path.absolute()))
