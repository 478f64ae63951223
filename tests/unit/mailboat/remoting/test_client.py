"""Tests of mailboat.remoting.client that need no network."""

import pytest

from mailboat.errors import LocalProtocolError
from mailboat.remoting.client import split_address


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("10.0.0.1:9876", ("10.0.0.1", 9876)),
        ("broker-0.brokers:10911", ("broker-0.brokers", 10911)),
        ("[::1]:65535", ("::1", 65535)),
        ("::1:1", ("::1", 1)),
    ],
)
def test_address_is_host_and_port(address: str, parts: tuple[str, int]) -> None:
    """Names, IPv4 and IPv6 addresses are understood."""
    assert parts == split_address(address)


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":9876", "host:0", "host:65536", "host:x", "host:٣", "[]:1"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    """The sentence shows the text and the form it should have."""
    with pytest.raises(LocalProtocolError, match="HOST:PORT"):
        split_address(address)
