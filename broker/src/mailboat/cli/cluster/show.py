"""`mailboat cluster list|brokers|show`: who is there, and the numbers that brokers tell."""

from collections.abc import Mapping
from typing import Any, Final

import click

from mailboat.cli.client_command import each, json_option, run
from mailboat.cli.output import print_json, print_rows, time_text
from mailboat.cli.progress import Scan
from mailboat.cli.servers import Servers, servers_options
from mailboat.client.admin import Admin
from mailboat.client.admin.cluster import BrokerAddress
from mailboat.errors import MailboatError, RemotingError
from mailboat.protocol.codes import version_name

_COLUMNS: Final = (
    "cluster",
    "broker",
    "id",
    "address",
    "version",
    "in_tps",
    "out_tps",
    "in_today",
    "out_today",
    "disk_used",
    "oldest_message",
)

_PRODUCER_COLUMNS: Final = (
    "group",
    "client_id",
    "address",
    "language",
    "version",
    "last_heartbeat",
    "broker",
)


@click.command("list")
@json_option
@servers_options
def list_clusters(as_json: bool, servers: Servers) -> None:
    """List the clusters and their brokers.

    \b
    Example:
      mailboat cluster list
    """

    async def work() -> list[dict[str, Any]]:
        async with servers.admin() as admin:
            info = await admin.cluster.info()
            return [
                {"cluster": name, "brokers": sorted(brokers)}
                for name, brokers in sorted(info.cluster_addr_table.items())
            ]

    print_rows(run(work()), ("cluster", "brokers"), as_json=as_json)


@click.command()
@click.option("--full", is_flag=True, help="With --json: every number that a broker tells.")
@click.option("-c", "--cluster", help="Only the brokers of this cluster.")
@json_option
@servers_options
def brokers(full: bool, cluster: str | None, as_json: bool, servers: Servers) -> None:
    """List the brokers with versions, rates and disks.

    Rates are messages per second, taken in and given out; today begins at the broker's midnight.

    \b
    Examples:
      mailboat cluster brokers
      mailboat cluster brokers --json --full
    """

    async def work() -> list[dict[str, Any]]:
        async with servers.admin() as admin:
            found = [
                broker
                for broker in await admin.cluster.brokers()
                if cluster in (None, broker.cluster)
            ]
            if cluster is not None and not found:
                raise MailboatError(f"there is no cluster {cluster}, or it has no broker")
            with Scan("brokers", len(found)) as scan:
                return await each(
                    found, lambda broker: _broker_row(admin, broker, full=full), scan.advance
                )

    print_rows(run(work()), _COLUMNS, as_json=as_json)


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
        return row | dict.fromkeys(_COLUMNS[4:]) | {"version": "no answer"}
    row |= runtime_row(table)
    if full:
        row["runtime"] = dict(sorted(table.items()))
    return row


def runtime_row(table: Mapping[str, str]) -> dict[str, Any]:
    """Return the numbers that people look at first; what a broker does not tell is None."""
    # 4.9 has one "r" less.
    out_tps = table.get("getTransferredTps") or table.get("getTransferedTps")
    earliest = _to_int(table.get("earliestMessageTimeStamp"))
    return {
        "version": table.get("brokerVersionDesc"),
        "in_tps": _first_rate(table.get("putTps")),
        "out_tps": _first_rate(out_tps),
        "in_today": _since_morning(table, "msgPutTotal"),
        "out_today": _since_morning(table, "msgGetTotal"),
        "disk_used": _percent(table.get("commitLogDiskRatio")),
        "oldest_message": None if earliest is None else time_text(earliest),
    }


@click.command()
@click.argument("broker")
@json_option
@servers_options
def show(broker: str, as_json: bool, servers: Servers) -> None:
    """Show every number that BROKER tells of itself.

    BROKER is the name of a broker; its master is asked.

    \b
    Example:
      mailboat cluster show broker-a
    """

    async def work() -> dict[str, str]:
        async with servers.admin() as admin:
            master = (await admin.cluster.masters(broker_name=broker))[0]
            return await admin.cluster.runtime_info(master.address)

    print_table(run(work()), as_json=as_json)


@click.command()
@click.argument("group", required=False)
@json_option
@servers_options
def producers(group: str | None, as_json: bool, servers: Servers) -> None:
    """List the producers that are connected.

    With GROUP, only the members of that producer group.

    \b
    Examples:
      mailboat cluster producers
      mailboat cluster producers shop --json
    """

    async def work() -> list[dict[str, Any]]:
        async with servers.admin() as admin:
            return [
                {
                    "group": name,
                    "client_id": member.client_id,
                    "address": member.remote_ip.lstrip("/"),
                    "language": member.language,
                    "version": version_name(member.version),
                    "last_heartbeat": time_text(member.last_update_timestamp),
                    "broker": master.broker_name,
                }
                for master in await admin.cluster.masters()
                for name, members in (await admin.cluster.producers(master.address)).items()
                if group in (None, name)
                for member in members
            ]

    rows = sorted(run(work()), key=lambda row: (row["group"], row["client_id"], row["broker"]))
    print_rows(rows, _PRODUCER_COLUMNS, as_json=as_json)


def print_table(table: Mapping[str, str], *, as_json: bool) -> None:
    """Print keys and values in the order of the keys; as JSON one object."""
    ordered = dict(sorted(table.items()))
    if as_json:
        print_json(ordered)
    else:
        rows = [{"key": key, "value": value} for key, value in ordered.items()]
        print_rows(rows, ("key", "value"), as_json=False)


def _first_rate(text: str | None) -> float | None:
    """Return the rate of the last 10 s, the first of the three that a broker tells."""
    try:
        return round(float((text or "").split()[0]), 1)
    except (IndexError, ValueError):
        return None


def _since_morning(table: Mapping[str, str], name: str) -> int | None:
    now = _to_int(table.get(f"{name}TodayNow"))
    morning = _to_int(table.get(f"{name}TodayMorning"))
    return None if now is None or morning is None else now - morning


def _to_int(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _percent(text: str | None) -> str | None:
    try:
        return f"{float(text or '') * 100:.0f} %"
    except ValueError:
        return None
