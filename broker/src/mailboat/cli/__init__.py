"""The command line: thin commands over the other layers.

What belongs here: options, help texts, output, exit codes, logging set-up. A sub-command is a
module with a click command named `command`; it is imported when it is used, so that a server starts
without paying for tables and progress bars. May import everything; nothing imports it.

Exit codes: 0 ok, 1 runtime, 2 usage, 3 configuration, 4 damaged store, 5 messages were sent and may
or may not be stored, 130 Ctrl-C, 143 SIGTERM.
"""

from mailboat.cli.main import main

__all__ = ["main"]
