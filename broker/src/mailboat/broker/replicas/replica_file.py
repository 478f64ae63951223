"""What a replica must not forget, beside its log: `<root>/mailboat/replica.json`.

    {"format_version": 1, "store_id": ..., "seen": 9, "epochs": [[8, 0], [9, 4711]],
     "confirmed": 4711, "trusted_boot": ..., "is_clean": false, "is_whole": true,
     "group": ..., "peers": {"1": "10.0.0.2:10912"}, "begins_anew": false, "ordinal": 0,
     "voters": 2}

`mailboat.replication.durable.Durable` says what the fields mean; `peers` is where other replicas
were last seen, `begins_anew` that the log is to be moved aside before the next start. `ordinal` is
the place in the group that the volume has had, `voters` how many had to answer for a promotion.
RocketMQ does not know the file.
"""

import os
import uuid
from typing import Final

import msgspec

from mailboat.disk import Disk, read_file, replace_file
from mailboat.errors import DamagedStoreError
from mailboat.replication.durable import Durable
from mailboat.replication.epochs import EpochStart

FORMAT_VERSION: Final = 1

_NO_BOOT: Final = "none"


class _Content(msgspec.Struct):
    """The content of the file."""

    format_version: int
    store_id: str
    seen: int
    epochs: tuple[EpochStart, ...]
    confirmed: int
    trusted_boot: str
    is_clean: bool
    is_whole: bool
    group: str
    peers: dict[int, str]
    begins_anew: bool = False
    ordinal: int = -1
    voters: int = 0


class ReplicaFile:
    """The file of one store; `write` may run on any thread, one at a time."""

    def __init__(self, disk: Disk, path: str, ordinal: int = -1, voters: int = 0) -> None:
        """Name the file of a replica; nothing is read or written yet.

        Args:
            disk: where it is.
            path: its path.
            ordinal: the replica's place in its group.
            voters: how many replicas have to answer before one of them is promoted.
        """
        self._disk = disk
        self._path = path
        self._ordinal = ordinal
        self._voters = voters
        self.peers: dict[int, str] = {}
        """Where other replicas listen for replicas, by ordinal; saved with the next `write`."""

        self.begins_anew = False
        """The log is to be moved aside before the store is opened."""

        self.is_moved = False
        """It was read of another place in the group, and has to be written for this one."""

        self.is_log_lost = False
        """What is in memory of the log may never get to the disk, though the kernel runs on."""

        self.durable: Durable | None = None
        """What it says, as far as is known; None before it was read or written."""

    def read(self) -> Durable | None:
        """Return what the file says, None where there is none.

        Raises:
            DamagedStoreError: it cannot be understood; the text says what to do.
            OSError: it cannot be read now.
        """
        if not self._disk.exists(self._path):
            return None
        try:
            found = msgspec.json.decode(read_file(self._disk, self._path), type=_Content)
        except (msgspec.MsgspecError, ValueError) as exc:
            raise DamagedStoreError(
                f"{self._path} cannot be read ({exc}); move the whole store aside and start as an "
                "empty slave, which gets a copy from its master"
            ) from exc
        if found.format_version > FORMAT_VERSION:
            raise DamagedStoreError(
                f"{self._path} was written by a newer mailboat (format {found.format_version}, "
                f"this one knows {FORMAT_VERSION}); use that one"
            )
        self.peers = found.peers
        self.begins_anew = found.begins_anew
        durable = Durable(
            found.store_id,
            found.seen,
            found.epochs,
            found.confirmed,
            found.trusted_boot,
            found.is_clean,
            found.is_whole,
            found.group,
        )
        self.is_moved = found.ordinal not in (-1, self._ordinal)
        if self.is_moved:
            # A copy of another one's: what was acknowledged in this place may not be in it.
            durable = durable._replace(store_id=new_store_id(), is_whole=False)
        elif found.voters > self._voters:
            # Where fewer answer from now on, none of them may have what was acknowledged before.
            durable = durable._replace(is_whole=False)
        self.durable = durable
        return durable

    def forget(self) -> None:
        """Remove the file durably: the log is no replica's any more.

        Raises:
            OSError: it may still be there.
        """
        if self._disk.exists(self._path):
            self._disk.unlink(self._path)
            self._disk.fsync_dir(os.path.dirname(self._path))

    def write(self, durable: Durable) -> None:
        """Make a state the file's durable content.

        Raises:
            OSError: the old content, or the new one, is there whole.
        """
        if self.is_log_lost:
            durable = durable._replace(trusted_boot=_NO_BOOT, is_clean=False)
        content = _Content(
            FORMAT_VERSION,
            *durable,
            dict(self.peers),
            self.begins_anew,
            self._ordinal,
            self._voters,
        )
        replace_file(self._disk, self._path, msgspec.json.encode(content) + b"\n")
        self.durable = durable


def check_no_replica(disk: Disk, path: str) -> None:
    """Refuse the store of a replica to a broker that is none.

    No epoch would tell what it writes from what a leader wrote at the same place.

    Raises:
        DamagedStoreError: it is one; the text says what to do.
        OSError: the file cannot be read now.
    """
    durable = ReplicaFile(disk, path).read()
    if durable is not None and durable.seen:
        raise DamagedStoreError(
            f"the store is a replica's: start it with brokerRole=SYNC_MASTER or SLAVE as before, "
            f"or delete {path} to take it out of its group for good"
        )


def new_store_id() -> str:
    """Return a name that no other volume has."""
    return uuid.uuid4().hex
