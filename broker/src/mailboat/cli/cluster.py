"""`mailboat cluster`: clusters and brokers."""

from typing import Any

import click

from mailboat.cli.client_command import json_option, namesrv_option, run
from mailboat.cli.output import print_json, print_rows
from mailboat.client.admin import Admin
from mailboat.client.admin.cluster import BrokerAddress
from mailboat.errors import RemotingError


@click.group()
def command() -> None:
    """Show clusters, brokers and their numbers."""


@command.command("list")
@json_option
@namesrv_option
def list_clusters(as_json: bool, namesrv: str) -> None:
    """List the clusters and the names of their brokers."""

    async def work() -> list[dict[str, Any]]:
        async with Admin(namesrv=namesrv) as admin:
            info = await admin.cluster.info()
            return [
                {"cluster": name, "brokers": sorted(brokers)}
                for name, brokers in sorted(info.cluster_addr_table.items())
            ]

    print_rows(run(work()), ("cluster", "brokers"), as_json=as_json)


@command.command()
@click.option("--full", is_flag=True, help="With --json: every number that a broker tells.")
@json_option
@namesrv_option
def brokers(full: bool, as_json: bool, namesrv: str) -> None:
    """List the brokers with their version, their rates and the fullness of their disks."""

    async def work() -> list[dict[str, Any]]:
        async with Admin(namesrv=namesrv) as admin:
            return [
                await _broker_row(admin, broker, full=full)
                for broker in await admin.cluster.brokers()
            ]

    columns = ("cluster", "broker", "id", "address", "version", "in_tps", "out_tps", "disk_used")
    print_rows(run(work()), columns, as_json=as_json)


async def _broker_row(admin: Admin, broker: BrokerAddress, *, full: bool) -> dict[str, Any]:
    """Describe one broker; one that does not answer has a row without numbers."""
    row: dict[str, Any] = {
        "cluster": broker.cluster,
        "broker": broker.broker_name,
        "id": broker.broker_id,
        "address": broker.address,
    }
    try:
        table = await admin.cluster.runtime_info(broker.address)
    except RemotingError:
        return row | {"version": "no answer", "in_tps": None, "out_tps": None, "disk_used": None}
    # 4.9 has one "r" less.
    out_tps = table.get("getTransferredTps") or table.get("getTransferedTps")
    row |= {
        "version": table.get("brokerVersionDesc"),
        "in_tps": _first_rate(table.get("putTps")),
        "out_tps": _first_rate(out_tps),
        "disk_used": _percent(table.get("commitLogDiskRatio")),
    }
    if full:
        row["runtime"] = dict(sorted(table.items()))
    return row


@command.command()
@click.argument("broker")
@json_option
@namesrv_option
def config(broker: str, as_json: bool, namesrv: str) -> None:
    """Show the configuration of the master named BROKER."""

    async def work() -> dict[str, str]:
        async with Admin(namesrv=namesrv) as admin:
            master = (await admin.cluster.masters(broker_name=broker))[0]
            return await admin.cluster.broker_config(master.address)

    table = dict(sorted(run(work()).items()))
    if as_json:
        print_json(table)
    else:
        rows = [{"key": key, "value": value} for key, value in table.items()]
        print_rows(rows, ("key", "value"), as_json=False)


def _first_rate(text: str | None) -> float | None:
    """Return the rate of the last 10 s, the first of the three that a broker tells."""
    try:
        return round(float((text or "").split()[0]), 1)
    except (IndexError, ValueError):
        return None


def _percent(text: str | None) -> str | None:
    try:
        return f"{float(text or '') * 100:.0f} %"
    except ValueError:
        return None
