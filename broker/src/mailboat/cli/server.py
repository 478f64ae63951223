"""What the three server commands share: options, configuration, and running until a signal."""

import asyncio
import gc
import importlib
import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import click

from mailboat.cli.logs import configure_logging
from mailboat.cli.main import DEBUG_KEY, EXIT_OK, EXIT_RUNTIME, debug_option
from mailboat.config import Role, Settings, effective_values, load_settings, parse_overrides
from mailboat.node import Node

SHUTDOWN_TIMEOUT_S: Final = 7.5
"""How long an orderly end may take once shutdownDrainSeconds are over; after that the process ends
with exit code 1."""

START_PATIENCE_S: Final = 2.0
"""How long a signal waits for a start that is under way, before it breaks it off. Both together
stay below the 10 s within which SIGTERM is answered."""

logger = logging.getLogger(__name__)

_Command = TypeVar("_Command", bound=Callable[..., Any])
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
            help=f"Address to listen on and to tell clients; brokerIP1 overrules the latter."
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
    if flags["print_config"]:
        _print_config(settings)
        return EXIT_OK
    debug = bool(click.get_current_context().find_root().meta.get(DEBUG_KEY))
    configure_logging(flags["log_format"], debug=debug)
    for warning in settings.warnings:
        logger.warning("%s", warning)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(Node(settings), ready_json=flags["ready_json"]))


def _overrides(role: Role, flags: dict[str, Any]) -> dict[str, str]:
    """Turn flags into configuration keys; `-o` comes last and wins."""
    overrides = {}
    for flag, keys_by_role in _FLAG_KEYS.items():
        value = flags.get(flag)
        if value is not None:
            overrides.update(dict.fromkeys(keys_by_role[role], str(value)))
    if flags["no_http"]:
        overrides["httpPort"] = "-1"
    return overrides | parse_overrides(flags["options"])


def _print_config(settings: Settings) -> None:
    values = effective_values(settings)
    key_width = max(len(item.key) for item in values)
    value_width = max(len(item.value) for item in values)
    for item in values:
        click.echo(f"{item.key:<{key_width}}  {item.value:<{value_width}}  {item.source}")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where it is installed (extra `fast`), else the standard one."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(node: Node, *, ready_json: bool) -> int:
    """Start, say so, run until SIGTERM, SIGINT or a failure, and end in order."""
    signals = _watch_signals()
    stopped = signals.stopped
    start = asyncio.ensure_future(node.start())
    await _first_of(start, stopped)
    if stopped.done():
        await _finish_start(start)
    start.result()
    if not stopped.done():
        _announce(node, ready_json=ready_json)
        # What is loaded by now stays for good; the collector need not look at it again.
        gc.collect()
        gc.freeze()
    failed = asyncio.ensure_future(node.wait_failed())
    await _first_of(failed, stopped)
    if stopped.done():
        drain = asyncio.ensure_future(node.drain())
        await _first_of(drain, failed, signals.hurried)
        drain.cancel()
        failed.cancel()
        return await _end(node, EXIT_OK)
    click.echo(f"mailboat: {failed.result()}", err=True)
    return await _end(node, EXIT_RUNTIME)


async def _finish_start(start: asyncio.Future[None]) -> None:
    """Wait for a start that a signal came into; a long recovery is broken off instead.

    Nothing was promised to anybody yet, and the next start recovers from the same log.
    """
    await asyncio.wait({start}, timeout=START_PATIENCE_S)
    if not start.done():
        logger.warning("stopped during recovery; the next start begins it again")
        _exit_now(EXIT_OK)


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


class _Signals(NamedTuple):
    """Done once a first signal asks for the end, and once a second one asks for it now."""

    stopped: asyncio.Future[None]
    hurried: asyncio.Future[None]


def _watch_signals() -> _Signals:
    loop = asyncio.get_running_loop()
    signals = _Signals(loop.create_future(), loop.create_future())

    def stop(name: str) -> None:
        logger.info("stopping on %s", name)
        for future in signals:
            if not future.done():
                future.set_result(None)
                return

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    return signals


async def _end(node: Node, exit_code: int) -> int:
    try:
        async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
            await node.shutdown()
    except TimeoutError:
        logger.critical("the orderly end took longer than %.1f s", SHUTDOWN_TIMEOUT_S)
        _exit_now(EXIT_RUNTIME)
    logger.info("stopped")
    return exit_code


def _exit_now(exit_code: int) -> NoReturn:
    """End the process without waiting for threads, which may hang in the file system."""
    logging.shutdown()
    os._exit(exit_code)


def _announce(node: Node, *, ready_json: bool) -> None:
    addresses = node.addresses()
    if ready_json:
        line = json.dumps({**addresses, "pid": os.getpid()})
    else:
        line = "ready: " + ", ".join(f"{name} {address}" for name, address in addresses.items())
    click.echo(line)
