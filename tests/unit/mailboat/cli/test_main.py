"""The `mailboat` command: its overview, its exit codes and its one-sentence errors."""

import subprocess
import sys

import click
import pytest

from mailboat.cli import main as package_main
from mailboat.cli.lazy import LazyGroup
from mailboat.cli.main import SUB_COMMANDS, cli, main
from mailboat.cli.promises import ASYNC_FLUSH, ONE_BAD_PEER, REFUSED, SYNC_FLUSH, UNKNOWN

HEAVY = ["aiohttp", "prometheus_client", "pyarrow", "pyspark", "rich", "lark"]


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`mailboat --help` is complete and ends with 0."""
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    for name, item in SUB_COMMANDS.items():
        assert f"  {name} " in overview
        assert item.summary in overview
    assert "Exit codes: 0 ok, 1 runtime" in overview


@pytest.mark.parametrize("name", ["standalone", "namesrv", "broker", "produce", "store"])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` of a sub-command works and begins with what the overview says of it."""
    assert main([name, "--help"]) == 0
    assert f"Usage: mailboat {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["standalone", "broker"])
def test_help_quotes_the_promises(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What SEND_OK means stands word for word in the help of what runs a broker."""
    main([name, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for promise in (ASYNC_FLUSH, SYNC_FLUSH, UNKNOWN, REFUSED, ONE_BAD_PEER):
        assert promise in text


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` names the program and the version."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("mailboat 0.")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "sentence"),
    [
        (["nope"], 2, "mailboat: No such command 'nope'."),
        (["broker", "--nope"], 2, "mailboat broker: No such option '--nope'."),
        (["namesrv", "--namesrv-port", "x"], 2, "mailboat namesrv: Invalid value for"),
        (["broker", "-o", "listenPort"], 3, "mailboat: -o=<hidden>: must be key=value"),
        (["broker", "-o", "flushDiskTyp=x"], 3, "the nearest one is flushDiskType"),
        (["broker", "-c", "/nope"], 3, "mailboat: -c=/nope: the file cannot be read"),
        (["standalone", "-o", "brokerRole=SLAVE"], 3, "must be above 0 for a SLAVE"),
        (["standalone", "-o", "brokerRole=MASTER"], 3, "must be one of ASYNC_MASTER"),
    ],
)
def test_errors_are_one_sentence_and_an_exit_code(
    arguments: list[str], exit_code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage is 2, wrong configuration 3; nothing goes to standard output."""
    assert main(arguments) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert sentence in captured.err


def test_a_fault_of_ours_is_named_and_traced_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --debug there is no traceback, with it there is; both end with 1."""

    @click.command()
    def broken() -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: broken)
    assert main(["broken"]) == 1
    quiet = capsys.readouterr().err
    assert quiet == (
        "mailboat: internal error: ZeroDivisionError: oops; --debug shows the traceback\n"
    )
    assert main(["--debug", "broken"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_error_of_the_system_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing file or a port in use needs no type name and no errno."""

    @click.command()
    def failing() -> None:
        raise FileNotFoundError(2, "No such file or directory", "/x")

    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: failing)
    assert main(["failing"]) == 1
    assert capsys.readouterr().err == "mailboat: /x: No such file or directory\n"


def test_the_configuration_is_printed_with_its_sources(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line holds a key, its value, and where the value came from."""
    monkeypatch.setenv("MAILBOAT_FLUSH_DISK_TYPE", "SYNC_FLUSH")
    flags = ["--broker-port", "7", "--data-dir", "/d", "-o", "listenPort=8", "--no-http"]
    assert main(["standalone", "--print-config", *flags]) == 0
    lines = {line.split()[0]: line.split(maxsplit=2)[1:] for line in _output_lines(capsys)}
    assert lines["flushDiskType"] == ["SYNC_FLUSH", "environment MAILBOAT_FLUSH_DISK_TYPE"]
    assert lines["listenPort"] == ["8", "command line"]
    assert lines["storePathRootDir"] == ["/d", "command line"]
    assert lines["httpPort"] == ["-1", "command line"]
    assert lines["namesrvListenPort"] == ["9876", "default"]
    assert lines["bindAddress"] == ["127.0.0.1", "default"]


def test_clients_are_told_host_also_where_it_is_listened_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Behind an address that the machine does not have; brokerIP1 goes before it."""
    flags = ["--host", "broker.example.com", "-o", "bindAddress=0.0.0.0"]

    def told(*more: str) -> list[str]:
        assert main(["standalone", "--print-config", *flags, *more]) == 0
        lines = {line.split()[0]: line.split()[1] for line in _output_lines(capsys)}
        return [lines["bindAddress"], lines["brokerIP1"]]

    assert told() == ["0.0.0.0", "broker.example.com"]
    assert told("-o", "brokerIP1=192.0.2.1") == ["0.0.0.0", "192.0.2.1"]


def test_a_server_does_not_pay_for_what_it_does_not_use() -> None:
    """Tables, Spark and HTTP are not loaded before they are needed."""
    code = (
        "import sys, mailboat.cli.standalone, mailboat.broker.controller;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_console_script_and_the_module_are_the_same() -> None:
    """pyproject.toml names `mailboat.cli:main`."""
    assert package_main is main
    assert isinstance(cli, LazyGroup)


def _output_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if len(line.split()) > 2]
