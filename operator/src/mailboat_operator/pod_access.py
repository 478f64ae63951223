"""How the operator gets in at a broker's HTTP port: what its pod says it takes.

A pod that is asked by HTTPS speaks TLS there, and one that mounts a token wants to see it. Both are
read by name from the Secrets that the pod mounts, so that pods of before a change are asked as they
want it until they are replaced. Nothing of a Secret is logged or kept longer than it is fresh.

The certificate has to be of the authority that the Secret names, and of the pod's name in its
headless Service: the token goes to nobody else.
"""

import base64
import binascii
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from mailboat.errors import MailboatError
from mailboat_operator.cache import ObjectCache
from mailboat_operator.kinds import POD, SECRET, Kind
from mailboat_operator.planner.snapshot import Manifest
from mailboat_operator.resources.security import (
    AUTHORITY,
    HTTP_VOLUME,
    TLS_VOLUME,
    TOKEN,
)

FRESH_S: Final = 30.0
"""So long a value of a Secret is used before it is read again."""

_KEPT: Final = 1024
"""Values of Secrets that are kept at a time."""

Get = Callable[[Kind, str, str], Awaitable[Manifest]]
"""Reads one object by kind, namespace and name."""


class NoAccessError(MailboatError):
    """A Secret that a broker's pod mounts cannot be read, or lacks what is needed."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Access:
    """What a request to one broker needs."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    context: ssl.SSLContext | None = None
    server_name: str | None = None


OPEN: Final = Access()


class PodAccess:
    """Knows by a URL which pod is asked, and how."""

    def __init__(
        self, get: Get, cache: ObjectCache, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`get` reads a Secret, `cache` knows the pods."""
        self._get = get
        self._cache = cache
        self._monotonic = monotonic
        self._values: OrderedDict[tuple[str, str, str], tuple[float, bytes]] = OrderedDict()
        self._contexts: OrderedDict[bytes, ssl.SSLContext] = OrderedDict()

    async def of(self, url: str) -> Access:
        """Return what a request to a URL needs.

        Raises:
            NoAccessError: it needs something that a Secret does not say.
        """
        pod = self._pod(urlsplit(url).hostname or "")
        if pod is None:
            return OPEN
        namespace = pod["metadata"]["namespace"]
        token_secret, tls_secret = _secret_of(pod, HTTP_VOLUME), _secret_of(pod, TLS_VOLUME)
        headers = {}
        if token_secret is not None:
            token = _first_line(await self._value(namespace, token_secret, TOKEN))
            if not token:
                raise NoAccessError(f"Secret {namespace}/{token_secret} has no token in its key")
            headers["Authorization"] = f"Bearer {token}"
        if tls_secret is None or not is_https(pod):
            return Access(headers)
        authority = await self._value(namespace, tls_secret, AUTHORITY)
        try:
            context = self._context(authority)
        except ssl.SSLError as error:
            raise NoAccessError(
                f"{AUTHORITY} of Secret {namespace}/{tls_secret} holds no certificate"
            ) from error
        return Access(headers, context, _name_of(pod))

    def _pod(self, address: str) -> Manifest | None:
        for pod in self._cache.all_of(POD.kind):
            # The address of one that has ended is another pod's by now, maybe a stranger's.
            if (pod.get("status") or {}).get("podIP") == address and not has_ended(pod):
                return pod
        return None

    async def _value(self, namespace: str, secret: str, key: str) -> bytes:
        place, now_s = (namespace, secret, key), self._monotonic()
        known = self._values.get(place)
        if known is not None and now_s - known[0] < FRESH_S:
            return known[1]
        try:
            found = await self._get(SECRET, namespace, secret)
        except MailboatError as error:
            raise NoAccessError(f"Secret {namespace}/{secret} cannot be read: {error}") from error
        value = secret_value(found, key)
        if value is None:
            raise NoAccessError(f"Secret {namespace}/{secret} has no key {key}")
        self._values[place] = (now_s, value)
        self._values.move_to_end(place)
        while len(self._values) > _KEPT:
            self._values.popitem(last=False)
        return value

    def _context(self, authority: bytes) -> ssl.SSLContext:
        known = self._contexts.get(authority)
        if known is None:
            known = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            known.minimum_version = ssl.TLSVersion.TLSv1_2
            # What stands in the Secret is trusted, be it a root or not.
            known.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            known.load_verify_locations(cadata=authority.decode("ascii", "replace"))
            self._contexts[authority] = known
        self._contexts.move_to_end(authority)
        while len(self._contexts) > _KEPT:
            self._contexts.popitem(last=False)
        return known


def has_ended(pod: Manifest) -> bool:
    """Return whether nothing of a pod runs, nor ever will again."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def is_https(pod: Manifest) -> bool:
    """Return whether the kubelet asks a pod by HTTPS, and so everybody does."""
    containers: list[Any] = pod["spec"].get("containers") or [{}]
    probe = containers[0].get("readinessProbe") or {}
    return (probe.get("httpGet") or {}).get("scheme") == "HTTPS"


def secret_value(secret: Manifest, key: str) -> bytes | None:
    """Return a value of a Secret; None if there is none."""
    text = (secret.get("data") or {}).get(key)
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _first_line(content: bytes) -> str:
    lines = (line.strip() for line in content.decode("latin-1").splitlines())
    return next((line for line in lines if line), "")


def _secret_of(pod: Manifest, volume: str) -> str | None:
    for item in pod["spec"].get("volumes") or ():
        if item.get("name") == volume and "secret" in item:
            return str(item["secret"].get("secretName"))
    return None


def _name_of(pod: Manifest) -> str:
    """Return the name of a StatefulSet's pod in its headless Service."""
    metadata, spec = pod["metadata"], pod["spec"]
    host = spec.get("hostname") or metadata["name"]
    return f"{host}.{spec.get('subdomain')}.{metadata['namespace']}.svc"
