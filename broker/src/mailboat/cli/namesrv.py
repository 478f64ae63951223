"""`mailboat namesrv`: a name server."""

from typing import Any

import click

from mailboat.cli.server import port_option, run_server, server_options


@click.command()
@port_option("--namesrv-port", "the name server (listenPort)", 9876)
@port_option("--http-port", "metrics and probes", 8079)
@server_options(default_host="0.0.0.0")
def command(**flags: Any) -> int:
    """Run a name server.

    Brokers tell it everything again when it restarts; only the queues of ordered topics need a file
    for that (-o kvConfigPath=FILE). Order of settings: default, file, environment
    (MAILBOAT_LISTEN_PORT=...), flags, -o. SIGTERM ends it in order.
    """
    return run_server("namesrv", flags)
