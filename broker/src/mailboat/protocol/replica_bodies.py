"""Bodies by which administrators see replicas: 907, 1007.

Source: apache/rocketmq remoting/protocol/body/{HARuntimeInfo,EpochEntryCache}.java @
rocketmq-all-5.3.3.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from mailboat.protocol.bodies import encode_body

_ENDLESS: Final = 2**63 - 1


class SlaveStatus(msgspec.Struct, rename="camel", gc=False):
    """A slave as its master sees it: `diff` bytes of the log are missing there."""

    addr: str
    slave_ack_offset: int
    diff: int
    in_sync: bool
    transferred_byte_in_second: int
    transfer_from_where: int


class SlavesOwnStatus(msgspec.Struct, rename="camel", omit_defaults=False):
    """A slave as it sees itself; times are milliseconds since 1970, 0 for never."""

    activated: bool = False
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    max_offset: int = 0
    transferred_byte_in_second: int = 0
    master_addr: str | msgspec.UnsetType = msgspec.UNSET


class HaStatus(msgspec.Struct, rename="camel"):
    """How replication is (907)."""

    master: bool
    master_commit_log_max_offset: int
    in_sync_slave_nums: int
    ha_connection_info: list[SlaveStatus]
    ha_client_runtime_info: SlavesOwnStatus


class _EpochEntry(msgspec.Struct, rename="camel", gc=False):
    epoch: int
    start_offset: int
    end_offset: int


class EpochCache(msgspec.Struct, rename="camel"):
    """The epochs of a log (1007), the oldest first."""

    cluster_name: str
    broker_name: str
    broker_id: int
    epoch_list: list[_EpochEntry]
    max_offset: int


def encode_ha_status(status: HaStatus) -> bytes:
    """Write how replication is."""
    return encode_body(status)


def encode_epoch_cache(
    cluster: str, broker_name: str, broker_id: int, epochs: Iterable[tuple[int, int]], end: int
) -> bytes:
    """Write the epochs of a log that ends at a physical offset, each with where it begins."""
    begun = sorted(epochs)
    ends = [start for _, start in begun[1:]]
    entries = [
        _EpochEntry(epoch, start, epoch_end)
        for (epoch, start), epoch_end in zip(begun, [*ends, _ENDLESS], strict=False)
    ]
    return encode_body(EpochCache(cluster, broker_name, broker_id, entries, end))
