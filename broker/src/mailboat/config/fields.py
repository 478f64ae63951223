"""How one setting is declared: its RocketMQ key, its limits, and its way from text to value.

A setting is a field of a frozen dataclass, made by `setting()`. Its key is the field's name in
camel case, as RocketMQ spells it (`flush_disk_type` is `flushDiskType`); irregular keys are named
there.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar, cast

from mailboat.errors import ConfigError

Value: TypeAlias = int | str | bool
"""What a setting can hold."""

Check: TypeAlias = Callable[[str], str | None]
"""Looks at a text value; returns what is wrong with it, or None."""

HIDDEN: Final = "<hidden>"
"""What stands for a secret wherever one would be shown."""

_T = TypeVar("_T", int, str, bool)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """The limits of one setting, kept in the metadata of its dataclass field; both ends
    inclusive."""

    key: str | None = None
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    check: Check | None = None
    live: bool = False
    """Whether a change takes effect in a running broker."""

    is_secret: bool = False
    """Whether nobody is shown the value: not in listings, answers, errors or logs."""


def setting(
    default: _T,
    *,
    key: str | None = None,
    choices: tuple[str, ...] = (),
    minimum: int | None = None,
    maximum: int | None = None,
    check: Check | None = None,
    live: bool = False,
    is_secret: bool = False,
) -> _T:
    """Declare a setting with its default and its limits; a live one can change while it runs."""
    rules = Rules(key, choices, minimum, maximum, check, live, is_secret)
    field: Any = dataclasses.field(default=default, repr=not is_secret, metadata={"rules": rules})
    return cast(_T, field)


def is_port(text: str) -> bool:
    """Tell whether a text is the number of a port."""
    return len(text) <= 5 and text.isascii() and text.isdigit() and 0 < int(text) < 65_536


def check_address_list(text: str) -> str | None:
    """Refuse what is not `host:port` or several of them joined by `;`; an empty text is none."""
    for address in text.split(";") if text else []:
        host, _, port = address.strip().rpartition(":")
        if not host or not is_port(port):
            return "must be host:port, several joined by ;"
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting: where its value lives and which texts it takes."""

    section: str
    """Attribute of `Settings` that holds it: broker, store, namesrv, remoting, security or tls."""

    name: str
    """Field name there."""

    key: str
    """RocketMQ's spelling, as configuration files have it."""

    default: Value
    rules: Rules

    def parse(self, text: str, key: str) -> Value:
        """Turn a text into the value.

        Raises:
            ConfigError: the text is not a value of this setting; `key` is how the user spelt it.
        """
        text = text.strip()
        if isinstance(self.default, bool):
            return _parse_bool(text, key)
        if isinstance(self.default, int):
            return self._parse_integer(text, key)
        if self.rules.choices and text not in self.rules.choices:
            raise ConfigError(key, text, f"must be one of {', '.join(self.rules.choices)}")
        problem = self.rules.check(text) if self.rules.check is not None else None
        if problem is not None:
            raise ConfigError(key, HIDDEN if self.rules.is_secret else text, problem)
        return text

    def _parse_integer(self, text: str, key: str) -> int:
        if _INTEGER.fullmatch(text) is None:
            raise ConfigError(key, text, "must be a whole number without a unit")
        value = int(text)
        minimum, maximum = self.rules.minimum, self.rules.maximum
        if minimum is not None and value < minimum:
            raise ConfigError(key, text, f"must be at least {minimum}")
        if maximum is not None and value > maximum:
            raise ConfigError(key, text, f"must be at most {maximum}")
        return value


def settings_of(section: str, config_class: type[Any]) -> list[Setting]:
    """List the settings that a dataclass declares, in its order."""
    return [
        Setting(
            section=section,
            name=field.name,
            key=field.metadata["rules"].key or camel_case(field.name),
            default=cast(Value, field.default),
            rules=field.metadata["rules"],
        )
        for field in dataclasses.fields(config_class)
    ]


def camel_case(name: str) -> str:
    """Spell a field name as RocketMQ spells its keys."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def to_text(value: Value) -> str:
    """Spell a value as a configuration file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_bool(text: str, key: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(key, text, "must be true or false")
    return text.lower() == "true"
