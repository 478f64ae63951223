"""The Parquet table: its columns, which files belong to it, and what a killed job left beside them.

Spark's file sink lists the files of each batch in `_spark_metadata`; a file that is not listed is
not part of the table. Spark's own readers look there. Other readers take every file, so what a
killed job left is removed at the next start, before anything is written.
"""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from mailboat.errors import MailboatError
from mailboat_spark.job.checkpoint import NO_BATCH
from mailboat_spark.job.options import CHECKPOINTS_DIR

logger = logging.getLogger(__name__)

COLUMNS: Final = (
    "topic string, broker_name string, queue_id int, queue_offset bigint, message_id string, "
    "keys string, tags string, value binary, properties map<string,string>, flag int, "
    "reconsume_times int, born_timestamp timestamp, store_timestamp timestamp"
)
"""What is read of each message; `date` and `hour` are made of `store_timestamp`."""

_METADATA_DIR: Final = "_spark_metadata"
_COMPACT: Final = ".compact"
_PART_FILE: Final = re.compile(r"part-\d{5}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}.*\.parquet")


class ForeignTableError(MailboatError):
    """The output is not the table that the checkpoint writes."""


def with_partition_columns(frame: DataFrame, columns: tuple[str, ...]) -> DataFrame:
    """Add `date` and `hour` of the store time (UTC) where the table is partitioned by them."""
    if "date" in columns:
        frame = frame.withColumn("date", sql.to_date("store_timestamp"))
    if "hour" in columns:
        frame = frame.withColumn("hour", sql.hour("store_timestamp"))
    return frame


def check_new(output: Path) -> None:
    """Refuse an output with content for a checkpoint that has not begun.

    Spark numbers batches from 0 in a new checkpoint, and its sink passes over the numbers that the
    table already has: the job would lose messages without a word.

    Raises:
        ForeignTableError: the output is not empty.
    """
    for entry in sorted(output.iterdir()) if output.is_dir() else ():
        is_hidden = entry.name.startswith(("_", ".")) or entry.name == "lost+found"
        # A first start that was cut may have got as far as the folder of the list.
        is_list = entry.name == _METADATA_DIR and any(entry.iterdir())
        if is_list or not is_hidden:
            raise ForeignTableError(
                f"{output} holds {entry.name}, which the checkpoint has not written; "
                "give the checkpoint that belongs to this table, or an empty output"
            )


def has_log(output: Path) -> bool:
    """Tell whether a file sink has ever been opened on this folder."""
    return (output / _METADATA_DIR).is_dir()


def newest_batch(output: Path) -> int:
    """Return the number of the last batch that the table lists, `NO_BATCH` if none."""
    return max(map(_batch_of, _log_entries(output)), default=NO_BATCH)


def committed_files(output: Path) -> set[Path]:
    """Return the files that belong to the table."""
    entries = {entry.name: entry for entry in _log_entries(output)}
    compacted = [_batch_of(entry) for name, entry in entries.items() if name.endswith(_COMPACT)]
    first = max(compacted, default=NO_BATCH)
    found: dict[str, str] = {}
    for name, entry in sorted(entries.items(), key=lambda item: _batch_of(item[1])):
        # A compacted log repeats all batches up to its own.
        if _batch_of(entry) < first or name == str(first):
            continue
        for line in entry.read_text("utf-8").splitlines()[1:]:
            status = json.loads(line)
            found[status["path"]] = status["action"]
    return {Path(unquote(urlsplit(uri).path)) for uri, action in found.items() if action == "add"}


def partition_columns(output: Path) -> tuple[str, ...] | None:
    """Return the columns that the table's folders are named for, None when it has no file yet."""
    for path in sorted(committed_files(output)):
        for depth in range(len(path.parts) - 1):
            folders = path.parts[-1 - depth : -1]
            if output.joinpath(*folders, path.name).is_file():
                return tuple(folder.partition("=")[0] for folder in folders)
    return None


def remove_strays(output: Path, partition_by: tuple[str, ...]) -> int:
    """Remove files of Spark's naming that do not belong to the table; return how many.

    Looks only where a job with these partition columns writes: below the output there may be other
    tables, whose files are listed elsewhere or nowhere.

    Only the one job that holds the output may call this, before its query starts, and after
    `pairing.pair` has found that the output is its own.
    """
    # The log names files as Java saw the folder, which may be by another path.
    names = {path.name for path in committed_files(output)}
    strays = [
        path
        for folder in _leaf_folders(output, partition_by)
        for path in folder.glob("part-*.parquet")
        if _PART_FILE.fullmatch(path.name) and path.name not in names
    ]
    for path in strays:
        path.unlink()
    if strays:
        logger.info("removed %d files that an interrupted batch left in %s", len(strays), output)
    return len(strays)


def _leaf_folders(folder: Path, columns: tuple[str, ...]) -> Iterator[Path]:
    """Yield the folders that hold the table's files, down through one column after the other."""
    if not columns:
        yield folder
        return
    for entry in sorted(folder.glob(f"{columns[0]}=*")):
        is_other_table = has_log(entry) or (entry / CHECKPOINTS_DIR).exists()
        if entry.is_dir() and not entry.is_symlink() and not is_other_table:
            yield from _leaf_folders(entry, columns[1:])


def _log_entries(output: Path) -> list[Path]:
    return list((output / _METADATA_DIR).glob("[0-9]*"))


def _batch_of(entry: Path) -> int:
    return int(entry.name.removesuffix(_COMPACT))
