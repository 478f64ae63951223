import click
import pytest
from click.testing import CliRunner

from mailboat.cli.client_command import namesrv_option, start_point_option
from mailboat.client.queue_offsets import ConsumeFromWhere, StartPoint


@click.command()
@start_point_option("--from", "start_point", default="first", help_text="Where.")
@namesrv_option
def command(start_point: StartPoint, namesrv: str) -> None:
    """Print what was understood."""
    click.echo(f"{start_point.where.name} {start_point.timestamp_ms} {namesrv}")


def output(*words: str, env: dict[str, str] | None = None) -> str:
    """Run the command and return its output."""
    result = CliRunner().invoke(command, words, env=env)
    return result.output.strip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("first", StartPoint(ConsumeFromWhere.FIRST_OFFSET)),
        ("last", StartPoint(ConsumeFromWhere.LAST_OFFSET)),
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
