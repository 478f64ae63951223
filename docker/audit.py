"""Looks dependencies up in the database of known vulnerabilities (pip-audit): `make audit`.

What the images hold (`docker/constraints/`), and the oldest releases that pyproject.toml allows.
Ends with 1 if one of them has a known hole that a newer release mends. A database that cannot be
reached is said and is no failure: it says nothing about the dependencies.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "docker" / "constraints"
# Without `fast`: the core stands in no index, and its crates in no database of Python packages.
EXTRAS = ("loop", "operator", "spark")
TIMEOUT_S = 180


def oldest(folder: Path) -> Path:
    """Write the oldest releases that pyproject.toml allows to a file; return it."""
    path = folder / "oldest.txt"
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header"]
    command += [
        "--resolution",
        "lowest-direct",
        "--python-version",
        "3.11",
        "--output-file",
        str(path),
    ]
    command += [word for extra in EXTRAS for word in ("--extra", extra)]
    subprocess.run([*command, str(ROOT / "pyproject.toml")], check=True, capture_output=True)
    return path


def audit(path: Path) -> list[dict[str, Any]] | None:
    """Return what pip-audit says of each requirement; None if it cannot reach its database."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(path), "--no-deps"]
    command += ["--disable-pip", "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        answers: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None
    known = [answer for answer in answers if "vulns" in answer]
    return known or None


def main() -> int:
    """Look all up; return the exit code."""
    holes = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in (*sorted(CONSTRAINTS.glob("*.txt")), oldest(Path(folder))):
            answers = audit(path)
            if answers is None:
                print(f"audit: {path.name}: the database of vulnerabilities cannot be reached")
                continue
            for answer in answers:
                for hole in answer["vulns"]:
                    place = f"{path.name}: {answer['name']} {answer['version']}"
                    mended = ", ".join(hole["fix_versions"])
                    print(f"{place}: {hole['id']}, mended in {mended or 'no release yet'}")
                    holes += bool(mended)
            print(f"audit: {path.name}: {len(answers)} releases looked up")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
