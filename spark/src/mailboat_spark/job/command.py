"""The command `mailboat-job`: reads the options, and turns errors into one sentence and a code."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from mailboat import __version__, core
from mailboat.errors import MailboatError
from mailboat.model.printable import PrintableFormatter, printable
from mailboat_spark.job.options import (
    COMPRESSIONS,
    PARTITION_COLUMNS,
    JobOptions,
    KubernetesOptions,
    check_options,
    parse_duration_s,
)

PROGRAM: Final = "mailboat-job"
ENVIRONMENT_PREFIX: Final = "MAILBOAT_JOB"
_DEFAULTS: Final = JobOptions(namesrv="", topics="", output=Path("/"))
_POD_DEFAULTS: Final = KubernetesOptions()

_HELP: Final = """\
Write topics to a Parquet table, each message once.

The table has a row per message and folders by topic and day (of the store time, UTC). The job goes
on where it stopped: what it has read is in the checkpoint, not in the consumer group. The group's
offsets are stored on the brokers all the same, so that lag and retention see the job.

Every option can also be given by the environment: --max-offsets-per-trigger is
MAILBOAT_JOB_MAX_OFFSETS_PER_TRIGGER, and so on.

\b
Examples:
  Follow two topics, a batch every 10 seconds:
    mailboat-job --namesrv ns:9876 --topics orders,payments --output /data/events
  Take what is there now and end, for a cron job:
    mailboat-job --namesrv ns:9876 --topics orders --output /data/events --mode available-now
  Executors as pods (in a pod of the cluster):
    mailboat-job ... --master k8s://https://kubernetes.default.svc --namespace data \\
      --image mailboat-spark:0.1.0 --pod-name $POD_NAME --pod-ip $POD_IP --executors 2

SIGTERM ends the job after the running batch.

\b
Exit codes: 0 ok, 1 runtime error, 2 wrong usage, 3 wrong configuration.
"""


def _duration(text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise click.BadParameter(f"{text!r} is not spark.KEY=VALUE")
    return key, value


_PORT: Final = click.IntRange(1, 65535)
_FOLDER: Final = click.Path(path_type=Path)

_SOURCE_OPTIONS: Final = (
    click.Option(["--namesrv"], required=True, metavar="HOST:PORT[;...]", help="Name servers."),
    click.Option(["--topics"], required=True, metavar="TOPIC[,...]", help="What to read."),
    click.Option(["--group"], help="Consumer group whose offsets are stored; default: --name."),
    click.Option(
        ["--starting-offsets"],
        metavar="earliest|latest|group|JSON",
        help='Where a new checkpoint begins; JSON as {"orders":{"broker-a:0":120}}, -2 first, '
        "-1 end. A checkpoint that exists goes on where it is.",
    ),
    click.Option(
        ["--max-offsets-per-trigger"],
        type=click.IntRange(1),
        help="Messages per batch at most, shared out by backlog.",
    ),
    click.Option(["--tags"], metavar="'A || B'", help="Take only messages with these tags."),
    click.Option(
        ["--fail-on-data-loss"],
        type=bool,
        metavar="true|false",
        help="End with an error when messages expired before they were read, or go on.",
    ),
    click.Option(
        ["--commit-group-offsets"],
        type=bool,
        metavar="true|false",
        help="Store the group's offsets on the brokers after each batch.",
    ),
)
_ACCESS_OPTIONS: Final = (
    click.Option(["--access-key"], metavar="NAME", help="Sign requests as this user."),
    click.Option(
        ["--secret-key-file"],
        metavar="FILE",
        help="File with that user's secret key; executors read it too, at the same path.",
    ),
    click.Option(["--tls"], type=bool, metavar="true|false", help="Connect to servers by TLS."),
    click.Option(
        ["--tls-trust"],
        metavar="FILE",
        help="PEM file of the authorities to trust; default: those of the system.",
    ),
    click.Option(["--tls-cert"], metavar="FILE", help="PEM file with the certificate to show."),
    click.Option(["--tls-key"], metavar="FILE", help="PEM file with its key."),
    click.Option(
        ["--tls-check"],
        type=bool,
        metavar="true|false",
        help="Check certificates and names of servers; false connects to whoever answers.",
    ),
)
_TABLE_OPTIONS: Final = (
    click.Option(["--output"], required=True, type=_FOLDER, help="Folder of the table, absolute."),
    click.Option(["--checkpoint"], type=_FOLDER, help="Folder; default: OUTPUT/_checkpoints/NAME."),
    click.Option(
        ["--partition-by"],
        type=_words,
        metavar="COLUMN[,...]",
        help=f"Folders of the table, of {', '.join(PARTITION_COLUMNS)}; empty for none.",
    ),
    click.Option(["--compression"], type=click.Choice(COMPRESSIONS), help="Of the Parquet files."),
)
_RUN_OPTIONS: Final = (
    click.Option(
        ["--name"], help="Of the job: in its checkpoint, the labels of its pods and in metrics."
    ),
    click.Option(
        ["--mode"],
        type=click.Choice(["streaming", "available-now"]),
        help="Follow the topics, or take what there is at the start and end.",
    ),
    click.Option(["--trigger"], type=_duration, help="Time from batch to batch, streaming only."),
    click.Option(["--master"], metavar="local[N]|k8s://URL", help="Where tasks run."),
    click.Option(["--driver-memory"], help="Java's heap on the driver, 450m or more."),
    click.Option(["--work-dir"], type=_FOLDER, help="Folder for temporary files."),
    click.Option(
        ["--metrics-port"],
        type=click.IntRange(-1, 65535),
        help="Port of /metrics, /livez and /readyz; 0 takes a free one, -1 serves nothing.",
    ),
    click.Option(
        ["--stop-timeout"],
        type=_duration,
        help="How long SIGTERM waits for the running batch.",
    ),
    click.Option(
        ["--liveness-timeout"],
        type=_duration,
        help="/livez fails after so long without a batch, a task's end or an idle trigger.",
    ),
    click.Option(
        ["--lock-timeout"],
        type=_duration,
        help="How long to wait for another job that holds the checkpoint.",
    ),
    click.Option(
        ["--conf"],
        type=_setting,
        multiple=True,
        metavar="spark.KEY=VALUE",
        help="A Spark setting, over the job's own; may be repeated.",
    ),
    click.Option(["--debug"], is_flag=True, help="Show tracebacks and log at DEBUG level."),
)
_KUBERNETES_OPTIONS: Final = (
    click.Option(["--namespace"], help="Namespace of this pod and of the executors."),
    click.Option(
        ["--instance"],
        help="Tells jobs of one name in a namespace apart, as a Helm release's name does.",
    ),
    click.Option(["--image"], help="Image of the executors."),
    click.Option(["--image-pull-policy"], help="Of the executors' image."),
    click.Option(["--pod-name"], help="This pod; executors go when it goes."),
    click.Option(["--pod-ip"], help="Address of this pod."),
    click.Option(["--driver-port"], type=_PORT, help="Port of the driver for executors."),
    click.Option(["--block-manager-port"], type=_PORT, help="Port for blocks of data."),
    click.Option(["--executors"], type=click.IntRange(1), help="Number of executor pods."),
    click.Option(["--executor-cores"], type=click.IntRange(1), help="Tasks at a time in each."),
    click.Option(["--executor-request-cores"], metavar="CPU", help="CPU request, such as 250m."),
    click.Option(["--executor-memory"], help="Java's heap in each."),
    click.Option(["--executor-memory-overhead"], help="Memory for Python in each."),
    click.Option(
        ["--executor-pod-template"],
        metavar="FILE",
        help="Pod template (YAML) for volumes, security context and placing.",
    ),
)
_POD_FIELDS: Final = tuple(KubernetesOptions.__dataclass_fields__)
# Options whose field says the unit, or says more.
_FIELD_BY_OPTION: Final = {
    "trigger": "trigger_s",
    "stop_timeout": "stop_timeout_s",
    "liveness_timeout": "liveness_timeout_s",
    "lock_timeout": "lock_timeout_s",
    "conf": "spark_settings",
}


def _defaults() -> dict[str, Any]:
    """Return the defaults, which are those of the dataclasses, as they are typed."""
    option_by_field = {name: option for option, name in _FIELD_BY_OPTION.items()}
    found: dict[str, Any] = {}
    for source in (_DEFAULTS, _POD_DEFAULTS):
        for name in source.__dataclass_fields__:
            value = getattr(source, name)
            if isinstance(value, bool):
                value = str(value).lower()
            elif isinstance(value, float):
                value = f"{value:g}s"
            elif isinstance(value, tuple):
                value = ",".join(value)
            if isinstance(value, str | int) and value != "":
                found[option_by_field.get(name, name)] = value
    return found


COMMAND: Final = click.version_option(__version__, "--version", message=f"{PROGRAM} %(version)s")(
    click.Command(
        PROGRAM,
        help=_HELP,
        params=[
            *_SOURCE_OPTIONS,
            *_ACCESS_OPTIONS,
            *_TABLE_OPTIONS,
            *_RUN_OPTIONS,
            *_KUBERNETES_OPTIONS,
        ],
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": 100,
            "auto_envvar_prefix": ENVIRONMENT_PREFIX,
            "show_default": True,
            "default_map": _defaults(),
        },
    )
)
"""What `--help` shows; the chart's and the documentation's tables are checked against it."""


def _to_options(given: dict[str, Any]) -> JobOptions:
    values = {
        _FIELD_BY_OPTION.get(name, name): value
        for name, value in given.items()
        if value is not None and name != "debug"
    }
    pods = KubernetesOptions(**{name: values.pop(name) for name in _POD_FIELDS if name in values})
    values["spark_settings"] = dict(values["spark_settings"])
    return JobOptions(**values, kubernetes=pods)


def read_options(words: Sequence[str]) -> JobOptions:
    """Return the options of a command line and the environment, checked.

    Raises:
        click.ClickException: wrong usage.
        ConfigError: a value is wrong.
    """
    with COMMAND.make_context(PROGRAM, list(words)) as context:
        options = _to_options(dict(context.params))
    check_options(options)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; `arguments` default to those of the process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler])
    # py4j tells of every call.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        core.FOUND.check()
        options = read_options(words)
        # Spark is imported only when everything that needs no Spark is right.
        from mailboat_spark.job.runner import run_job

        return run_job(options)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        sys.stderr.write(f"{PROGRAM}: {exc.format_message()}\n")
        return exc.exit_code
    except (MailboatError, OSError) as exc:
        if debug:
            logging.getLogger(__name__).exception("the job failed")
        sys.stderr.write(f"{PROGRAM}: {printable(str(exc))}\n")
        return exc.exit_code if isinstance(exc, MailboatError) else 1
