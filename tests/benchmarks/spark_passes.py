"""Reads a topic with Spark again and again; prints one line of JSON a pass, until it is killed.

Run by bench_spark.py as `python spark_passes.py NAMESRV TOPIC noop|parquet FOLDER`.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import Observation
from pyspark.sql.functions import count, lit

from mailboat_spark.session import local_session


def _main(namesrv: str, topic: str, sink: str, folder: str) -> None:
    work_dir = Path(folder)
    spark = local_session(work_dir, app_name="mailboat benchmark")
    while True:
        began_s = time.monotonic()
        rows = Observation()
        frame = spark.read.format("mailboat").options(namesrv=namesrv, subscribe=topic).load()
        writer = frame.observe(rows, count(lit(1)).alias("rows")).write.mode("overwrite")
        if sink == "parquet":
            writer.parquet(str(work_dir / "table"))
        else:
            writer.format("noop").save()
        seconds = time.monotonic() - began_s
        print(json.dumps({"messages": rows.get["rows"], "seconds": seconds}), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
