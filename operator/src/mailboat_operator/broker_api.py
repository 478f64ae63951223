"""The HTTP API of a broker as the operator uses it: short timeouts, bounded answers."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from mailboat.errors import MailboatError
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.snapshot import Manifest

_MOST_BYTES = 4 << 20
_HTTP_PORT = 8080


class BrokerApiError(MailboatError):
    """A broker did not answer, or not as agreed."""

    retriable = True


class BrokerRefusedError(MailboatError):
    """A broker understood the call and refused it; the text says why."""


class BrokerApi:
    """Calls brokers by the base URL of their HTTP API."""

    def __init__(self, metrics: OperatorMetrics, *, timeout_s: float = 5.0) -> None:
        """The session is opened by the first call."""
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._connect_timeout_s = min(2.0, timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def broker(self, url: str) -> Manifest:
        """GET /api/v1/broker."""
        return await self._document("GET", f"{url}/api/v1/broker")

    async def config(self, url: str) -> dict[str, str]:
        """The effective values of GET /api/v1/config."""
        return _values(await self._document("GET", f"{url}/api/v1/config"))

    async def retention(self, url: str) -> Manifest:
        """GET /api/v1/retention."""
        return await self._document("GET", f"{url}/api/v1/retention")

    async def pressure_moved(
        self, url: str, *, from_percent: int, by_percent: int, timeout_s: int
    ) -> bool:
        """GET /api/v1/retention/pressure: wait until the disk's pressure has moved so far.

        Returns False if it has not within `timeout_s`.
        """
        query = f"from_percent={from_percent}&by_percent={by_percent}&timeout_seconds={timeout_s}"
        document = await self._document(
            "GET", f"{url}/api/v1/retention/pressure?{query}", extra_s=timeout_s
        )
        return document.get("has_moved") is True

    async def patch_config(self, url: str, values: Mapping[str, str]) -> dict[str, str]:
        """Change live settings, all or none; returns the effective values."""
        return _values(await self._document("PATCH", f"{url}/api/v1/config", dict(values)))

    async def topic(self, url: str, topic: str) -> Manifest | None:
        """GET /api/v1/topics/{topic}; None if the broker does not know it."""
        status, document = await self._call("GET", _topic_url(url, topic))
        return None if status == 404 else _checked("GET", status, document)

    async def put_topic(
        self, url: str, topic: str, *, read_queue_nums: int, write_queue_nums: int, perm: int
    ) -> None:
        """Make the topic, or change it."""
        body = {
            "read_queue_nums": read_queue_nums,
            "write_queue_nums": write_queue_nums,
            "perm": perm,
        }
        await self._document("PUT", _topic_url(url, topic), body)

    async def delete_topic(self, url: str, topic: str) -> None:
        """Remove the topic; one that is not there is removed already."""
        status, document = await self._call("DELETE", _topic_url(url, topic))
        if status != 404:
            _checked("DELETE", status, document)

    async def _document(
        self, method: str, url: str, body: Any = None, *, extra_s: float = 0
    ) -> Manifest:
        status, document = await self._call(method, url, body, extra_s=extra_s)
        return _checked(method, status, document)

    async def _call(
        self, method: str, url: str, body: Any = None, *, extra_s: float = 0
    ) -> tuple[int, Any]:
        """Call a broker; `extra_s` is how long it may wait before it answers."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                trust_env=False, connector=aiohttp.TCPConnector(limit=0)
            )
        timeout = aiohttp.ClientTimeout(
            total=self._timeout_s + extra_s, sock_connect=self._connect_timeout_s
        )
        result = "failed"
        try:
            async with self._session.request(
                method, url, json=body, timeout=timeout, allow_redirects=False
            ) as response:
                text = await _bounded(response)
                result = str(response.status)
                return response.status, json.loads(text) if text else {}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or "no answer in time"
            raise BrokerApiError(f"{method} {url}: {reason}") from error
        except ValueError as error:
            result = "malformed"
            raise BrokerApiError(f"{method} {url}: the answer is no JSON: {error}") from error
        finally:
            self._metrics.broker_requests_total.labels(method, result).inc()


def http_url(pod: Manifest) -> str | None:
    """The base URL of a broker pod's HTTP API; None while the pod has no address."""
    address = (pod.get("status") or {}).get("podIP")
    if not address:
        return None
    host = f"[{address}]" if ":" in address else address
    for container in pod["spec"].get("containers") or []:
        for port in container.get("ports") or []:
            if port.get("name") == "http":
                return f"http://{host}:{port['containerPort']}"
    return f"http://{host}:{_HTTP_PORT}"


def _topic_url(url: str, topic: str) -> str:
    return f"{url}/api/v1/topics/{quote(topic, safe='')}"


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    text = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        text += chunk
        if len(text) > _MOST_BYTES:
            raise aiohttp.ClientPayloadError(f"the answer has more than {_MOST_BYTES} bytes")
    return bytes(text)


def _checked(method: str, status: int, document: Any) -> Manifest:
    said = document.get("error") if isinstance(document, dict) else None
    if 400 <= status < 500:
        raise BrokerRefusedError(str(said or f"{method} was refused with HTTP {status}"))
    if status >= 300 or not isinstance(document, dict):
        raise BrokerApiError(f"{method} was answered with HTTP {status}: {said or 'no reason'}")
    return document


def _values(document: Manifest) -> dict[str, str]:
    values = document.get("values")
    if not isinstance(values, dict):
        raise BrokerApiError("the broker's configuration has no member `values`")
    return {str(key): str(value) for key, value in values.items()}
