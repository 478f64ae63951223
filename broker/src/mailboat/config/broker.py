"""Settings of the broker: who it is, where it listens, what it creates by itself.

Source: apache/rocketmq common/BrokerConfig.java @ rocketmq-all-5.3.3. A default that differs from
RocketMQ's is named as such. All times are milliseconds unless the field says otherwise.
"""

import ipaddress
from dataclasses import dataclass

from mailboat.config.fields import check_address_list, setting
from mailboat.config.listeners import check_listeners


def _check_not_empty(text: str) -> str | None:
    return None if text else "must not be empty"


def _check_ip(text: str) -> str | None:
    try:
        ipaddress.ip_address(text or "::")
    except ValueError:
        return "must be an IP address"
    return None


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Name, addresses, topics and periods of one broker."""

    broker_name: str = setting("broker-a", check=_check_not_empty)
    """Name of the broker group; masters and slaves of a group share it. Default broker-a, as in
    RocketMQ's shipped broker.conf; its code takes the host name, which changes in a container."""

    broker_cluster_name: str = setting("DefaultCluster", check=_check_not_empty)
    """Name of the cluster that the broker belongs to. Default DefaultCluster."""

    broker_id: int = setting(0, minimum=0, maximum=1_000)
    """0 is the master (default), higher numbers are slaves."""

    broker_ip1: str = setting("", key="brokerIP1")
    """Address that clients are told to use. Default: the address that the machine uses outwards, or
    that of `--host`."""

    broker_ip2: str = setting("", key="brokerIP2")
    """Address that other replicas are told to use. Default: that of brokerIP1."""

    slave_read_enable: bool = setting(False, live=True)
    """Whether consumers may read here while this broker is a slave. Default false."""

    listen_port: int = setting(10_911, minimum=0, maximum=65_535)
    """Port for clients. Default 10911; 0 takes a free one."""

    bind_address: str = setting("0.0.0.0", check=_check_not_empty)
    """Address to listen on. Default 0.0.0.0 (all); `standalone` listens on 127.0.0.1."""

    fast_listen_enable: bool = setting(True)
    """Whether the broker also listens on listenPort - 2, RocketMQ's port for clients with
    vipChannelEnabled. Default true; without effect for a free port. Ours: RocketMQ always does."""

    listeners: str = setting("", check=check_listeners)
    """Further ports, whose clients are told addresses of their own: a JSON list of name, port, tls,
    clientAuth and advertised, such as `[{"name":"outside","port":10920,
    "advertised":"mail.example.com:30920"}]`, see docs/security.md. Default: none. Ours."""

    advertised_addresses_file: str = setting("")
    """JSON file with the addresses of listeners by name, `{"outside":"192.0.2.7:30920"}`, which is
    read again as it changes; over `advertised`. `{podName}` in the path stands for the
    environment's POD_NAME. Default: none, clients are told brokerIP1 and the listener's port.
    Ours."""

    node_ip: str = setting("", key="nodeIP", check=_check_ip)
    """What `{nodeIP}` in an address of a listener stands for. Default: the environment's NODE_IP.
    Ours."""

    namesrv_addr: str = setting("", check=check_address_list, live=True)
    """Name servers to register at: host:port, several joined by `;`. Default: the environment's
    NAMESRV_ADDR, as RocketMQ, or none."""

    register_name_server_period: int = setting(30_000, minimum=10_000, maximum=60_000)
    """Milliseconds between two registrations. Default 30000, 10000 to 60000; RocketMQ moves other
    values into these limits silently."""

    register_broker_timeout_mills: int = setting(24_000, minimum=100, maximum=600_000)
    """Milliseconds that a registration may take. Default 24000 (RocketMQ 4.x: 6000)."""

    compressed_register: bool = setting(False)
    """Whether small registrations are compressed too; from about 5,000 topics on all are. Default
    false."""

    broker_permission: int = setting(6, minimum=0, maximum=7, live=True)
    """What clients may do here: 4 read + 2 write. Default 6."""

    default_topic_queue_nums: int = setting(8, minimum=1, maximum=10_000, live=True)
    """Most queues of a topic that is made by a first send. Default 8."""

    auto_create_topic_enable: bool = setting(True, live=True)
    """Whether a send to an unknown topic makes it. Default true."""

    auto_create_subscription_group: bool = setting(True, live=True)
    """Whether an unknown consumer group is made on its first request. Default true."""

    cluster_topic_enable: bool = setting(True)
    """Whether there is a topic named as the cluster. Default true."""

    broker_topic_enable: bool = setting(True)
    """Whether there is a topic named as the broker. Default true."""

    trace_topic_enable: bool = setting(False)
    """Whether there is a topic for message traces. Default false."""

    msg_trace_topic_name: str = setting("RMQ_SYS_TRACE_TOPIC", check=_check_not_empty)
    """Name of the topic for message traces. Default RMQ_SYS_TRACE_TOPIC."""

    region_id: str = setting("DefaultRegion", check=_check_not_empty)
    """Region told to producers (MSG_REGION), which put it in their traces. Default
    DefaultRegion."""

    trace_on: bool = setting(True)
    """Whether producers and consumers are told to trace (TRACE_ON). Default true."""

    flush_consumer_offset_interval: int = setting(5_000, minimum=10, maximum=600_000)
    """Milliseconds between two saves of the consumer offsets. Default 5000."""

    long_polling_enable: bool = setting(True)
    """Whether a pull that finds nothing waits as long as the client allows. Default true."""

    short_polling_time_mills: int = setting(1_000, minimum=1, maximum=60_000)
    """Milliseconds that such a pull waits when long polling is off. Default 1000."""

    enable_property_filter: bool = setting(True, live=True)
    """Whether consumers may filter by SQL92 expressions. Default true (RocketMQ: false)."""

    notify_consumer_ids_changed_enable: bool = setting(True)
    """Whether the members of a group are told when one comes or goes. Default true."""

    use_server_side_reset_offset: bool = setting(True, live=True)
    """Whether resetting a group's offsets changes them here, also for a group that is not
    connected (RocketMQ 5); false tells its connected members to, and is refused without any
    (RocketMQ 4). Default true."""

    store_reply_message_enable: bool = setting(True, live=True)
    """Whether the replies to requests are stored in CLUSTER_REPLY_TOPIC when they have been handed
    on. Default true."""

    reject_transaction_message: bool = setting(False, live=True)
    """Whether transaction messages are refused. Default false."""

    transaction_time_out: int = setting(6_000, minimum=1, maximum=86_400_000, live=True)
    """Milliseconds before a producer is asked about a transaction that it has not ended; a message
    may set another time in CHECK_IMMUNITY_TIME_IN_SECONDS. Default 6000."""

    transaction_check_max: int = setting(15, minimum=1, maximum=1_000_000, live=True)
    """How often it is asked before the message goes to TRANS_CHECK_MAX_TIME_TOPIC. Default 15."""

    transaction_check_interval: int = setting(30_000, minimum=10, maximum=86_400_000, live=True)
    """Milliseconds between two rounds of such questions. Default 30000 (RocketMQ 4.x: 60000)."""

    transaction_op_msg_max_size: int = setting(4_096, minimum=1, maximum=65_536, live=True)
    """Bytes of a record of ended transactions from which on it takes no further one. Default 4096.
    Such records are stored with the ends, not up to transactionOpBatchInterval later."""

    channel_expired_timeout: int = setting(120_000, minimum=1_000, maximum=3_600_000)
    """Milliseconds without a heartbeat after which a client is forgotten. Default 120000."""

    shutdown_drain_seconds: int = setting(0, minimum=0, maximum=3_600)
    """Seconds for which a broker that gets SIGTERM goes on serving after it has told the name
    servers that it takes no sends any more, so that producers move away first. Default 0; a second
    SIGTERM ends them early. Ours."""

    route_kept_seconds: int = setting(0, minimum=0, maximum=3_600, live=True)
    """Seconds for which mailboat's name servers keep the routes of this broker, without write
    permission, after it has ended or was lost, so that clients that look meanwhile know it when it
    is back. Default 0: its routes end at once, as in RocketMQ, and such a client needs up to 30 s.
    Ours."""

    http_port: int = setting(8_080, minimum=-1, maximum=65_535)
    """Port of metrics, probes and the admin API. Default 8080; 0 takes a free one, -1 none.
    Ours."""

    http_max_request_bytes: int = setting(4_194_304, minimum=1_024, maximum=268_435_456)
    """Bytes of the largest HTTP request. Default 4 MiB. Ours."""
