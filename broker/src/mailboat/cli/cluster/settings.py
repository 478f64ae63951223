"""`mailboat cluster config|configure|namesrv-config|wipe-write-perm|add-write-perm|clean`: settings
of brokers and what an operator asks of them."""

from typing import Final

import click

from mailboat.cli.client_command import confirm, json_option, run, yes_option
from mailboat.cli.cluster.show import print_table
from mailboat.cli.output import print_json, print_rows
from mailboat.cli.servers import Servers, servers_options
from mailboat.protocol.codes import RequestCode

_CLEANUPS: Final = {
    "queues": RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    "log": RequestCode.DELETE_EXPIRED_COMMITLOG,
    "topics": RequestCode.CLEAN_UNUSED_TOPIC,
}


@click.command()
@click.argument("broker")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@json_option
@servers_options
def config(broker: str, keys: tuple[str, ...], as_json: bool, servers: Servers) -> None:
    """Show the configuration of BROKER.

    BROKER is the name of a broker; its master is asked. With KEYs, only those.

    \b
    Examples:
      mailboat cluster config broker-a
      mailboat cluster config broker-a flushDiskType fileReservedTime
    """
    table = run(_config(servers, broker))
    unknown = [key for key in keys if key not in table]
    if unknown:
        raise click.BadParameter(
            f"broker {broker} has no key {unknown[0]!r}; without keys all are shown",
            param_hint="KEY",
        )
    print_table({key: table[key] for key in keys} if keys else table, as_json=as_json)


async def _config(servers: Servers, broker: str) -> dict[str, str]:
    async with servers.admin() as admin:
        master = (await admin.cluster.masters(broker_name=broker))[0]
        return await admin.cluster.broker_config(master.address)


def parse_settings(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Return `KEY=VALUE` arguments as a table.

    Raises:
        BadParameter: one of them is not of that form, or would be more than one line.
    """
    settings: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or "\n" in text:
            raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings


@click.command()
@click.argument("broker")
@click.argument(
    "settings", nargs=-1, required=True, metavar="KEY=VALUE...", callback=parse_settings
)
@json_option
@servers_options
def configure(broker: str, settings: dict[str, str], as_json: bool, servers: Servers) -> None:
    """Change settings of BROKER while it runs.

    A mailboat broker takes all of the settings or none, refuses what needs a restart, and forgets
    the change with its end; a Java broker writes the change to its file and ignores keys that it
    does not know. What is shown is read back from the broker.

    \b
    Example:
      mailboat cluster configure broker-a fileReservedTime=48
    """

    async def work() -> tuple[dict[str, str], dict[str, str]]:
        async with servers.admin() as admin:
            master = (await admin.cluster.masters(broker_name=broker))[0]
            before = await admin.cluster.broker_config(master.address)
            await admin.cluster.update_broker_config(master.address, settings)
            return before, await admin.cluster.broker_config(master.address)

    before, after = run(work())
    rows = [
        {"key": key, "old_value": before.get(key), "new_value": after.get(key)} for key in settings
    ]
    print_rows(rows, ("key", "old_value", "new_value"), as_json=as_json)


@click.command("namesrv-config")
@json_option
@servers_options
def namesrv_config(as_json: bool, servers: Servers) -> None:
    """Show the configuration of the name servers.

    \b
    Example:
      mailboat cluster namesrv-config --json
    """

    async def work() -> dict[str, dict[str, str]]:
        async with servers.admin() as admin:
            return await admin.cluster.namesrv_configs()

    configs = run(work())
    if as_json:
        print_json({address: dict(sorted(table.items())) for address, table in configs.items()})
        return
    rows = [
        {"name_server": address, "key": key, "value": value}
        for address, table in configs.items()
        for key, value in sorted(table.items())
    ]
    print_rows(rows, ("name_server", "key", "value"), as_json=False)


@click.command("wipe-write-perm")
@click.argument("broker")
@yes_option
@json_option
@servers_options
def wipe_write_perm(broker: str, yes: bool, as_json: bool, servers: Servers) -> None:
    """Let producers send no more to BROKER.

    The name servers take the WRITE permission out of its routes; producers notice within 30 s and
    consumers go on. For draining a broker before it is stopped. `add-write-perm` takes it back, and
    so does a restart of the broker.

    \b
    Example:
      mailboat cluster wipe-write-perm broker-a --yes
    """
    confirm(f"Let producers send no more to broker {broker}?", yes=yes)

    async def work() -> dict[str, int]:
        async with servers.admin() as admin:
            return await admin.cluster.wipe_write_perm(broker)

    _print_counts(run(work()), as_json=as_json)


@click.command("add-write-perm")
@click.argument("broker")
@json_option
@servers_options
def add_write_perm(broker: str, as_json: bool, servers: Servers) -> None:
    """Let producers send to BROKER again.

    \b
    Example:
      mailboat cluster add-write-perm broker-a
    """

    async def work() -> dict[str, int]:
        async with servers.admin() as admin:
            return await admin.cluster.add_write_perm(broker)

    _print_counts(run(work()), as_json=as_json)


def _print_counts(counts: dict[str, int], *, as_json: bool) -> None:
    rows = [{"name_server": name, "topics_changed": count} for name, count in counts.items()]
    print_rows(rows, ("name_server", "topics_changed"), as_json=as_json)


@click.command()
@click.argument("broker")
@click.argument("what", type=click.Choice(list(_CLEANUPS)), nargs=-1, required=True)
@yes_option
@servers_options
def clean(broker: str, what: tuple[str, ...], yes: bool, servers: Servers) -> None:
    """Let BROKER delete what has expired.

    WHAT is `queues` (ConsumeQueue files below the log), `log` (CommitLog files past their time) or
    `topics` (the queues of topics that are gone). Brokers do this by themselves; here it is done
    now.

    \b
    Example:
      mailboat cluster clean broker-a queues log --yes
    """
    confirm(f"Let broker {broker} delete expired {' and '.join(what)} now?", yes=yes)

    async def work() -> None:
        async with servers.admin() as admin:
            master = (await admin.cluster.masters(broker_name=broker))[0]
            for name in what:
                await admin.cluster.clean(master.address, _CLEANUPS[name])

    run(work())
    click.echo(f"broker {broker} has deleted expired {' and '.join(what)}")
