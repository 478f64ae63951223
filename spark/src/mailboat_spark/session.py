"""Starts Spark from Python, tuned for a quick start and short micro-batches.

What is set here and why:

- A Spark home of two links instead of the package's folder: Spark puts `pyspark.zip` of its home
  before everything else on the path of each worker, where every process compiles it anew.
- Unix sockets instead of TCP between Java and Python, which halves the time of a small batch.
- A checkpoint writer that does not start processes for each file. It is right for mounted file
  systems with one writer only.
- The simple garbage collector, and no check of class files, which all come from the installed
  package; for short runs also the quick compiler, whose code is slower: a stream earns back what
  the good one costs.
"""

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

import mailboat
from mailboat_spark.java import find_java

_LONG_JAVA: Final = (
    "-XX:+UseSerialGC -XX:-UsePerfData "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
_QUICK_JAVA: Final = f"{_LONG_JAVA} -XX:TieredStopAtLevel=1"
_LOOPBACK: Final = "127.0.0.1"
_END_TIMEOUT_S: Final = 60.0
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
    given = {
        **common_settings(work_dir, memory, quick_start=True),
        **local_settings(work_dir),
        **(settings or {}),
    }
    return open_session(
        work_dir,
        app_name=app_name,
        master=f"local[{cores}]",
        local_ip=_LOOPBACK,
        settings=given,
    )


def open_session(
    work_dir: Path, *, app_name: str, master: str, local_ip: str, settings: Mapping[str, str]
) -> SparkSession:
    """Start Spark with exactly these settings; see `common_settings` and `local_settings`.

    Args:
        work_dir: as in `local_session`.
        app_name: shown in logs, and in names of pods.
        master: where tasks run.
        local_ip: the address that Spark's driver has for others.
        settings: Spark settings.

    Raises:
        JavaNotFoundError: there is no usable Java runtime.
    """
    _prepare_environment(os.environ, work_dir, local_ip)
    if master.startswith("local"):
        os.environ["SPARK_LOCAL_DIRS"] = str(work_dir)
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def end_java() -> None:
    """End Java itself, which a stopped session leaves running until Python ends."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_END_TIMEOUT_S)
    SparkContext._gateway = SparkContext._jvm = None


def common_settings(work_dir: Path, memory: str, *, quick_start: bool) -> dict[str, str]:
    """Return the settings that fit wherever tasks run.

    Args:
        work_dir: the driver's folder for temporary files.
        memory: Java's heap on the driver.
        quick_start: whether the run is short, and starting quickly is what counts.
    """
    java = _QUICK_JAVA if quick_start else _LONG_JAVA
    return {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"{java} -Djava.io.tmpdir={work_dir}",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.warehouse.dir": str(work_dir / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def local_settings(work_dir: Path) -> dict[str, str]:
    """Return what is added when all tasks run in this process's Java."""
    is_short = len(os.fsencode(work_dir)) <= _LONGEST_SOCKET_DIR
    return {
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.python.unix.domain.socket.dir": str(work_dir),
        "spark.python.unix.domain.socket.enabled": str(is_short).lower(),
    }


def _prepare_environment(environ: MutableMapping[str, str], work_dir: Path, local_ip: str) -> None:
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
    environ["SPARK_LOCAL_IP"] = local_ip
    environ["SPARK_LAUNCHER_OPTS"] = _QUICK_JAVA
    # Without it, workers run whatever `python3` is on the path.
    environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    environ["PYTHONPATH"] = os.pathsep.join(_import_roots(environ.get("PYTHONPATH", "")))


def _import_roots(given: str) -> list[str]:
    """Return where workers find our packages, which a source checkout has not installed."""
    own = [str(Path(mailboat.__file__).parent.parent), str(Path(__file__).parent.parent)]
    return list(dict.fromkeys([*own, *filter(None, given.split(os.pathsep))]))
