"""`mailboat replica status|promote|handover|demote`."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from mailboat.cli.client_command import json_option
from mailboat.cli.main import debug_option
from mailboat.cli.output import print_json, print_record, print_section
from mailboat.cli.replica.broker_http import DEFAULT_ADDRESS, ask

_Command = TypeVar("_Command", bound=Callable[..., Any])

_PEER_COLUMNS: Final = (
    "replica",
    "role",
    "in_sync",
    "acked_end",
    "lag_bytes",
    "silent_seconds",
    "address",
    "clients",
    "trouble",
)
_ORDINAL: Final = click.IntRange(0, 7)


def _check_address(ctx: click.Context, param: click.Parameter, value: str) -> str:
    host, _, port = value.removeprefix("http://").rstrip("/").rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise click.BadParameter(f"{value!r} is not host:port, such as {DEFAULT_ADDRESS}")
    return f"{host}:{port}"


def http_option(command: _Command) -> _Command:
    """Add `--http` and `--debug` to a command."""
    option = click.option(
        "--http",
        metavar="HOST:PORT",
        envvar="MAILBOAT_HTTP",
        default=DEFAULT_ADDRESS,
        show_default=True,
        show_envvar=True,
        callback=_check_address,
        help="The broker's HTTP port (httpPort).",
    )
    return option(debug_option(command))


@click.command()
@json_option
@http_option
def status(as_json: bool, http: str) -> None:
    """Show a replica, and what it knows of the others.

    A master knows how far each of them is and who is in the in-sync set, a slave how far it is
    behind its master. Offsets are bytes of the log.

    \b
    Examples:
      mailboat replica status
      mailboat replica status --http 10.0.0.2:8080 --json
    """
    found = ask(http, "GET", "/api/v1/replica")
    if as_json:
        print_json(found)
        return
    print_record(_status_record(found))
    print_section("other replicas", [_peer_row(peer) for peer in found["peers"]], _PEER_COLUMNS)


def _status_record(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "group": found["group"],
        "replica": f"{found['ordinal']} of {found['replicas']}",
        "role": found["role"],
        "epoch": found["epoch"],
        "leader": found["leader"],
        "in_sync_set": found["in_sync"],
        "min_in_sync": found["min_in_sync"],
        "confirmed_offset": found["confirmed_offset"],
        "end": found["end"],
        "flushed_end": found["flushed_end"],
        "sends": found["refusal"] or "taken",
        "alarm": found["alarm"] or None,
        "last_promotion": found["promotion_refusal"] or None,
        "troubles": "\n".join(found["troubles"]) or None,
    }


def _peer_row(peer: dict[str, Any]) -> dict[str, Any]:
    if not peer["is_linked"]:
        role = "not linked"
    else:
        role = "master" if peer["leads"] else "slave"
    return {
        "replica": peer["ordinal"],
        "role": role,
        "in_sync": peer["is_in_sync"],
        "acked_end": peer["acked_end"],
        "lag_bytes": peer["lag_bytes"],
        "silent_seconds": peer["silent_seconds"],
        "address": peer["address"] or None,
        "clients": peer["client_address"] or None,
        "trouble": peer["trouble"] or None,
    }


@click.command()
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Do not wait for other replicas: messages that only they have are lost.",
)
@http_option
def promote(accept_loss: bool, http: str) -> None:
    """Let a replica lead.

    It leads only if so many others answer that it is sure to have every acknowledged message, and
    the former master is not among those who are heard. Of several slaves promote the one whose log
    is longest: the others say so. A former master that comes back follows by itself.

    \b
    Example:
      mailboat replica promote --http 10.0.0.2:8080
    """
    leader = ask(http, "POST", "/api/v1/replica/promote", {"accept_loss": accept_loss})["leader"]
    click.echo(f"replica {leader} leads now")


@click.command()
@click.argument("ordinal", type=_ORDINAL)
@http_option
def handover(ordinal: int, http: str) -> None:
    """Let ORDINAL lead in place of the master, which is asked.

    Sends wait until that one has everything; no message is lost, and the former master follows it.

    \b
    Example:
      mailboat replica handover 1 --http 10.0.0.1:8080
    """
    _hand_over(http, ordinal)


@click.command()
@http_option
def demote(http: str) -> None:
    """Let whoever has most of the log lead in place of the master, which is asked.

    It is an error if no other replica is in the in-sync set.

    \b
    Example:
      mailboat replica demote --http 10.0.0.1:8080
    """
    _hand_over(http, None)


def _hand_over(http: str, ordinal: int | None) -> None:
    leader = ask(http, "POST", "/api/v1/replica/handover", {"to": ordinal})["leader"]
    click.echo(f"replica {leader} leads now")
