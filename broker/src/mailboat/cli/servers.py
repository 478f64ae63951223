"""Which servers a command speaks to, who it says it is, and whether it uses TLS.

Secrets are read from files or from the environment: a command line can be read by every user of the
machine. The environment's names of TLS settings are those that a server's own connections have.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click
from click.core import ParameterSource

from mailboat.cli.main import debug_option
from mailboat.client.addresses import DEFAULT_NAMESRV, parse_namesrv
from mailboat.client.admin import Admin
from mailboat.client.credential_files import read_secret, read_tools_file
from mailboat.client.producer import Producer
from mailboat.config.loading import SIGNING_ENVIRONMENT
from mailboat.errors import ConfigError
from mailboat.security.client_security import ClientSecurity, ClientTls, Credentials

_Command = TypeVar("_Command", bound=Callable[..., Any])

_ACCESS_KEY_KEY: Final = "mailboat.access_key"
_PLAIN_KEY: Final = "mailboat.plain"
_KEY_UNLOCK_ENVIRONMENT: Final = "MAILBOAT_TLS_CLIENT_KEY_PASSWORD"
_SECRET_KEY_HINT: Final = f"{SIGNING_ENVIRONMENT} or --secret-key-file"
_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Servers:
    """What a command is told of name servers and brokers."""

    namesrv: str
    """Name servers as `HOST:PORT;...`."""

    security: ClientSecurity

    def admin(self) -> Admin:
        """Return an admin client of these servers."""
        return Admin(namesrv=self.namesrv, security=self.security)

    def producer(self, group: str) -> Producer:
        """Return a producer for these servers."""
        return Producer(group, namesrv=self.namesrv, security=self.security)


def servers_options(command: _Command) -> _Command:
    """Add `-n`/`--namesrv`, what proves who asks, TLS, and `--debug`; the value is `servers`."""

    @functools.wraps(command)
    def with_servers(namesrv: str, **arguments: Any) -> Any:
        security = take_security(arguments)
        return command(servers=Servers(namesrv, security), **arguments)

    return cast(_Command, _NAMESRV(security_options(debug_option(with_servers))))


def security_options(command: _Command) -> _Command:
    """Add what proves who asks, and TLS; `take_security` makes one value of them."""
    for option in reversed(_SECURITY):
        command = option(command)
    return command


def take_security(arguments: dict[str, Any]) -> ClientSecurity:
    """Take what `security_options` added out of a command's arguments, put together.

    Raises:
        UsageError: they do not go together, or something is missing; the text says what to do.
        ConfigError: a file does not hold what it should.
    """
    own = {name: arguments.pop(name) for name in _SECURITY_NAMES}
    context = click.get_current_context()
    security = ClientSecurity(_credentials(context, own), _tls(context, own))
    if security.credentials is not None:
        context.meta[_ACCESS_KEY_KEY] = security.credentials.access_key
    context.meta[_PLAIN_KEY] = security.tls is None
    return security


def signing_access_key() -> str | None:
    """Return in whose name the present command signs its requests; None where it does not."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_ACCESS_KEY_KEY)


def connects_plainly() -> bool:
    """Tell whether the present command connects to servers without TLS."""
    context = click.get_current_context(silent=True)
    return context is not None and context.meta.get(_PLAIN_KEY, False)


def _check_namesrv(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        parse_namesrv(value)
    except ConfigError as error:
        raise click.BadParameter(error.reason) from error
    return value


_NAMESRV: Final = click.option(
    "-n",
    "--namesrv",
    metavar="HOST:PORT;...",
    envvar="MAILBOAT_NAMESRV",
    default=DEFAULT_NAMESRV,
    show_default=True,
    show_envvar=True,
    callback=_check_namesrv,
    help="Name servers.",
)
_SECURITY: Final = (
    click.option(
        "--access-key",
        metavar="NAME",
        envvar="MAILBOAT_ACCESS_KEY",
        show_envvar=True,
        help=f"Sign requests as this user; its secret comes from {_SECRET_KEY_HINT}.",
    ),
    click.option(
        "--secret-key-file",
        type=_FILE,
        envvar="MAILBOAT_SECRET_KEY_FILE",
        show_envvar=True,
        help="File that holds the secret key and nothing else.",
    ),
    click.option(
        "--acl-file",
        type=_FILE,
        envvar="MAILBOAT_ACL_FILE",
        show_envvar=True,
        help="Take accessKey and secretKey from such a file as mqadmin's tools.yml.",
    ),
    click.option(
        "--tls/--no-tls",
        default=None,
        envvar="MAILBOAT_TLS_ENABLE",
        show_envvar=True,
        help="Connect by TLS.",
    ),
    click.option(
        "--tls-trust",
        type=_FILE,
        envvar="MAILBOAT_TLS_CLIENT_TRUST_CERT_PATH",
        show_envvar=True,
        help="PEM file of the authorities to trust.  [default: those of the system]",
    ),
    click.option(
        "--tls-cert",
        type=_FILE,
        envvar="MAILBOAT_TLS_CLIENT_CERT_PATH",
        show_envvar=True,
        help="PEM file with the certificate to show, and its chain.",
    ),
    click.option(
        "--tls-key",
        type=_FILE,
        envvar="MAILBOAT_TLS_CLIENT_KEY_PATH",
        show_envvar=True,
        help=f"PEM file with its key; a password for it comes from {_KEY_UNLOCK_ENVIRONMENT}.",
    ),
    click.option(
        "--tls-server-name",
        metavar="NAME",
        envvar="MAILBOAT_TLS_SERVER_NAME",
        show_envvar=True,
        help="The one name that the certificates of all servers have to have.  [default: the host "
        "or address by which each is reached]",
    ),
    click.option(
        "--tls-insecure/--tls-check",
        default=None,
        help="Connect to servers whoever they are: neither certificate nor name is checked.",
    ),
)
_SECURITY_NAMES: Final = (
    "access_key",
    "secret_key_file",
    "acl_file",
    "tls",
    "tls_trust",
    "tls_cert",
    "tls_key",
    "tls_server_name",
    "tls_insecure",
)


def _credentials(context: click.Context, options: dict[str, Any]) -> Credentials | None:
    access_key, acl_file = options["access_key"], options["acl_file"]
    if access_key and acl_file is not None:
        is_key_typed = _is_typed(context, "access_key")
        if is_key_typed == _is_typed(context, "acl_file"):
            raise click.UsageError(
                "an access key and an ACL file both say who you are; give one of them", context
            )
        access_key, acl_file = (access_key, None) if is_key_typed else ("", acl_file)
    if acl_file is not None:
        return read_tools_file(acl_file)
    secret_file, secret = options["secret_key_file"], os.environ.get(SIGNING_ENVIRONMENT, "")
    if not access_key:
        if secret or secret_file is not None:
            raise click.UsageError(
                "there is a secret key but no access key; give --access-key or "
                "MAILBOAT_ACCESS_KEY, or nothing would be signed",
                context,
            )
        return None
    if secret_file is not None:
        if secret and not _is_typed(context, "secret_key_file"):
            raise click.UsageError(
                f"{SIGNING_ENVIRONMENT} and MAILBOAT_SECRET_KEY_FILE are both set; unset one",
                context,
            )
        secret = read_secret(secret_file)
    if not secret:
        raise click.UsageError(
            f"access key {access_key} has no secret key; set {_SECRET_KEY_HINT}", context
        )
    return Credentials(access_key, secret)


def _tls(context: click.Context, options: dict[str, Any]) -> ClientTls | None:
    trust, cert, key = options["tls_trust"], options["tls_cert"], options["tls_key"]
    is_insecure = options["tls_insecure"]
    if options["tls"] is None:
        for name in _SECURITY_NAMES[_SECURITY_NAMES.index("tls") + 1 :]:
            if options[name]:
                raise click.UsageError(
                    f"--{name.replace('_', '-')} is given but TLS is off; add --tls "
                    "(MAILBOAT_TLS_ENABLE=true), or --no-tls to stay without",
                    context,
                )
    if not options["tls"]:
        return None
    if (cert is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key go together", context)
    if is_insecure and _is_typed(context, "tls_trust"):
        raise click.UsageError(
            "--tls-insecure checks nothing, so --tls-trust has no effect; leave one out", context
        )
    if is_insecure and _is_typed(context, "tls_server_name"):
        raise click.UsageError(
            "--tls-insecure checks no name, so --tls-server-name has no effect; leave one out",
            context,
        )
    return ClientTls(
        trust_cert_path="" if trust is None else str(trust),
        cert_path="" if cert is None else str(cert),
        key_path="" if key is None else str(key),
        key_password=os.environ.get(_KEY_UNLOCK_ENVIRONMENT, ""),
        auth_server=_is_server_checked(context) if is_insecure is None else not is_insecure,
        server_name=options["tls_server_name"] or "",
    )


def _is_server_checked(context: click.Context) -> bool:
    """Return what the environment says; what is not set, or empty, is checked."""
    name = "MAILBOAT_TLS_CLIENT_AUTH_SERVER"
    text = os.environ.get(name, "").strip().lower() or "true"
    if text not in ("true", "false"):
        raise click.UsageError(f"{name}={text} is neither true nor false", context)
    return text == "true"


def _is_typed(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE
