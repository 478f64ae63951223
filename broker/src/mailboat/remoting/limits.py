"""What one peer may cost: every limit of a connection in one place."""

from dataclasses import dataclass
from typing import Final, Self

from mailboat.config import RemotingConfig
from mailboat.disk.descriptors import descriptor_limit

# The store and the name servers need files and sockets too; HTTP has its own count.
_RESERVED_DESCRIPTORS: Final = 512
_MAX_HTTP_CONNECTIONS: Final = 256


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
    """What is kept for all connections together, see `mailboat.remoting.kept_bytes`."""

    max_unanswered: int = 1024
    """Requests of a server that one peer may leave unanswered; the next one is not sent."""

    write_drain_timeout_s: float = 10.0
    """How long a peer may leave its answers unread above the high-water mark."""

    max_connections: int = 16_384
    """Connections of one server; the next one is accepted and closed."""

    connect_timeout_s: float = 3.0
    """NettyClientConfig.connectTimeoutMillis."""

    tls_handshake_timeout_s: float = 10.0
    """From accept to the end of the TLS handshake, where one is asked for or begun."""

    sweep_interval_s: float = 1.0
    """How often the times above are checked."""

    @classmethod
    def from_config(cls, config: RemotingConfig) -> Self:
        """Return the limits that the configuration asks for."""
        return cls(
            first_frame_timeout_s=config.first_frame_timeout_seconds,
            idle_timeout_s=config.server_channel_max_idle_time_seconds,
            write_high_water_bytes=config.write_buffer_high_water_mark,
            unsent_budget_bytes=config.unsent_budget_bytes,
            write_drain_timeout_s=config.write_drain_timeout_seconds,
            max_connections=config.max_connections,
        )


def connection_capacity(limits: RemotingLimits) -> int:
    """Return how many connections a server may hold with the process's file descriptor limit.

    Descriptors are left for files: a broker that cannot open its next segment cannot store.
    """
    soft_limit = descriptor_limit()
    if soft_limit is None:
        return limits.max_connections
    spare = max(soft_limit - _RESERVED_DESCRIPTORS, soft_limit // 2)
    return min(limits.max_connections, spare - http_connection_capacity())


def http_connection_capacity() -> int:
    """Return how many HTTP connections a process may hold beside those of the RocketMQ port."""
    soft_limit = descriptor_limit()
    if soft_limit is None:
        return _MAX_HTTP_CONNECTIONS
    return min(_MAX_HTTP_CONNECTIONS, soft_limit // 8)
