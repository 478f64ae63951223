"""Who sends a request: how often one may fail, and from where a request comes."""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from mailboat.security.guard import FREE_FAILURES, PAUSE_MAX_S
from mailboat.security.rules import NO_RULES
from mailboat.security.users import User
from mailboat.testing.virtual_time import VirtualTime
from mailboat.web.authentication import Authentication, source_ip
from mailboat.web.tokens import BearerTokens

TOKEN = "a-token-of-at-least-16"


@dataclass
class Users:
    """A directory."""

    table: dict[str, User]
    revision: int = 0
    on_changed: list[Callable[[], None]] = field(default_factory=list)

    def get(self, access_key: str) -> User | None:
        """Return a user."""
        return self.table.get(access_key)


class Port:
    """Requests from some address, at some time."""

    def __init__(self) -> None:
        """Know two users."""
        self.clock = VirtualTime()
        names = ("alice", "bob")
        users = Users({name: User(name, (b"right",), NO_RULES) for name in names})
        self._authentication = Authentication(
            BearerTokens("", TOKEN), lambda: users, clock=self.clock.monotonic
        )

    def takes(self, name: str, secret: str = "right", address: str = "10.0.0.1") -> bool:
        """Tell whether a user with a secret is taken."""
        pair = base64.b64encode(f"{name}:{secret}".encode()).decode()
        return self.takes_header(f"Basic {pair}", address)

    def takes_header(self, value: str, address: str) -> bool:
        """Tell whether a request with this header is taken."""
        request = make_mocked_request("GET", "/", headers={"Authorization": value})
        try:
            asyncio.run(self._authentication.caller(request.clone(remote=address)))
        except web.HTTPUnauthorized:
            return False
        return True

    def fail(self, name: str, times: int, address: str = "10.0.0.1") -> None:
        """Fail so often."""
        for _ in range(times):
            assert not self.takes(name, "wrong", address)


def test_right_secrets_are_refused_for_a_while_after_many_failures() -> None:
    """Else a guess could go on; a second later the right one counts."""
    port = Port()
    port.fail("alice", FREE_FAILURES)
    assert port.takes("alice")
    port.fail("alice", FREE_FAILURES + 1)
    assert not port.takes("alice")
    port.clock.advance(PAUSE_MAX_S)
    assert port.takes("alice")


def test_others_are_not_shut_out() -> None:
    """Failures count for one user from one address; a token counts always."""
    port = Port()
    port.fail("alice", FREE_FAILURES + 1)
    assert not port.takes("alice")
    assert port.takes("bob")
    assert port.takes("alice", address="10.0.0.2")
    assert port.takes_header(f"Bearer {TOKEN}", "10.0.0.1")


def test_a_network_of_ipv6_is_one_peer_and_ipv4_in_ipv6_is_not() -> None:
    """Somebody with 2**64 addresses has as many tries as anybody else."""
    port = Port()
    port.fail("alice", FREE_FAILURES + 1, "2001:db8::1")
    assert not port.takes("alice", address="2001:db8::ffff:1")
    assert port.takes("alice", address="2001:db8:0:1::1")
    port.fail("bob", FREE_FAILURES + 1, "::ffff:10.0.0.1")
    assert not port.takes("bob", address="10.0.0.1")
    assert port.takes("bob", address="::ffff:10.0.0.2")


def test_what_was_refused_is_logged_once_a_minute_and_without_what_was_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A name from outside could forge a line, and a secret may stand in the place of a name."""
    port = Port()
    port.fail("ali\nce", 1)
    port.fail("alice", 3)
    port.clock.advance(60)
    port.fail("alice", 1)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "http credentials refused address=10.0.0.1 suppressed=0",
        "http credentials refused address=10.0.0.1 suppressed=3",
    ]


@pytest.mark.parametrize(
    ("remote", "told"),
    [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::1")],
)
def test_rules_see_the_plain_address(remote: str, told: str) -> None:
    """As over remoting: IPv4 in IPv6 is IPv4, and there is no zone."""
    assert source_ip(make_mocked_request("GET", "/").clone(remote=remote)) == told
