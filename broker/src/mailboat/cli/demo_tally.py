"""Counting what was sent and what arrived, so that a single lost, doubled or changed message shows.

Each side keeps, per tag, the number of messages and the sum of a 128-bit hash over each message's
key and body. The sum does not depend on the order, and unlike an exclusive or it sees doubles.
"""

import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_HASH_BYTES: Final = 16
_SUM_MASK: Final = (1 << 8 * _HASH_BYTES) - 1
_METADATA_DIR: Final = "_spark_metadata"
_COLUMNS: Final = ("broker_name", "queue_id", "queue_offset", "keys", "tags", "value")


@dataclass(slots=True)
class TagTally:
    """One tag's messages."""

    messages: int = 0
    body_bytes: int = 0
    checksum: int = 0


@dataclass(slots=True)
class Tally:
    """The messages of one side, by tag."""

    tags: dict[str, TagTally] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """The number of all messages."""
        return sum(tally.messages for tally in self.tags.values())

    @property
    def body_bytes(self) -> int:
        """The bytes of all bodies."""
        return sum(tally.body_bytes for tally in self.tags.values())

    def add(self, tag: str, key: str, body: bytes) -> None:
        """Count one message."""
        tally = self.tags.get(tag)
        if tally is None:
            tally = self.tags[tag] = TagTally()
        tally.messages += 1
        tally.body_bytes += len(body)
        # A key holds no zero byte, so key and body cannot run into each other.
        digest = blake2b(b"%b\0%b" % (key.encode(), body), digest_size=_HASH_BYTES).digest()
        tally.checksum = (tally.checksum + int.from_bytes(digest, "big")) & _SUM_MASK


@dataclass(slots=True)
class ParquetTally:
    """What the Parquet files hold, and how often a queue offset came more than once."""

    tally: Tally = field(default_factory=Tally)
    repeated_offsets: int = 0
    files: int = 0


def committed_files(output: Path) -> list[Path]:
    """Return the files that Spark's sink says belong to the output, in order.

    A killed job may leave others behind, which its log does not name.
    """
    log = output / _METADATA_DIR
    entries: dict[str, str] = {}
    for path in sorted(log.glob("[0-9]*"), key=_log_order) if log.is_dir() else ():
        for line in path.read_text("utf-8").splitlines()[1:]:
            entry = json.loads(line)
            entries[entry["path"]] = entry["action"]
    return [Path(unquote(urlsplit(uri).path)) for uri, action in entries.items() if action == "add"]


def tally_parquet(files: Iterable[Path]) -> Iterator[ParquetTally]:
    """Count the rows of Parquet files; yields the counts so far after each part of a file."""
    import pyarrow.parquet

    result = ParquetTally()
    offsets: dict[tuple[str, int], array[int]] = {}
    for path in files:
        result.files += 1
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(columns=list(_COLUMNS)):
            columns = [batch.column(name).to_pylist() for name in _COLUMNS]
            for broker_name, queue_id, queue_offset, key, tag, body in zip(*columns, strict=True):
                queue = offsets.get((broker_name, queue_id))
                if queue is None:
                    queue = offsets[broker_name, queue_id] = array("q")
                queue.append(queue_offset)
                result.tally.add(tag or "", key or "", body or b"")
            yield result
    result.repeated_offsets = sum(len(queue) - len(set(queue)) for queue in offsets.values())
    yield result


def differences(sent: Tally, arrived: ParquetTally) -> list[str]:
    """Return one sentence for each tag whose messages differ; nothing where all is equal."""
    found = []
    for tag in sorted(sent.tags.keys() | arrived.tally.tags.keys()):
        ours = sent.tags.get(tag, TagTally())
        theirs = arrived.tally.tags.get(tag, TagTally())
        difference = theirs.messages - ours.messages
        if difference < 0:
            found.append(f"tag {tag}: {-difference} of {ours.messages} messages are missing")
        elif difference > 0:
            found.append(f"tag {tag}: {difference} messages too many, {ours.messages} were sent")
        elif ours.checksum != theirs.checksum:
            found.append(f"tag {tag}: the number is right, keys or bodies were changed")
    if arrived.repeated_offsets:
        found.append(f"{arrived.repeated_offsets} queue offsets came more than once")
    return found


def _log_order(path: Path) -> tuple[int, bool]:
    # `9.compact` replaces 0 to 9, so it comes after 9.
    number, _, suffix = path.name.partition(".")
    return int(number), bool(suffix)
