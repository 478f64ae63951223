"""The real mqadmin in a child process that runs many commands, driven through text lines.

`mqadmin/MqAdmin.java` is the other end.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from interop_jars import JVM_FLAGS, tools_classpath
from interop_process import LineProcess, ProcessFailedError

_MARK = "@mqadmin "
_JVM = ["-Xms64m", "-Xmx384m", *JVM_FLAGS]
_START_TIMEOUT_S = 60.0
_COMMAND_TIMEOUT_S = 40.0
# mqadmin ends with 0 when it failed; these words in its output tell.
_FAILURE = re.compile(r"SubCommandException|Exception\b|CODE: \d+|command failed|not exist\.\n")


@dataclass(frozen=True)
class Printed:
    """What one command printed."""

    text: str
    ended: bool
    """Whether it ended by itself."""

    @property
    def failed(self) -> bool:
        """Whether the output tells of a failure."""
        return _FAILURE.search(self.text) is not None

    @property
    def code(self) -> int | None:
        """The response code that the output names."""
        match = re.search(r"CODE: (\d+)", self.text)
        return int(match[1]) if match else None

    @property
    def lines(self) -> list[str]:
        """The lines that are not empty, without blanks at their ends."""
        return [line.strip() for line in self.text.splitlines() if line.strip()]

    def rows(self, heading: str = "#") -> list[list[str]]:
        """The words of the lines below the first one that begins with the heading."""
        lines = self.lines
        start = next(i for i, line in enumerate(lines) if line.startswith(heading))
        return [line.split() for line in lines[start + 1 :]]


class MqAdmin:
    """mqadmin of one release line, for one name server."""

    def __init__(
        self,
        line: str,
        namesrv: str,
        home: Path,
        more_properties: Mapping[str, object] | None = None,
    ) -> None:
        """Start the JVM with some more system properties and wait until it takes commands."""
        self.namesrv = namesrv
        self._answers: SimpleQueue[str] = SimpleQueue()
        (home / "conf").mkdir(parents=True, exist_ok=True)
        logback = '<configuration><root level="OFF"/></configuration>\n'
        (home / "conf" / "logback_tools.xml").write_text(logback)
        (home / "tmp").mkdir(exist_ok=True)
        properties: dict[str, object] = {
            "user.home": home,
            "java.io.tmpdir": home / "tmp",
            "rocketmq.home.dir": home,
            "rmq.logback.configurationFile": home / "conf" / "logback_tools.xml",
            "logback.configurationFile": home / "conf" / "logback_tools.xml",
            "rocketmq.client.logRoot": home / "logs",
            "com.rocketmq.sendMessageWithVIPChannel": "false",
        }
        properties |= more_properties or {}
        defines = [f"-D{name}={value}" for name, value in properties.items()]
        self._process = LineProcess(
            # Some commands leave files where they were started.
            [
                "env",
                "-C",
                str(home),
                "java",
                *_JVM,
                *defines,
                "-cp",
                tools_classpath(line),
                "MqAdmin",
            ],
            home / f"mqadmin-{line}.out",
            env={"ROCKETMQ_HOME": str(home), "HOME": str(home)},
            on_line=self._take_line,
        )
        try:
            self._answer(_START_TIMEOUT_S)
        except ProcessFailedError:
            self._process.kill()
            raise

    def run(self, *args: object, timeout_s: float = _COMMAND_TIMEOUT_S, until: str = "") -> Printed:
        """Run a command with the name server's address; stop it once it printed `until`."""
        words = [str(arg) for arg in args] + ["-n", self.namesrv]
        self._process.write_line("\t".join([str(int(timeout_s * 1000)), until, *words]))
        kind, _, text = self._answer(timeout_s + 20).partition(" ")
        printed = b"" if text == "-" else base64.b64decode(text)
        return Printed(printed.decode().replace("\r\n", "\n"), kind == "ENDED")

    def close(self) -> None:
        """End the JVM."""
        self._process.kill()

    def _take_line(self, line: str) -> None:
        if line.startswith(_MARK):
            self._answers.put(line.removeprefix(_MARK))

    def _answer(self, timeout_s: float) -> str:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            # A command that is called wrongly ends the JVM.
            ended = self._process.process.poll() is not None
            try:
                return self._answers.get(timeout=0.2)
            except Empty:
                if ended:
                    break
        tail = self._process.log_tail()
        raise ProcessFailedError(f"mqadmin gave no answer within {timeout_s:.0f} s:\n{tail}")
