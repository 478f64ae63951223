import asyncio
import warnings
from collections.abc import Coroutine

import click
import pytest
from click.testing import CliRunner

from mailboat.cli.client_command import (
    confirm,
    each,
    run,
    start_point_option,
    time_option,
    yes_option,
)
from mailboat.cli.servers import Servers, servers_options
from mailboat.client.queue_offsets import ConsumeFromWhere, StartPoint


@click.command()
@start_point_option("--from", "start_point", default="first", help_text="Where.")
@servers_options
def command(start_point: StartPoint, servers: Servers) -> None:
    """Print what was understood."""
    click.echo(f"{start_point.where.name} {start_point.timestamp_ms} {servers.namesrv}")


def output(*words: str, env: dict[str, str] | None = None) -> str:
    """Run the command and return its output."""
    result = CliRunner().invoke(command, words, env=env)
    return result.output.strip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("first", StartPoint(ConsumeFromWhere.FIRST_OFFSET)),
        ("last", StartPoint(ConsumeFromWhere.LAST_OFFSET)),
        ("earliest", StartPoint(ConsumeFromWhere.FIRST_OFFSET)),
        ("latest", StartPoint(ConsumeFromWhere.LAST_OFFSET)),
        ("1700000000123", StartPoint(ConsumeFromWhere.TIMESTAMP, 1700000000123)),
        ("2023-11-14T22:13:20Z", StartPoint(ConsumeFromWhere.TIMESTAMP, 1700000000000)),
        ("2023-11-14 23:13:20.5+01:00", StartPoint(ConsumeFromWhere.TIMESTAMP, 1700000000500)),
    ],
)
def test_points_in_time(text: str, expected: StartPoint):
    """A time may be milliseconds since 1970 or a date and time in ISO form."""
    words = output("--from", text).split()
    assert words[:2] == [expected.where.name, str(expected.timestamp_ms)]


@pytest.mark.parametrize("text", ["now", "17", "2023-13-01", ""])
def test_bad_time_is_wrong_usage(text: str):
    """What is no time is refused before anything is asked, with an example of a time."""
    result = CliRunner().invoke(command, ["--from", text])
    assert result.exit_code == 2
    assert "2026-01-31T08:00:00" in result.output


def test_name_servers_come_from_option_environment_or_default():
    """The option wins over MAILBOAT_NAMESRV, which wins over this machine."""
    env = {"MAILBOAT_NAMESRV": "env:1"}
    assert output("-n", "a:1;b:2", env=env).endswith(" a:1;b:2")
    assert output(env=env).endswith(" env:1")
    assert output(env={"MAILBOAT_NAMESRV": ""}).endswith(" 127.0.0.1:9876")


def test_bad_name_server_is_wrong_usage():
    """An address without a port is refused at once."""
    result = CliRunner().invoke(command, ["-n", "host"])
    assert result.exit_code == 2
    assert "'host' is not HOST:PORT" in result.output


@click.command()
@time_option("--end", "end_ms", help_text="When.")
@yes_option
def destroy(end_ms: int | None, yes: bool) -> None:
    """Say what was understood, after a question."""
    confirm("Really?", yes=yes)
    click.echo(f"{end_ms}")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "None"),
        (("--end", "1700000000123"), "1700000000123"),
        (("--end", "2023-11-14T22:13:20Z"), "1700000000000"),
    ],
)
def test_times_may_be_left_out(words: tuple[str, ...], expected: str):
    """An option that takes a time has no value where it is not given."""
    result = CliRunner().invoke(destroy, [*words, "--yes"])
    assert result.output.strip() == expected


def test_first_is_no_time():
    """Where only a time makes sense, the words for both ends are refused."""
    result = CliRunner().invoke(destroy, ["--end", "first", "--yes"])
    assert result.exit_code == 2
    assert "'first' is not a time such as" in result.output


def test_nothing_is_destroyed_without_somebody_to_ask():
    """Without a terminal and without --yes the command is wrong usage and does nothing."""
    result = CliRunner().invoke(destroy, input="y\n")
    assert result.exit_code == 2
    assert "add --yes" in result.output


async def test_work_is_done_for_each_in_order():
    """Results come in the order of the items, whichever is done first; at most 16 run at once."""
    running = highest = counted = 0

    async def work(number: int) -> int:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        for _ in range(50 - number):
            await asyncio.sleep(0)
        running -= 1
        return number * number

    def count() -> None:
        nonlocal counted
        counted += 1

    assert await each(range(50), work, count) == [number * number for number in range(50)]
    assert (highest, counted) == (16, 50)


def test_an_interrupt_before_the_loop_runs_is_no_warning(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C at the very start of a command leaves nothing that Python warns of."""

    def interrupted(work: Coroutine[object, object, None]) -> None:
        raise KeyboardInterrupt

    async def work() -> None:
        pytest.fail("it was interrupted before")

    monkeypatch.setattr(asyncio, "run", interrupted)
    with warnings.catch_warnings(record=True) as warned, click.Context(command):
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            run(work())
    assert not warned
