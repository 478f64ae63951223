"""What the three server commands share: options, configuration, and running until a signal."""

import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from mailboat.cli.fleet.plan import (
    NAME_SERVER,
    REPLICAS_SOURCE,
    Fleet,
    check_no_fleet_stores,
    check_no_other_replicas,
    check_no_single_store,
    plan_fleet,
    plan_replicas,
    warn_of_stores_beyond,
)
from mailboat.cli.logs import configure_logging
from mailboat.cli.main import DEBUG_KEY, EXIT_OK, debug_option
from mailboat.cli.serving import run_node
from mailboat.config import Role, Settings, effective_values, load_settings, parse_overrides
from mailboat.log_lines import say
from mailboat.node import Node

if TYPE_CHECKING:
    from mailboat.cli.fleet.member import Member

logger = logging.getLogger(__name__)

_Command = TypeVar("_Command", bound=Callable[..., Any])
_BROKERS: Final = click.IntRange(1, 100)
_REPLICAS: Final = click.IntRange(2, 5)
_PORT: Final = click.IntRange(0, 65_535)
_FLAG_KEYS: Final[dict[str, dict[Role, tuple[str, ...]]]] = {
    "data_dir": {"standalone": ("storePathRootDir",), "broker": ("storePathRootDir",)},
    "host": {
        "standalone": ("bindAddress", "namesrvBindAddress"),
        "namesrv": ("bindAddress",),
        "broker": ("bindAddress",),
    },
    "namesrv": {"broker": ("namesrvAddr",)},
    "namesrv_port": {"standalone": ("namesrvListenPort",), "namesrv": ("listenPort",)},
    "broker_port": {"standalone": ("listenPort",), "broker": ("listenPort",)},
    "http_port": {"standalone": ("httpPort",), "namesrv": ("httpPort",), "broker": ("httpPort",)},
}
"""Configuration keys that each flag sets, by role."""


def data_dir_option(default: str) -> Callable[[_Command], _Command]:
    """Add `--data-dir`; `default` is for the help text."""
    return click.option(
        "--data-dir",
        metavar="DIR",
        type=click.Path(file_okay=False),
        help=f"Folder of the store (storePathRootDir).  [default: {default}]",
    )


def port_option(flag: str, what: str, default: int) -> Callable[[_Command], _Command]:
    """Add a port option; 0 takes a free port."""
    return click.option(
        flag,
        type=_PORT,
        metavar="PORT",
        help=f"Port of {what}; 0 takes a free one.  [default: {default}]",
    )


def brokers_option() -> Callable[[_Command], _Command]:
    """Add `--brokers`."""
    return click.option(
        "--brokers",
        "broker_count",
        type=_BROKERS,
        metavar="N",
        help="Run N brokers, a process and so a core each: names <brokerName>-0 and on, stores in "
        "the folders 0 and on of --data-dir, ports ten apart, HTTP ports one apart.",
    )


def replicas_option() -> Callable[[_Command], _Command]:
    """Add `--replicas`."""
    return click.option(
        "--replicas",
        "replica_count",
        type=_REPLICAS,
        metavar="N",
        help="To try replication out: run N replicas of one broker, a process each, the first as "
        "master; stores and ports as with --brokers (`mailboat replica --help`).",
    )


def server_options(*, default_host: str) -> Callable[[_Command], _Command]:
    """Add the options that every server command has."""
    options = [
        click.option(
            "-c",
            "--config",
            metavar="FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Configuration file in RocketMQ's broker.conf format.",
        ),
        click.option(
            "-o",
            "--option",
            "options",
            metavar="KEY=VALUE",
            multiple=True,
            help="Set any configuration key; may be given several times.",
        ),
        click.option(
            "--host",
            metavar="ADDRESS",
            help="Address to listen on and to tell clients; bindAddress overrules the former, "
            "brokerIP1 the latter."
            f"  [default: {default_host}]",
        ),
        click.option("--no-http", is_flag=True, help="Do not serve HTTP (httpPort=-1)."),
        click.option(
            "--ready-json",
            is_flag=True,
            help="Print one line of JSON with the addresses and the pid once it serves.",
        ),
        click.option(
            "--print-config",
            is_flag=True,
            help="Print each setting, its value and where it came from, and exit.",
        ),
        click.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="Form of the log on standard error.",
        ),
        debug_option,
    ]

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def run_server(role: Role, flags: dict[str, Any]) -> int:
    """Run a server command with its parsed flags; returns the exit code."""
    settings = load_settings(
        role,
        file=flags["config"],
        environ=os.environ,
        overrides=_overrides(role, flags),
    )
    count: int | None = flags.get("broker_count")
    replicas: int | None = flags.get("replica_count")
    fleet = _plan(settings, count, replicas)
    if flags["print_config"]:
        _print_all(settings, fleet)
        return EXIT_OK
    _check_folder(settings, count, replicas)
    debug = bool(click.get_current_context().find_root().meta.get(DEBUG_KEY))
    configure_logging(flags["log_format"], debug=debug, process=fleet and "supervisor")
    beyond = None if count is None else warn_of_stores_beyond(settings, count)
    for warning in (*settings.warnings, *filter(None, [beyond])):
        logger.warning("%s", warning)
    if fleet is not None:
        return _run_fleet(fleet, flags)
    return run_node(
        settings,
        on_ready=partial(_announce, ready_json=flags["ready_json"]),
        on_failure=_complain,
    )


def _plan(settings: Settings, count: int | None, replicas: int | None) -> Fleet | None:
    """Say which processes there are to be, None for this one.

    Raises:
        UsageError: there are to be several brokers and several replicas of one.
        ConfigError: the settings do not allow for so many.
    """
    if count is not None and replicas is not None:
        raise click.UsageError(
            "--replicas cannot be given with --brokers", click.get_current_context()
        )
    if replicas is not None:
        return plan_replicas(settings, replicas)
    return None if count is None else plan_fleet(settings, count)


def _run_fleet(fleet: Fleet, flags: dict[str, Any]) -> int:
    from mailboat.cli.fleet.supervisor import Supervisor

    return Supervisor(
        fleet,
        flags["log_format"],
        on_ready=partial(_announce_fleet, ready_json=flags["ready_json"]),
        on_failure=_complain,
    ).run()


def _check_folder(settings: Settings, count: int | None, replicas: int | None) -> None:
    """Refuse a folder whose stores would not be served with so many brokers or replicas."""
    if replicas is not None:
        check_no_single_store(settings, replicas, REPLICAS_SOURCE)
        check_no_other_replicas(settings, replicas)
    elif count is not None:
        check_no_single_store(settings, count)
    elif settings.role != "namesrv":
        check_no_fleet_stores(settings)


def _overrides(role: Role, flags: dict[str, Any]) -> dict[str, str]:
    """Turn flags into configuration keys; `-o` comes last and wins."""
    overrides = {}
    for flag, keys_by_role in _FLAG_KEYS.items():
        value = flags.get(flag)
        if value is not None:
            overrides.update(dict.fromkeys(keys_by_role[role], str(value)))
    if flags.get("replica_count") is not None:
        overrides["totalReplicas"] = str(flags["replica_count"])
    if flags["no_http"]:
        overrides["httpPort"] = "-1"
    typed = parse_overrides(flags["options"])
    if flags.get("host") is not None and role != "namesrv" and "bindAddress" in typed:
        # It listens elsewhere, and clients are still told what --host says.
        overrides["brokerIP1"] = flags["host"]
    return overrides | typed


def _print_all(settings: Settings, fleet: Fleet | None) -> None:
    """Print the settings of each process, below its name where there are several."""
    if fleet is None:
        _print_config(settings)
        return
    named = {} if fleet.name_server is None else {NAME_SERVER: fleet.name_server}
    for name, each in (named | fleet.brokers).items():
        click.echo(f"# {name}")
        _print_config(each)


def _print_config(settings: Settings) -> None:
    values = effective_values(settings)
    key_width = max(len(item.key) for item in values)
    value_width = max(len(item.value) for item in values)
    for item in values:
        click.echo(f"{item.key:<{key_width}}  {item.value:<{value_width}}  {item.source}")


def _announce(node: Node, *, ready_json: bool) -> None:
    addresses = node.addresses()
    if ready_json:
        line = json.dumps({**addresses, "pid": os.getpid()})
    else:
        line = "ready: " + ", ".join(f"{name} {address}" for name, address in addresses.items())
    click.echo(line)


def _announce_fleet(members: "list[Member]", *, ready_json: bool) -> None:
    """Say where all serve; the name server's own words are those of `standalone`."""
    parts = {member.name: dict(member.addresses or {}) for member in members}
    pids = {member.name: member.pid for member in members}
    own = parts.pop(NAME_SERVER, {})
    if ready_json:
        brokers = {name: {**found, "pid": pids[name]} for name, found in parts.items()}
        line = json.dumps({**own, "brokers": brokers, "pid": os.getpid()})
    else:
        words = [f"{name} {address}" for name, address in own.items()]
        for name, found in parts.items():
            http = "".join(
                f" ({kind} {found[kind]})" for kind in ("http", "https") if kind in found
            )
            words.append(f"{name} {found['broker']}{http}")
        line = "ready: " + ", ".join(words)
    click.echo(line)


def _complain(sentence: str) -> None:
    say(f"mailboat: {sentence}", partial(click.echo, err=True))
