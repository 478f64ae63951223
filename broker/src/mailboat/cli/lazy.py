"""Groups of commands that are imported when they are used, so that `--help` costs nothing."""

import importlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

DEFAULT_ATTRIBUTE: Final = "command"


class SubCommand(NamedTuple):
    """Where a command is and what the overview says about it."""

    module: str
    summary: str
    attribute: str = DEFAULT_ATTRIBUTE


class LazyGroup(click.Group):
    """A group whose commands are imported when they are named."""

    def __init__(
        self, *arguments: Any, table: Mapping[str, SubCommand], package: str, **options: Any
    ) -> None:
        """Take the commands by name; their modules are in `package`."""
        super().__init__(*arguments, **options)
        self.table = table
        self._package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command, or return None for an unknown name."""
        item = self.table.get(cmd_name)
        if item is None:
            return None
        module = importlib.import_module(f"{self._package}.{item.module}")
        command = getattr(module, item.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the table, so that `--help` imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, item.summary) for name, item in self.table.items()])
