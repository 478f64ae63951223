"""Promises of mailboat.broker.addresses."""

import ipaddress

import pytest

from mailboat.broker.addresses import advertised_host, advertised_ip, replicas_ip
from mailboat.config import BrokerConfig


def test_broker_ip1_is_what_clients_are_told() -> None:
    """brokerIP1 wins over everything else."""
    assert advertised_ip(BrokerConfig(broker_ip1="10.9.8.7")) == "10.9.8.7"


def test_replicas_are_told_broker_ip2_or_what_clients_are_told() -> None:
    """brokerIP2 is the address for other replicas only."""
    config = BrokerConfig(broker_ip1="10.9.8.7", broker_ip2="10.9.8.6")
    assert (advertised_ip(config), replicas_ip(config)) == ("10.9.8.7", "10.9.8.6")
    assert replicas_ip(BrokerConfig(broker_ip1="10.9.8.7")) == "10.9.8.7"


def test_a_host_name_is_resolved() -> None:
    """Records hold addresses, so a name becomes one."""
    address = ipaddress.ip_address(advertised_ip(BrokerConfig(broker_ip1="localhost")))
    assert address.is_loopback


@pytest.mark.parametrize(
    ("broker_ip1", "host"),
    [("localhost", "localhost"), ("10.9.8.7", "10.9.8.7"), ("::1", "[::1]"), ("", "127.0.0.1")],
)
def test_routes_name_broker_ip1_as_it_is(broker_ip1: str, host: str) -> None:
    """A client that resolves the name elsewhere may find another address."""
    config = BrokerConfig(broker_ip1=broker_ip1, bind_address="127.0.0.1")
    assert advertised_host(config) == host


def test_a_single_bind_address_is_advertised() -> None:
    """A broker that listens on one address only is reached there."""
    assert advertised_ip(BrokerConfig(bind_address="127.0.0.1")) == "127.0.0.1"


def test_listening_everywhere_advertises_one_address() -> None:
    """With 0.0.0.0 an address of this machine is found, never 0.0.0.0 itself."""
    address = ipaddress.ip_address(advertised_ip(BrokerConfig(bind_address="0.0.0.0")))
    assert not address.is_unspecified


def test_a_name_that_does_not_resolve_is_an_error() -> None:
    """A wrong brokerIP1 is told at the start and not by lost clients."""
    with pytest.raises(OSError, match=r"."):
        advertised_ip(BrokerConfig(broker_ip1="no-such-host.invalid"))
