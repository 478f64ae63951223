"""Style that no linter checks: sizes, forbidden calls, and the trap of a folder called operator."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [ROOT / part / "src" for part in ("broker", "operator", "spark")]
MAX_MODULE_LINES = 700
MAX_FUNCTION_LINES = 70
MAX_LINE_LENGTH = 100
# Calls that touch files; only `mailboat.disk` makes them for the store and the broker.
FILE_CALLS = {
    "open", "mmap.mmap", "os.open", "os.rename", "os.replace", "os.unlink", "os.remove",
    "os.fsync", "os.fdatasync", "os.pwrite", "os.truncate", "os.ftruncate", "os.mkdir",
    "os.makedirs", "shutil.rmtree", "Path.write_text", "Path.write_bytes",
}  # fmt: skip
# A class is a clock by its name, by a method or as a function. A function is one too unless it
# always returns 0. So are seconds that a test counts, and a clock in place of that of the process.
CLOCK = re.compile(
    r"^ *class \w*Clock"
    r"|^ *def (?:monotonic|wall_ms|time_ns|clock_pair|__call__)\(self\)"
    r"|\b(?:clock|monotonic|wall)=lambda: (?!0\.0\b)"
    r"|^ *\w+\.now(?:_s)? \+?= "
    r"|setattr\(time, ",
    re.MULTILINE,
)
OTHER_CLOCKS = {
    "integration/test_who_has_read.py": "the real clock of a whole broker, some time ahead",
    "property/broker_with_core.py": "the clock of a simulated disk, some time ahead",
    "unit/mailboat/broker/test_dispatcher.py": "each look takes a part of a round",
    "unit/mailboat/broker/test_never_early.py": "each look moves a virtual time",
    "unit/mailboat/security/test_tls.py": "the real date some days ahead, for real certificates",
    "unit/mailboat/store/test_index_backlog.py": "each look moves the clock of a simulated disk",
    "unit/mailboat/store/test_queue_table.py": "each look moves the clock of a simulated disk",
}


def modules(*roots: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yield every Python file below some folders, parsed."""
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            yield path.relative_to(ROOT), _parsed(path)


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_no_module_is_too_long():
    """A module that nobody can keep in mind is split."""
    tracked = [*SOURCES, ROOT / "tests"]
    lengths = {
        path.relative_to(ROOT): len(path.read_text().splitlines())
        for root in tracked
        for path in root.rglob("*.py")
    } | {
        path.relative_to(ROOT): len(path.read_text().splitlines())
        for folder in ("src", "wire")
        for path in (ROOT / "core" / folder).rglob("*.rs")
    }
    assert {path: n for path, n in lengths.items() if n > MAX_MODULE_LINES} == {}


def test_no_function_is_too_long():
    """A function fits on a screen."""
    long = [
        f"{path}:{node.lineno} {node.name} {node.end_lineno - node.lineno + 1} lines"
        for path, tree in modules(*SOURCES)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_no_line_is_too_long():
    """Lines end before column 100, comments and strings too."""
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for root in [*SOURCES, ROOT / "tests"]
        for path in root.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        # As ruff counts: a closing remark for a tool is not part of the line.
        if len(line.partition("  # type: ignore")[0]) > MAX_LINE_LENGTH
    ]
    assert long == []


def test_only_the_commands_print():
    """Libraries log or return; only `mailboat.cli` and a job's entry point write to stdout."""
    printing = [
        f"{path}:{node.lineno}"
        for path, tree in modules(*SOURCES)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and "cli" not in path.parts
    ]
    assert printing == []


def test_the_disk_seam_is_the_only_door_to_files():
    """Store and broker reach files through `mailboat.disk`, so that crashes can be simulated."""
    roots = [ROOT / "broker/src/mailboat" / name for name in ("store", "broker", "protocol")]
    found = [
        f"{path}:{node.lineno} {ast.unparse(node.func)}"
        for path, tree in modules(*roots)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in FILE_CALLS
        # Anonymous memory is no file.
        and ast.unparse(node).startswith("mmap.mmap(-1,") is False
    ]
    assert found == []


def test_no_except_carries_on_blindly():
    """`except Exception` stands only at the root of a task or request, where it is reported."""
    blind = [
        f"{path}:{handler.lineno}"
        for path, tree in modules(*SOURCES)
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler)
        and (handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException"))
        and all(isinstance(step, ast.Pass | ast.Continue) for step in handler.body)
    ]
    assert blind == []


def test_no_folder_imports_as_operator():
    """A folder that imports as `operator` would replace a module of the standard library."""
    assert list((ROOT / "operator").glob("*.py")) == []
    assert list((ROOT / "operator").rglob("test_*.py")) == []
    assert list((ROOT / "operator").rglob("conftest.py")) == []
    assert not (ROOT / "operator.py").exists()
    assert not (ROOT / "tests" / "operator").exists()
    found = subprocess.run(
        [sys.executable, "-S", "-c", "import operator; print(operator.__file__)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert not found.stdout.startswith(str(ROOT))


def test_the_tests_have_one_clock():
    """`mailboat.testing.virtual_time` is it; many clocks round and jump in many ways."""
    tests = ROOT / "tests"
    found = {
        path.relative_to(tests).as_posix()
        for path in tests.rglob("*.py")
        if CLOCK.search(path.read_text())
    }
    assert found == OTHER_CLOCKS.keys()
