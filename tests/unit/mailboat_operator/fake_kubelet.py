"""A kubelet's HTTPS server with one document, for tests."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import trustme
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from mailboat_operator.kubelet_api import KubeletApi


class Kubelet:
    """Listens on 127.0.0.1 with a certificate of an authority of its own."""

    def __init__(self, folder: Path) -> None:
        """Make the certificates; `ca_file` is the authority's."""
        authority = trustme.CA()
        self.ca_file = str(folder / "kubelet-ca.crt")
        authority.cert_pem.write_to_path(self.ca_file)
        self._ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._ssl)
        self.summary: dict[str, Any] = {"pods": []}
        self.status = 200
        self.tokens: list[str] = []
        """The Authorization header of each request."""

        self.asked = asyncio.Event()
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._apis: list[KubeletApi] = []
        self._clients: list[ApiClient] = []

    async def start(self) -> None:
        """Listen on a free port."""
        app = web.Application()
        app.router.add_get("/stats/summary", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._ssl).start()
        self.port = self._runner.addresses[0][1]

    def api(self, **settings: Any) -> KubeletApi:
        """Return an operator's way here, that trusts this authority unless told otherwise."""
        configuration = Configuration(host="http://127.0.0.1:1")
        configuration.api_key = {"BearerToken": "Bearer secret"}
        self._clients.append(ApiClient(configuration))
        chosen = {"timeout_s": 2.0, "ca_file": self.ca_file, "port": self.port, **settings}
        self._apis.append(KubeletApi(self._clients[-1], **chosen))
        return self._apis[-1]

    async def close(self) -> None:
        """Stop listening, and close what was handed out."""
        for api in self._apis:
            await api.close()
        for client in self._clients:
            await client.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers.get("Authorization", ""))
        self.asked.set()
        return web.json_response(self.summary, status=self.status)
