"""Settings of the name server.

Source: apache/rocketmq common/namesrv/NamesrvConfig.java @ rocketmq-all-5.3.3. In `standalone`,
where a broker shares the process, keys that both have carry a prefix: `namesrvListenPort`.
"""

from dataclasses import dataclass

from mailboat.config.fields import setting
from mailboat.config.listeners import check_namesrv_listeners


@dataclass(frozen=True, slots=True)
class NamesrvConfig:
    """Addresses and periods of one name server."""

    listen_port: int = setting(9_876, minimum=0, maximum=65_535)
    """Port for clients and brokers. Default 9876; 0 takes a free one."""

    bind_address: str = setting("0.0.0.0")
    """Address to listen on. Default 0.0.0.0 (all); `standalone` listens on 127.0.0.1."""

    listeners: str = setting("", check=check_namesrv_listeners)
    """Further ports: a JSON list of name, port, tls and clientAuth. Who asks by one is told the
    addresses of the brokers' listeners of this name, see docs/security.md. Default: none. Ours."""

    http_port: int = setting(8_079, minimum=-1, maximum=65_535)
    """Port of metrics and probes. Default 8079; 0 takes a free one, -1 none. Ours."""

    kv_config_path: str = setting("")
    """File of the key-value table with the order configurations, such as
    /var/lib/mailboat/kvConfig.json; its folder is made. Default: none, the table then lives as long
    as the process; in `standalone` namesrv/kvConfig.json below storePathRootDir. RocketMQ:
    ~/namesrv/kvConfig.json."""

    scan_not_active_broker_interval: int = setting(10_000, minimum=10, maximum=3_600_000)
    """Milliseconds between two searches for silent brokers. Default 10000 (RocketMQ 5: 5000)."""

    broker_expired_timeout: int = setting(120_000, minimum=100, maximum=3_600_000)
    """Milliseconds of silence after which a broker's routes go. Default 120000; a constant in
    RocketMQ, except for a broker that names its own time."""

    order_message_enable: bool = setting(True)
    """Whether a route carries the order configuration of its topic. Default true; RocketMQ: false,
    where `updateTopic -o true` is stored and has no effect."""

    return_order_topic_config_to_broker: bool = setting(True)
    """Whether a registering broker is told all order configurations. Default true."""

    delete_topic_with_broker_registration: bool = setting(False)
    """Whether a topic that a master's new registration leaves out loses its route there. Default
    false."""
