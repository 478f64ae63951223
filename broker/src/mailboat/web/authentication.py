"""Who sends an HTTP request: whoever has a bearer token, or a user with access key and secret key.

    Bearer TOKEN                        may do everything, as a Super user
    Bearer TOKEN                        of Kubernetes (httpTokenReview): the user of that name
    Basic base64(accessKey:secretKey)   the user that remoting requests are signed by
    none, but a client's certificate    the user that it names (tls.server.clientIdentity)

Nobody else learns why a request was refused: an unknown user, a wrong secret, a disabled user and a
wrong token are answered alike. Whoever fails as one user many times is not looked at as that user
for a while, as over remoting. A valid token always counts: it is too long to be guessed, and
strangers behind the same address must not shut its owner out. Of one of Kubernetes that holds once
it was seen to be valid; until then its owner may be told to come again, never that it is wrong.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from aiohttp import web

from mailboat.security.guard import BackOff
from mailboat.security.rules import NO_RULES
from mailboat.security.users import User, UserDirectory
from mailboat.web.token_review import TokenReviewer, unavailable
from mailboat.web.tokens import BearerTokens

_COMPLAINT_INTERVAL_S: Final = 60.0
_IPV6_NETWORK: Final = 64  # What one subscriber has.
_TEXT: Final = (
    "this needs a valid bearer token, or a user with its secret; after many failures nothing is "
    "taken for a second"
)

_log = logging.getLogger(__name__)

CertifiedName: TypeAlias = Callable[[asyncio.BaseTransport | None], str]
"""Says which user the certificate at the other end of a connection names, "" for none."""

TOKEN_HOLDER: Final = User("<bearer token>", (), NO_RULES, is_super=True)
"""Whoever has a token."""

_ANY_TOKEN: Final = ""
"""Stands for no user among those who have failed: bearers of tokens that are nobody's."""

_NOBODY: Final = User("", (b"\x00",), NO_RULES)
"""Stands in for an unknown user, so that the answer takes as long."""


class Authentication:
    """Finds out who sends a request; for a locked HTTP port only."""

    def __init__(
        self,
        tokens: BearerTokens,
        users: Callable[[], UserDirectory | None],
        reviewer: TokenReviewer | None = None,
        *,
        certified_name: CertifiedName = lambda _: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take tokens, and users of the directory that there is at the time.

        Tokens that are unknown are shown to the reviewer, where there is one. Who shows no
        credentials may have shown a certificate before, which `certified_name` reads.
        """
        self._certified_name = certified_name
        self._tokens = tokens
        self._reviewer = reviewer
        self._users = users
        self._back_off = BackOff(clock)
        self._clock = clock
        self._complained_s = -_COMPLAINT_INTERVAL_S
        self._suppressed = 0

    async def caller(self, request: web.Request) -> User:
        """Return who sends a request.

        Raises:
            HTTPUnauthorized: it does not say so, or not truly.
            HTTPServiceUnavailable: nobody can say now whose token it is.
        """
        given = request.headers.getall("Authorization", [])
        if len(given) == 1:
            scheme, _, credentials = given[0].partition(" ")
            credentials = credentials.strip()
            if scheme.lower() == "bearer":
                if self._tokens.accept(credentials.encode("utf-8", "surrogateescape")):
                    return TOKEN_HOLDER
                user = await self._reviewed(source_ip(request), credentials)
                if user is not None:
                    return user
            elif scheme.lower() == "basic":
                user = self._user(source_ip(request), credentials)
                if user is not None:
                    return user
        if given:
            self._complain(source_ip(request))
        else:
            user = self._certified(request)
            if user is not None:
                return user
        raise web.HTTPUnauthorized(text=_TEXT, headers={"WWW-Authenticate": "Bearer"})

    def _certified(self, request: web.Request) -> User | None:
        """Return the user whose certificate the peer has shown."""
        name, users = self._certified_name(request.transport), self._users()
        user = users.get(name) if name and users is not None else None
        return user if user is not None and user.is_enabled else None

    async def _reviewed(self, address: str, token: str) -> User | None:
        """Return the user whose token of Kubernetes that is, None where it is nobody's.

        Raises:
            HTTPServiceUnavailable: nobody can say that now.
        """
        reviewer, network = self._reviewer, _network(address)
        if reviewer is None or not reviewer.may_be_one(token):
            return None
        name = reviewer.known(token)
        if name is None:
            # Whose token was good before is no guesser, whatever others behind that address send.
            if not reviewer.was_known(token) and self._back_off.is_paused(network, _ANY_TOKEN):
                raise unavailable("many from this address are nobody's")
            name = await reviewer.review(token, network)
            if name is None:
                self._back_off.failed(network, _ANY_TOKEN)
                return None
            self._back_off.succeeded(network, _ANY_TOKEN)
        users = self._users()
        user = None if users is None else users.get(name)
        return user if user is not None and user.is_enabled else None

    def _user(self, address: str, credentials: str) -> User | None:
        pair = _decode_basic(credentials)
        users = self._users()
        if pair is None or users is None:
            return None
        user = users.get(pair.access_key)
        if user is None:
            _has_secret(_NOBODY, pair.secret_key)
            return None
        network = _network(address)
        if self._back_off.is_paused(network, user.name):
            return None
        if not _has_secret(user, pair.secret_key) or not user.is_enabled:
            self._back_off.failed(network, user.name)
            return None
        self._back_off.succeeded(network, user.name)
        return user

    def _complain(self, address: str) -> None:
        """Log that credentials were refused, at most one line in a minute."""
        now_s = self._clock()
        if now_s - self._complained_s < _COMPLAINT_INTERVAL_S:
            self._suppressed += 1
            return
        _log.warning("http credentials refused address=%s suppressed=%d", address, self._suppressed)
        self._complained_s, self._suppressed = now_s, 0


class _Pair(NamedTuple):
    access_key: str
    secret_key: bytes


def _decode_basic(credentials: str) -> _Pair | None:
    try:
        text = base64.b64decode(credentials, validate=True)
        access_key, colon, secret_key = text.partition(b":")
        return _Pair(access_key.decode(), secret_key) if colon else None
    except (binascii.Error, ValueError):
        return None


def _has_secret(user: User, secret: bytes) -> bool:
    digest, has_it = hashlib.sha256(secret).digest(), False
    for own in user.secrets:
        is_same = hmac.compare_digest(digest, hashlib.sha256(own).digest())
        has_it |= is_same and own != b""
    return has_it


def source_ip(request: web.Request) -> str:
    """Return the address that a request came from, as rules have it; "" once it is gone."""
    address = (request.remote or "").partition("%")[0]
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def _network(address: str) -> str:
    """Return what one peer may have many addresses of."""
    if ":" not in address:
        return address
    packed = ipaddress.IPv6Address(address).packed
    return str(ipaddress.IPv6Network((packed, _IPV6_NETWORK), strict=False))
