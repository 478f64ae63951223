"""Settings of the RocketMQ port: limits for connections and what they may hold.

Source: apache/rocketmq remoting/netty/NettyServerConfig.java @ rocketmq-all-5.3.3. Thread and
buffer keys of Netty have no meaning here and are among the known but unsupported ones.
"""

from dataclasses import dataclass

from mailboat.config.fields import setting


@dataclass(frozen=True, slots=True)
class RemotingConfig:
    """Limits of one listening port."""

    server_channel_max_idle_time_seconds: int = setting(120, minimum=1, maximum=86_400)
    """Seconds without a byte either way after which a connection is closed. Default 120."""

    first_frame_timeout_seconds: int = setting(10, minimum=1, maximum=86_400)
    """Seconds that a new connection has for its first whole request. Default 10. Ours."""

    write_buffer_high_water_mark: int = setting(1_048_576, minimum=65_536, maximum=1_073_741_824)
    """Bytes of answers that may wait for one client that does not read; above it nothing more is
    read from that client. Default 1 MiB (RocketMQ: Netty's own 64 KiB, at which it drops
    answers)."""

    unsent_budget_bytes: int = setting(134_217_728, minimum=33_554_432, maximum=1_099_511_627_776)
    """Bytes kept for all clients together: answers they have not read, requests that have not
    wholly arrived or are being worked on. Above half of it pulls wait; at the limit connections are
    closed, of the address that makes it keep the most first. Default 128 MiB. Ours."""

    write_drain_timeout_seconds: int = setting(10, minimum=1, maximum=3_600)
    """Seconds above that mark after which the client is dropped. Default 10. Ours."""

    max_connections: int = setting(16_384, minimum=1, maximum=1_000_000)
    """Most connections at a time, as far as the process may open files. Default 16384. Ours."""
