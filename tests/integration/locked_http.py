"""An HTTP port that is locked, in front of a broker whose remoting port is open."""

import base64
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from guarded import SECRET, Users, transport, usual_users

from mailboat.broker.controller import BrokerController
from mailboat.config import load_settings
from mailboat.config.fields import settings_of, to_text
from mailboat.config.tls import TlsConfig
from mailboat.testing.cluster import Cluster
from mailboat.web.context import WebContext
from mailboat.web.server import WebServer

TOKEN = "a-token-of-at-least-16"
TOPIC = "T"
GROUP = "G"


def http_users() -> Users:
    """Return one user of each kind; the disabled one could do all if it were not."""
    users = usual_users()
    users.change("disabled", is_super=True)
    return users


def basic(name: str, secret: str = SECRET) -> dict[str, str]:
    """Return the headers of a user, with the secret that all of them have or another one."""
    pair = base64.b64encode(f"{name}:{secret}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


def bearer(token: str = TOKEN) -> dict[str, str]:
    """Return the headers of whoever has a token."""
    return {"Authorization": f"Bearer {token}"}


class LockedHttp:
    """The port, and the broker behind it."""

    def __init__(
        self, broker: BrokerController, users: Users, session: aiohttp.ClientSession
    ) -> None:
        """Ask through `session`."""
        self.broker = broker
        self.users = users
        self.base = ""
        self._session = session

    @contextlib.asynccontextmanager
    async def from_address(self, address: str) -> AsyncIterator["LockedHttp"]:
        """Ask the same port from another address of this machine."""
        connector = aiohttp.TCPConnector(local_addr=(address, 0))
        async with aiohttp.ClientSession(self.base, connector=connector) as session:
            yield LockedHttp(self.broker, self.users, session)

    async def ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: Any = None,
    ) -> tuple[int, Any, dict[str, str]]:
        """Return status, JSON (text where it is none) and headers of an answer."""
        async with self._session.request(method, path, headers=headers, json=body) as answer:
            is_json = answer.content_type == "application/json" and method != "HEAD"
            read = await answer.json() if is_json else await answer.text()
            return answer.status, read, dict(answer.headers)

    def state(self) -> tuple[object, ...]:
        """Return what a request could have changed."""
        broker = self.broker
        return (
            broker.store.commit_log.end,
            dict(broker.topics.table),
            dict(broker.groups.table),
            [broker.offsets.query(GROUP, TOPIC, queue) for queue in range(2)],
            broker.settings,
        )


@contextlib.asynccontextmanager
async def locked_http(
    folder: Path, *, cluster: Cluster | None = None, kind: str = "plain", **options: str
) -> AsyncIterator[LockedHttp]:
    """Run a broker with a topic, a group and an offset, and the port; `options` are settings.

    Where the cluster is not given, the `kind` of the port may be "tls".
    """
    options.setdefault("httpToken", TOKEN)
    options.setdefault("authenticationEnabled", "true")
    options.setdefault("authorizationEnabled", "true")
    spoken = transport(kind, folder)
    async with contextlib.AsyncExitStack() as stack:
        if cluster is None:
            tls = _tls_options(spoken.server)
            options |= tls
            cluster = await stack.enter_async_context(Cluster(folder, options=tls))
        broker = cluster.broker()
        users = http_users()
        overrides = {"bindAddress": "127.0.0.1", **options}
        context = WebContext(
            load_settings("broker", overrides=overrides), broker=broker, users=users
        )
        context.phase = "serving"
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server = WebServer(context)
        stack.push_async_callback(server.close)
        await server.start(listening)
        base = f"http://127.0.0.1:{listening.getsockname()[1]}"
        connector = None
        if spoken.client is not None:
            base = base.replace("http", "https")
            trusted = ssl.create_default_context(cafile=spoken.client.trust_cert_path)
            connector = aiohttp.TCPConnector(ssl=trusted)
        session = aiohttp.ClientSession(base, connector=connector)
        await stack.enter_async_context(session)
        http = LockedHttp(broker, users, session)
        http.base = base
        body = {"read_queue_nums": 1, "write_queue_nums": 1, "perm": 6}
        assert (await http.ask("PUT", f"/api/v1/topics/{TOPIC}", bearer(), body))[0] == 200
        declared = {"groups": [{"group_name": GROUP}]}
        assert (await http.ask("POST", "/api/v1/declarations", bearer(), declared))[0] == 200
        broker.offsets.commit(GROUP, TOPIC, 0, 0)
        yield http


def _tls_options(config: TlsConfig) -> dict[str, str]:
    """Return what differs from a plain server."""
    return {
        item.key: to_text(getattr(config, item.name))
        for item in settings_of("tls", TlsConfig)
        if getattr(config, item.name) != item.default
    }
