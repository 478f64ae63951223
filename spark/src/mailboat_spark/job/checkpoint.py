"""What Spark's checkpoint says the job has finished.

`offsets/N` holds a batch's planned end (a version line, a line about the batch, then one line per
source), `commits/N` exists once it is done.
"""

import json
from pathlib import Path
from typing import Final

from mailboat_spark.offsets import QueueOffsets, decode_offsets

_FIRST_SOURCE_LINE: Final = 2


def exists(checkpoint: Path) -> bool:
    """Tell whether a query has begun with this checkpoint."""
    return (checkpoint / "metadata").is_file()


def finished_offsets(checkpoint: Path) -> QueueOffsets:
    """Return the next offset to read of each queue after the last finished batch; empty if none."""
    commits = checkpoint / "commits"
    batches = [int(entry.name) for entry in commits.glob("[0-9]*") if entry.name.isdigit()]
    if not batches:
        return {}
    lines = (checkpoint / "offsets" / str(max(batches))).read_text("utf-8").splitlines()
    return decode_offsets(json.loads(lines[_FIRST_SOURCE_LINE]))
