"""Starts Spark on this machine, tuned for a quick start and short micro-batches.

What is set here and why:

- A Spark home of two links instead of the package's folder: Spark puts `pyspark.zip` of its home
  before everything else on the path of each worker, where every process compiles it anew.
- Unix sockets instead of TCP between Java and Python, which halves the time of a small batch.
- A checkpoint writer that does not start processes for each file. It is right for local disks with
  one writer only, which is what a local session has.
- The simple garbage collector and the quick compiler, and no check of class files, which all come
  from the installed package: a short job never earns back what these cost at the start.
"""

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

import mailboat
from mailboat_spark.java import find_java

_QUICK_JAVA: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# A socket's path holds at most 107 bytes, and Spark's names take 43 of them.
_LONGEST_SOCKET_DIR: Final = 64
_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %p %c{1} %m%n%ex
"""


def local_session(
    work_dir: Path,
    *,
    app_name: str,
    cores: int = 2,
    memory: str = "768m",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark in this process's children and return its session.

    Args:
        work_dir: an existing folder of the caller's for what Spark writes beside its output; the
            caller removes it after `stop`. A long path costs speed, see `_LONGEST_SOCKET_DIR`.
        app_name: shown in logs.
        cores: how many tasks run at a time.
        memory: Java's heap; Spark refuses less than 450m.
        settings: Spark settings that go over the ones here.

    Raises:
        JavaNotFoundError: there is no usable Java runtime.
    """
    _prepare_environment(os.environ, work_dir)
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    for name, value in {**_settings(work_dir, memory), **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _settings(work_dir: Path, memory: str) -> dict[str, str]:
    is_short = len(os.fsencode(work_dir)) <= _LONGEST_SOCKET_DIR
    return {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"{_QUICK_JAVA} -Djava.io.tmpdir={work_dir}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.python.unix.domain.socket.dir": str(work_dir),
        "spark.python.unix.domain.socket.enabled": str(is_short).lower(),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.warehouse.dir": str(work_dir / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _prepare_environment(environ: MutableMapping[str, str], work_dir: Path) -> None:
    spark_home = work_dir / "spark-home"
    conf_dir = spark_home / "conf"
    conf_dir.mkdir(parents=True, exist_ok=True)
    (conf_dir / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
    package = Path(pyspark.__file__).parent
    for name in ("bin", "jars"):
        link = spark_home / name
        if not link.is_symlink():
            link.symlink_to(package / name)
    environ["JAVA_HOME"] = str(find_java(environ).home_for_spark(work_dir))
    environ["SPARK_HOME"] = str(spark_home)
    environ["SPARK_CONF_DIR"] = str(conf_dir)
    environ["SPARK_LOCAL_DIRS"] = str(work_dir)
    environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    environ["SPARK_LAUNCHER_OPTS"] = _QUICK_JAVA
    # Without it, workers run whatever `python3` is on the path.
    environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    environ["PYTHONPATH"] = os.pathsep.join(_import_roots(environ.get("PYTHONPATH", "")))


def _import_roots(given: str) -> list[str]:
    """Return where workers find our packages, which a source checkout has not installed."""
    own = [str(Path(mailboat.__file__).parent.parent), str(Path(__file__).parent.parent)]
    return list(dict.fromkeys([*own, *filter(None, given.split(os.pathsep))]))
