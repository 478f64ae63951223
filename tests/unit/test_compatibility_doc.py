"""The tests that docs/compatibility.md names are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_ROW = re.compile(r"^\| (?P<name>.*?) \| (?P<support>.*) \| (?P<tests>[^|]*) \|$")
_FILE = re.compile(r"tests/[\w/]+(?:\.py)?")
_NAME = re.compile(r"::(test_\w+)")


def _rows() -> list[tuple[str, str, str]]:
    text = (ROOT / "docs" / "compatibility.md").read_text()
    lines = [line.replace("\\|", "/") for line in text.splitlines()]
    found = [_ROW.match(line) for line in lines if not line.startswith("|---")]
    return [(row["name"], row["support"], row["tests"]) for row in found if row]


def _tests_of(file: str) -> set[str]:
    return set(re.findall(r"def (test_\w+)", (ROOT / file).read_text()))


def test_every_named_test_exists() -> None:
    """A file that a row names is there, and so is each test in it."""
    file = "tests/interop/test_mqadmin.py"
    for name, _, tests in _rows():
        for part in tests.split(","):
            named = _FILE.search(part)
            file = named[0] if named else file
            assert (ROOT / file).exists(), f"{name}: {file} is not there"
            for test in _NAME.findall(part):
                assert test in _tests_of(file), f"{name}: {file} has no {test}"


def test_every_yes_names_a_test() -> None:
    """In the tables with a column of tests, what is said to work is backed by one."""
    with_tests = [row for row in _rows() if "restart" not in row[1] and "live" not in row[1]]
    missing = [
        name
        for name, support, tests in with_tests
        if support.startswith(("yes", "differs")) and "test" not in tests
    ]
    assert not missing
