"""What no HTTP request may be and every answer says, whoever asks.

Browsers are kept out, as this is no site of theirs: a page that somebody has open must not reach a
broker on the same machine, or one that only this machine reaches. No answer carries CORS headers.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from mailboat.config import Settings
from mailboat.http_connections import Handler

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SAME_SITE: Final = frozenset({"same-origin", "none"})


@web.middleware
async def say_how_to_treat(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Tell that an answer is what its type says, and that those of the API are not for keeping."""
    answer = await handler(request)
    answer.headers["X-Content-Type-Options"] = "nosniff"
    if request.path.startswith("/api/"):
        answer.headers["Cache-Control"] = "no-store"
    return answer


class RequestChecks:
    """Refuses requests that nobody sends who means well."""

    def __init__(self, settings: Settings) -> None:
        """Check requests to the address that one process is bound to."""
        is_namesrv = settings.role == "namesrv"
        bound = settings.namesrv.bind_address if is_namesrv else settings.broker.bind_address
        self._is_local = _is_loopback(bound)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through, or raise what refuses it."""
        for coding in request.headers.getall("Content-Encoding", []):
            if coding.strip().lower() not in ("", "identity"):
                raise web.HTTPUnsupportedMediaType(
                    text="a body with a Content-Encoding is not taken; send it as it is"
                )
        host = request.headers.get("Host", "localhost")
        if self._is_local and not _is_of_this_machine(host):
            # A name that leads here may belong to whoever made the page that asks (DNS rebinding).
            raise web.HTTPForbidden(
                text="this port serves this machine only: ask it as localhost or by its address"
            )
        if request.method not in _READS and _is_of_other_site(request):
            raise web.HTTPForbidden(text="a page of another site may change nothing here")
        return await handler(request)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_of_this_machine(host: str) -> bool:
    """Tell whether a Host is what no stranger can make lead here: an address, or localhost."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _is_of_other_site(request: web.Request) -> bool:
    if request.headers.get("Sec-Fetch-Site", "none") not in _SAME_SITE:
        return True
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("Host")
