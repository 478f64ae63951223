"""Socket addresses as RocketMQ stores them: the IP bytes, then the port as a 32-bit integer.

    offset  size     field
    0       4 or 16  IPv4 or IPv6 address, network order
    4 or 16 4        port, int32 big-endian

Source: apache/rocketmq common/message/MessageExt.java (getBornHostBytes, getStoreHostBytes).
"""

import ipaddress
from typing import Final

IPV4_HOST_SIZE: Final = 8
IPV6_HOST_SIZE: Final = 20


def encode_host(ip: str, port: int) -> bytes:
    """Return the 8 (IPv4) or 20 (IPv6) bytes of an address.

    An IPv4 address mapped into IPv6 (`::ffff:10.0.0.1`) becomes IPv4, as Java's sockets report it.

    Raises:
        ValueError: `ip` is not an address in digits.
    """
    address = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + port.to_bytes(4, "big")


def decode_host(data: bytes) -> tuple[str, int]:
    """Return (ip, port) of 8 or 20 bytes.

    Raises:
        ValueError: `data` has another length.
    """
    if len(data) not in (IPV4_HOST_SIZE, IPV6_HOST_SIZE):
        raise ValueError(f"a stored host has 8 or 20 bytes, not {len(data)}")
    return str(ipaddress.ip_address(bytes(data[:-4]))), int.from_bytes(data[-4:], "big")


def format_host(data: bytes) -> str:
    """Return `ip:port`, with brackets around an IPv6 address."""
    ip, port = decode_host(data)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
