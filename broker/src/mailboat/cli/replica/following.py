"""`mailboat replica follow`: how far a replica is with the log of a master of RocketMQ."""

import asyncio
from typing import Any, Final

import click

from mailboat.cli.client_command import run
from mailboat.cli.replica.broker_http import BrokerHttp, ask
from mailboat.cli.replica.commands import http_options
from mailboat.cli.replica.comparison import BrokerPair
from mailboat.errors import MailboatError
from mailboat.remoting.client import RemotingClient

_LOOK_EVERY_S: Final = 1.0
_COMPARE_EVERY_S: Final = 10.0
# A replica that has just started has to find out whom it is to follow.
_PATIENCE_S: Final = 15.0


@click.command()
@click.option(
    "--watch", is_flag=True, help="Go on comparing, each 10 s, until something is not equal."
)
@http_options
def follow(watch: bool, http: BrokerHttp) -> None:
    """See a replica through until it has all that a master of RocketMQ has.

    The replica follows by its configuration: brokerRole=SLAVE, with the master's brokerName,
    segment size and delay levels, and namesrvAddr or haMasterAddress. This command changes nothing:
    it compares the settings, shows how much of the log is missing, and in the end compares the
    offsets of all queues. It fails when the replica does not follow, or something is not equal.

    \b
    Examples:
      mailboat replica follow
      mailboat replica follow --watch --http 10.0.0.2:8080
    """
    run(_follow(http, watch=watch))


async def _follow(http: BrokerHttp, *, watch: bool) -> None:
    status = await _followed(http)
    master = status["java_master"]
    click.echo(
        f"replica {status['ordinal']} of group {status['group']} follows the master of "
        f"RocketMQ at {master['client_address']}"
    )
    remoting = RemotingClient(name="follow", security=http.security)
    try:
        pair = BrokerPair(remoting, master["client_address"], status["client_address"])
        if texts := await pair.settings():
            raise MailboatError("; ".join(texts))
        while True:
            await _level(http)
            found = await pair.queues()
            if found.differences:
                raise MailboatError("not equal: " + "; ".join(found.differences))
            click.echo(f"equal: {found.topics} topics, {found.queues} queues")
            behind = await pair.progress()
            click.echo(
                "; ".join(behind) or "equal: offsets of consumers, delivered delayed messages"
            )
            if not watch:
                return
            await asyncio.sleep(_COMPARE_EVERY_S)
    finally:
        await remoting.close()


async def _followed(http: BrokerHttp) -> dict[str, Any]:
    """Return the status of a replica that follows a master of RocketMQ.

    Raises:
        MailboatError: it does not, and why.
    """
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    while True:
        status: dict[str, Any] = await asyncio.to_thread(ask, http, "GET", "/api/v1/replica")
        master = status["java_master"]
        if master is not None and master["is_followed"]:
            return status
        leader = status["leader"]
        if leader is not None or loop.time() - begin_s > _PATIENCE_S:
            trouble = "" if master is None else master["trouble"]
            reason = "; ".join(filter(None, (trouble, *status["troubles"])))
            reason = reason or f"its role is {status['role']}, and it has found none"
            if leader is not None:
                reason = (
                    f"in its group of mailboat replica {leader} leads; `mailboat replica status` "
                    "shows how far each replica follows that one"
                )
            raise MailboatError(f"the replica follows no master of RocketMQ: {reason}")
        await asyncio.sleep(_LOOK_EVERY_S)


async def _level(http: BrokerHttp) -> None:
    """Return once the replica has the whole log and the tables; shows how much is missing."""
    while True:
        status = await _followed(http)
        master = status["java_master"]
        if master["tables_trouble"]:
            raise MailboatError(f"the master's tables: {master['tables_trouble']}")
        if not master["lag_bytes"] and master["tables_age_seconds"] is not None:
            click.echo(f"level: both logs end at {status['end']}")
            return
        click.echo(
            f"lacks {master['lag_bytes']} bytes of the log, {master['bytes_per_second']} come in a "
            "second"
        )
        await asyncio.sleep(_LOOK_EVERY_S)
