"""`mailboat standalone --replicas N` as real processes."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_shell import until
from fleet_command import Command, Run, commands, send

from mailboat.cli import main
from mailboat.cli.replica.broker_http import BrokerHttp, ask
from mailboat.errors import MailboatError


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start commands on free ports."""
    yield from commands(tmp_path)


async def _status(http: str) -> Any:
    return await asyncio.to_thread(ask, BrokerHttp(http), "GET", "/api/v1/replica")


async def _until_status(http: str, **expected: Any) -> None:
    async def is_so() -> bool:
        try:
            found = await _status(http)
        except MailboatError:
            return False  # It is starting.
        return {name: found[name] for name in expected} == expected

    await until(is_so)


@pytest.mark.slow
async def test_replicas_take_over_and_come_back(run: Run, tmp_path: Path) -> None:
    """A master that is killed leads on; one that stood still follows whoever leads now."""
    command = run("--replicas", "3")
    ready = await command.ready()
    names = ["broker-a-0", "broker-a-1", "broker-a-2"]
    assert list(ready["brokers"]) == names
    http = [ready["brokers"][name]["http"] for name in names]
    await _until_status(http[0], in_sync=[0, 1, 2], refusal="")
    assert await send(ready["namesrv"], range(20)) == {"broker-a": 20}
    master = psutil.Process(ready["brokers"]["broker-a-0"]["pid"])
    # It comes back before anybody else may lead, and leads on.
    master.kill()
    await command.until_said("broker-a-0 serves")
    await _until_status(http[0], role="master", in_sync=[0, 1, 2], refusal="")
    assert await send(ready["namesrv"], range(20)) == {"broker-a": 20}
    below = psutil.Process(command.process.pid).children(recursive=True)
    [master] = [process for process in below if _listens(process, http[0])]
    master.suspend()

    # Asked again until the master is heard no more.
    async def is_promoted() -> bool:
        code = await asyncio.to_thread(main, ["replica", "promote", "--http", http[1]])
        return code == 0

    await until(is_promoted)
    master.resume()
    await _until_status(http[1], in_sync=[0, 1, 2], refusal="")
    end = (await _status(http[1]))["end"]
    for follower in (0, 2):
        await _until_status(http[follower], role="slave", leader=1, end=end)
    assert await command.end() == 0
    logs = [_log_bytes(tmp_path / "store" / str(number)) for number in range(3)]
    assert logs[0] == logs[1] == logs[2]
    assert any(logs[0])


def _listens(process: psutil.Process, address: str) -> bool:
    port = int(address.rpartition(":")[2])
    return any(found.laddr.port == port for found in process.net_connections() if found.laddr)


def _log_bytes(store: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))


async def test_wrong_numbers_and_folders(run: Run, tmp_path: Path) -> None:
    """Each is one sentence, and nothing is started."""
    assert await run("--replicas", "1").exit_code() == 2
    both: Command = run("--replicas", "2", "--brokers", "2")
    assert await both.exit_code() == 2
    assert "--replicas cannot be given with --brokers" in both.last_words()
    command = run("--replicas", "3", "-o", "inSyncReplicas=3")
    ready = await command.ready()
    status = await _status(ready["brokers"]["broker-a-0"]["http"])
    assert (status["replicas"], status["min_in_sync"]) == (3, 3)
    assert await command.end(signal.SIGINT) == 0
    fewer = run("--replicas", "2")
    assert await fewer.exit_code() == 3
    assert "has stores of more replicas (folder 2)" in fewer.last_words()
    assert json.loads((tmp_path / "store/0/mailboat/identity.json").read_text())["brokerName"] == (
        "broker-a"
    )
