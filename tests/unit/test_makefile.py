"""What `make` installs, with a cargo and without one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOOTSTRAP = "docker/constraints/install.txt"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree that was installed by `make` without cargo."""
    (tmp_path / "core").mkdir()
    (tmp_path / "docker" / "constraints").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "uv.lock", BOOTSTRAP, "core/Cargo.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").mkdir()
    _finish(tmp_path, _steps(tmp_path, "CARGO="))
    return tmp_path


def test_a_cargo_that_comes_later_has_the_core_built(tree: Path) -> None:
    """Without one there is nothing to do; with one the core is installed, once."""
    assert _steps(tree, "CARGO=") == [".venv/bin/mailboat demo"]
    steps = _steps(tree, "CARGO=/bin/cargo")
    assert any("pip install" in step and " ./core" in step for step in steps)
    _finish(tree, steps)
    assert _steps(tree, "CARGO=/bin/cargo") == [".venv/bin/mailboat demo"]


@pytest.mark.parametrize("word", ["CARGO=", "CARGO=/bin/cargo"])
def test_nothing_is_installed_that_is_not_locked(tree: Path, word: str) -> None:
    """An index that has a newer release changes nothing; what it gives has the locked checksum."""
    (tree / ".venv" / ".installed").unlink()
    installs = [step for step in _steps(tree, word) if "pip install" in step]
    assert len(installs) == 4
    assert all("--no-deps" in step for step in installs)
    assert all("--require-hashes" in step for step in installs[:-1])
    # The tree itself, built with what is there by then.
    assert "--no-build-isolation" in installs[-1]


@pytest.mark.parametrize("name", ["uv.lock", BOOTSTRAP])
def test_a_change_of_the_lock_installs_again(tree: Path, name: str) -> None:
    """A pull that raises a tool is followed by the next target."""
    later = (tree / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(tree / name, (later, later))
    assert any("pip install" in step for step in _steps(tree, "CARGO="))


def _finish(tree: Path, steps: list[str]) -> None:
    """Do the last step of an installation alone: that makes the stamp."""
    subprocess.run(["/bin/sh", "-c", steps[-2]], cwd=tree, check=True)
    assert (tree / ".venv" / ".installed").exists()


def _steps(tree: Path, *words: str) -> list[str]:
    """Return what `make demo` would do."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--dry-run", "--no-print-directory", "demo", *words]
    done = subprocess.run(
        command, cwd=tree, env=environ, check=True, capture_output=True, text=True, timeout=30
    )
    return done.stdout.splitlines()
