"""Whether checkpoint and table belong together, found out before anything is written or removed.

Spark does not ask. It numbers the batches in the checkpoint, its file sink passes over the numbers
that the table's own list has, and it takes a list that begins in the middle until the first time
that it compacts it: a pair that does not fit loses messages without a word, or fails for ever. Nor
does it mind other partition columns, which leave two layouts in one table that no reader takes.

The sink lists every batch, an empty one too, before the checkpoint calls it finished. So the newest
batch of a table is the last finished one, or, when a kill came between the two, the last planned
one. A small file in both folders tells tables apart whose numbers happen to fit, and keeps the
partition columns.
"""

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mailboat.errors import ConfigError, MailboatError
from mailboat_spark.job import checkpoint, table

RECORD_FILE: Final = "_mailboat_job.json"
"""Stands in the checkpoint and in the output; Spark and readers of tables pass over the name."""


class BadRecordError(MailboatError):
    """The file about the table cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    table_id: str
    partition_by: tuple[str, ...]


def pair(checkpoint_dir: Path, output: Path, partition_by: tuple[str, ...]) -> None:
    """Check that the job may go on with this table, and keep what the next start compares.

    A checkpoint that has not begun needs an empty output. One that was begun without the file
    takes the partition columns from the table.

    Raises:
        ForeignTableError: the output is not the table that the checkpoint writes.
        ConfigError: the table has other partition columns.
        BadRecordError: the file about the table is damaged.
    """
    if checkpoint.exists(checkpoint_dir):
        record = _known_record(checkpoint_dir, output)
        _check_batches(checkpoint_dir, output)
        _check_columns(output, record, partition_by)
    else:
        record = None
        table.check_new(output)
    record = record or _Record(table_id=str(uuid.uuid4()), partition_by=partition_by)
    for folder in (checkpoint_dir, output):
        _write(folder, record)


def _known_record(checkpoint_dir: Path, output: Path) -> _Record | None:
    ours, theirs = _read(checkpoint_dir), _read(output)
    if ours and theirs and ours.table_id != theirs.table_id:
        raise table.ForeignTableError(
            f"{output} is the table of another checkpoint than {checkpoint_dir}; "
            "give the output and the checkpoint that belong together"
        )
    return ours or theirs


def _check_batches(checkpoint_dir: Path, output: Path) -> None:
    if not table.has_log(output):
        # Spark makes the list's folder before it begins a checkpoint.
        table.check_new(output)
    newest = table.newest_batch(output)
    finished = checkpoint.last_finished_batch(checkpoint_dir)
    planned = checkpoint.last_planned_batch(checkpoint_dir)
    if finished <= newest <= planned:
        return
    holds = "holds no batch" if newest == checkpoint.NO_BATCH else f"ends with batch {newest}"
    done = "no batch" if finished == checkpoint.NO_BATCH else f"batch {finished}"
    raise table.ForeignTableError(
        f"{output} {holds}, but {checkpoint_dir} has finished {done}: they are of different jobs "
        "or times; give the output and the checkpoint that belong together, "
        "or an empty output and a new checkpoint"
    )


def _check_columns(output: Path, record: _Record | None, partition_by: tuple[str, ...]) -> None:
    columns = record.partition_by if record else table.partition_columns(output)
    if columns is None or columns == partition_by:
        return
    raise ConfigError(
        "--partition-by",
        ",".join(partition_by),
        f"is not how {output} was begun, which is {','.join(columns) or 'without columns'}; "
        "give that, or an empty output and a new checkpoint",
    )


def _read(folder: Path) -> _Record | None:
    path = folder / RECORD_FILE
    try:
        found = json.loads(path.read_text("utf-8"))
        return _Record(table_id=found["table_id"], partition_by=tuple(found["partition_by"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as exc:
        raise BadRecordError(
            f"{path} is damaged ({exc}); remove it, and the job makes it anew from the table"
        ) from exc


def _write(folder: Path, record: _Record) -> None:
    """Write in one step, so that no kill leaves half a file; what is there already stays."""
    if _read(folder) == record:
        return
    content = {"table_id": record.table_id, "partition_by": list(record.partition_by)}
    path = folder / RECORD_FILE
    draft = folder / f"{RECORD_FILE}.tmp"
    with draft.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
