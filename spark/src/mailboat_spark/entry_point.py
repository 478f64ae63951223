"""The entry point of the Spark image: `executor` for Spark's driver, everything else is the job.

mailboat-spark job --topics orders ...      the driver; the word `job` may be left out
mailboat-spark executor                     a pod that the driver has made
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the first word asks for and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["executor"]:
        from mailboat_spark.executor import main as run_executor

        return run_executor()
    from mailboat_spark.job.command import main as run_job

    return run_job(words[1:] if words[:1] == ["job"] else words)


if __name__ == "__main__":
    sys.exit(main())
