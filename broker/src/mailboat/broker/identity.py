"""Whose store a directory is: `<root>/mailboat/identity.json`.

    {"format_version": 1, "clusterName": ..., "brokerName": ..., "brokerId": 0, "created": ...}

Written once, when a broker first uses the directory, and compared at every start after that: a
volume of another broker, mounted by mistake, must not be served under this one's name. A directory
without the file (RocketMQ's, or an older one) is adopted.
"""

import datetime
import logging
from typing import Final

import msgspec

from mailboat.config import BrokerConfig
from mailboat.disk import Disk, read_file, replace_file
from mailboat.errors import DamagedStoreError

_log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1


class _Identity(msgspec.Struct):
    """The content of the file."""

    format_version: int
    cluster_name: str = msgspec.field(name="clusterName")
    broker_name: str = msgspec.field(name="brokerName")
    broker_id: int = msgspec.field(name="brokerId")
    created: str = ""


def check_identity(disk: Disk, path: str, config: BrokerConfig) -> None:
    """Refuse a directory that belongs to another broker.

    Raises:
        DamagedStoreError: it does, or the file cannot be understood; the text says what to do.
        OSError: the file cannot be read.
    """
    if not disk.exists(path):
        return
    try:
        found = msgspec.json.decode(read_file(disk, path), type=_Identity)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise DamagedStoreError(
            f"{path} cannot be read ({exc}); if the store belongs to this broker, delete the file "
            "and start again"
        ) from exc
    if found.format_version > FORMAT_VERSION:
        raise DamagedStoreError(
            f"{path} was written by a newer mailboat (format {found.format_version}, this one "
            f"knows {FORMAT_VERSION}); use that one"
        )
    theirs = (found.cluster_name, found.broker_name, found.broker_id)
    ours = (config.broker_cluster_name, config.broker_name, config.broker_id)
    if theirs != ours:
        raise DamagedStoreError(
            f"the store belongs to broker {_spell(*theirs)} and not to {_spell(*ours)}; mount the "
            f"right volume or correct brokerName, or delete {path} to rename the broker on purpose"
        )


def write_identity(disk: Disk, path: str, config: BrokerConfig) -> None:
    """Make the directory this broker's, unless it is already; the store must be locked.

    Raises:
        OSError: the file could not be written.
    """
    if disk.exists(path):
        return
    created = datetime.datetime.fromtimestamp(disk.wall_ms() / 1000, datetime.UTC)
    identity = _Identity(
        FORMAT_VERSION,
        config.broker_cluster_name,
        config.broker_name,
        config.broker_id,
        created.isoformat(timespec="seconds"),
    )
    replace_file(disk, path, msgspec.json.format(msgspec.json.encode(identity)) + b"\n")
    _log.info("store adopted broker=%s path=%s", config.broker_name, path)


def _spell(cluster: str, broker: str, broker_id: int) -> str:
    return f"{broker} (cluster {cluster}, id {broker_id})"
