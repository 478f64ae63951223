"""Commands that are imported when they are used: complete, described once, and cheap to list."""

import re
import subprocess
import sys

import click
import pytest

from mailboat.cli.lazy import LazyGroup
from mailboat.cli.main import SUB_COMMANDS, cli, main

FAMILIES = ("topic", "group", "cluster", "message", "offset")


def family(name: str) -> LazyGroup:
    """Return the group of one family's commands."""
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, LazyGroup)
    return command


MEMBERS = [(name, member) for name in FAMILIES for member in family(name).table]


@pytest.mark.parametrize(("name", "member"), MEMBERS)
def test_every_command_is_there_and_says_what_the_overview_says(name: str, member: str):
    """The first sentence of a command's own help is the one of the table."""
    group = family(name)
    command = group.get_command(click.Context(group), member)
    assert command is not None
    help_text = command.help or ""
    assert help_text.split("\n\n")[0].replace("\n", " ").strip() == group.table[member].summary


@pytest.mark.parametrize(("name", "member"), MEMBERS)
def test_every_command_has_options_for_scripts_and_an_example(
    name: str, member: str, capsys: pytest.CaptureFixture[str]
):
    """`--help` shows how the command is called, and name servers can be chosen everywhere."""
    assert main([name, member, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Usage: mailboat {name} {member} " in text
    assert re.search(rf"\n    mailboat {name} {member}[ \n]", text)
    assert "--namesrv" in text


@pytest.mark.parametrize("name", FAMILIES)
def test_overviews_agree(name: str, capsys: pytest.CaptureFixture[str]):
    """What `mailboat --help` says of a family is the family's own first sentence."""
    assert family(name).help == SUB_COMMANDS[name].summary
    assert main([name, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for member, item in family(name).table.items():
        assert f"{member} {item.summary}" in text


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in FAMILIES)])
def test_overviews_import_no_client(words: list[str]):
    """Listing commands costs neither the client library nor the table printer."""
    code = (
        "import sys; from mailboat.cli import main\n"
        f"main({words!r})\n"
        "loaded = {'asyncio', 'msgspec', 'rich', 'mailboat.client'} & set(sys.modules)\n"
        "sys.exit(repr(loaded) if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    """A name that is not in a family is refused as one that is not in the overview."""
    assert main(["topic", "nope"]) == 2
    assert capsys.readouterr().err == "mailboat topic: No such command 'nope'.\n"
