"""Stored socket addresses."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.model.hosts import decode_host, encode_host, format_host


def test_bytes_of_rocketmq() -> None:
    """10.0.0.2:10911 as its records have it, IPv6 as 16 bytes and the same port."""
    assert encode_host("10.0.0.2", 10911) == bytes.fromhex("0a00000200002a9f")
    assert encode_host("::1", 10911) == bytes(15) + bytes.fromhex("0100002a9f")


def test_a_mapped_address_is_ipv4() -> None:
    """A dual-stack socket reports IPv4 peers so; Java's does not."""
    assert encode_host("::ffff:10.0.0.2", 1) == encode_host("10.0.0.2", 1)


def test_a_scope_is_left_out() -> None:
    """fe80::1%eth0 has no place for its interface."""
    assert encode_host("fe80::1%eth0", 1) == encode_host("fe80::1", 1)


@given(st.ip_addresses(), st.integers(0, 65535))
def test_round_trip(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    """Any address and port come back; a mapped one as IPv4."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    assert decode_host(encode_host(str(address), port)) == (str(mapped or address), port)


@given(st.binary(max_size=30))
def test_any_bytes_are_an_address_or_a_documented_error(data: bytes) -> None:
    """Only 8 and 20 bytes are addresses."""
    if len(data) in (8, 20):
        assert ipaddress.ip_address(decode_host(data)[0]).packed == data[:-4]
    else:
        with pytest.raises(ValueError, match="8 or 20 bytes"):
            decode_host(data)


def test_a_name_is_refused() -> None:
    """Only digits are stored."""
    with pytest.raises(ValueError, match="localhost"):
        encode_host("localhost", 1)


def test_format() -> None:
    """IPv6 stands in brackets."""
    assert format_host(encode_host("10.0.0.2", 10911)) == "10.0.0.2:10911"
    assert format_host(encode_host("::1", 10911)) == "[::1]:10911"
