"""The way to the API server of the cluster of Kubernetes in which this pod runs.

Import it where it is needed only, and on a thread: it brings an HTTP client that servers elsewhere
do without.
"""

import os
import ssl
from pathlib import Path
from typing import Any, Final

import aiohttp

from mailboat.disk.files_of_others import read_file_of_others
from mailboat.errors import ConfigError

HOST_VARIABLE: Final = "KUBERNETES_SERVICE_HOST"
PORT_VARIABLE: Final = "KUBERNETES_SERVICE_PORT"
# Whatever is asked for here is smaller.
_MOST_BYTES: Final = 1 << 20
_CREDENTIAL_MAX_BYTES: Final = 65_536


class ApiServer:
    """Asks the API server, with the token of the pod."""

    def __init__(self, folder: str, timeout_s: float, wanted_by: str) -> None:
        """Take `token` and `ca.crt` from a folder; on any thread.

        The token is read for each request: Kubernetes replaces it now and then. `wanted_by` is the
        setting that needs an API server.

        Raises:
            ConfigError: the folder lacks one of them, or this is no pod of a cluster.
        """
        self._folder = folder
        read_credential(folder, "token")
        try:
            self._tls = ssl.create_default_context(cafile=str(Path(folder) / "ca.crt"))
        except OSError as error:  # ssl.SSLError is one.
            raise ConfigError(
                "kubeApiFolder", folder, f"ca.crt holds no certificate: {error}"
            ) from error
        host = os.environ.get(HOST_VARIABLE, "")
        if not host:
            raise ConfigError(
                wanted_by,
                "",
                f"{HOST_VARIABLE} is not set: only a pod of Kubernetes has an API server",
            )
        host = f"[{host}]" if ":" in host else host
        self._server = f"https://{host}:{os.environ.get(PORT_VARIABLE, '443')}"
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, method: str, path: str, manifest: Any = None) -> tuple[int, bytes]:
        """Send a request and return status and body of the answer, cut at 1 MiB.

        Raises:
            TimeoutError, aiohttp.ClientError, OSError, ConfigError, ValueError: there is none. A
                bad token makes a header that cannot be sent.
        """
        if self._session is None:
            # One that belongs to the loop; a proxy of the environment is not for the API server.
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        async with self._session.request(
            method,
            f"{self._server}{path}",
            headers={"Authorization": f"Bearer {read_credential(self._folder, 'token')}"},
            json=manifest,
            ssl=self._tls,
            allow_redirects=False,
        ) as answer:
            # With what is left of a larger one the connection ends.
            data = await answer.content.read(_MOST_BYTES)
            while not answer.content.at_eof() and len(data) < _MOST_BYTES:
                data += await answer.content.read(_MOST_BYTES - len(data))
            return answer.status, data

    async def close(self) -> None:
        """End the connections."""
        if self._session is not None:
            await self._session.close()


def read_credential(folder: str, name: str) -> str:
    """Return what a file of the folder holds.

    Raises:
        ConfigError: it cannot be read, or is empty.
    """
    try:
        path = str(Path(folder) / name)
        text = read_file_of_others(path, _CREDENTIAL_MAX_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        raise ConfigError("kubeApiFolder", folder, f"{name} cannot be read: {error}") from error
    if not text:
        raise ConfigError("kubeApiFolder", folder, f"{name} is empty")
    return text
