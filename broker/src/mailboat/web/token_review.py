"""Whose a token of Kubernetes is: the API server says so (TokenReview).

    POST /apis/authentication.k8s.io/v1/tokenreviews
    {"spec": {"token": "…", "audiences": ["mailboat"]}}
    {"status": {"authenticated": true, "user": {"username": "…"}, "audiences": ["mailboat"]}}

A ServiceAccount `system:serviceaccount:shop:dashboard` is the user `system.serviceaccount.shop.
dashboard`: names of users have no colons. Nobody else who has a token of Kubernetes is a user: what
others are called there is for others to choose, and may be the name of a user here.

A token is good only for the audience that it was made for: one that was made for the API server, or
for somebody else, would let whoever it was shown to act in its owner's name here.

What was said of a token is remembered for a minute at most, and no longer than the token is valid
by its own word; that it is nobody's, for some seconds. Each token is asked about once at a time,
and few are at a time, so that strangers do not have this server flood the API server. Nor do they
shut out who has been named before: such a token is asked about again whatever they send, has
places of its own for that, and is not pushed out of the table by theirs.

Source: kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-review-v1
"""

import asyncio
import base64
import hashlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar

import aiohttp
import msgspec
from aiohttp import web

from mailboat.errors import ConfigError, MailboatError
from mailboat.security.api_server import ApiServer

KNOWN_S: Final = 60.0
"""How long what was said of a valid token counts."""

NOBODYS_S: Final = 5.0
"""How long it counts that a token is nobody's."""

REVIEWS_MAX: Final = 8
"""Tokens that are asked about at a time, of those that were somebody's before and of others."""

REVIEWS_OF_ONE_MAX: Final = 4
"""Of the others, those that come from one network."""

_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_TIMEOUT_S: Final = 5.0
_TABLE_MAX: Final = 1_024
_TOKEN_MAX: Final = 8_192
# Header, payload and signature of a JSON Web Token (RFC 7515), which service accounts have.
_TOKEN: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
# A namespace has no dot, so that no two of them become one user.
_SERVICE_ACCOUNT: Final = re.compile(r"system:serviceaccount:[a-z0-9-]+:[a-z0-9.-]+", re.ASCII)
_COMPLAINT_INTERVAL_S: Final = 60.0
# Stands for the network of those that were somebody's before.
_NAMED_BEFORE: Final = None

_log = logging.getLogger(__name__)


class ReviewError(MailboatError):
    """It cannot be said now whose a token is."""

    retriable = True


class _User(msgspec.Struct):
    username: str = ""


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] = []


class _Review(msgspec.Struct):
    status: _Status


class _Claims(msgspec.Struct):
    exp: float


class _Known(NamedTuple):
    name: str
    until_s: float


class _Asked(NamedTuple):
    task: asyncio.Task[str | None]
    network: str | None


_T = TypeVar("_T")

_review: Final = msgspec.json.Decoder(_Review)
_claims: Final = msgspec.json.Decoder(_Claims)


class TokenReviewer:
    """Asks the API server whose tokens are."""

    def __init__(
        self, folder: str, audience: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare; the folder has what this process shows to the API server, see `ApiServer`."""
        self._folder = folder
        self._audience = audience
        self._clock = clock
        self._api: ApiServer | None = None
        # By digest: a table of tokens would be worth stealing.
        self._named: OrderedDict[bytes, _Known] = OrderedDict()
        self._nobodys_until_s: OrderedDict[bytes, float] = OrderedDict()
        self._under_way: dict[bytes, _Asked] = {}
        self._complained_s = -_COMPLAINT_INTERVAL_S

    async def start(self) -> None:
        """Read the folder.

        Raises:
            ConfigError: it lacks something, or this is no pod of a cluster.
        """
        self._api = await asyncio.to_thread(ApiServer, self._folder, _TIMEOUT_S, "httpTokenReview")

    async def close(self) -> None:
        """End what is asked, and the connections."""
        tasks = [asked.task for asked in self._under_way.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._api is not None:
            await self._api.close()

    def may_be_one(self, token: str) -> bool:
        """Tell whether a text has the form of such a token."""
        return len(token) <= _TOKEN_MAX and _TOKEN.fullmatch(token) is not None

    def known(self, token: str) -> str | None:
        """Return the name of whose a token is, as far as that is known now."""
        found = self._named.get(_digest(token))
        return found.name if found is not None and found.until_s > self._clock() else None

    def was_known(self, token: str) -> bool:
        """Tell whether a token was somebody's when it was last asked about."""
        return _digest(token) in self._named

    async def review(self, token: str, network: str) -> str | None:
        """Return the name of whose a token is, None where it is nobody's here.

        `network` is where it comes from.

        Raises:
            HTTPServiceUnavailable: that cannot be said now.
        """
        name, digest = self.known(token), _digest(token)
        if name is not None or self._nobodys_until_s.get(digest, 0.0) > self._clock():
            return name
        asked = self._under_way.get(digest)
        if asked is None:
            asked = self._begin(token, _NAMED_BEFORE if digest in self._named else network)
        try:
            # Whoever asked first may go away; the others still want to know.
            return await asyncio.shield(asked.task)
        except ReviewError as error:
            # Each of them gets an answer of his own: one is written once.
            raise unavailable(str(error)) from error

    def _begin(self, token: str, network: str | None) -> _Asked:
        networks = [asked.network for asked in self._under_way.values()]
        of_same, named_before = networks.count(network), networks.count(_NAMED_BEFORE)
        if network is _NAMED_BEFORE:
            has_place = named_before < REVIEWS_MAX
        else:
            has_place = of_same < REVIEWS_OF_ONE_MAX and len(networks) - named_before < REVIEWS_MAX
        if not has_place:
            raise unavailable("too many tokens are being looked at")
        digest = _digest(token)
        asked = _Asked(asyncio.get_running_loop().create_task(self._ask(token)), network)
        self._under_way[digest] = asked
        asked.task.add_done_callback(lambda _: self._under_way.pop(digest, None))
        return asked

    async def _ask(self, token: str) -> str | None:
        name, digest = await self._name_of(token), _digest(token)
        self._named.pop(digest, None)
        self._nobodys_until_s.pop(digest, None)
        if name is None:
            _put(self._nobodys_until_s, digest, self._clock() + NOBODYS_S)
        else:
            known = _Known(name, self._clock() + min(KNOWN_S, _left_s(token)))
            _put(self._named, digest, known)
        return name

    async def _name_of(self, token: str) -> str | None:
        assert self._api is not None
        spec = {"token": token, "audiences": [self._audience]}
        manifest: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": spec,
        }
        try:
            status, data = await self._api.ask("POST", _PATH, manifest)
            if status not in (HTTPStatus.OK, HTTPStatus.CREATED):
                raise ValueError(f"it answered {status}")
            said = _review.decode(data).status
        except TimeoutError as error:
            raise self._complain(f"there was no answer within {_TIMEOUT_S:g} s") from error
        except (
            aiohttp.ClientError,
            OSError,
            ConfigError,
            ValueError,
            msgspec.DecodeError,
            RecursionError,
        ) as error:
            raise self._complain(str(error)) from error
        if not said.authenticated or self._audience not in said.audiences:
            return None
        found = _SERVICE_ACCOUNT.fullmatch(said.user.username)
        return None if found is None else said.user.username.replace(":", ".")

    def _complain(self, reason: str) -> "ReviewError":
        """Log why a token cannot be reviewed, at most one line in a minute."""
        now_s = self._clock()
        if now_s - self._complained_s >= _COMPLAINT_INTERVAL_S:
            self._complained_s = now_s
            _log.warning(
                "tokens cannot be reviewed: the API server: %s; the pod's ServiceAccount needs the "
                "ClusterRole system:auth-delegator",
                reason,
            )
        return ReviewError("the API server does not say whose the token is")


def unavailable(reason: str) -> web.HTTPServiceUnavailable:
    """Return the answer to a token of which nothing can be said now."""
    return web.HTTPServiceUnavailable(
        text=f"the token cannot be looked at now: {reason}; try again", headers={"Retry-After": "1"}
    )


def _put(table: OrderedDict[bytes, _T], digest: bytes, value: _T) -> None:
    if len(table) >= _TABLE_MAX:
        table.popitem(last=False)
    table[digest] = value


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _left_s(token: str) -> float:
    """Return for how long a token is valid by its own word; what it says was checked by others."""
    payload = token.split(".")[1]
    try:
        claims = _claims.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, RecursionError):  # msgspec.DecodeError is a ValueError.
        return KNOWN_S
    return max(claims.exp - time.time(), 0.0)
