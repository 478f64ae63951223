"""Settings of the message store.

Source: apache/rocketmq store/config/MessageStoreConfig.java @ rocketmq-all-5.3.3. A default that
differs from RocketMQ's is named as such. All times are milliseconds unless the field says
otherwise.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from mailboat.config.fields import check_address_list, setting
from mailboat.errors import ConfigError

SEGMENT_SIZE_MIN: Final = 65_536
"""Smallest CommitLog file; the store preallocates and recovers in pages, so less makes no sense."""

CQ_UNIT_SIZE: Final = 20
"""Bytes of one ConsumeQueue unit; a ConsumeQueue file holds a whole number of them."""

DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_BYTES_MAX: Final = 1 << 59
_HOURS: Final = re.compile(r"([01][0-9]|2[0-3])(;([01][0-9]|2[0-3]))*", re.ASCII)
_DELAY_DIGITS_MAX: Final = 5
_OBJECT_NAME: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII)
_POD_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9.-]*[a-z0-9])?-(0|[1-9][0-9]{0,2})", re.ASCII
)
_POD_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
_DELAY_LEVELS: Final = re.compile(r"[1-9][0-9]*[smhd]( [1-9][0-9]*[smhd])*", re.ASCII)


def _check_hours(text: str) -> str | None:
    if _HOURS.fullmatch(text) is None:
        return "must be hours of the day such as 04, or 04;16 for several"
    return None


def _check_lease_name(text: str) -> str | None:
    if text and _OBJECT_NAME.fullmatch(text) is None:
        return "must be the name of an object of Kubernetes: a-z, 0-9, - and . only"
    return None


def _check_pod_name(text: str) -> str | None:
    if text and _POD_NAME.fullmatch(text) is None:
        return "must be the name of a pod of a StatefulSet, which ends with - and a number"
    return None


def _check_pod_uid(text: str) -> str | None:
    if text and _POD_UID.fullmatch(text) is None:
        return "must have letters, digits and - only, 64 at most"
    return None


def check_delay_levels(text: str) -> str | None:
    """Return what is wrong with a table of delays, None for a good one."""
    if _DELAY_LEVELS.fullmatch(text) is None:
        return "must be times such as 1s 5s 1m 2h, with one space between them"
    if any(len(time) > _DELAY_DIGITS_MAX + 1 for time in text.split(" ")):
        return f"must not have a time of more than {_DELAY_DIGITS_MAX} digits"
    return None


def check_store(config: "MessageStoreConfig") -> None:
    """Refuse settings that are legal one by one and make no sense together.

    Raises:
        ConfigError: the thresholds of the disk are out of order, or messages that were read would
            be kept longer than others.
    """
    ratios = (
        ("diskMaxUsedSpaceRatio", config.disk_max_used_space_ratio),
        ("diskSpaceCleanForciblyRatio", config.disk_space_clean_forcibly_ratio),
        ("diskSpaceWarningLevelRatio", config.disk_space_warning_level_ratio),
    )
    for (key, value), (next_key, next_value) in pairwise(ratios):
        if value > next_value:
            raise ConfigError(key, str(value), f"must not be above {next_key}={next_value}")
    free = (
        ("diskExpireFreeBytes", config.disk_expire_free_bytes),
        ("diskForceCleanFreeBytes", config.disk_force_clean_free_bytes),
        ("diskRejectFreeBytes", config.disk_reject_free_bytes),
    )
    for (key, value), (next_key, next_value) in pairwise(item for item in free if item[1]):
        if value < next_value:
            raise ConfigError(key, str(value), f"must not be below {next_key}={next_value}")
    hysteresis = config.disk_threshold_hysteresis_percent
    if hysteresis >= config.disk_max_used_space_ratio:
        raise ConfigError(
            "diskThresholdHysteresisPercent",
            str(hysteresis),
            f"must be below diskMaxUsedSpaceRatio={config.disk_max_used_space_ratio}",
        )
    if config.read_file_reserved_time > config.file_reserved_time:
        raise ConfigError(
            "readFileReservedTime",
            str(config.read_file_reserved_time),
            f"must not be above fileReservedTime={config.file_reserved_time}",
        )


@dataclass(frozen=True, slots=True)
class MessageStoreConfig:
    """Where the store is, how it flushes, what it keeps, and how much one read takes."""

    store_path_root_dir: str = setting("~/store")
    """Folder of the whole store. Default ~/store, as RocketMQ; ~/mailboat in `standalone`.
    `--data-dir` sets it."""

    store_path_commit_log: str = setting("")
    """Folder of the CommitLog. Default: commitlog in the root folder. One folder only: RocketMQ 5
    also takes several, joined by commas."""

    mapped_file_size_commit_log: int = setting(
        1_073_741_824, minimum=SEGMENT_SIZE_MIN, maximum=2_147_483_647
    )
    """Bytes of one CommitLog file, reserved when it is made. Default 1 GiB; at least 64 KiB
    (ours)."""

    mapped_file_size_consume_queue: int = setting(6_000_000, minimum=20, maximum=2_147_483_640)
    """Bytes of one ConsumeQueue file. Default 6000000 (300,000 units); rounded up to whole units of
    20 bytes, as RocketMQ does."""

    flush_disk_type: str = setting("ASYNC_FLUSH", choices=("ASYNC_FLUSH", "SYNC_FLUSH"))
    """ASYNC_FLUSH (default): an acknowledged message is with the operating system. SYNC_FLUSH: it
    is on the disk. `mailboat broker --help` has the exact promises."""

    broker_role: str = setting("ASYNC_MASTER", choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"))
    """ASYNC_MASTER (default): a message is answered once this broker has it. SYNC_MASTER: once
    every replica in the in-sync set has it. SLAVE: it follows the master of its brokerName, and
    takes messages once it is promoted."""

    in_sync_replicas: int = setting(2, minimum=1, maximum=5)
    """How many replicas, the master counted, the in-sync set of a SYNC_MASTER never falls below:
    with fewer, sends are refused before anything is written. Default 2 (RocketMQ: 1)."""

    total_replicas: int = setting(2, minimum=1, maximum=8)
    """How many replicas the group has; their brokerIds are below it. Default 2 (RocketMQ: 1).
    Without all but inSyncReplicas - 1 of them nobody is promoted but at the risk of losing
    messages."""

    slave_timeout: int = setting(3_000, minimum=1, maximum=3_600_000)
    """Milliseconds that a send to a SYNC_MASTER waits for the other replicas before it is answered
    FLUSH_SLAVE_TIMEOUT, which says that the outcome is unknown. Default 3000."""

    ha_listen_port: int = setting(-1, minimum=-1, maximum=65_535)
    """Port for the other replicas; 0 takes a free one. Default -1: listenPort + 1 where brokerRole
    is SYNC_MASTER or SLAVE, none for an ASYNC_MASTER (RocketMQ: always listenPort + 1)."""

    ha_master_address: str = setting("", check=check_address_list)
    """Where a SLAVE finds its master's haListenPort: host:port, of several replicas joined by `;`.
    Default: its name servers say so."""

    ha_secret_file: str = setting("")
    """File with a secret that all replicas of the group know: who does not is no replica. Default:
    none, whoever reaches haListenPort is believed. Ours."""

    lease_name: str = setting("", check=_check_lease_name)
    """Name of the Lease of Kubernetes, in the pod's namespace, that says which replica leads; then
    all replicas of a group have the brokerRole that their leader has. Default: none, a person says
    who leads. Ours."""

    lease_seconds: int = setting(6, minimum=6, maximum=60)
    """Seconds for which a leader that is silent is respected: after it others may lead. Default 6.
    Ours."""

    leader_listen_port: int = setting(0, minimum=0, maximum=65_535)
    """Port for clients on which only the replica listens that leads by a Lease: the Service of the
    group leads there, so nobody keeps a connection to one that does not lead. Default 0: a free
    one. Ours."""

    pod_name: str = setting("", check=_check_pod_name)
    """Name of the pod, which ends with - and brokerId; with leaseName it has to be set. Default:
    none. Ours."""

    pod_uid: str = setting("", check=_check_pod_uid)
    """Uid of the pod; with leaseName it has to be set. Default: none. Ours."""

    ha_flow_control_enable: bool = setting(True)
    """Whether copies of the log's old part, more than 8 MiB behind its end, go to slaves at
    maxHaTransferByteInSecond at most, or 1.5 times as fast as the log grows where that is faster.
    Default true (RocketMQ: false, and then all that a slave gets is bounded)."""

    max_ha_transfer_byte_in_second: int = setting(104_857_600, minimum=65_536, live=True)
    """Bytes per second at which slaves together are sent the log's old part. Default 100 MiB."""

    flush_interval_commit_log: int = setting(500, minimum=1, maximum=3_600_000, live=True)
    """Milliseconds between two flushes of the CommitLog under ASYNC_FLUSH. Default 500."""

    flush_commit_log_thorough_interval: int = setting(10_000, minimum=1, maximum=3_600_000)
    """Milliseconds after which even a little is flushed. Default 10000. A flush here always takes
    all that is unflushed, so this only bounds an idle log."""

    sync_flush_timeout: int = setting(5_000, minimum=1, maximum=3_600_000, live=True)
    """Milliseconds that a SYNC_FLUSH send waits before it is answered FLUSH_DISK_TIMEOUT. Default
    5000."""

    flush_interval_consume_queue: int = setting(1_000, minimum=1, maximum=3_600_000)
    """Milliseconds between two flushes of ConsumeQueue files. Default 1000."""

    max_message_size: int = setting(4_194_304, minimum=1, maximum=16_000_000, live=True)
    """Bytes of the largest message body. Default 4 MiB; at most what fits in a frame of 16 MiB."""

    message_index_enable: bool = setting(True)
    """Whether keys are indexed for queries by key. Default true."""

    max_hash_slot_num: int = setting(5_000_000, minimum=1, maximum=100_000_000)
    """Hash slots of one index file. Default 5000000."""

    max_index_num: int = setting(20_000_000, minimum=2, maximum=100_000_000)
    """Index entries of one index file. Default 20000000."""

    enabled_append_prop_crc: bool = setting(True, key="enabledAppendPropCRC")
    """Whether a record carries a checksum over all of it (property __CRC32#). Default true;
    RocketMQ: false, where only the body is covered."""

    check_crc_on_recover: bool = setting(True, key="checkCRCOnRecover")
    """Whether recovery checks the bodies of the records it reads. Default true."""

    skip_corrupt: bool = setting(False)
    """Whether a pull steps over a record that is damaged or cannot be read instead of answering an
    error. Default false. Ours."""

    file_reserved_time: int = setting(72, minimum=1, maximum=1_000_000, live=True)
    """Hours that a full CommitLog file is kept after its last write. Default 72. What is older goes
    in the hours of deleteWhen, or when the disk is above diskMaxUsedSpaceRatio, read or not."""

    read_file_reserved_time: int = setting(-1, minimum=-1, maximum=1_000_000, live=True)
    """Hours after which a file that every consumer group has read may go while the disk is above
    diskMaxUsedSpaceRatio. Default -1: the same as fileReservedTime; 0: as soon as there is need.
    Ours."""

    delete_when: str = setting("04", check=_check_hours, live=True)
    """Hours of the day, local time, in which expired files are deleted; several with `;`. Default
    04."""

    disk_max_used_space_ratio: int = setting(75, minimum=10, maximum=95, live=True)
    """Per cent of disk use above which expired files go at any hour ("expire"). Default 75."""

    disk_space_clean_forcibly_ratio: int = setting(85, minimum=30, maximum=100, live=True)
    """Per cent of disk use above which the oldest files go although they are not expired ("force
    clean"). Default 85; RocketMQ silently lowers anything above 85 to it."""

    disk_space_warning_level_ratio: int = setting(90, minimum=35, maximum=100, live=True)
    """Per cent of disk use above which sends are refused ("reject writes"). Default 90; RocketMQ
    silently lowers anything above 90 to it."""

    disk_expire_free_bytes: int = setting(0, minimum=0, maximum=_BYTES_MAX, live=True)
    """Bytes of free disk below which the disk counts as above diskMaxUsedSpaceRatio. Default 0:
    only the ratio counts. Ours."""

    disk_force_clean_free_bytes: int = setting(0, minimum=0, maximum=_BYTES_MAX, live=True)
    """Bytes of free disk below which the disk counts as above diskSpaceCleanForciblyRatio. Default
    0: only the ratio counts. Ours."""

    disk_reject_free_bytes: int = setting(0, minimum=0, maximum=_BYTES_MAX, live=True)
    """Bytes of free disk below which the disk counts as above diskSpaceWarningLevelRatio. Default
    0: only the ratio counts. Ours."""

    disk_threshold_hysteresis_percent: int = setting(3, minimum=0, maximum=20, live=True)
    """Per cent of the disk by which use must fall below a threshold before it counts as left, so
    that sends are not refused and taken in turn. Default 3. Ours."""

    clean_file_forcibly_enable: bool = setting(True, live=True)
    """Whether files that are not expired may be deleted for room. Default true."""

    clean_unconsumed_files_enable: bool = setting(False, live=True)
    """Whether files that are not expired may be deleted for room although a consumer group has not
    read them. Default false: sends are refused instead. Ours; RocketMQ behaves as true."""

    delete_file_batch_max: int = setting(10, minimum=1, maximum=10_000, live=True)
    """Files deleted in one round. Default 10."""

    clean_resource_interval: int = setting(10_000, minimum=10, maximum=3_600_000, live=True)
    """Milliseconds between two rounds of retention while the disk is below every threshold; above
    one, and when the log gets a new file, a round comes within a second. Default 10000."""

    default_query_max_num: int = setting(32, minimum=1, maximum=1_000)
    """Most messages that one query by key returns. Default 32."""

    max_transfer_bytes_on_message_in_memory: int = setting(262_144, minimum=1, maximum=16_000_000)
    """Bytes that one pull returns of recent messages; one message always goes. Default 262144."""

    max_transfer_count_on_message_in_memory: int = setting(32, minimum=1, maximum=10_000)
    """Messages that one pull returns of recent messages, whatever it asks for. Default 32; RocketMQ
    compares with `>=` against one more in places, mailboat returns exactly this many."""

    access_message_in_memory_max_ratio: int = setting(40, minimum=1, maximum=95)
    """Per cent of the memory (the container's limit, or the machine's) taken to hold the newest
    messages; what lies behind counts as on disk. Default 40."""

    message_delay_level: str = setting(DEFAULT_DELAY_LEVELS, check=check_delay_levels)
    """Delay of each level, the first is level 1. Units s, m, h, d. Default: RocketMQ's 18 levels.
    Messages that are parked already keep their time under another table."""

    def __post_init__(self) -> None:
        """Round the ConsumeQueue file up to whole units."""
        units = -(-self.mapped_file_size_consume_queue // CQ_UNIT_SIZE)
        object.__setattr__(self, "mapped_file_size_consume_queue", units * CQ_UNIT_SIZE)

    @property
    def is_replica(self) -> bool:
        """Whether the broker is one of several replicas, or lets others follow it."""
        return (
            self.broker_role != "ASYNC_MASTER" or self.ha_listen_port >= 0 or bool(self.lease_name)
        )

    @property
    def root_dir(self) -> Path:
        """The store's folder with `~` resolved."""
        return Path(self.store_path_root_dir).expanduser()

    @property
    def commit_log_dir(self) -> Path:
        """The CommitLog's folder with `~` and the default resolved."""
        if not self.store_path_commit_log:
            return self.root_dir / "commitlog"
        return Path(self.store_path_commit_log).expanduser()
