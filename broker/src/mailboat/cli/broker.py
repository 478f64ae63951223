"""`mailboat broker`: a broker that registers at name servers."""

from typing import Any

import click

from mailboat.cli.promises import HELP_TEXT
from mailboat.cli.server import (
    brokers_option,
    data_dir_option,
    port_option,
    run_server,
    server_options,
)


@click.command(epilog=HELP_TEXT)
@click.option(
    "-n",
    "--namesrv",
    metavar="HOST:PORT;...",
    help="Name servers to register at (namesrvAddr).  [default: NAMESRV_ADDR]",
)
@data_dir_option("~/store")
@port_option("--broker-port", "the broker (listenPort); the port two below is served too", 10911)
@port_option("--http-port", "metrics, probes and the admin API", 8080)
@brokers_option()
@server_options(default_host="0.0.0.0")
def command(**flags: Any) -> int:
    """Run a broker.

    Takes RocketMQ's broker.conf: an unknown key or a bad value is an error, a key that has no
    effect here is a warning. Order of settings: default, file, environment
    (MAILBOAT_FLUSH_DISK_TYPE=...), flags, -o. SIGTERM ends it in order: what was read is answered,
    everything is flushed, and the name servers are told. With shutdownDrainSeconds it first goes on
    serving that long without being offered to producers; a second SIGTERM ends that early.
    """
    return run_server("broker", flags)
