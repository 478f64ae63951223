"""Lets `python -m mailboat_spark.job` run the command."""

import sys

from mailboat_spark.job.command import main

if __name__ == "__main__":
    sys.exit(main())
