from pathlib import Path

import pytest

from mailboat.errors import ConfigError
from mailboat_spark import entry_point, executor

ENVIRONMENT = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_EXECUTOR_POD_NAME": "exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_JAVA_OPT_10": "-Dten=1",
    "SPARK_JAVA_OPT_9": "-Dnine=1",
}


def test_the_command_is_the_one_that_spark_expects():
    """Java's options come in order of their numbers; the class path begins with the settings."""
    words = executor.command(ENVIRONMENT, Path("/java"), Path("/jars"))
    assert words == [
        "/java", "-Dnine=1", "-Dten=1", "-Xms512m", "-Xmx512m", "-cp", "/opt/spark/conf:/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        "--driver-url", "spark://CoarseGrainedScheduler@10.0.0.7:7078",
        "--executor-id", "1", "--cores", "2", "--app-id", "spark-app",
        "--hostname", "10.0.0.8", "--resourceProfileId", "0", "--podName", "exec-1",
    ]  # fmt: skip


def test_a_missing_variable_is_named():
    """Run by hand, the executor says what is missing."""
    rest = {name: value for name, value in ENVIRONMENT.items() if name != "SPARK_EXECUTOR_ID"}
    with pytest.raises(ConfigError, match="SPARK_EXECUTOR_ID=: is missing"):
        executor.command(rest, Path("/java"), Path("/jars"))


def test_the_image_runs_what_the_first_word_says(capsys):
    """`job` may be left out; what follows are the job's options."""
    for words in (["job", "--version"], ["--version"]):
        assert entry_point.main(words) == 0
        assert capsys.readouterr().out.startswith("mailboat-job ")
