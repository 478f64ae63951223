"""The HTTP API of a broker as the operator uses it: short timeouts, bounded answers.

Who answers at a pod's address is checked: it may have another owner by now.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from mailboat.errors import MailboatError
from mailboat_operator.broker_answers import (
    read_broker,
    read_declared,
    read_made,
    read_replica,
    read_retention,
    read_topic,
    read_user,
)
from mailboat_operator.broker_token import BrokerToken, BrokerTokenError
from mailboat_operator.identity import Expected
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.snapshot import Manifest
from mailboat_operator.pod_access import OPEN, Access, NoAccessError, has_ended, is_https

_MOST_BYTES = 4 << 20
_LONGEST_WORDS = 1000
_PAGE = 1000
_LARGE_AT_ONCE = 4
"""So many answers that may be megabytes are read at once."""

_HTTP_PORT = 8080
_HANDOVER_S = 20.0
"""So long a leader may take to let another replica lead."""


class BrokerApiError(MailboatError):
    """A broker did not answer, or not as agreed."""

    retriable = True


class StrangerError(BrokerApiError):
    """Another broker answers at the address; `name` is its name."""

    def __init__(self, name: str, expected: str) -> None:
        """Say who answers, and who should."""
        super().__init__(f"broker {name} answers where {expected} should be")
        self.name = name


class ChangedError(MailboatError):
    """What was to be changed is another one by now; look again."""

    retriable = True


class BrokerRefusedError(MailboatError):
    """A broker understood the call and refused it; the text says why."""


class BrokerApi:
    """Calls brokers by the base URL of their HTTP API."""

    def __init__(
        self,
        metrics: OperatorMetrics,
        *,
        token_file: str = "",
        timeout_s: float = 5.0,
        access: Callable[[str], Awaitable[Access]] | None = None,
    ) -> None:
        """The session is opened by the first call.

        `access` says what a URL's broker wants to see, without it all are open; to those that name
        no token themselves that of a file is shown, if any.
        """
        self._access = access
        self._metrics = metrics
        self._token = BrokerToken(token_file)
        self._timeout_s = timeout_s
        self._connect_timeout_s = min(2.0, timeout_s)
        self._session: aiohttp.ClientSession | None = None
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def broker(self, url: str, expected: Expected | None = None) -> Manifest:
        """GET /api/v1/broker, of this broker if one is expected.

        Raises:
            StrangerError: another one answered.
        """
        document = await self._document("GET", f"{url}/api/v1/broker", decode=read_broker)
        name = document.get("broker_name")
        if expected is None or name is None:
            return document
        if name != expected.name:
            raise StrangerError(str(name), expected.name)
        address = document.get("address") or ""
        if expected.is_anothers(address):
            raise StrangerError(f"{name} at {address}", expected.name)
        return document

    async def replica(self, url: str) -> Manifest | None:
        """GET /api/v1/replica; None if the broker is none, or knows nothing of replicas."""
        status, document = await self._call("GET", f"{url}/api/v1/replica", decode=read_replica)
        return None if status in (404, 409) else _checked("GET", status, document)

    async def hand_over(self, url: str, ordinal: int, *, within_s: float = math.inf) -> None:
        """POST /api/v1/replica/handover: let another replica lead; ends once it does."""
        url = f"{url}/api/v1/replica/handover"
        await self._document("POST", url, {"to": ordinal}, extra_s=_HANDOVER_S, within_s=within_s)

    async def startup(self, url: str) -> Manifest:
        """GET /startupz: how far the start is; 503 as long as it is not finished."""
        status, document = await self._call("GET", f"{url}/startupz")
        return _checked("GET", 200 if status == 503 else status, document)

    async def config(self, url: str) -> dict[str, str]:
        """The effective values of GET /api/v1/config."""
        return _values(await self._document("GET", f"{url}/api/v1/config"))

    async def retention(self, url: str) -> Manifest:
        """GET /api/v1/retention: what is planned with, its segments added up."""
        async with self._large:
            return await self._document("GET", f"{url}/api/v1/retention", decode=read_retention)

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

    async def patch_config(
        self, url: str, values: Mapping[str, str], *, within_s: float = math.inf
    ) -> dict[str, str]:
        """Change live settings, all or none; returns the effective values.

        Of this and the other changes: `within_s` is for how long the caller may still write.
        """
        return _values(
            await self._document("PATCH", f"{url}/api/v1/config", dict(values), within_s=within_s)
        )

    async def topic(self, url: str, topic: str) -> Manifest | None:
        """GET /api/v1/topics/{topic}; None if the broker does not know it."""
        status, document = await self._call("GET", _topic_url(url, topic), decode=read_topic)
        return None if status == 404 else _checked("GET", status, document)

    async def put_topic(
        self,
        url: str,
        topic: str,
        *,
        read_queue_nums: int,
        write_queue_nums: int,
        perm: int,
        within_s: float = math.inf,
    ) -> None:
        """Make the topic, or change it."""
        body = {
            "read_queue_nums": read_queue_nums,
            "write_queue_nums": write_queue_nums,
            "perm": perm,
        }
        await self._document("PUT", _topic_url(url, topic), body, within_s=within_s)

    async def delete_topic(
        self, url: str, topic: str, *, incarnation: str | None = None, within_s: float = math.inf
    ) -> None:
        """Remove the topic; one that is not there is removed already.

        With an incarnation only that one goes: not a topic of its name that was made since.

        Raises:
            ChangedError: it is another one by now; nothing was removed.
        """
        headers = {} if incarnation is None else {"If-Match": f'"{incarnation}"'}
        status, document = await self._call(
            "DELETE", _topic_url(url, topic), headers=headers, within_s=within_s
        )
        if status == 412:
            raise ChangedError(f"topic {topic} at {url} was made anew since it was looked at")
        if status != 404:
            _checked("DELETE", status, document)

    async def user_revision(self, url: str, access_key: str) -> str | None:
        """GET /api/v1/users/{user}: the state of the user that counts; None: there is none."""
        status, document = await self._call(
            "GET", f"{url}/api/v1/users/{quote(access_key, safe='')}", decode=read_user
        )
        if status == 404:
            return None
        return str(_checked("GET", status, document)["revision"])

    async def declared(self, url: str, kind: str, after: str) -> Manifest:
        """A page of GET /api/v1/declarations/topics or groups, behind a name."""
        query = f"limit={_PAGE}&after={quote(after, safe='')}"
        status, document = await self._call(
            "GET", f"{url}/api/v1/declarations/{kind}?{query}", decode=read_declared
        )
        page = _checked("GET", _known(status), document)
        following = page.get("next")
        if page.get(kind) is None or (following is not None and following <= after):
            raise BrokerApiError(f"{url}: the answer is no page of {kind} behind {after!r}")
        return page

    async def declare(self, url: str, body: Manifest, *, within_s: float = math.inf) -> Manifest:
        """POST /api/v1/declarations: make what is not there; says how many that were."""
        status, document = await self._call(
            "POST", f"{url}/api/v1/declarations", body, within_s=within_s, decode=read_made
        )
        return _checked("POST", _known(status), document)

    async def _document(
        self,
        method: str,
        url: str,
        body: Any = None,
        *,
        extra_s: float = 0,
        within_s: float = math.inf,
        decode: Callable[[bytes], Any] = msgspec.json.decode,
    ) -> Manifest:
        status, document = await self._call(
            method, url, body, extra_s=extra_s, within_s=within_s, decode=decode
        )
        return _checked(method, status, document)

    async def _call(
        self,
        method: str,
        url: str,
        body: Any = None,
        *,
        extra_s: float = 0,
        within_s: float = math.inf,
        headers: Mapping[str, str] | None = None,
        decode: Callable[[bytes], Any] = msgspec.json.decode,
    ) -> tuple[int, Any]:
        """Call a broker; `extra_s` is how long it may wait before it answers, `decode` reads what
        it answers with 200."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                trust_env=False, connector=aiohttp.TCPConnector(limit=0)
            )
        timeout = aiohttp.ClientTimeout(
            total=min(self._timeout_s + extra_s, within_s), sock_connect=self._connect_timeout_s
        )
        result = "failed"
        try:
            access = OPEN if self._access is None else await self._access(url)
            shown = {**await self._token.headers(), **access.headers, **(headers or {})}
            async with self._session.request(
                method,
                url,
                json=body,
                headers=shown,
                timeout=timeout,
                allow_redirects=False,
                ssl=access.context or True,
                server_hostname=access.server_name,
            ) as response:
                text = await _bounded(response)
                result = str(response.status)
                read = decode if response.status == 200 else msgspec.json.decode
                return response.status, read(text) if text else {}
        except NoAccessError as error:
            raise BrokerApiError(f"{method} {url}: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError, BrokerTokenError) as error:
            reason = str(error) or "no answer in time"
            raise BrokerApiError(f"{method} {url}: {reason}") from error
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            result = "malformed"
            raise BrokerApiError(f"{method} {url}: the answer is not as agreed: {error}") from error
        finally:
            self._metrics.broker_requests_total.labels(method, result).inc()


def http_url(pod: Manifest) -> str | None:
    """The base URL of a broker pod's HTTP API; None while the pod has no address, or no more."""
    address = (pod.get("status") or {}).get("podIP")
    if not address or has_ended(pod):
        return None
    host = f"[{address}]" if ":" in address else address
    scheme = "https" if is_https(pod) else "http"
    for container in pod["spec"].get("containers") or []:
        for port in container.get("ports") or []:
            if port.get("name") == "http":
                return f"{scheme}://{host}:{port['containerPort']}"
    return f"{scheme}://{host}:{_HTTP_PORT}"


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
    if 400 <= status < 500 and status != 401:  # A token may be new on one side only as yet.
        raise BrokerRefusedError(_words(said) or f"{method} was refused with HTTP {status}")
    if status >= 300 or not isinstance(document, dict):
        raise BrokerApiError(
            f"{method} was answered with HTTP {status}: {_words(said) or 'no reason'}"
        )
    return document


def _words(said: object) -> str:
    """Cut what a broker says to what a status has room for."""
    return str(said)[:_LONGEST_WORDS] if said else ""


def _known(status: int) -> int:
    """A broker of an older version does not know the path, and refuses nothing by that."""
    return 501 if status == 404 else status


def _values(document: Manifest) -> dict[str, str]:
    values = document.get("values")
    if not isinstance(values, dict):
        raise BrokerApiError("the broker's configuration has no member `values`")
    return {str(key): str(value) for key, value in values.items()}
