"""Where settings come from: default < file < `MAILBOAT_<KEY>` < command line.

An unknown key or a bad value is an error that names the nearest key; RocketMQ ignores both. A key
of RocketMQ's that has no effect here is one warning. So is an unknown key in a file that the
operator wrote: it may know keys of a newer broker, and a broker must not stay away for that.
"""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from mailboat import core
from mailboat.config.fields import HIDDEN, Value
from mailboat.config.properties import parse_properties
from mailboat.config.settings import Role, Settings, check_settings, live_keys, role_settings
from mailboat.config.unsupported import UNSUPPORTED_KEYS
from mailboat.errors import ConfigError

ENVIRONMENT_PREFIX: Final = "MAILBOAT_"
NAMESRV_ENVIRONMENT: Final = "NAMESRV_ADDR"
"""RocketMQ's own variable; the weakest source of namesrvAddr."""

NODE_IP_ENVIRONMENT: Final = "NODE_IP"
POD_NAME_ENVIRONMENT: Final = "POD_NAME"
"""What Kubernetes tells a pod of itself, by names without our prefix, as an older broker would stop
for them."""

CLIENT_NAMESRV_ENVIRONMENT: Final = "MAILBOAT_NAMESRV"
"""Names the name servers to every `mailboat` command with `-n`, and so to a broker."""

SIGNING_ENVIRONMENT: Final = "MAILBOAT_SECRET_KEY"
"""What the client commands sign with; no setting, as it must never be in a listing of them."""

TOKEN_ENVIRONMENT: Final = "MAILBOAT_TOKEN"  # noqa: S105
"""The bearer token of HTTP, for servers and for every `mailboat` command that asks over HTTP."""

OPERATOR_MARK: Final = "# Written by mailboat-operator"
"""How a configuration file of the operator begins."""

_ADDRESSES_FILE: Final = "advertisedAddressesFile"
_POD_NAME: Final = "{podName}"
_TEST_PREFIX: Final = "MAILBOAT_TEST_"  # The test suite's own switches.
# Not of a server but of everything that is mailboat (`mailboat.core` reads and checks its switch),
# or of the client commands, which may run in the environment of a server.
_NO_SETTINGS: Final = frozenset(
    {
        core.SWITCH,
        SIGNING_ENVIRONMENT,
        "MAILBOAT_ACCESS_KEY",
        "MAILBOAT_ACL_FILE",
        "MAILBOAT_SECRET_KEY_FILE",
        "MAILBOAT_TLS_SERVER_NAME",
    }
)
# Kubernetes adds such variables to every pod for each Service in the namespace; a Service that is
# called mailboat would otherwise stop every broker beside it.
_SERVICE_LINK: Final = re.compile(
    r".*_SERVICE_(HOST|PORT(_\w+)?)|.*_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
_SERVICE_LINK_VALUE: Final = re.compile(r"(tcp|udp|sctp)://\S+:[0-9]+")
# `standalone` is for one machine: it serves only that, and keeps off the ~/store of a RocketMQ
# there.
_STANDALONE_DEFAULTS: Final[dict[str, Value]] = {
    "bindAddress": "127.0.0.1",
    "namesrvBindAddress": "127.0.0.1",
    "storePathRootDir": "~/mailboat",
}


def load_settings(
    role: Role,
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Settings:
    """Put the settings of one process together.

    Args:
        role: which keys there are, and which defaults.
        file: a broker.conf in properties format.
        environ: the process environment; None looks at none.
        overrides: keys from the command line.

    Raises:
        ConfigError: an unknown key, a bad value, or a file that cannot be read.
    """
    collector = _Collector(role)
    if role == "standalone":
        collector.values.update(_STANDALONE_DEFAULTS)
    collector.take_rocketmq_environment(environ or {})
    collector.take_kubernetes_environment(environ or {})
    if file is not None:
        collector.take_file(file)
    collector.take_environment(environ or {})
    for key, text in (overrides or {}).items():
        collector.take(key, text, "command line")
    return collector.build()


class _Collector:
    """Values gathered so far, later ones over earlier ones."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.known = role_settings(role)
        self.values: dict[str, Value] = {}
        self.sources: dict[str, str] = {}
        self.warnings: dict[str, None] = {}
        self.without_effect: dict[str, str] = {}
        self._pod_name = ""

    def take(self, key: str, text: str, source: str, *, is_lenient: bool = False) -> None:
        """Check and keep one value; where that is lenient, an unknown key is a warning."""
        item = self.known.get(key)
        if item is not None:
            self.values[key] = item.parse(text, key)
            self.sources[key] = source
        elif key in UNSUPPORTED_KEYS:
            self.without_effect[key] = text
            self.warnings[f"{key} ({source}) is a RocketMQ setting that has no effect here"] = None
        elif is_lenient:
            self.warnings[f"{key} {self._unknown(key)} ({source}); it is left out"] = None
        else:
            # The value may be a secret whose key is mistyped.
            raise ConfigError(key, HIDDEN, f"{self._unknown(key)} ({source})")

    def take_file(self, file: Path) -> None:
        """Take every assignment of a properties file."""
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError("-c", str(file), f"the file cannot be read: {exc}") from exc
        is_lenient = text.startswith(OPERATOR_MARK)
        lines: dict[str, int] = {}
        for key, value, line in parse_properties(text):
            if key in lines:
                self.warnings[f"{key} is set twice in {file}; line {line} counts"] = None
            lines[key] = line
            self.take(key, value, f"{file}:{line}", is_lenient=is_lenient)

    def take_rocketmq_environment(self, environ: Mapping[str, str]) -> None:
        """Take RocketMQ's own variable for the name servers."""
        text = environ.get(NAMESRV_ENVIRONMENT, "")
        # A standalone broker belongs to its own name server, whatever else the shell knows.
        if text and self.role == "broker":
            self.take("namesrvAddr", text, f"environment {NAMESRV_ENVIRONMENT}")

    def take_kubernetes_environment(self, environ: Mapping[str, str]) -> None:
        """Take what a pod knows of itself."""
        self._pod_name = environ.get(POD_NAME_ENVIRONMENT, "")
        text = environ.get(NODE_IP_ENVIRONMENT, "")
        if text and self.role != "namesrv":
            self.take("nodeIP", text, f"environment {NODE_IP_ENVIRONMENT}")

    def take_environment(self, environ: Mapping[str, str]) -> None:
        """Take `MAILBOAT_FLUSH_DISK_TYPE` (or `MAILBOAT_flushDiskType`) and its like."""
        keys = {_plain(key): key for key in (*UNSUPPORTED_KEYS, *self.known)}
        others = {_plain(key) for role in ("broker", "namesrv") for key in role_settings(role)}
        client_key = _plain(CLIENT_NAMESRV_ENVIRONMENT.removeprefix(ENVIRONMENT_PREFIX))
        if self.role == "broker":
            keys[client_key] = "namesrvAddr"
        keys[_plain(TOKEN_ENVIRONMENT.removeprefix(ENVIRONMENT_PREFIX))] = "httpToken"
        others.add(client_key)
        for name in sorted(environ):
            if not name.startswith(ENVIRONMENT_PREFIX) or name.startswith(_TEST_PREFIX):
                continue
            if name in _NO_SETTINGS:
                continue
            plain, text = _plain(name.removeprefix(ENVIRONMENT_PREFIX)), environ[name]
            if _SERVICE_LINK.fullmatch(name) or _SERVICE_LINK_VALUE.fullmatch(text):
                continue
            key = keys.get(plain)
            if name == TOKEN_ENVIRONMENT and not text.strip():
                # A Secret without the key that was meant would leave HTTP open.
                raise ConfigError(name, "", "is empty; set a token, or unset the variable")
            if key is not None:
                self.take(key, text, f"environment {name}")
            elif plain not in others:
                # One environment may serve several roles, so only what no role knows is wrong.
                plain_name = name.removeprefix(ENVIRONMENT_PREFIX)
                raise ConfigError(name, HIDDEN, self._unknown(plain_name))

    def build(self) -> Settings:
        """Make the typed object."""
        self._fill_in_pod_name()
        sections: dict[str, dict[str, Any]] = {}
        for key, value in self.values.items():
            item = self.known[key]
            sections.setdefault(item.section, {})[item.name] = value
        empty = Settings(role=self.role)
        parts = {
            section: dataclasses.replace(getattr(empty, section), **values)
            for section, values in sections.items()
        }
        settings = dataclasses.replace(
            empty,
            without_effect=self.without_effect,
            sources=self.sources,
            warnings=tuple(self.warnings),
            **parts,
        )
        check_settings(settings)
        return settings

    def _fill_in_pod_name(self) -> None:
        path = str(self.values.get(_ADDRESSES_FILE, ""))
        if _POD_NAME not in path:
            return
        if not self._pod_name:
            reason = f"needs the name of the pod in the environment's {POD_NAME_ENVIRONMENT}"
            raise ConfigError(_ADDRESSES_FILE, path, reason)
        self.values[_ADDRESSES_FILE] = path.replace(_POD_NAME, self._pod_name)

    def _unknown(self, key: str) -> str:
        nearest = nearest_key(key, self.role)
        return f"is not a setting of {self.role}; the nearest one is {nearest}"


def check_value(key: str, text: str, role: Role = "broker") -> Value:
    """Return what a text means as the value of a key.

    Raises:
        ConfigError: there is no such key, it has no effect here, or it does not take this value.
    """
    item = role_settings(role).get(key)
    if item is not None:
        return item.parse(text, key)
    if key in UNSUPPORTED_KEYS:
        raise ConfigError(key, text, "is a RocketMQ setting that has no effect here")
    nearest = nearest_key(key, role)
    raise ConfigError(key, HIDDEN, f"is not a setting of {role}; the nearest one is {nearest}")


def nearest_key(key: str, role: Role = "broker") -> str:
    """Return the known key that an unknown one was probably meant to be."""
    by_plain = {_plain(candidate): candidate for candidate in role_settings(role)}
    return by_plain[difflib.get_close_matches(_plain(key), by_plain, n=1, cutoff=0.0)[0]]


def change_settings(settings: Settings, changes: Mapping[str, str], source: str) -> Settings:
    """Return settings with some live keys changed, all of them or none.

    Raises:
        ConfigError: a key is unknown or needs a restart, a value is bad, or the result makes no
            sense as a whole.
    """
    known, live = role_settings(settings.role), live_keys(settings.role)
    sections: dict[str, dict[str, Any]] = {}
    for key, text in changes.items():
        value = check_value(key, text, settings.role)
        if key not in live:
            shown = HIDDEN if known[key].rules.is_secret else text
            raise ConfigError(key, shown, "takes effect with a restart only")
        sections.setdefault(known[key].section, {})[known[key].name] = value
    parts = {
        section: dataclasses.replace(getattr(settings, section), **values)
        for section, values in sections.items()
    }
    sources = {**settings.sources, **dict.fromkeys(changes, source)}
    changed = dataclasses.replace(settings, sources=sources, **parts)
    check_settings(changed)
    return changed


def parse_overrides(texts: Iterable[str]) -> dict[str, str]:
    """Split the `key=value` texts of `-o`.

    Raises:
        ConfigError: a text has no `=`.
    """
    overrides = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError("-o", HIDDEN, "must be key=value")
        overrides[key.strip()] = value
    return overrides


def _plain(key: str) -> str:
    """Leave out what variables of the environment spell otherwise: cases, dots, underscores."""
    return key.replace("_", "").replace(".", "").lower()
