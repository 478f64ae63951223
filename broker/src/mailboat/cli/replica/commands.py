"""`mailboat replica status|promote|handover|demote`."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click
from click.core import ParameterSource

from mailboat.cli.client_command import json_option
from mailboat.cli.main import debug_option
from mailboat.cli.output import print_json, print_record, print_section
from mailboat.cli.replica.broker_http import DEFAULT_ADDRESS, BrokerHttp, ask
from mailboat.cli.servers import security_options, take_security
from mailboat.client.credential_files import read_secret
from mailboat.config.fields import is_port
from mailboat.config.loading import TOKEN_ENVIRONMENT
from mailboat.security.client_security import ClientSecurity

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
_JAVA_SLAVE_COLUMNS: Final = ("address", "acked_end", "lag_bytes", "sent_end")
_ORDINAL: Final = click.IntRange(0, 7)


def _check_address(ctx: click.Context, param: click.Parameter, value: str) -> str:
    scheme, found, address = value.rpartition("://")
    host, _, port = address.rstrip("/").rpartition(":")
    if not host or not is_port(port) or (found and scheme not in ("http", "https")):
        raise click.BadParameter(f"{value!r} is not host:port, such as {DEFAULT_ADDRESS}")
    return f"{scheme}{found}{host}:{port}"


def http_options(command: _Command) -> _Command:
    """Add `--http`, what proves who asks, TLS, and `--debug`; the value is `http`."""

    @functools.wraps(command)
    def with_http(http: str, token_file: Path | None, **arguments: Any) -> Any:
        _decide_tls(http, arguments)
        broker = _broker_http(http, token_file, take_security(arguments))
        return command(http=broker, **arguments)

    address = click.option(
        "--http",
        metavar="HOST:PORT",
        envvar="MAILBOAT_HTTP",
        default=DEFAULT_ADDRESS,
        show_default=True,
        show_envvar=True,
        callback=_check_address,
        help="The broker's HTTP port (httpPort); with https:// in front, or --tls, by TLS.",
    )
    token = click.option(
        "--token-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File with a bearer token of the broker.  [default: MAILBOAT_TOKEN]",
    )
    options = security_options(debug_option(with_http))
    return cast(_Command, address(token(options)))


def _decide_tls(address: str, arguments: dict[str, Any]) -> None:
    """Have a scheme in front of the address say the same as `--tls`, where that is not said."""
    scheme, said = address.rpartition("://")[0], arguments["tls"]
    if not scheme or said is (scheme == "https"):
        return
    if said is None:
        arguments["tls"] = True if scheme == "https" else None
        return
    context = click.get_current_context()
    is_typed = [
        context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for name in ("http", "tls")
    ]
    if is_typed[0] == is_typed[1]:
        words = "--tls" if said else "--no-tls"
        raise click.UsageError(f"--http {scheme}://... and {words} do not go together", context)
    if is_typed[0]:
        arguments["tls"] = scheme == "https"


def _broker_http(address: str, token_file: Path | None, security: ClientSecurity) -> BrokerHttp:
    host_and_port = address.rpartition("://")[2]
    token = os.environ.get(TOKEN_ENVIRONMENT, "") if token_file is None else read_secret(token_file)
    token = token.strip()
    if not token.isascii() or not token.isprintable():
        raise click.UsageError("the bearer token is no word of ASCII", click.get_current_context())
    return BrokerHttp(host_and_port, security.tls is not None, token, security)


@click.command()
@json_option
@http_options
def status(as_json: bool, http: BrokerHttp) -> None:
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
    if found["java_slaves"]:
        print_section("slaves of RocketMQ", found["java_slaves"], _JAVA_SLAVE_COLUMNS)
    if found["java_master"] is not None:
        click.echo("\nmaster of RocketMQ")
        print_record(_java_master_record(found["java_master"]))


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
        "damaged_ranges": found["damaged_ranges"] or None,
        "repaired_bytes": found["repaired_bytes"] or None,
        "sends": found["refusal"] or "taken",
        "alarm": found["alarm"] or None,
        "write_trouble": found["write_trouble"] or None,
        "last_promotion": _last_promotion(found),
        **_lease_record(found.get("lease")),
        "troubles": "\n".join(found["troubles"]) or None,
    }


def _lease_record(lease: dict[str, Any] | None) -> dict[str, Any]:
    if lease is None:
        return {}
    return {
        "lease_epoch": lease["epoch"],
        "lease_holder": lease["holder"] or None,
        "lease_in_sync": lease["in_sync"],
        "lease_trouble": lease["trouble"] or None,
        "endpoints_trouble": lease["endpoints_trouble"] or None,
    }


def _last_promotion(found: dict[str, Any]) -> str | None:
    ago_s = found["promotion_refused_seconds_ago"]
    return None if ago_s is None else f"refused {ago_s:.0f} s ago: {found['promotion_refusal']}"


def _java_master_record(master: dict[str, Any]) -> dict[str, Any]:
    return {
        "address": master["address"],
        "clients": master["client_address"],
        "log": "followed" if master["is_followed"] else master["trouble"] or "not followed yet",
        "begin": master["start"],
        "end": master["end"],
        "lag_bytes": master["lag_bytes"],
        "silent_seconds": master["silent_seconds"],
        "tables": master["tables_trouble"] or _age(master["tables_age_seconds"]),
    }


def _age(seconds: float | None) -> str:
    return "not taken over yet" if seconds is None else f"taken over {seconds:g} s ago"


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
@http_options
def promote(accept_loss: bool, http: BrokerHttp) -> None:
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
@http_options
def handover(ordinal: int, http: BrokerHttp) -> None:
    """Let ORDINAL lead in place of the master, which is asked.

    Sends wait until that one has everything; no message is lost, and the former master follows it.

    \b
    Example:
      mailboat replica handover 1 --http 10.0.0.1:8080
    """
    _hand_over(http, ordinal)


@click.command()
@http_options
def demote(http: BrokerHttp) -> None:
    """Let whoever has most of the log lead in place of the master, which is asked.

    It is an error if no other replica is in the in-sync set.

    \b
    Example:
      mailboat replica demote --http 10.0.0.1:8080
    """
    _hand_over(http, None)


def _hand_over(http: BrokerHttp, ordinal: int | None) -> None:
    leader = ask(http, "POST", "/api/v1/replica/handover", {"to": ordinal})["leader"]
    click.echo(f"replica {leader} leads now")
