"""Removes from an installed pyspark what the job never loads, about half of it.

    python3 prune.py FOLDER

`pyspark.zip` goes too: Spark would put it before everything else on the path of every worker, where
each process compiles it anew. The ORC jars stay: Spark looks up every data source through a list
that names them.
"""

import re
import shutil
import sys
from pathlib import Path

JARS = re.compile(
    r"(rocksdbjni|connect-repl|spark-connect|spark-mllib|spark-graphx|spark-hive|spark-yarn|spark-repl"
    r"|spark-pipelines|breeze|spire|cats-kernel|algebra|lapack|arpack|blas|JTransforms|JLargeArrays"
    r"|hive-(?!storage-api)|derby|datanucleus|libthrift|libfb303|javax\.jdo|jdo-api|HikariCP"
    r"|scala-compiler|jline|zookeeper|curator|jaxb|opencsv|super-csv|bonecp|ST4|antlr-runtime-3)"
    r".*"
)
FOLDERS = ("examples", "data", "python", "tests", "sbin", "licenses")
ARROW_FOLDERS = ("tests", "include", "src")


def main() -> None:
    """Prune the one pyspark and the one pyarrow below a folder."""
    [root] = (Path(word) for word in sys.argv[1:])
    [spark] = root.glob("lib/python*/site-packages/pyspark")
    for entry in (spark / "jars").iterdir():
        if JARS.fullmatch(entry.name):
            remove(entry)
    for name in FOLDERS:
        remove(spark / name)
    for name in ARROW_FOLDERS:
        remove(spark.parent / "pyarrow" / name)
    for entry in (spark.parent / "pyarrow").glob("libarrow_flight*"):
        remove(entry)


def remove(entry: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if entry.is_dir():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
