"""Fixtures of the interop tests: real RocketMQ servers and clients, and mailboat processes.

`MAILBOAT_TEST_REQUIRE_ALL=1` turns a missing Java or Maven from a skip into a failure.
`MAILBOAT_TEST_INTEROP_TARGET=java-5.5.0` runs the client tests against the real broker instead of
mailboat, which shows that what they expect is what RocketMQ does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

import pytest

# Test folders are no packages, so the helper modules beside this file are found by path.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from daily import place_of
from interop_client import JavaClient
from interop_jars import CLIENT_LINES, InteropUnavailableError, client_classpath, server_classpath
from interop_plays import MAILBOAT, Plays, wanted
from interop_process import MailboatStandalone
from interop_servers import JavaServer, start_java_broker, start_java_namesrv
from java_pair import JavaPair
from machine_halts import MachineHalts


class JavaBrokerFactory(Protocol):
    """Starts a Java broker that the fixture kills at the end of the test."""

    def __call__(
        self,
        line: str,
        store_dir: Path,
        namesrv: str,
        *,
        name: str = ...,
        port: int | None = ...,
        config: Mapping[str, object] | None = ...,
    ) -> JavaServer:
        """Start a broker of the release line over the store folder."""


class MailboatFactory(Protocol):
    """Starts a mailboat process that the fixture kills at the end of the test."""

    def __call__(
        self, data_dir: Path, *, broker_port: int = ..., **config: object
    ) -> MailboatStandalone:
        """Start `mailboat standalone` with RocketMQ configuration keys."""


class JavaClientFactory(Protocol):
    """Starts a JVM with Java clients that the fixture ends."""

    def __call__(self, line: str, namesrv: str) -> JavaClient:
        """Start a client JVM of the release line."""


class PlaysFactory(Protocol):
    """Gives the plays of a server and a client; what they need is there, or the test is skipped."""

    def __call__(self, server: str, line: str) -> Plays:
        """Return the plays; `server` is "mailboat" or a release line of the real broker."""


@dataclass(frozen=True)
class Target:
    """The servers under test."""

    namesrv: str
    broker: str


_RELEASES = ("4.", "5.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long with each line of RocketMQ, where it is the other line's day."""
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (chosen if _is_of_the_day(item) else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


def _is_of_the_day(item: pytest.Item) -> bool:
    if item.get_closest_marker("one_line_a_day") is None:
        return True
    assert isinstance(item, pytest.Function)
    place = place_of(item.originalname, len(_RELEASES))
    line = str(item.callspec.params["line"])
    return place is None or line.startswith(_RELEASES[place])


def _unavailable(error: InteropUnavailableError) -> NoReturn:
    if os.environ.get("MAILBOAT_TEST_REQUIRE_ALL") == "1":
        pytest.fail(f"MAILBOAT_TEST_REQUIRE_ALL=1, but: {error}")
    pytest.skip(str(error))


@pytest.fixture(scope="session")
def interop_unavailable() -> Callable[[InteropUnavailableError], NoReturn]:
    """Return what skips a test for want of a program, or fails it where all must be there."""
    return _unavailable


@pytest.fixture(scope="session")
def java_classpath() -> Callable[[str, str], str]:
    """Return the class path for a side ("client" or "server") and a release line."""

    def class_path(side: str, line: str) -> str:
        try:
            return client_classpath(line) if side == "client" else server_classpath(line)
        except InteropUnavailableError as error:
            _unavailable(error)

    return class_path


@pytest.fixture(params=CLIENT_LINES)
def line(request: pytest.FixtureRequest, java_classpath: Callable[[str, str], str]) -> str:
    """Name a release line whose client is there."""
    name: str = request.param
    java_classpath("client", name)
    return name


@pytest.fixture(scope="session")
def java_namesrv(
    java_classpath: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    """Return the address of the Java name server of a release line, one for the whole run."""
    servers: dict[str, JavaServer] = {}

    def address(line: str) -> str:
        if line not in servers:
            java_classpath("server", line)
            home = tmp_path_factory.mktemp(f"java-namesrv-{line}")
            servers[line] = start_java_namesrv(line, home)
        return servers[line].address

    yield address
    for server in servers.values():
        server.kill()


@pytest.fixture
def java_broker(
    java_classpath: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaBrokerFactory]:
    """Return a function that starts a real Java broker over a store folder."""
    servers: list[JavaServer] = []

    def start(
        line: str,
        store_dir: Path,
        namesrv: str,
        *,
        name: str = "broker-java",
        port: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> JavaServer:
        java_classpath("server", line)
        home = tmp_path_factory.mktemp(f"java-broker-{line}")
        server = start_java_broker(
            line, home, store_dir, namesrv, name=name, port=port, config=config
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        if server.is_running:
            server.kill()


@pytest.fixture
def mailboat_standalone(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MailboatFactory]:
    """Return a function that starts `mailboat standalone` over a data folder."""
    processes: list[MailboatStandalone] = []

    def start(data_dir: Path, *, broker_port: int = 0, **config: object) -> MailboatStandalone:
        log_file = tmp_path_factory.mktemp("mailboat-log") / "mailboat.out"
        process = MailboatStandalone(data_dir, log_file, config, broker_port=broker_port)
        processes.append(process)
        process.start()
        return process

    yield start
    for process in processes:
        process.close()


@pytest.fixture
def new_java_client(
    java_classpath: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaClientFactory]:
    """Return a function that starts a JVM with clients of a release line."""
    clients: list[JavaClient] = []

    def start(line: str, namesrv: str) -> JavaClient:
        java_classpath("client", line)
        client = JavaClient(line, namesrv, tmp_path_factory.mktemp(f"java-client-{line}"))
        clients.append(client)
        return client

    yield start
    for client in clients:
        client.close()


@pytest.fixture
def java_pair(
    tmp_path: Path,
    java_namesrv: Callable[[str], str],
    java_broker: JavaBrokerFactory,
    mailboat_standalone: MailboatFactory,
    new_java_client: JavaClientFactory,
) -> JavaPair:
    """Return a Java master and a slave of ours that are not started."""
    return JavaPair(tmp_path, java_namesrv, java_broker, mailboat_standalone, new_java_client)


@pytest.fixture(scope="session")
def target(
    tmp_path_factory: pytest.TempPathFactory, java_namesrv: Callable[[str], str]
) -> Iterator[Target]:
    """The servers that the client tests talk to: mailboat, or Java when the environment asks."""
    line = os.environ.get("MAILBOAT_TEST_INTEROP_TARGET", "mailboat").removeprefix("java-")
    folder = tmp_path_factory.mktemp("target")
    if line != "mailboat":
        namesrv = java_namesrv(line)
        broker = start_java_broker(line, folder / "home", folder / "store", namesrv)
        yield Target(namesrv, broker.address)
        broker.kill()
        return
    process = MailboatStandalone(folder / "data", folder / "mailboat.out", {})
    try:
        ready = process.start()
        yield Target(ready.namesrv, ready.broker)
    finally:
        process.close()


@pytest.fixture(scope="session", params=CLIENT_LINES)
def java_client(
    request: pytest.FixtureRequest,
    java_classpath: Callable[[str, str], str],
    target: Target,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[JavaClient]:
    """One JVM with clients of a release line, connected to the servers under test."""
    line: str = request.param
    java_classpath("client", line)
    client = JavaClient(line, target.namesrv, tmp_path_factory.mktemp(f"client-{line}"))
    yield client
    client.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of its own for each test and parameter; not created yet."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in request.node.name)[:100]


@pytest.fixture(scope="session")
def plays(
    request: pytest.FixtureRequest,
    java_classpath: Callable[[str, str], str],
    tmp_path_factory: pytest.TempPathFactory,
    machine_halts: MachineHalts,
) -> PlaysFactory:
    """Return what the scenarios saw, each server and client line played once for the whole run."""
    names = wanted([item.name for item in request.session.items])
    made = Plays(names, tmp_path_factory.mktemp, machine_halts)

    def of(server: str, line: str) -> Plays:
        java_classpath("client", line)
        if server != MAILBOAT:
            java_classpath("server", server)
        return made

    return of
