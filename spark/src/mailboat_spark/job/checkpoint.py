"""What Spark's checkpoint says the job has planned and finished.

`offsets/N` holds a batch's planned end (a version line, a line about the batch, then one line per
source), `commits/N` exists once it is done.
"""

import json
from pathlib import Path
from typing import Final

from mailboat_spark.offsets import QueueOffsets, decode_offsets

NO_BATCH: Final = -1
"""The number that stands before the first batch's, 0."""

_FIRST_SOURCE_LINE: Final = 2


def exists(checkpoint: Path) -> bool:
    """Tell whether a query has begun with this checkpoint."""
    return (checkpoint / "metadata").is_file()


def last_planned_batch(checkpoint: Path) -> int:
    """Return the number of the last batch that was begun, `NO_BATCH` if none."""
    return _last_number(checkpoint / "offsets")


def last_finished_batch(checkpoint: Path) -> int:
    """Return the number of the last batch that was finished, `NO_BATCH` if none."""
    return _last_number(checkpoint / "commits")


def finished_offsets(checkpoint: Path) -> QueueOffsets:
    """Return the next offset to read of each queue after the last finished batch; empty if none."""
    batch = last_finished_batch(checkpoint)
    if batch == NO_BATCH:
        return {}
    lines = (checkpoint / "offsets" / str(batch)).read_text("utf-8").splitlines()
    return decode_offsets(json.loads(lines[_FIRST_SOURCE_LINE]))


def _last_number(folder: Path) -> int:
    numbers = (int(entry.name) for entry in folder.glob("[0-9]*") if entry.name.isdigit())
    return max(numbers, default=NO_BATCH)
