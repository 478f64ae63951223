"""What is known to be durable: RocketMQ's checkpoint file and mailboat's two own.

`checkpoint`, 4096 bytes, int64 big-endian, epoch milliseconds but the last two:

    0 physicMsgTimestamp   8 logicsMsgTimestamp   16 indexMsgTimestamp
    24 masterFlushedOffset 32 confirmPhyOffset

`mailboat/flushed`, two slots of 32 bytes written in turn, so that one is always whole:

    0 sequence (int64)   8 flushed physical offset (int64)   16 CRC32 of bytes 0-15 (uint32)

`mailboat/progress.json`: the physical offset below which ConsumeQueues and IndexFiles are durable
and complete, and what they add up to at that point; a line with the CRC32 of the text follows it.
Written only after all that it claims has been synced.

Source: apache/rocketmq store/StoreCheckpoint.java.
"""

import struct
import zlib
from typing import Final

import msgspec

from mailboat.disk import (
    Disk,
    UnreadableError,
    read_file,
    read_fully,
    replace_file,
    sync,
    write_fully,
)

CHECKPOINT_BYTES: Final = 4096
_LONGS: Final = struct.Struct(">5q")
_MARK: Final = struct.Struct(">qqI")
_SLOT_BYTES: Final = 32


class CheckpointTimes(msgspec.Struct):
    """The five numbers of RocketMQ's checkpoint."""

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0


def read_checkpoint(disk: Disk, path: str) -> CheckpointTimes:
    """Return the checkpoint, zeros where there is none."""
    if not disk.exists(path):
        return CheckpointTimes()
    data = read_file(disk, path)
    return CheckpointTimes(*_LONGS.unpack_from(data)) if len(data) >= 40 else CheckpointTimes()


def write_checkpoint(disk: Disk, path: str, times: CheckpointTimes) -> None:
    """Replace the checkpoint, durably.

    Raises:
        OSError: the old one may still be in place.
    """
    longs = _LONGS.pack(
        times.physic_ms,
        times.logics_ms,
        times.index_ms,
        times.master_flushed_offset,
        times.confirm_physical_offset,
    )
    replace_file(disk, path, longs.ljust(CHECKPOINT_BYTES, b"\0"))


class Progress(msgspec.Struct, rename="camel"):
    """How far the derived files are durable and complete, and sums by which a lost one shows.

    `commit_log_start` is where the CommitLog begins: derived files that lie wholly below are not
    counted, whether or not they are still there. `index_file` is the newest IndexFile,
    `index_entry_counts` has the entries of all, oldest first; `queue_units` is the sum of all
    queues' ends, `queue_first_bytes` of their first files' names. `empty_queues` has topic, queue
    id and end of queues whose every message has expired: the log cannot tell any more which queue
    offsets were given out. With `is_rebuilding` the derived files are being built anew from the
    log: nothing is claimed but `empty_queues`, which has the ends of all queues as they were known
    before.
    """

    commit_log_offset: int = 0
    index_file: str = ""
    index_entry_counts: list[int] = []
    queue_units: int = 0
    queue_first_bytes: int = 0
    commit_log_start: int = 0
    last_store_timestamp_ms: int = 0
    empty_queues: list[tuple[str, int, int]] = []
    clean: bool = False
    is_rebuilding: bool = False


def read_progress(disk: Disk, path: str) -> Progress | None:
    """Return the progress, None where it is missing or damaged (then everything is rebuilt)."""
    text = read_checked(disk, path) if disk.exists(path) else None
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Progress)
    except msgspec.MsgspecError:
        return None


def write_progress(disk: Disk, path: str, progress: Progress) -> None:
    """Replace the progress, durably; everything it claims must have been synced before.

    Raises:
        OSError: the old one may still be in place.
    """
    write_checked(disk, path, msgspec.json.encode(progress))


def read_checked(disk: Disk, path: str) -> bytes | None:
    """Return the text that `write_checked` wrote, None where it is damaged or unreadable."""
    try:
        data = read_file(disk, path)
    except UnreadableError:
        return None
    text, _, crc = data.rpartition(b"\n")
    return text if crc == b"%d" % zlib.crc32(text) else None


def write_checked(disk: Disk, path: str, text: bytes) -> None:
    """Replace a file, durably, by one line of text and a line with its CRC-32 in decimal.

    Raises:
        OSError: the old one may still be in place.
    """
    replace_file(disk, path, text + b"\n%d" % zlib.crc32(text))


class FlushedMark:
    """The physical offset below which the CommitLog was once durable.

    The mark itself reaches the page cache after each flush and the disk with `sync`; it may lag
    behind the truth, never run ahead of it.
    """

    __slots__ = ("_disk", "_fd", "_sequence", "flushed_offset")

    def __init__(self, disk: Disk, fd: int, sequence: int, flushed_offset: int) -> None:
        """Take over an open mark file."""
        self._disk = disk
        self._fd = fd
        self._sequence = sequence
        self.flushed_offset = flushed_offset

    @property
    def is_new(self) -> bool:
        """No flush was ever noted: mailboat has not had this directory before."""
        return self._sequence == 0

    def advance(self, flushed_offset: int) -> None:
        """Note a finished flush.

        Raises:
            OSError: the mark stays where it was.
        """
        self._sequence += 1
        data = struct.pack(">qq", self._sequence, flushed_offset)
        slot = data + zlib.crc32(data).to_bytes(4, "big")
        write_fully(self._disk, self._fd, slot, self._sequence % 2 * _SLOT_BYTES)
        self.flushed_offset = flushed_offset

    def sync(self) -> None:
        """Make the mark durable."""
        sync(self._disk, self._fd)

    def close(self) -> None:
        """Close the file."""
        self._disk.close(self._fd)


def read_flushed_mark(disk: Disk, path: str) -> int | None:
    """Return the physical offset of the mark, None where no flush was ever noted.

    Raises:
        OSError: the file cannot be read.
    """
    if not disk.exists(path):
        return None
    sequence, flushed_offset = _newest_slot(read_file(disk, path))
    return flushed_offset if sequence else None


def open_flushed_mark(disk: Disk, path: str) -> FlushedMark:
    """Open the mark, creating it at 0; of two whole slots the newer one counts."""
    if not disk.exists(path):
        replace_file(disk, path, bytes(2 * _SLOT_BYTES))
    fd = disk.open(path)
    try:
        data = read_fully(disk, fd, 2 * _SLOT_BYTES, 0)
    except UnreadableError:
        # A new file has new blocks.
        disk.close(fd)
        disk.unlink(path)
        return open_flushed_mark(disk, path)
    return FlushedMark(disk, fd, *_newest_slot(data))


def _newest_slot(data: bytes) -> tuple[int, int]:
    """Return sequence and physical offset of the newer slot, zeros where none is whole."""
    best = (0, 0)
    for position in (0, _SLOT_BYTES):
        if len(data) < position + _MARK.size:
            continue
        sequence, flushed_offset, crc = _MARK.unpack_from(data, position)
        if crc == zlib.crc32(data[position : position + 16]):
            best = max(best, (sequence, flushed_offset))
    return best
