"""Runs the scenarios on a server, all of them at once, and keeps what they saw.

Most of a scenario is waiting for delays and rebalances, so a run of all takes little longer than
the longest. A run has servers of its own, which end before it returns: one Java broker at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import interop_groups  # noqa: F401 - enters its scenarios into the list
import interop_messaging  # noqa: F401 - enters its scenarios into the list
from interop_client import JavaClient
from interop_process import MailboatStandalone
from interop_scenarios import SCENARIOS, SERVER_CONFIG, Observed, Stage, play
from interop_servers import start_java_broker, start_java_namesrv
from machine_halts import MachineHalts

MAILBOAT = "mailboat"
_AT_ONCE = 10
# A test with this in its name looks at every scenario.
_WANTS_ALL = "all_scenarios"
_JAVA_CONFIG = {
    # The 5.x broker writes down ended transactions every 3 s, and asks for ended ones before that.
    "transactionOpBatchInterval": 50,
    # A route that got lost in the rush of new topics comes with the next registration.
    "registerNameServerPeriod": 10_000,
    # A cold JVM on a busy machine would refuse sends that waited for 200 ms.
    "waitTimeMillsInSendQueue": 20_000,
    "osPageCacheBusyTimeOutMills": 20_000,
}
# The longest ones begin first.
_LONG = ("reset_by_time", "broadcasting_failures", "message_trace")


class Plays:
    """What the scenarios saw, by server and by release line of the client."""

    def __init__(
        self, names: set[str], new_folder: Callable[[str], Path], machine_halts: MachineHalts
    ) -> None:
        """Take the scenarios that are wanted, a function that makes folders, and the halts."""
        self._names = sorted(names, key=lambda name: (name not in _LONG, name))
        self._new_folder = new_folder
        self._machine_halts = machine_halts
        self._runs: dict[tuple[str, str], dict[str, Observed | Exception]] = {}

    def observed(self, server: str, line: str, name: str) -> Observed:
        """Return what a scenario saw; the first question plays all that are wanted.

        Args:
            server: "mailboat", or the release line of the real broker.
            line: release line of the client.
            name: the scenario.
        """
        if (server, line) not in self._runs:
            self._runs[server, line] = self._machine_halts.undisturbed(
                lambda: self._run(server, line)
            )
        result = self._runs[server, line][name]
        if isinstance(result, Exception):
            raise result
        return result

    def _run(self, server: str, line: str) -> dict[str, Observed | Exception]:
        folder = self._new_folder(f"plays-{server}-{line}")
        with serving(server, folder) as namesrv:
            client = JavaClient(line, namesrv, folder / "client")
            try:
                # The first message of a store makes its first files, while everything else waits.
                first = Stage(client, "first")
                first.create_topic()
                first.send("first")
                with ThreadPoolExecutor(_AT_ONCE) as pool:
                    futures = {name: pool.submit(play, name, client) for name in self._names}
                    return {
                        name: _result(future.exception, future.result)
                        for name, future in futures.items()
                    }
            finally:
                client.close()


def _result(
    exception: Callable[[], BaseException | None], result: Callable[[], Observed]
) -> Observed | Exception:
    error = exception()
    if error is None:
        return result()
    if isinstance(error, Exception):
        return error
    raise error


@contextlib.contextmanager
def serving(server: str, folder: Path) -> Iterator[str]:
    """Run a name server and a broker and yield the address of the first."""
    with contextlib.ExitStack() as running:
        if server == MAILBOAT:
            process = MailboatStandalone(folder / "data", folder / "mailboat.out", SERVER_CONFIG)
            running.callback(process.close)
            yield process.start().namesrv
            return
        namesrv = start_java_namesrv(server, folder / "namesrv")
        running.callback(namesrv.kill)
        config = SERVER_CONFIG | _JAVA_CONFIG
        name = str(config.pop("brokerName"))
        broker = start_java_broker(
            server, folder / "broker", folder / "store", namesrv.address, name=name, config=config
        )
        running.callback(broker.kill)
        yield namesrv.address


def wanted(node_names: list[str]) -> set[str]:
    """The scenarios whose names occur in the names of the collected tests."""
    return {name for name in SCENARIOS if any(_names(node, name) for node in node_names)}


def _names(node: str, name: str) -> bool:
    test, _, parameters = node.removesuffix("]").partition("[")
    return test == f"test_{name}" or name in parameters.split("-") or _WANTS_ALL in test
