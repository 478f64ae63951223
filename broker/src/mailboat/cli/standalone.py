"""`mailboat standalone`: a name server and a broker in one process, for one machine."""

from typing import Any

import click

from mailboat.cli.promises import HELP_TEXT
from mailboat.cli.server import (
    brokers_option,
    data_dir_option,
    port_option,
    replicas_option,
    run_server,
    server_options,
)


@click.command(epilog=HELP_TEXT)
@data_dir_option("~/mailboat")
@port_option("--namesrv-port", "the name server", 9876)
@port_option("--broker-port", "the broker", 10911)
@port_option("--http-port", "metrics, probes and the admin API", 8080)
@brokers_option()
@replicas_option()
@server_options(default_host="127.0.0.1")
def command(**flags: Any) -> int:
    """Run a name server and a broker in one process.

    Takes every configuration key of a broker; those of the name server that a broker has too carry
    a prefix (namesrvListenPort). Order: default, file, environment (MAILBOAT_FLUSH_DISK_TYPE=...),
    flags, -o. SIGTERM ends it in order. With --brokers or --replicas the name server has a
    process of its own.
    """
    return run_server("standalone", flags)
