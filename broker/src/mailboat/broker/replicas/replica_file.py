"""What a replica must not forget, beside its log: `<root>/mailboat/replica.json`.

    {"format_version": 1, "store_id": ..., "seen": 9, "epochs": [[8, 0], [9, 4711]],
     "confirmed": 4711, "trusted_boot": ..., "is_clean": false, "is_whole": true,
     "group": ..., "peers": {"1": "10.0.0.2:10912"}, "begins_anew": false}

`mailboat.replication.durable.Durable` says what the fields mean; `peers` is where other replicas
were last seen, `begins_anew` that the log is to be moved aside before the next start.
RocketMQ does not know the file.
"""

import uuid
from typing import Final

import msgspec

from mailboat.disk import Disk, read_file, replace_file
from mailboat.errors import DamagedStoreError
from mailboat.replication.durable import Durable
from mailboat.replication.epochs import EpochStart

FORMAT_VERSION: Final = 1


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


class ReplicaFile:
    """The file of one store; `write` may run on any thread, one at a time."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Name the file; nothing is read or written yet."""
        self._disk = disk
        self._path = path
        self.peers: dict[int, str] = {}
        """Where other replicas listen for replicas, by ordinal; saved with the next `write`."""

        self.begins_anew = False
        """The log is to be moved aside before the store is opened."""

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
        return Durable(
            found.store_id,
            found.seen,
            found.epochs,
            found.confirmed,
            found.trusted_boot,
            found.is_clean,
            found.is_whole,
            found.group,
        )

    def write(self, durable: Durable) -> None:
        """Make a state the file's durable content.

        Raises:
            OSError: the old content, or the new one, is there whole.
        """
        content = _Content(FORMAT_VERSION, *durable, dict(self.peers), self.begins_anew)
        replace_file(self._disk, self._path, msgspec.json.encode(content) + b"\n")


def new_store_id() -> str:
    """Return a name that no other volume has."""
    return uuid.uuid4().hex
