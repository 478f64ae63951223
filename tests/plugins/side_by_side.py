"""Shares the suite between processes: `pytest --numprocesses=2`, as `make test` does.

The tests beside the real RocketMQ are one share: half of the time, much of it spent waiting for
Java, whose name servers and clients then start once. Every other file is a share of its own, so
that what a module makes for its tests is made once too.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

_TOGETHER = "tests/interop/"


class SideBySide(LoadScopeScheduling):
    """Gives each process the next share, in the order of `testpaths`."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the name of a test's share; pytest-xdist names this method as the one to write."""
        file = nodeid.partition("::")[0]
        return _TOGETHER if file.startswith(_TOGETHER) else file
