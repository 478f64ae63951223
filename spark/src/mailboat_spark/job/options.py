"""What the job can be told: typed, checked before Spark is started, which takes seconds."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from mailboat.errors import ConfigError
from mailboat_spark.access import AccessOptions
from mailboat_spark.options import SourceOptions, parse_options

Mode: TypeAlias = Literal["streaming", "available-now"]

PARTITION_COLUMNS: Final = ("topic", "date", "hour", "broker_name", "queue_id")
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "none")
KUBERNETES_MASTER: Final = "k8s://"
CHECKPOINTS_DIR: Final = "_checkpoints"

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?")
_MASTER: Final = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|k8s://.+")
_LABEL: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")

# The source's option by the job's; the job's comes first in errors.
_SOURCE_NAMES: Final = {
    "namesrv": "--namesrv",
    "subscribe": "--topics",
    "groupId": "--group",
    "startingOffsets": "--starting-offsets",
    "maxOffsetsPerTrigger": "--max-offsets-per-trigger",
    "failOnDataLoss": "--fail-on-data-loss",
    "commitGroupOffsets": "--commit-group-offsets",
    "tags": "--tags",
    "accessKey": "--access-key",
    "secretKeyFile": "--secret-key-file",
    "tls.enable": "--tls",
    "tls.client.trustCertPath": "--tls-trust",
    "tls.client.certPath": "--tls-cert",
    "tls.client.keyPath": "--tls-key",
    "tls.client.authServer": "--tls-check",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """Executors as pods; the driver runs in the pod that is named here."""

    namespace: str = ""
    instance: str = ""
    image: str = ""
    image_pull_policy: str = "IfNotPresent"
    pod_name: str = ""
    pod_ip: str = ""
    driver_port: int = 7078
    block_manager_port: int = 7079
    executors: int = 1
    executor_cores: int = 1
    executor_request_cores: str = ""
    executor_memory: str = "1g"
    executor_memory_overhead: str = "512m"
    executor_pod_template: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Everything the job can be told; see `mailboat-job --help` for what each one means."""

    namesrv: str
    topics: str
    output: Path
    name: str = "mailboat-job"
    group: str = ""
    checkpoint: Path | None = None
    mode: Mode = "streaming"
    trigger_s: float = 10.0
    starting_offsets: str = "earliest"
    max_offsets_per_trigger: int = 200_000
    tags: str = "*"
    fail_on_data_loss: bool = True
    commit_group_offsets: bool = True
    access_key: str = ""
    secret_key_file: str = ""
    tls: bool = False
    tls_trust: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_check: bool = True
    partition_by: tuple[str, ...] = ("topic", "date")
    compression: str = "zstd"
    master: str = "local[2]"
    driver_memory: str = "768m"
    work_dir: Path | None = None
    metrics_port: int = 8091
    stop_timeout_s: float = 60.0
    liveness_timeout_s: float = 600.0
    lock_timeout_s: float = 60.0
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    kubernetes: KubernetesOptions = field(default_factory=KubernetesOptions)

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The topics, each once; blanks and empty places between commas count for nothing."""
        names = (name.strip() for name in self.topics.split(","))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def checkpoint_dir(self) -> Path:
        """Where Spark keeps what the job has read."""
        return self.checkpoint or self.output / CHECKPOINTS_DIR / self.name

    @property
    def group_name(self) -> str:
        """The consumer group that brokers see."""
        return self.group or self.name

    @property
    def on_kubernetes(self) -> bool:
        """Whether executors are pods."""
        return self.master.startswith(KUBERNETES_MASTER)

    @property
    def access(self) -> AccessOptions:
        """What the driver's own client takes, equal to what the data source makes of it."""
        return AccessOptions(
            access_key=self.access_key,
            secret_key_file=self.secret_key_file,
            tls=self.tls,
            tls_trust_cert_path=self.tls_trust,
            tls_cert_path=self.tls_cert,
            tls_key_path=self.tls_key,
            tls_auth_server=self.tls_check,
        )

    def source_options(self) -> dict[str, str]:
        """Return the options of the data source, as Spark takes them."""
        return {
            "namesrv": self.namesrv,
            "subscribe": ",".join(self.topic_names),
            "groupId": self.group_name,
            "commitGroupOffsets": str(self.commit_group_offsets).lower(),
            "startingOffsets": self.starting_offsets,
            "maxOffsetsPerTrigger": str(self.max_offsets_per_trigger),
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "tags": self.tags,
            **self._access_options(),
        }

    def _access_options(self) -> dict[str, str]:
        named = {
            "accessKey": self.access_key,
            "secretKeyFile": self.secret_key_file,
            "tls.client.trustCertPath": self.tls_trust,
            "tls.client.certPath": self.tls_cert,
            "tls.client.keyPath": self.tls_key,
        }
        switches = {"tls.enable": self.tls, "tls.client.authServer": self.tls_check}
        return {
            **{name: value for name, value in named.items() if value},
            **{name: str(value).lower() for name, value in switches.items()},
        }


def check_options(options: JobOptions) -> SourceOptions:
    """Check what belongs together; return what the source made of its part.

    Raises:
        ConfigError: an option is wrong; the text names it as the command line does.
    """
    if _NAME.fullmatch(options.name) is None:
        reason = "is no name of lower case letters, digits and '-', at most 50 long"
        raise ConfigError("--name", options.name, reason)
    if _MASTER.fullmatch(options.master) is None:
        reason = "is neither local[N] nor k8s://URL"
        raise ConfigError("--master", options.master, reason)
    _check_partitions(options.partition_by)
    for name, folder in (("--output", options.output), ("--checkpoint", options.checkpoint)):
        if folder is not None:
            _check_folder(name, folder)
    if options.output.is_relative_to(options.checkpoint_dir):
        reason = "is the output or around it; give a folder of its own"
        raise ConfigError("--checkpoint", str(options.checkpoint_dir), reason)
    if options.on_kubernetes:
        _check_kubernetes(options.kubernetes)
    try:
        return parse_options(options.source_options(), "stream")
    except ConfigError as exc:
        name = _SOURCE_NAMES.get(exc.key, exc.key)
        raise ConfigError(name, exc.value, exc.reason) from exc


def parse_duration_s(text: str) -> float:
    """Return the seconds of a text such as `500ms`, `10s`, `1.5m` or `2h`.

    Raises:
        ValueError: it is none.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration such as 500ms, 10s, 5m or 1h")
    duration_s = float(match[1]) * _UNIT_S[match[2]]
    if not math.isfinite(duration_s):
        raise ValueError(f"{text!r} is too long")
    return duration_s


def _check_partitions(columns: tuple[str, ...]) -> None:
    for column in columns:
        if column not in PARTITION_COLUMNS:
            reason = f"is none of {', '.join(PARTITION_COLUMNS)}"
            raise ConfigError("--partition-by", column, reason)
    if len(set(columns)) < len(columns):
        raise ConfigError("--partition-by", ",".join(columns), "names a column twice")


def _check_folder(name: str, folder: Path) -> None:
    if _SCHEME.match(str(folder)):
        reason = "is no folder; mount the storage and give its path"
        raise ConfigError(name, str(folder), reason)
    if not folder.is_absolute():
        raise ConfigError(name, str(folder), "is not absolute; give the whole path")


def _check_kubernetes(options: KubernetesOptions) -> None:
    if _LABEL.fullmatch(options.instance) is None:
        reason = "is no value of a label: letters, digits, '-', '_' and '.', at most 63 long"
        raise ConfigError("--instance", options.instance, reason)
    for name, value, hint in (
        ("--namespace", options.namespace, "the namespace of this pod"),
        ("--image", options.image, "the image that executors run"),
        ("--pod-ip", options.pod_ip, "the address at which executors reach this pod"),
    ):
        if not value:
            raise ConfigError(name, "", f"is required with --master k8s://...; give {hint}")
