"""The Parquet table: its columns, which files belong to it, and what a killed job left beside them.

Spark's file sink lists the files of each batch in `_spark_metadata`; a file that is not listed is
not part of the table. Spark's own readers look there. Other readers take every file, so what a
killed job left is removed at the next start, before anything is written.
"""

import json
import logging
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from mailboat.errors import MailboatError

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
    """The output holds something that this checkpoint did not write."""


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
        if entry.name == _METADATA_DIR or not is_hidden:
            raise ForeignTableError(
                f"{output} holds {entry.name}, which the checkpoint has not written; "
                "give the checkpoint that belongs to this table, or an empty output"
            )


def committed_files(output: Path) -> set[Path]:
    """Return the files that belong to the table."""
    log = output / _METADATA_DIR
    entries = {entry.name: entry for entry in log.glob("[0-9]*")}
    compacted = [int(name.removesuffix(_COMPACT)) for name in entries if name.endswith(_COMPACT)]
    first = max(compacted, default=-1)
    found: dict[str, str] = {}
    for name in sorted(entries, key=lambda name: int(name.removesuffix(_COMPACT))):
        # A compacted log repeats all batches up to its own.
        if int(name.removesuffix(_COMPACT)) < first or name == str(first):
            continue
        for line in entries[name].read_text("utf-8").splitlines()[1:]:
            entry = json.loads(line)
            found[entry["path"]] = entry["action"]
    return {Path(unquote(urlsplit(uri).path)) for uri, action in found.items() if action == "add"}


def remove_strays(output: Path) -> int:
    """Remove files of Spark's naming that do not belong to the table; return how many.

    Only the one job that holds the output may call this, before its query starts.
    """
    wanted = committed_files(output)
    # The log names files as Java saw the folder, which may be by another path.
    names = {path.name for path in wanted}
    strays = [
        path
        for path in output.rglob("part-*.parquet")
        if _PART_FILE.fullmatch(path.name) and path.name not in names
    ]
    for path in strays:
        path.unlink()
    if strays:
        logger.info("removed %d files that an interrupted batch left in %s", len(strays), output)
    return len(strays)
