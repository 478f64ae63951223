"""One process: a name server, a broker, or both, with its HTTP port.

Used by the server commands and by the test cluster; it owns the order of start and end and nothing
else. The HTTP part is imported only once everything else serves, or when a long recovery should be
watched: it takes longer to load than an empty broker to start. Its port is bound at once, so its
address is known, and requests that come early wait instead of being refused.
"""

import asyncio
import dataclasses
import importlib
import ipaddress
import logging
import socket
from typing import TYPE_CHECKING, Final

from mailboat.config import Settings
from mailboat.disk.descriptors import raise_descriptor_limit
from mailboat.errors import MailboatError
from mailboat.namesrv.controller import NamesrvController
from mailboat.security.configured_users import inner_credentials, with_inner_user
from mailboat.web.context import WebContext
from mailboat.web.tokens import check_token_file

if TYPE_CHECKING:
    from mailboat.broker.controller import BrokerController
    from mailboat.security.directory import Directory
    from mailboat.web.server import WebServer

HTTP_AFTER_S: Final = 0.3
"""A broker that takes longer than this to start is watched: HTTP then does not wait for it."""

_HTTP_BACKLOG: Final = 128

logger = logging.getLogger(__name__)


class Node:
    """The parts of one process; the role of its settings says which."""

    def __init__(self, settings: Settings) -> None:
        """Prepare a process; nothing is opened before `start`."""
        self._own_user: str | None = None
        if settings.role == "standalone":
            # Its broker registers at its own name server.
            security = with_inner_user(settings.security)
            if security is not settings.security:
                # Nobody else can sign as this one.
                self._own_user = own.access_key if (own := inner_credentials(security)) else None
            settings = dataclasses.replace(settings, security=security)
        self._settings = settings
        self._context = WebContext(settings)
        self._http_socket: socket.socket | None = None
        self._http_address: str | None = None
        self._web: asyncio.Task[WebServer] | None = None
        self._broker_change = asyncio.Lock()
        self._users: Directory | None = None
        self._looking: asyncio.Task[None] | None = None

    @property
    def namesrv(self) -> NamesrvController | None:
        """The name server, once it is started."""
        return self._context.namesrv

    @property
    def broker(self) -> "BrokerController | None":
        """The broker, once its start has begun."""
        return self._context.broker

    async def start(self) -> None:
        """Start every part; on return clients are served, and HTTP is or soon will be.

        Raises:
            ConfigError: a file of TLS cannot be used; nothing is left open.
            OSError: a port or the data directory cannot be used; nothing is left open.
            StoreError: the store cannot be opened; nothing is left open.
        """
        try:
            await self._start()
        except BaseException:
            logger.debug("the start failed; ending what was started")
            await self.shutdown()
            raise

    def addresses(self) -> dict[str, str]:
        """Return where each part is reached, `host:port` by the name of the part."""
        found = {}
        if self.namesrv is not None:
            found["namesrv"] = self._namesrv_address(self.namesrv)
        if self.broker is not None:
            found["broker"] = self.broker.address
            if self.broker.replicas is not None and self.broker.replicas.address:
                found["replicas"] = self.broker.replicas.address
        if self._http_address is not None:
            is_tls = self._settings.tls.http_mode != "disabled"
            found["https" if is_tls else "http"] = self._http_address
        return found

    async def wait_http(self) -> None:
        """Return once HTTP requests are answered.

        Raises:
            OSError: HTTP could not be started.
        """
        if self._web is not None:
            await asyncio.shield(self._web)

    async def wait_failed(self) -> str:
        """Return in one sentence what failed, once a part can no longer do its work."""
        watches: set[asyncio.Future[str]] = set()
        if self.namesrv is not None:
            watches.add(asyncio.ensure_future(self.namesrv.wait_failed()))
        if self.broker is not None:
            watches.add(asyncio.create_task(self._broker_failed()))
        if self._web is not None:
            watches.add(asyncio.create_task(_failed_start(self._web)))
        if self._looking is not None:
            watches.add(asyncio.create_task(_failed_look(self._looking)))
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in watches:
                watch.cancel()
        self._context.failure = done.pop().result()
        return self._context.failure

    async def _broker_failed(self) -> str:
        """Return what failed in the broker, which begins anew once another replica leads."""
        while True:
            broker = self.broker
            assert broker is not None
            failed = asyncio.ensure_future(broker.wait_failed())
            deposed = asyncio.create_task(broker.deposed.wait())
            try:
                await asyncio.wait({failed, deposed}, return_when=asyncio.FIRST_COMPLETED)
                if not deposed.done():
                    return failed.result()
            finally:
                failed.cancel()
                deposed.cancel()
            try:
                await self._start_broker_anew(broker)
            except (OSError, MailboatError) as error:
                return f"the broker could not begin anew as a slave: {error}"

    async def _start_broker_anew(self, before: "BrokerController") -> None:
        """Start the broker once more, at the same ports."""
        async with self._broker_change:
            if self._context.phase == "stopping":
                return
            await before.shutdown()
            ports = before.ports()
            settings = self._settings
            self._settings = dataclasses.replace(
                settings,
                broker=dataclasses.replace(settings.broker, listen_port=ports.clients),
                store=dataclasses.replace(settings.store, ha_listen_port=ports.replicas),
            )
            await self._start_broker()

    async def drain(self) -> None:
        """Let producers move away first, for shutdownDrainSeconds; without a broker at once."""
        seconds = self._settings.broker.shutdown_drain_seconds
        if self.broker is not None and seconds:
            await self.broker.drain(seconds)

    async def shutdown(self) -> None:
        """End every part in order: the broker flushes and says good-bye before its name server
        goes.

        Raises:
            OSError: the store could not be closed cleanly; the other parts are ended all the same.
        """
        self._context.phase = "stopping"
        try:
            async with self._broker_change:
                if self.broker is not None:
                    await self.broker.shutdown()
        finally:
            if self.namesrv is not None:
                await self.namesrv.shutdown()
            await self._end_http()
            if self._looking is not None:
                self._looking.cancel()
                await asyncio.wait({self._looking})

    async def _start(self) -> None:
        raise_descriptor_limit()
        self._bind_http()
        if self._http_socket is not None and self._settings.security.http_token_file:
            # HTTP begins once clients are served; a wrong file is told before that.
            await asyncio.to_thread(check_token_file, self._settings.security.http_token_file)
        if self._settings.security.is_guarded:
            self._users = self._context.users = await self._open_users()
            self._looking = asyncio.create_task(_look_for_users(self._users))
        if self._settings.role != "broker":
            namesrv = NamesrvController(self._settings, users=self._users)
            await namesrv.start()
            self._context.namesrv = namesrv
        if self._settings.role != "namesrv":
            await self._start_broker()
        self._context.phase = "serving"
        self._serve_http()

    async def _open_users(self) -> "Directory":
        """Read who there is, for all parts of the process.

        Raises:
            ConfigError: a setting or a file with users cannot be taken.
            DamagedStoreError: the file of users that requests made cannot be.
        """
        from mailboat.disk.real import RealDisk
        from mailboat.security.directory import Directory, no_user
        from mailboat.store.layout import store_paths

        settings = self._settings
        made_path = None
        if settings.role != "namesrv":
            made_path = store_paths(str(settings.store.root_dir)).users
        users = Directory(settings.security, RealDisk(), made_path)
        await asyncio.to_thread(users.load)
        if users.records.keys() == {self._own_user}:
            raise no_user()
        return users

    async def _start_broker(self) -> None:
        settings = self._settings
        if self.namesrv is not None:
            addresses = [self._namesrv_address(self.namesrv), settings.broker.namesrv_addr]
            broker = dataclasses.replace(
                settings.broker, namesrv_addr=";".join(filter(None, addresses))
            )
            settings = dataclasses.replace(settings, broker=broker)
        # The broker is the larger half of the program; a name server does without it.
        from mailboat.broker.controller import BrokerController

        own = "" if self.namesrv is None else self._namesrv_address(self.namesrv)
        self._context.broker = BrokerController(settings, own_name_server=own, users=self._users)
        start = asyncio.create_task(self._context.broker.start())
        try:
            await asyncio.wait({start}, timeout=HTTP_AFTER_S)
            if not start.done():
                self._serve_http()
            await start
        finally:
            start.cancel()

    def _namesrv_address(self, namesrv: NamesrvController) -> str:
        return _join(_reachable(self._settings.namesrv.bind_address), namesrv.port)

    def _bind_http(self) -> None:
        if self._settings.role == "namesrv":
            host, port = self._settings.namesrv.bind_address, self._settings.namesrv.http_port
        else:
            host, port = self._settings.broker.bind_address, self._settings.broker.http_port
        if port < 0:
            return
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._http_socket = socket.create_server((host, port), family=family, backlog=_HTTP_BACKLOG)
        self._http_address = _join(_reachable(host), self._http_socket.getsockname()[1])

    def _serve_http(self) -> None:
        if self._web is None and self._http_socket is not None:
            self._web = asyncio.create_task(_start_web(self._context, self._http_socket))

    async def _end_http(self) -> None:
        if self._web is not None:
            await asyncio.wait({self._web})
            if self._web.exception() is None:
                await self._web.result().close()
        if self._http_socket is not None:
            self._http_socket.close()


async def _look_for_users(users: "Directory") -> None:
    """Read files of users again when they change."""
    from mailboat.security.directory import LOOK_PERIOD_S

    while True:
        await asyncio.sleep(LOOK_PERIOD_S)
        await asyncio.to_thread(users.look)
        users.refresh()


async def _failed_look(looking: asyncio.Task[None]) -> str:
    """Return why changes of users are not seen any more: who was shut out would stay."""
    await asyncio.wait({looking})
    if looking.cancelled():
        return "files of users are not looked at any more"
    return f"files of users are not looked at any more: {looking.exception()!r}"


async def _start_web(context: WebContext, listening: socket.socket) -> "WebServer":
    # Half a second of imports would stop the loop; in a thread they only slow it down.
    await asyncio.to_thread(importlib.import_module, "mailboat.web.server")
    from mailboat.web.server import WebServer

    server = WebServer(context)
    await server.start(listening)
    return server


async def _failed_start(start: "asyncio.Task[WebServer]") -> str:
    """Return why HTTP did not start; never returns when it did."""
    await asyncio.wait({start})
    error = start.exception()
    if error is None:
        await asyncio.Event().wait()
    return f"HTTP could not be started: {error}"


def _reachable(host: str) -> str:
    """Return an address of this machine by which a bind address is reached from it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
