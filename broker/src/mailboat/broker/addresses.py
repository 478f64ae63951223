"""Which address clients are told to use.

Source: apache/rocketmq common/BrokerConfig.java (brokerIP1) and common/utils/NetworkUtil.java
@ rocketmq-all-5.3.3.
"""

import ipaddress
import socket
from typing import Final

from mailboat.config import BrokerConfig

_LOOPBACK: Final = "127.0.0.1"


def advertised_ip(config: BrokerConfig) -> str:
    """Return the IP address of `brokerIP1`, of a single bind address, or of the way outwards.

    `brokerIP1` may be a host name; stored records hold addresses, so it is resolved once for them.

    Raises:
        OSError: `brokerIP1` or the bind address is a name that does not resolve.
    """
    if config.broker_ip1:
        return _resolve(config.broker_ip1)
    bound = _resolve(config.bind_address)
    return _outward_ip() if ipaddress.ip_address(bound).is_unspecified else bound


def advertised_host(config: BrokerConfig) -> str:
    """Return what stands before the port in routes: `brokerIP1` as it is, else `advertised_ip`.

    A name may stand for another address outside than inside; clients resolve it where they are. An
    IPv6 address is in brackets.

    Raises:
        OSError: as `advertised_ip`.
    """
    host = config.broker_ip1 or advertised_ip(config)
    return in_brackets(host)


def in_brackets(host: str) -> str:
    """Return a host as it stands before a port: an IPv6 address in brackets."""
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host


def replicas_ip(config: BrokerConfig) -> str:
    """Return the IP address of `brokerIP2`, where other replicas connect; else `advertised_ip`.

    Raises:
        OSError: a name does not resolve.
    """
    return _resolve(config.broker_ip2) if config.broker_ip2 else advertised_ip(config)


def _resolve(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        # IPv4 first: several clients cannot read IPv6 hosts in messages.
        return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def _outward_ip() -> str:
    """Return the address of the interface that the default route leaves by."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket only asks the routing table; nothing is sent. The
            # address is one that is reserved for documentation.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return _LOOPBACK
        return str(probe.getsockname()[0])
