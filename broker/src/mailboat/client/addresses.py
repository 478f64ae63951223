"""Addresses of name servers, and who this client is.

Source: apache/rocketmq client/ClientConfig.java (buildMQClientId, changeInstanceNameToPID).
"""

import asyncio
import os
import socket
import time
from typing import Final

from mailboat.config.fields import is_port
from mailboat.errors import ConfigError
from mailboat.model.hosts import encode_host, format_host

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"


def parse_namesrv(text: str) -> list[str]:
    """Return the addresses of a list such as `host:9876;other:9876`.

    Raises:
        ConfigError: the list is empty or an entry is not `HOST:PORT`.
    """
    addresses = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    if not addresses:
        raise ConfigError("namesrv", text, "name at least one name server as HOST:PORT")
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not is_port(port):
            raise ConfigError("namesrv", text, f"{address!r} is not HOST:PORT")
    return addresses


async def resolved(address: str) -> set[str]:
    """Return an address, "host:port", and those for which the name of its host stands here.

    Routes may name a broker by a host name; its records hold an IP address.
    """
    host, _, port = address.rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        )
    except (OSError, ValueError):
        return {address}
    hosts = (str(sockaddr[0]) for *_, sockaddr in found)
    return {address, *(format_host(encode_host(ip, int(port))) for ip in hosts)}


def local_ip(peer: str) -> str:
    """Return the address this machine would use to reach `peer` (`host:port`); nothing is sent."""
    host, _, port = peer.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, int(port)))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def make_client_id(ip: str) -> str:
    """Return an id that no other client has: `ip@pid#nanoseconds`."""
    return f"{ip}@{os.getpid()}#{time.monotonic_ns()}"
