"""What the tests with machines of their own need of the one that they run on."""

import os
import sys
from pathlib import Path

import pytest

# Test folders are no packages, so helper modules are found by path.
sys.path.insert(0, str(Path(__file__).parent.parent / "crash"))
sys.path.insert(0, str(Path(__file__).parent))

from namespaces import why_no_machines
from shim import compile_shim, why_no_shim


def _demand(reason: str) -> None:
    if not reason:
        return
    if os.environ.get("MAILBOAT_TEST_REQUIRE_ALL") == "1":
        pytest.fail(f"MAILBOAT_TEST_REQUIRE_ALL=1, but: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def machines_missing() -> str:
    """Return why there can be no machines here, empty if there can."""
    return why_no_machines()


@pytest.fixture
def has_machines(machines_missing: str) -> None:
    """Skip, or fail, where no machines can be made."""
    _demand(machines_missing)


@pytest.fixture(scope="session")
def shim_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the library of the faults is."""
    return tmp_path_factory.mktemp("shim")


@pytest.fixture
def shim_library(has_machines: None, shim_folder: Path) -> Path:
    """Return the library that gives a process faults, compiled once."""
    _demand(why_no_shim())
    library = shim_folder / "shim.so"
    return library if library.exists() else compile_shim(shim_folder)
