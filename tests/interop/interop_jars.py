"""The jars of the real RocketMQ and the stock clients, kept in `.cache/interop`.

Maven, Go, pip and npm fetch and build them once; a stamp file over everything that went in says
whether a folder can be used again. Nothing here is committed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

JAVA_DIR = Path(__file__).parent / "java"
GO_DIR = Path(__file__).parent / "go"
CPP_DIR = Path(__file__).parent / "cpp"
JS_DIR = Path(__file__).parent / "js"
MQADMIN_DIR = Path(__file__).parent / "mqadmin"
CACHE_DIR = Path(__file__).parents[2] / ".cache" / "interop"

# Others from 4.9.0 on may be named: MAILBOAT_TEST_CLIENT_LINES="4.9.4 5.1.4".
CLIENT_LINES = tuple(os.environ.get("MAILBOAT_TEST_CLIENT_LINES", "4.9.8 5.5.0").split())
# The broker and the name server of 4.9.8 were not published as jars.
SERVER_LINES = ("4.9.7", "5.5.0")

# One release with its checksums; the wheel holds the C++ library of Linux on x86-64.
CPP_PACKAGE = CPP_DIR / "requirements.txt"

# A collector that starts at once, a compiler that is done soon, and no statistics file, which a JVM
# writes by mmap: all its threads would wait for a busy disk.
JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+PerfDisableSharedMem")

_BUILD_TIMEOUT_S = 900


class InteropUnavailableError(Exception):
    """A program, such as Maven, or a package index is missing; the text says what to do."""


def server_classpath(line: str) -> str:
    """Return the class path of the name server and the broker of a release line."""
    _require("java", "a Java runtime of version 17 or newer")
    return _class_path(_jars("server", line))


def client_classpath(line: str) -> str:
    """Return the class path of a release line's client with the compiled InteropClient."""
    return _compiled("classes", JAVA_DIR / "src", line)


def tools_classpath(line: str) -> str:
    """Return the class path of a release line's tools with the compiled MqAdmin driver."""
    return _compiled("mqadmin", MQADMIN_DIR, line)


def _compiled(name: str, source_dir: Path, line: str) -> str:
    _require("java", "a Java runtime of version 17 or newer")
    jars = _jars("client", line)
    sources = sorted(source_dir.rglob("*.java"))
    stamp = _digest([line, *(path.read_text() for path in sources)])
    classes = CACHE_DIR / f"{name}-{line}"
    with _filled(classes, stamp) as folder:
        if folder is not None:
            command = ["javac", "-nowarn", "-Xlint:none", "-proc:none", "-encoding", "UTF-8"]
            command += ["-cp", _class_path(jars), "-d", str(folder)]
            _run([*command, *map(str, sources)], needs="javac of a JDK 17 or newer")
    return f"{classes}:{_class_path(jars)}"


def go_driver() -> Path:
    """Return the compiled driver of the Go client."""
    sources = [*sorted(GO_DIR.glob("*.go")), GO_DIR / "go.mod", GO_DIR / "go.sum"]
    needs = "Go 1.21 or newer"
    _require("go", needs)
    target = CACHE_DIR / "go-driver"
    with _filled(target, _digest([path.read_text() for path in sources])) as folder:
        if folder is not None:
            _run(["go", "-C", str(GO_DIR), "build", "-o", str(folder / "driver"), "."], needs=needs)
    return target / "driver"


def cpp_driver() -> list[str]:
    """Return the command that runs the driver of the C++ client; it needs `PYTHONPATH`."""
    return [sys.executable, str(CPP_DIR / "driver.py")]


def cpp_package() -> Path:
    """Return the folder of the package with the C++ client."""
    target = CACHE_DIR / "cpp-package"
    with _filled(target, _digest([CPP_PACKAGE.read_text(), sys.version])) as folder:
        if folder is not None:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            command += ["--only-binary", ":all:", "--target", str(folder), "--require-hashes"]
            _run([*command, "--requirement", str(CPP_PACKAGE)], needs="pip and Linux on x86-64")
    return target


def js_driver() -> Path:
    """Return the driver of the JavaScript client, with the client beside it."""
    needs = "Node.js 18 or newer with npm"
    _require("node", needs)
    sources = [JS_DIR / name for name in ("package.json", "package-lock.json", "driver.js")]
    target = CACHE_DIR / "js-driver"
    with _filled(target, _digest([path.read_text() for path in sources])) as folder:
        if folder is not None:
            for path in sources:
                shutil.copy(path, folder)
            command = ["npm", "--prefix", str(folder), "ci", "--no-audit", "--no-fund"]
            _run([*command, "--loglevel=error"], needs=needs)
    return target / "driver.js"


def _jars(side: str, line: str) -> Path:
    pom = JAVA_DIR / "pom.xml"
    target = CACHE_DIR / f"{side}-{line}"
    with _filled(target, _digest([side, line, pom.read_text()])) as folder:
        if folder is not None:
            command = ["mvn", "--batch-mode", "--quiet", "--file", str(pom), f"-P{side}"]
            command += [f"-Drocketmq.version={line}", f"-DoutputDirectory={folder}"]
            _run([*command, "dependency:copy-dependencies"], needs="Maven 3.6 or newer")
    return target


@contextlib.contextmanager
def _filled(target: Path, stamp: str) -> Iterator[Path | None]:
    """Yield an empty folder that becomes the target, or None when the target is up to date."""
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    with (CACHE_DIR / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp_file = target / "stamp"
        if stamp_file.exists() and stamp_file.read_text() == stamp:
            yield None
            return
        fresh = target.with_name(f"{target.name}.new")
        for folder in (fresh, target):
            if folder.exists():
                shutil.rmtree(folder)
        fresh.mkdir()
        yield fresh
        (fresh / "stamp").write_text(stamp)
        fresh.rename(target)


def _run(command: list[str], *, needs: str) -> None:
    _require(command[0], needs)
    result = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S)
    if result.returncode != 0:
        output = (result.stdout + result.stderr)[-2000:]
        raise InteropUnavailableError(f"{command[0]} ended with {result.returncode}: {output}")


def _require(program: str, needs: str) -> None:
    if shutil.which(program) is None:
        raise InteropUnavailableError(f"{program} was not found; interop needs {needs}")


def _class_path(folder: Path) -> str:
    return ":".join(str(jar) for jar in sorted(folder.glob("*.jar")))


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
