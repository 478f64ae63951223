from pathlib import Path

import pytest

from mailboat import core
from mailboat.errors import ConfigError
from mailboat_spark.job.command import COMMAND, main, read_options

REQUIRED = ["--namesrv", "ns:9876", "--topics", "a,b", "--output", "/data/t"]
DOCUMENT = Path(__file__).parents[4] / "docs" / "spark.md"


def test_defaults_are_the_documented_ones():
    """Little must be said: the rest is a stream into folders by topic and day."""
    options = read_options(REQUIRED)
    assert options.checkpoint_dir == Path("/data/t/_checkpoints/mailboat-job")
    assert options.group_name == "mailboat-job"
    assert (options.mode, options.trigger_s, options.compression) == ("streaming", 10.0, "zstd")
    assert options.partition_by == ("topic", "date")
    assert options.max_offsets_per_trigger == 200_000
    assert options.fail_on_data_loss is True
    assert not options.on_kubernetes


def test_the_environment_says_the_same(monkeypatch):
    """Every option has a variable, and the command line goes over it."""
    for name, value in {
        "NAMESRV": "ns:9876",
        "TOPICS": "a",
        "OUTPUT": "/data/t",
        "TRIGGER": "1.5m",
        "FAIL_ON_DATA_LOSS": "false",
        "PARTITION_BY": "date,hour",
        "EXECUTORS": "3",
        "CONF": "spark.a=1 spark.b=2",
        "METRICS_PORT": "-1",
    }.items():
        monkeypatch.setenv(f"MAILBOAT_JOB_{name}", value)
    options = read_options(["--trigger", "2s", "--metrics-port", "0"])
    assert options.trigger_s == 2.0
    assert options.fail_on_data_loss is False
    assert options.partition_by == ("date", "hour")
    assert options.kubernetes.executors == 3
    assert options.spark_settings == {"spark.a": "1", "spark.b": "2"}
    assert options.metrics_port == 0
    monkeypatch.delenv("MAILBOAT_JOB_TRIGGER")
    monkeypatch.setenv("MAILBOAT_JOB_TRIGGER", "500ms")
    assert read_options([]).trigger_s == 0.5


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--namesrv", "ns:9876"], 2, "Missing option '--topics'"),
        ([*REQUIRED, "--mode", "batch"], 2, "'batch' is not one of"),
        ([*REQUIRED, "--trigger", "soon"], 2, "'soon' is no duration such as 500ms"),
        ([*REQUIRED, "--conf", "a=b"], 2, "is not spark.KEY=VALUE"),
        ([*REQUIRED, "--topics", "a b"], 3, "--topics=a b: "),
        ([*REQUIRED, "--namesrv", "ns"], 3, "--namesrv=ns: "),
        ([*REQUIRED, "--output", "data"], 3, "--output=data: is not absolute"),
        ([*REQUIRED, "--output", "s3a://b/t"], 3, "is no folder; mount the storage"),
        ([*REQUIRED, "--partition-by", "colour"], 3, "--partition-by=colour: is none of topic"),
        ([*REQUIRED, "--partition-by", "date,date"], 3, "names a column twice"),
        ([*REQUIRED, "--name", "My Job"], 3, "--name=My Job: is no name"),
        ([*REQUIRED, "--master", "yarn"], 3, "--master=yarn: is neither local[N] nor k8s://URL"),
        ([*REQUIRED, "--checkpoint", "/data"], 3, "is the output or around it"),
        ([*REQUIRED, "--starting-offsets", "now"], 3, "--starting-offsets=now: "),
        ([*REQUIRED, "--master", "k8s://https://k"], 3, "--namespace=: is required"),
        ([*REQUIRED, "--master", "k8s://k", "--instance", "a b"], 3, "--instance=a b: is no value"),
        ([*REQUIRED, "--topics", " ,"], 3, "--topics=: names no topic"),
    ],
)
def test_mistakes_are_one_sentence_and_a_code(capsys, words, code, sentence):
    """2 is wrong usage, 3 a wrong value; Spark is not started for either."""
    assert main(words) == code
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.startswith("mailboat-job: ")
    assert captured.err.count("\n") == 1


def test_topics_are_one_list_everywhere():
    """A comma too much names no topic, neither for the source nor for the lag."""
    options = read_options([*REQUIRED, "--topics", "a, b,,a,"])
    assert options.topic_names == ("a", "b")
    assert options.source_options()["subscribe"] == "a,b"


def test_help_has_examples_and_every_option(capsys):
    """--help explains itself."""
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "mailboat-job --namesrv ns:9876 --topics orders" in text
    for option in COMMAND.params:
        assert option.opts[0] in text


def test_the_document_has_every_option():
    """docs/spark.md lists what the command takes."""
    text = DOCUMENT.read_text("utf-8")
    missing = [option.opts[0] for option in COMMAND.params if f"`{option.opts[0]}`" not in text]
    assert missing == []


def test_errors_carry_the_option_of_the_job():
    """The source's option names are not the user's."""
    with pytest.raises(ConfigError, match=r"^--tags="):
        read_options([*REQUIRED, "--tags", "||"])


def test_a_wrong_switch_of_the_core_is_refused(monkeypatch, capsys):
    """As every `mailboat` command does it: one sentence, and no Spark is started."""
    monkeypatch.setattr(core, "FOUND", core.find("maybe", lambda: pytest.fail("loaded")))
    assert main(REQUIRED) == 3
    sentence = "mailboat-job: MAILBOAT_CORE=maybe: must be off or required, or not set\n"
    assert capsys.readouterr().err == sentence
