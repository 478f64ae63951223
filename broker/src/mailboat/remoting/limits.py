"""What one peer may cost: every limit of a connection in one place."""

import resource
from dataclasses import dataclass
from typing import Final, Self

from mailboat.config import RemotingConfig

# The store, the name servers and HTTP need files and sockets too.
_RESERVED_DESCRIPTORS: Final = 512


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

    @classmethod
    def from_config(cls, config: RemotingConfig) -> Self:
        """Return the limits that the configuration asks for."""
        return cls(
            first_frame_timeout_s=config.first_frame_timeout_seconds,
            idle_timeout_s=config.server_channel_max_idle_time_seconds,
            write_high_water_bytes=config.write_buffer_high_water_mark,
            write_drain_timeout_s=config.write_drain_timeout_seconds,
            max_connections=config.max_connections,
        )


def connection_capacity(limits: RemotingLimits) -> int:
    """Return how many connections a server may hold with the process's file descriptor limit.

    Descriptors are left for files: a broker that cannot open its next segment cannot store.
    """
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return limits.max_connections
    spare = max(soft_limit - _RESERVED_DESCRIPTORS, soft_limit // 2)
    return min(limits.max_connections, spare)
