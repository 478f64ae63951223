"""Where the compiled core is missing, tests of it are skipped with the reason, or fail in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a test that needs the core in a process that cannot load it."""
    package = tmp_path / "mailboat_core"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('made for another machine')\n")
    name = "tests/unit/mailboat_core/test_stub.py::test_the_package_gives_all_that_is_compiled"
    environ = {k: v for k, v in os.environ.items() if k != "MAILBOAT_TEST_REQUIRE_ALL"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", name],
        cwd=ROOT,
        env=environ | {"PYTHONPATH": str(tmp_path)} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("switch", ["", "off"])
def test_without_the_core_a_test_that_needs_it_is_skipped(tmp_path: Path, switch: str) -> None:
    """With the reason; the run passes."""
    done = run(tmp_path, MAILBOAT_CORE=switch)
    assert done.returncode == 0, done.stdout
    reason = "mailboat-core cannot be loaded: made for another machine"
    assert f"needs the compiled core: {reason}" in done.stdout
    assert "1 skipped" in done.stdout


def test_where_all_must_be_there_it_fails(tmp_path: Path) -> None:
    """As tests that want Java do."""
    done = run(tmp_path, MAILBOAT_TEST_REQUIRE_ALL="1")
    assert done.returncode == 1
    assert "MAILBOAT_TEST_REQUIRE_ALL=1, but: mailboat-core cannot be loaded" in done.stdout
    assert "1 error" in done.stdout
