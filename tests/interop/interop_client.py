"""Stock clients in child processes, driven by the tests through text lines.

`java/src/interop/InteropClient.java`, `go/main.go`, `cpp/driver.py` and `js/driver.js` are the
other ends. One JVM serves many tests, since the start of a JVM costs more than most of them.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from interop_jars import JVM_FLAGS, client_classpath, cpp_driver, cpp_package, go_driver, js_driver
from interop_process import LineProcess

User = tuple[str, str]
"""Access key and secret key."""

Event = dict[str, Any]

_JVM = ["-Xms64m", "-Xmx512m", *JVM_FLAGS]
_START_TIMEOUT_S = 60.0
_CALL_TIMEOUT_S = 90.0
# How long clients wait for answers, less than the tests wait for theirs: a busy disk or machine can
# hold one up for more than the clients' own 3 s.
_PATIENCE_MS = 20_000
PATIENT = {"interop.apiTimeoutMillis": _PATIENCE_MS}
"""Properties of a JVM with such clients."""

# For connections too, but on this machine alone: nobody answers in the place of a pod that is gone,
# and its client would ask nobody else meanwhile.
_PATIENT_HERE = {**PATIENT, "com.rocketmq.remoting.client.connect.timeout": _PATIENCE_MS}


class JavaClientError(Exception):
    """The client threw or failed; `kind` is the exception class, `code` the broker's answer."""

    def __init__(self, event: Event) -> None:
        """Take the fields of the error event."""
        super().__init__(f"{event.get('kind')}: {event.get('text')}")
        self.kind: str | None = event.get("kind")
        self.code: int | None = event.get("code")


class JavaCall:
    """The events of one command, in the order in which they came."""

    def __init__(self, number: int) -> None:
        """Begin without events."""
        self.number = number
        self._events: list[Event] = []
        self._changed = threading.Condition()

    def add(self, event: Event) -> None:
        """Take one event; called on the reading thread."""
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def events(self, name: str) -> list[Event]:
        """Return the events of one name that have come so far."""
        with self._changed:
            return [event for event in self._events if event["event"] == name]

    def wait(self, condition: Callable[[list[Event]], bool], timeout_s: float) -> None:
        """Wait until the condition holds for all events; an error event is raised."""

        def failed() -> Event | None:
            return next((event for event in self._events if event["event"] == "error"), None)

        with self._changed:
            in_time = self._changed.wait_for(
                lambda: condition(self._events) or failed() is not None, timeout_s
            )
            error = failed()
        if error is not None:
            raise JavaClientError(error)
        if not in_time:
            counts = {name: len(self.events(name)) for name in {e["event"] for e in self._events}}
            raise TimeoutError(f"command {self.number}: only {counts} after {timeout_s} s")

    def wait_done(self, timeout_s: float = _CALL_TIMEOUT_S) -> list[Event]:
        """Wait for the end of the command and return what it printed."""
        self.wait(lambda events: any(e["event"] == "done" for e in events), timeout_s)
        with self._changed:
            return [event for event in self._events if event["event"] != "done"]

    def wait_messages(self, count: int, timeout_s: float = _CALL_TIMEOUT_S) -> list[Event]:
        """Wait until a consumer has printed this many messages and return all it has."""
        self.wait(lambda events: sum(e["event"] == "message" for e in events) >= count, timeout_s)
        return self.events("message")


class DrivenClient:
    """A child process with clients in it that takes commands and answers with events."""

    def __init__(
        self, command: Sequence[str], log_file: Path, *, env: Mapping[str, str] | None = None
    ) -> None:
        """Start the process and wait until it reads commands."""
        self._numbers = itertools.count(1)
        self._calls: dict[int, JavaCall] = {}
        self._writing = threading.Lock()
        self._process = LineProcess(command, log_file, env=env, on_line=self._take)
        self._process.wait_line(lambda text: '"ready"' in text, _START_TIMEOUT_S)

    def _take(self, line: str) -> None:
        if line.startswith('{"id":'):
            event = json.loads(line)
            call = self._calls.get(event["id"])
            if call is not None:
                call.add(event)

    def start(self, command: str, **params: object) -> JavaCall:
        """Start a command and return at once; several threads may do so."""
        query = urlencode({key: value for key, value in params.items() if value is not None})
        with self._writing:
            number = next(self._numbers)
            call = self._calls[number] = JavaCall(number)
            self._process.write_line(f"{number} {command} {query}")
        return call

    def call(self, command: str, **params: object) -> list[Event]:
        """Run a command to its end and return the events it printed."""
        return self.start(command, **params).wait_done()

    def close(self) -> None:
        """End the process: it shuts its clients down when its input ends."""
        self._process.end_input()

    def kill(self) -> None:
        """End the process at once, whatever becomes of its clients."""
        self._process.kill()


def _credentials(user: User | None) -> dict[str, str]:
    """Return the variables that tell a driver who signs."""
    if user is None:
        return {}
    return {"INTEROP_ACCESS_KEY": user[0], "INTEROP_SECRET_KEY": user[1]}


class GoClient(DrivenClient):
    """One process with producers and consumers of `rocketmq-client-go`."""

    def __init__(self, namesrv: str, home: Path, user: User | None = None) -> None:
        """Build the driver when it is not built yet, and start it.

        Args:
            namesrv: address of the name server.
            home: folder of the output and of the offsets that broadcasting members keep.
            user: who signs; None signs nothing.
        """
        super().__init__(
            [str(go_driver()), namesrv],
            home / "client-go.out",
            env={"HOME": str(home)} | _credentials(user),
        )


class CppClient(DrivenClient):
    """One process with a producer and consumers of the C++ client, by its Python wrapper."""

    def __init__(self, namesrv: str, home: Path, user: User | None = None) -> None:
        """Start the driver.

        Args:
            namesrv: address of the name server.
            home: folder of the output, the logs and the offsets of broadcasting members.
            user: who signs; None signs nothing.
        """
        env = {"HOME": str(home), "PYTHONPATH": str(cpp_package())}
        env |= _credentials(user)
        super().__init__([*cpp_driver(), namesrv], home / "client-cpp.out", env=env)


class JsClient(DrivenClient):
    """One process with a producer and consumers of the JavaScript client `ali-ons`."""

    def __init__(self, namesrv: str, home: Path, user: User | None = None) -> None:
        """Start the driver.

        Args:
            namesrv: address of the name server.
            home: folder of the output and of the offsets of broadcasting members.
            user: who signs; None signs nothing.
        """
        command = ["node", str(js_driver()), namesrv, str(home)]
        env = {"HOME": str(home)} | _credentials(user)
        super().__init__(command, home / "client-js.out", env=env)


class JavaClient(DrivenClient):
    """One JVM with producers, consumers and an admin client of one release line."""

    def __init__(
        self,
        line: str,
        namesrv: str,
        home: Path,
        *,
        launch: Sequence[str] = (),
        class_path: str | None = None,
        log_dir: Path | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        """Start the JVM and wait until it reads commands.

        Args:
            line: release line of the client.
            namesrv: what the client is told as its name server.
            home: folder of the JVM's own files, where the JVM runs.
            launch: command that runs the JVM elsewhere, such as `kubectl exec -i POD --`.
            class_path: class path there; by default that of this machine.
            log_dir: folder of the output on this machine; by default `home`.
            properties: system properties beside those.
        """
        self.line = line
        log_dir = log_dir or home
        log_dir.mkdir(parents=True, exist_ok=True)
        options = [f"-Duser.home={home}", f"-Drocketmq.client.localOffsetStoreDir={home}/offsets"]
        for name in ("rocketmq.client.logRoot", "rocketmq.log.root"):
            options.append(f"-D{name}={home}/logs")
        for name in ("rocketmq.client.logLevel", "rocketmq.log.level"):
            options.append(f"-D{name}=WARN")
        # Of a client in a pod the caller says how long it waits.
        properties = {**({} if launch else _PATIENT_HERE), **(properties or {})}
        options += [f"-D{name}={value}" for name, value in properties.items()]
        class_path = class_path or client_classpath(line)
        command = [*launch, "java", *_JVM, *options, "-cp", class_path]
        super().__init__(
            [*command, "interop.InteropClient", namesrv], log_dir / f"client-{line}.out"
        )
