"""What a name server knows of brokers: what they say when they register, and what is kept of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from mailboat.model.data_version import DataVersion
from mailboat.model.stored_configs import MAX_QUEUE_NUMS
from mailboat.model.topic import Perm, TopicConfig
from mailboat.protocol.route import QueueData

MASTER_ID: Final = 0


class BrokerAddress(NamedTuple):
    """One broker process: two clusters may use the same private address."""

    cluster_name: str
    address: str

    def __str__(self) -> str:
        """Show it in the way of logs."""
        return f"cluster={self.cluster_name} address={self.address}"


@dataclass(slots=True)
class LiveBroker:
    """What is known of one registered process."""

    broker_name: str
    broker_id: int
    connection: object
    last_update_s: float
    expired_timeout_s: float
    data_version: DataVersion | None
    """None until all topics of its first registration, or of a later one, are taken over."""

    ha_server_address: str
    route_kept_s: float
    host: str
    """The address that it registers from: its share of all places is counted there."""

    identity: str = ""
    listeners: Mapping[str, str] = field(default_factory=dict)
    """Where clients of each listener find it."""

    away_until_s: float | None = None
    """When an away broker is dropped; None while it is there."""

    @property
    def is_away(self) -> bool:
        """Whether only its routes are left, for a while."""
        return self.away_until_s is not None

    @property
    def dropped_after_s(self) -> float:
        """Until when it stays unless it is heard."""
        if self.away_until_s is not None:
            return self.away_until_s
        return self.last_update_s + self.expired_timeout_s


@dataclass(slots=True)
class BrokerGroup:
    """The processes that share a broker name."""

    cluster_name: str
    addresses: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    """Broker id -> the address that was last refused the place; for one log line each."""

    topics: dict[str, QueueData] = field(default_factory=dict)
    """Queue data by topic, as the master registered it."""

    state_version: int = 0
    """The newest state of a master, 0 where none was elected."""

    route_bytes: int = 0
    """How many of `MAX_ROUTE_BYTES` its topics take."""

    host: str = ""
    """The address that registered them: its share of all routes is counted there."""

    writable: bool | None = None
    """What was said of its write permission since; None leaves it to each topic."""

    def queue_data(self, topic: str) -> QueueData | None:
        """Return the queues of a topic with their permission as it is now."""
        known = self.topics.get(topic)
        if known is None or self.writable is None:
            return known
        perm = Perm.READ | Perm.WRITE if self.writable else known.perm & ~Perm.WRITE
        return msgspec.structs.replace(known, perm=perm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One REGISTER_BROKER request."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    ha_server_address: str
    data_version: DataVersion
    topics: Mapping[str, TopicConfig]
    expired_timeout_s: float | None = None
    """Silence after which this broker is dropped; None takes the name server's own."""

    host: str = ""
    """The address that it registers from."""

    route_kept_s: float = 0.0
    """How long its routes stay when its connection ends."""

    identity: str = ""
    """What the broker is known by wherever it runs; empty if it does not say."""

    listeners: Mapping[str, str] = field(default_factory=dict)
    """Where clients of each listener find the broker, "host:port" by name."""

    @property
    def key(self) -> BrokerAddress:
        """Which process registers."""
        return BrokerAddress(self.cluster_name, self.address)

    def is_newer_master(self, group: BrokerGroup) -> bool:
        """Tell whether a master registers that was elected after the one which a group knows."""
        return self.broker_id == MASTER_ID and self.data_version.state_version > group.state_version


class MasterOfGroup(NamedTuple):
    """What a slave learns from its registration; empty for a master."""

    address: str | None = None
    ha_server_address: str | None = None


def queue_data_of(broker_name: str, config: TopicConfig) -> QueueData:
    """Return the queues of a topic as a broker registers it."""
    return QueueData(
        broker_name=broker_name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_sys_flag=config.topic_sys_flag,
    )


def fit_queue_data(queue_data: QueueData) -> bool:
    """Bring the numbers of a topic into the limits that clients make room for; tell whether they
    were."""
    read, write = queue_data.read_queue_nums, queue_data.write_queue_nums
    queue_data.read_queue_nums = min(max(read, 0), MAX_QUEUE_NUMS)
    queue_data.write_queue_nums = min(max(write, 0), MAX_QUEUE_NUMS)
    return (queue_data.read_queue_nums, queue_data.write_queue_nums) == (read, write)
