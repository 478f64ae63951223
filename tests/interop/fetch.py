"""Fetches and builds what the interop tests need, so that no test waits for a package index.

It goes on where the last try ended, and names what is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from interop_jars import (
    CLIENT_LINES,
    SERVER_LINES,
    InteropUnavailableError,
    client_classpath,
    cpp_package,
    go_driver,
    js_driver,
    server_classpath,
    tools_classpath,
)


def main() -> int:
    """Fetch all; return the exit code."""
    wanted: list[Callable[[], object]] = [go_driver, cpp_package, js_driver]
    wanted += [lambda line=line: server_classpath(line) for line in SERVER_LINES]
    for line in CLIENT_LINES:
        wanted += [
            lambda line=line: client_classpath(line),
            lambda line=line: tools_classpath(line),
        ]
    missing = []
    for fetch in wanted:
        try:
            fetch()
        except InteropUnavailableError as error:
            missing.append(error)
    for error in missing:
        print(f"fetch: {error}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
