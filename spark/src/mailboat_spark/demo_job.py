"""The Spark job of `mailboat demo`: a topic to Parquet, until everything sent so far is there.

    python -m mailboat_spark.demo_job --namesrv HOST:PORT --topic T --output DIR --work-dir DIR

Run again with the same output and checkpoint, it goes on where it stopped, also after a kill. It
writes one JSON object per line on standard output: `{"event": "started"}`, `{"event": "progress",
"rows": n}` after each batch, `{"event": "finished", "rows": n, "batches": n}`. Exit code 1 comes
with one sentence on standard error.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mailboat.errors import MailboatError
from mailboat_spark.session import local_session

COLUMNS: Final = (
    "topic string, broker_name string, queue_id int, queue_offset bigint, keys string, "
    "tags string, value binary"
)
_POLL_S: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return the exit code."""
    given = parse_arguments(arguments)
    given.work_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.work_dir) as work_dir:
        try:
            spark = local_session(Path(work_dir), app_name="mailboat demo", cores=given.cores)
        except MailboatError as exc:
            sys.stderr.write(f"{exc}\n")
            return 1
        try:
            _tell(event="started")
            return run(spark, given)
        finally:
            spark.stop()


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the job's arguments; the process ends with 2 where they are wrong."""
    parser = argparse.ArgumentParser(prog="mailboat_spark.demo_job", description=__doc__)
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--output", required=True, type=Path, help="folder of the Parquet files")
    parser.add_argument("--checkpoint", type=Path, help="default: beside the output")
    parser.add_argument("--work-dir", required=True, type=Path, help="for temporary files")
    parser.add_argument("--group", help="store offsets for this consumer group")
    parser.add_argument("--max-offsets-per-trigger", type=int, default=100_000)
    parser.add_argument("--cores", type=int, default=2)
    return parser.parse_args(arguments)


def run(spark: SparkSession, given: argparse.Namespace) -> int:
    """Run the query until everything is written; return the exit code."""
    checkpoint = given.checkpoint or given.output.with_name(f"{given.output.name}-checkpoint")
    reader = (
        spark.readStream.format("mailboat")
        .schema(COLUMNS)
        .option("namesrv", given.namesrv)
        .option("subscribe", given.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", given.max_offsets_per_trigger)
    )
    if given.group:
        reader = reader.option("groupId", given.group)
    query = (
        reader.load()
        .writeStream.format("parquet")
        .queryName(given.topic)
        .option("path", str(given.output))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        _follow(query)
    except StreamingQueryException as exc:
        sys.stderr.write(f"the query failed: {exc}\n")
        return 1
    return 0


def _follow(query: StreamingQuery) -> None:
    rows_by_batch: dict[int, int] = {}
    is_running = True
    while is_running:
        is_running = not query.awaitTermination(_POLL_S)
        before = len(rows_by_batch)
        rows_by_batch |= _rows_by_batch(query.recentProgress)
        if len(rows_by_batch) > before:
            _tell(event="progress", rows=sum(rows_by_batch.values()))
    _tell(event="finished", rows=sum(rows_by_batch.values()), batches=len(rows_by_batch))


def _rows_by_batch(progress: Sequence[Any]) -> dict[int, int]:
    return {item["batchId"]: item["numInputRows"] for item in progress if item["numInputRows"]}


def _tell(**event: Any) -> None:
    sys.stdout.write(f"{json.dumps(event)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
