"""What one peer may cost: every limit of a connection in one place."""

import resource
from dataclasses import dataclass
from typing import Final

_RESERVED_DESCRIPTORS: Final = (
    256  # the store, the name servers and HTTP need files and sockets too
)


@dataclass(frozen=True, slots=True)
class RemotingLimits:
    """Limits of the connections of one server or client; times are checked once per sweep."""

    first_frame_timeout_s: float = 10.0
    """From accept to the first whole frame."""

    frame_timeout_s: float = 30.0
    """From the first to the last byte of any frame."""

    idle_timeout_s: float = 120.0
    """Without a read and without a write. NettyServerConfig.serverChannelMaxIdleTimeSeconds."""

    write_high_water_bytes: int = 256 * 1024
    """Unsent answers of one connection above which nothing more is read from it."""

    unsent_budget_bytes: int = 128 * 1024 * 1024
    """Unsent answers of all connections together; above it the longest unread ones are dropped."""

    write_drain_timeout_s: float = 10.0
    """How long a peer may leave its answers unread above the high-water mark."""

    max_connections: int = 16_384
    """Connections of one server; the next one is accepted and closed."""

    connect_timeout_s: float = 3.0
    """NettyClientConfig.connectTimeoutMillis."""

    sweep_interval_s: float = 1.0
    """How often the times above are checked."""


def connection_capacity(limits: RemotingLimits) -> int:
    """Return how many connections a server may hold with the process's file descriptor limit.

    Descriptors are left for files: a broker that cannot open its next segment cannot store.
    """
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return limits.max_connections
    spare = max(soft_limit - _RESERVED_DESCRIPTORS, soft_limit // 2)
    return min(limits.max_connections, spare)
