"""The settings `listeners`: further ports for RocketMQ clients, beside `listenPort`.

The value is a JSON list of objects, which has one form in a file, in the environment and in a
resource of Kubernetes:

| key | value |
|---|---|
| `name` | lower-case letters, digits and `-`, at most 15; `internal` stands for `listenPort` |
| `port` | 0 (a free one) to 65535 |
| `tls` | `disabled` (default), `permissive` or `enforcing`, as `tls.server.mode` |
| `clientAuth` | `none` (default), `optional` or `required`, as `tls.server.need.client.auth` |
| `advertised` | `host:port` that clients are told, of a broker only; `{nodeIP}` is its machine's |

Ours: RocketMQ's brokers have one port, and tell all clients one address.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from mailboat.errors import ConfigError

KEY: Final = "listeners"
MAX_LISTENERS: Final = 8
INTERNAL: Final = "internal"
"""The name of `listenPort` among listeners."""

NODE_IP: Final = "{nodeIP}"
"""What stands for the address of the machine in an advertised address."""

MAX_ADDRESS_LENGTH: Final = 263
"""Characters of an advertised address: a name of DNS, a colon and a port."""

_NAME: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_NAME_LENGTH: Final = 15
_ADDRESS: Final = re.compile(
    r"(?P<host>\{nodeIP\}|[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
    r":(?P<port>[0-9]{1,5})",
    re.ASCII,
)

ListenerName = Annotated[str, Meta(pattern=_NAME, max_length=_NAME_LENGTH)]


class ListenerConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """One further port, and who gets in by it."""

    name: ListenerName
    port: Annotated[int, Meta(ge=0, le=65_535)]
    """0 takes a free one."""

    tls: Literal["disabled", "permissive", "enforcing"] = "disabled"
    client_auth: Literal["none", "optional", "required"] = "none"
    advertised: str = ""
    """What clients are told, "host:port"; empty where that is said elsewhere."""

    @property
    def speaks_tls(self) -> bool:
        """Whether TLS is spoken at all."""
        return self.tls != "disabled"


_decoder: Final = msgspec.json.Decoder(list[ListenerConfig])


def silent_about_tls(text: str) -> str | None:
    """Return the name of the first listener of a good value that does not say its `tls`."""
    listeners = msgspec.json.decode(text, type=list[dict[str, object]]) if text else []
    return next((str(each["name"]) for each in listeners if "tls" not in each), None)


def parse_listeners(text: str) -> tuple[ListenerConfig, ...]:
    """Read the value of the setting; an empty text is none.

    Raises:
        ValueError: what is wrong with it, in a few words.
    """
    if not text:
        return ()
    try:
        listeners = _decoder.decode(text)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"must be a JSON list of listeners: {error}") from error
    if len(listeners) > MAX_LISTENERS:
        raise ValueError(f"has {len(listeners)} listeners, at most {MAX_LISTENERS} are possible")
    for listener in listeners:
        _check(listener)
    names = [f"name {listener.name}" for listener in listeners]
    ports = [f"port {listener.port}" for listener in listeners if listener.port]
    for values in (names, ports):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ValueError(f"has the {twice} twice")
    return tuple(listeners)


def check_listeners(text: str) -> str | None:
    """Say what is wrong with the listeners of a broker."""
    try:
        parse_listeners(text)
    except ValueError as error:
        return str(error)
    return None


def check_namesrv_listeners(text: str) -> str | None:
    """Say what is wrong with the listeners of a name server, which tells nobody its address."""
    problem = check_listeners(text)
    if problem is None and any(one.advertised for one in parse_listeners(text)):
        return "advertised is for the listeners of brokers"
    return problem


def check_ports(listeners: Iterable[ListenerConfig], taken: Mapping[str, int]) -> None:
    """Refuse a listener at a port that the process has for something else.

    Args:
        listeners: Of the process.
        taken: Its other ports by the settings that say so; 0 and below is none that is known.

    Raises:
        ConfigError: names both.
    """
    settings = {port: key for key, port in taken.items() if port > 0}
    for listener in listeners:
        if listener.port in settings:
            reason = f"is the port of listener {listener.name} and of {settings[listener.port]}"
            raise ConfigError(KEY, str(listener.port), reason)


def address_problem(text: str) -> str | None:
    """Say what is wrong with an advertised address."""
    found = _ADDRESS.fullmatch(text) if len(text) <= MAX_ADDRESS_LENGTH else None
    if found is None or not 0 < int(found["port"]) < 65_536:
        return "must be host:port, an IPv6 address in brackets"
    return None


def _check(listener: ListenerConfig) -> None:
    if listener.name == INTERNAL:
        raise ValueError(f"the name {INTERNAL} stands for listenPort; choose another one")
    if listener.client_auth != "none" and not listener.speaks_tls:
        raise ValueError(f"clientAuth of {listener.name} needs its tls")
    problem = address_problem(listener.advertised) if listener.advertised else None
    if problem is not None:
        raise ValueError(f"advertised of {listener.name} {problem}")
