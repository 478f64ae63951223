"""From the job's options to Spark's settings."""

from pathlib import Path
from typing import Final

from mailboat_spark.job.executors import executor_settings
from mailboat_spark.job.options import JobOptions
from mailboat_spark.session import common_settings, local_settings

# Spark repeats a task so often before the query fails: a broker's restart has its own patience.
_TASK_FAILURES: Final = "8"


def job_settings(options: JobOptions, work_dir: Path) -> dict[str, str]:
    """Return every Spark setting of the job, the user's own last."""
    is_short_run = options.mode == "available-now"
    settings = {
        **common_settings(work_dir, options.driver_memory, quick_start=is_short_run),
        # Stopping waits for the running batch in our own way; this bounds Spark's own.
        "spark.sql.streaming.stopTimeout": f"{round(options.stop_timeout_s * 1000)}ms",
        "spark.sql.streaming.minBatchesToRetain": "20",
        "spark.sql.parquet.compression.codec": options.compression,
        "spark.task.maxFailures": _TASK_FAILURES,
    }
    if options.on_kubernetes:
        settings |= executor_settings(options.kubernetes, options.name)
    else:
        settings |= local_settings(work_dir)
    return {**settings, **options.spark_settings}
