"""The options of the source: names, defaults and checks.

Names are spelled as Spark's Kafka source spells them where it has the same thing, and are matched
without regard to case. A name that is not in the table is an error that names the nearest one.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias

from mailboat.client.addresses import parse_namesrv
from mailboat.errors import ConfigError, IllegalMessageError
from mailboat.model.names import check_group, check_topic
from mailboat.model.subscription import SUBSCRIBE_ALL, build_subscription
from mailboat_spark.access import OPEN_ACCESS, AccessOptions
from mailboat_spark.offsets import OWN_KEYS, StartingOffsets, parse_starting_offsets

Use: TypeAlias = Literal["stream", "batch"]
SchemaMode: TypeAlias = Literal["kafka", "rocketmq"]

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
# Arrow has no binary column of more than 2 GiB in one piece, and one message may come on top.
_ARROW_BYTES_MAX: Final = 2**30
# Pulls of a query without groupId name this group; nothing is committed for it.
DEFAULT_GROUP: Final = "mailboat-spark"
# What stands for a secret in the text of an error.
_HIDDEN: Final = "<hidden>"
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Checked options; picklable, because Spark sends them to every worker."""

    namesrv: str
    topics: tuple[str, ...]
    access: AccessOptions = OPEN_ACCESS
    group: str = DEFAULT_GROUP
    commit_group_offsets: bool = False
    starting_offsets: StartingOffsets
    ending_offsets: StartingOffsets
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    tags: str = SUBSCRIBE_ALL
    schema_mode: SchemaMode = "kafka"
    include_headers: bool = False
    offset_fetch_interval_ms: int = 200
    retry_timeout_ms: int = 150_000
    """Longer than name servers keep a broker that fell silent: 120 s, looked at every 5 to 10 s."""
    pull_batch_size: int = 4096
    pulls_in_flight: int = 4
    arrow_batch_rows: int = 5000
    arrow_batch_bytes: int = 8 * 1024 * 1024
    freeze_worker_objects: bool = True
    stop_file: str = ""


def parse_options(given: Mapping[str, str], use: Use) -> SourceOptions:
    """Check the options of a query.

    Args:
        given: the options as Spark hands them over; names in any case.
        use: `stream` or `batch`; some options exist in one of them only.

    Raises:
        ConfigError: an option is unknown, missing or wrong; the text names it.
    """
    values: dict[str, Any] = {}
    group_given = False
    for name, text in given.items():
        option = _find(name)
        if option.only not in (None, use):
            raise ConfigError(option.name, text, f"exists in {option.only} queries only; remove it")
        values[option.field] = _parse(option, text)
        group_given |= option.field == "group"
    for required, hint in (
        ("namesrv", "name servers as HOST:PORT;HOST:PORT"),
        ("topics", "topics as TOPIC or TOPIC,TOPIC"),
    ):
        if required not in values:
            name = _NAME_BY_FIELD[required]
            raise ConfigError(name, "", f"is required; give {hint}")
    return _with_defaults(values, use, group_given)


def parse_schema_options(given: Mapping[str, str]) -> tuple[SchemaMode, bool]:
    """Check only what the schema depends on: the mode, and whether headers are wanted.

    Spark asks for the schema before it says whether the query streams.

    Raises:
        ConfigError: one of the two options is wrong.
    """
    values: dict[str, Any] = {"schema_mode": "kafka", "include_headers": False}
    for name, text in given.items():
        option = _BY_NAME.get(name.lower())
        if option is not None and option.field in values:
            values[option.field] = _parse(option, text)
    return values["schema_mode"], values["include_headers"]


def _with_defaults(values: dict[str, Any], use: Use, group_given: bool) -> SourceOptions:
    if values.get("commit_group_offsets") and not group_given:
        raise ConfigError("commitGroupOffsets", "true", "needs groupId to know whose offsets")
    values.setdefault("commit_group_offsets", group_given and use == "stream")
    start = "latest" if use == "stream" else "earliest"
    values.setdefault("starting_offsets", StartingOffsets(start))
    values.setdefault("ending_offsets", StartingOffsets("latest"))
    if values["starting_offsets"].kind == "group" and not group_given:
        raise ConfigError("startingOffsets", "group", "needs groupId to know whose offsets")
    given = {name: values.pop(name) for name in _ACCESS_FIELDS & values.keys()}
    options = SourceOptions(**values, access=AccessOptions(**given))
    options.access.check()
    for offsets, name in (
        (options.starting_offsets, "startingOffsets"),
        (options.ending_offsets, "endingOffsets"),
    ):
        for queue in offsets.by_queue:
            if queue.topic not in options.topics:
                reason = f"names topic {queue.topic}, which 'subscribe' does not"
                raise ConfigError(name, offsets.kind, reason)
    return options


# Parsers of single values; each raises ValueError with the reason.


def _boolean(text: str) -> bool:
    try:
        return _BOOLEANS[text.strip().lower()]
    except KeyError:
        raise ValueError("is neither true nor false") from None


def _number(minimum: int, maximum: int = _INT32_MAX) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError("is not a whole number") from None
        if number < minimum:
            raise ValueError(f"is less than {minimum}")
        if number > maximum:
            raise ValueError(f"is more than {maximum}")
        return number

    return parse


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; remove it, or give a value")
    return text.strip()


def _namesrv(text: str) -> str:
    try:
        return ";".join(parse_namesrv(text))
    except ConfigError as exc:
        raise ValueError(exc.reason) from exc


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise ValueError("names no topic")
    for topic in topics:
        if topic in OWN_KEYS:
            raise ValueError(f"topic {topic} cannot be read, checkpoints use this name themselves")
        try:
            check_topic(topic)
        except IllegalMessageError as exc:
            raise ValueError(str(exc)) from exc
    return topics


def _group(text: str) -> str:
    try:
        check_group(text)
    except IllegalMessageError as exc:
        raise ValueError(str(exc)) from exc
    return text


def _tags(text: str) -> str:
    try:
        return build_subscription("-", text).sub_string
    except IllegalMessageError as exc:
        raise ValueError("names no tag; write tags as 'a || b'") from exc


def _schema_mode(text: str) -> str:
    mode = text.strip().lower()
    if mode not in ("kafka", "rocketmq"):
        raise ValueError("is neither kafka nor rocketmq")
    return mode


def _starting(text: str) -> StartingOffsets:
    return parse_starting_offsets(text, words=("earliest", "latest", "group"))


def _ending(text: str) -> StartingOffsets:
    return parse_starting_offsets(text, words=("latest",))


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    field: str
    parse: Callable[[str], Any]
    only: Use | None = None
    is_secret: bool = False


_OPTIONS: Final = (
    _Option("namesrv", "namesrv", _namesrv),
    _Option("subscribe", "topics", _topics),
    _Option("accessKey", "access_key", _text),
    _Option("secretKey", "secret_key", _text, is_secret=True),
    _Option("secretKeyFile", "secret_key_file", _text),
    _Option("tls.enable", "tls", _boolean),
    _Option("tls.client.trustCertPath", "tls_trust_cert_path", _text),
    _Option("tls.client.certPath", "tls_cert_path", _text),
    _Option("tls.client.keyPath", "tls_key_path", _text),
    _Option("tls.client.keyPassword", "tls_key_password", str, is_secret=True),
    _Option("tls.client.authServer", "tls_auth_server", _boolean),
    _Option("groupId", "group", _group),
    _Option("commitGroupOffsets", "commit_group_offsets", _boolean, only="stream"),
    _Option("startingOffsets", "starting_offsets", _starting),
    _Option("endingOffsets", "ending_offsets", _ending, only="batch"),
    _Option("failOnDataLoss", "fail_on_data_loss", _boolean),
    _Option(
        "maxOffsetsPerTrigger", "max_offsets_per_trigger", _number(1, _INT64_MAX), only="stream"
    ),
    _Option("minPartitions", "min_partitions", _number(1)),
    _Option("tags", "tags", _tags),
    _Option("schemaMode", "schema_mode", _schema_mode),
    _Option("includeHeaders", "include_headers", _boolean),
    _Option("offsetFetchIntervalMs", "offset_fetch_interval_ms", _number(0)),
    _Option("retryTimeoutMs", "retry_timeout_ms", _number(0)),
    _Option("pullBatchSize", "pull_batch_size", _number(1)),
    _Option("pullsInFlight", "pulls_in_flight", _number(1)),
    _Option("arrowBatchRows", "arrow_batch_rows", _number(1)),
    _Option("arrowBatchBytes", "arrow_batch_bytes", _number(1, _ARROW_BYTES_MAX)),
    _Option("freezeWorkerObjects", "freeze_worker_objects", _boolean),
    _Option("stopFile", "stop_file", str, only="stream"),
)
_BY_NAME: Final = {option.name.lower(): option for option in _OPTIONS}
_NAME_BY_FIELD: Final = {option.field: option.name for option in _OPTIONS}
_ACCESS_FIELDS: Final = {field.name for field in fields(AccessOptions)}
assert _NAME_BY_FIELD.keys() == (
    {field.name for field in fields(SourceOptions)} - {"access"} | _ACCESS_FIELDS
)


def _parse(option: _Option, text: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as exc:
        shown = _HIDDEN if option.is_secret else text
        raise ConfigError(option.name, shown, str(exc)) from exc


def _find(name: str) -> _Option:
    option = _BY_NAME.get(name.lower())
    if option is not None:
        return option
    nearest = difflib.get_close_matches(name.lower(), _BY_NAME, n=1, cutoff=0.5)
    hint = f"did you mean {_BY_NAME[nearest[0]].name}?" if nearest else "see the list of options"
    raise ConfigError(name, "...", f"is not an option of the mailboat source; {hint}")
