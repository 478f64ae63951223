"""The kubelets' own API as the operator uses it: one document, `/stats/summary`.

The kubelet is called at its node's address, port 10250. That takes the right `nodes/stats`, which
reads statistics and nothing else; the way by the API server's proxy takes `nodes/proxy`, which
also runs commands in every container of the cluster.

The operator's token goes to whoever answers there, so the kubelet's certificate is checked: against
the cluster's own authority, as kubelets have it that get theirs from the cluster
(`serverTLSBootstrap`), or against one that is given.
"""

import json
import ssl
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes.aio.client import ApiClient

from mailboat.errors import ConfigError, MailboatError
from mailboat_operator.planner.snapshot import Manifest

KUBELET_PORT: Final = 10_250
_MOST_BYTES: Final = 16 << 20
_PATH: Final = "/stats/summary"


class KubeletApiError(MailboatError):
    """A kubelet did not answer, or not as agreed."""

    retriable = True


class KubeletRefusedError(MailboatError):
    """The operator may not ask the kubelets, or must not trust them, until somebody acts."""


class KubeletApi:
    """Asks kubelets by their nodes' addresses."""

    def __init__(
        self,
        client: ApiClient,
        *,
        timeout_s: float,
        ca_file: str = "",
        is_verified: bool = True,
        port: int = KUBELET_PORT,
    ) -> None:
        """Prepare; the session is opened by the first call.

        Args:
            client: Whose token is sent.
            timeout_s: How long one call may take.
            ca_file: The authority of the kubelets' certificates; empty: the API server's.
            is_verified: Whether the certificates are checked at all.
            port: Where kubelets listen.

        Raises:
            ConfigError: the file cannot be read or holds no certificate.
        """
        self._client = client
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(3.0, timeout_s))
        self._port = port
        self._ssl = _context(ca_file or str(client.configuration.ssl_ca_cert or ""), is_verified)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def summary(self, node_address: str) -> Manifest:
        """GET /stats/summary of the kubelet at an IP address.

        Raises:
            KubeletRefusedError: 401, 403, or a certificate that cannot be trusted.
            KubeletApiError: any other failure.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=False)
        host = f"[{node_address}]" if ":" in node_address else node_address
        url = f"https://{host}:{self._port}{_PATH}"
        headers = {"Accept": "application/json"}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], _PATH, "GET", None)
        try:
            async with self._session.get(
                url, headers=headers, ssl=self._ssl, timeout=self._timeout, allow_redirects=False
            ) as response:
                text = await response.content.read(_MOST_BYTES)
                while chunk := await response.content.read(_MOST_BYTES):
                    text += chunk
                    if len(text) > _MOST_BYTES:
                        raise KubeletApiError(f"{url}: more than {_MOST_BYTES} bytes")
        except aiohttp.ClientSSLError as error:
            raise KubeletRefusedError(
                f"{url}: the kubelet's certificate is not trusted ({error}); name its authority in"
                " MAILBOAT_OPERATOR_KUBELET_CA"
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeletApiError(f"{url}: {error or 'no answer in time'}") from error
        if response.status in (401, 403):
            said = text[:200].decode(errors="replace").strip()
            raise KubeletRefusedError(f"{url}: HTTP {response.status} {said}")
        return _document(url, response.status, text)


def _context(ca_file: str, is_verified: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca_file:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(Path(ca_file))
        except OSError as error:  # An SSLError is one, too.
            raise ConfigError(
                "MAILBOAT_OPERATOR_KUBELET_CA", ca_file, f"cannot be used: {error}"
            ) from error
    return context


def _document(url: str, status: int, text: bytes) -> Manifest:
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KubeletApiError(f"{url}: HTTP {status}, and no JSON: {error}") from error
    if status != 200 or not isinstance(document, dict):
        raise KubeletApiError(f"{url}: HTTP {status}")
    return document
