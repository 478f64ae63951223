"""Tests that need the compiled core, and the switch that goes on to the processes of tests.

A test marked `core` is skipped, with the reason, where the core is not installed (no cargo when
`make` made the environment), and fails there with MAILBOAT_TEST_REQUIRE_ALL=1. It needs the module
itself, so MAILBOAT_CORE=off does not skip it: that switch says what mailboat uses.
"""

import importlib
import os
from types import ModuleType

import pytest

from mailboat.core import SWITCH, find


def core_or_reason() -> tuple[ModuleType | None, str]:
    """Return the installed core of mailboat's version, or None and why there is none."""
    found = find("", lambda: importlib.import_module("mailboat_core"))
    return found.module, found.reason


def plain_environment() -> dict[str, str]:
    """Return the environment without mailboat's settings, but with the core's switch."""
    return {
        name: text
        for name, text in os.environ.items()
        if not name.startswith("MAILBOAT_") or name == SWITCH
    }


class NeedsCore:
    """Looks at the mark `core` before a test's fixtures are made."""

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip or fail a test that needs what is not there."""
        if item.get_closest_marker("core") is None:
            return
        module, reason = core_or_reason()
        if module is None:
            if os.environ.get("MAILBOAT_TEST_REQUIRE_ALL") == "1":
                pytest.fail(f"MAILBOAT_TEST_REQUIRE_ALL=1, but: {reason}")
            pytest.skip(f"needs the compiled core: {reason}")
