"""Whose store a directory is: `<root>/mailboat/identity.json`.

    {"format_version": 1, "clusterName": ..., "brokerName": ..., "brokerId": 0, "created": ...,
     "id": ...}

Written once, when a broker first uses the directory, and compared at every start after that: a
volume of another broker, mounted by mistake, must not be served under this one's name. A directory
without the file (RocketMQ's, or an older one) is adopted. By `id` name servers tell a broker that
comes back at another address from another broker of its name; files of earlier versions have none,
there `created` stands for it.
"""

import datetime
import logging
import uuid
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
    id: str = ""


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


def write_identity(disk: Disk, path: str, config: BrokerConfig) -> str:
    """Make the directory this broker's, unless it is already; the store must be locked.

    Returns what the broker is known by wherever it runs: a text that no other broker has.

    Raises:
        OSError: the file could not be read or written.
    """
    if disk.exists(path):
        found = msgspec.json.decode(read_file(disk, path), type=_Identity)
        return found.id or found.created
    created = datetime.datetime.fromtimestamp(disk.wall_ms() / 1000, datetime.UTC)
    identity = _Identity(
        FORMAT_VERSION,
        config.broker_cluster_name,
        config.broker_name,
        config.broker_id,
        created.isoformat(timespec="seconds"),
        uuid.uuid4().hex,
    )
    replace_file(disk, path, msgspec.json.format(msgspec.json.encode(identity)) + b"\n")
    _log.info("store adopted broker=%s path=%s", config.broker_name, path)
    return identity.id


def _spell(cluster: str, broker: str, broker_id: int) -> str:
    return f"{broker} (cluster {cluster}, id {broker_id})"
