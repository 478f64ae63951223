"""The plugin that fails tests whose server holds the event loop, against planted bugs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import loop_holds

ROOT = Path(__file__).resolve().parents[3]
CONFTEST = """
from pathlib import Path
from loop_holds import LoopHolds
from machine_halts import MachineHalts

def pytest_configure(config):
    halts = MachineHalts()
    config.add_cleanup(halts.close)
    here = Path(__file__).parent
    holds = LoopHolds(halts, [here / "watched"], {server})
    holds.install()
    config.pluginmanager.register(holds)
    config.add_cleanup(holds.close)
"""
# A server with every way to hold its loop; `burn` is processor time, not time that goes by, and
# enough of it where a sample of work takes seven times as long as a moment ago: the first memory
# after a pause comes from the host.
SERVER = """
import asyncio, os, time

def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

async def answer_slowly():
    await asyncio.sleep(0)
    burn(0.5)

async def answer_in_slices():
    for _ in range(8):
        burn(0.02)
        await asyncio.sleep(0)

async def sleep_long():
    time.sleep(1.3)

def sync(path):
    with open(path, "w") as file:
        os.fsync(file.fileno())

async def save(path):
    sync(path)

async def save_on_a_thread(path):
    await asyncio.to_thread(sync, path)

async def clean_up():
    import gc
    class Node:
        pass
    before = time.thread_time()
    while time.thread_time() < before + 0.1:
        gc.collect()
"""
SUITE = """
import asyncio
import pytest
import work

async def run(coroutine):
    await asyncio.create_task(coroutine)

class Answers(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        work.burn(0.5)
        self.transport.close()

def test_works_long():
    asyncio.run(run(work.answer_slowly()))

def test_works_long_and_is_wrong():
    asyncio.run(run(work.answer_slowly()))
    assert False

def test_works_in_slices():
    asyncio.run(run(work.answer_in_slices()))

def test_sleeps_long():
    asyncio.run(run(work.sleep_long()))

def test_syncs(tmp_path):
    asyncio.run(run(work.save(tmp_path / "file")))

def test_syncs_on_a_thread(tmp_path):
    asyncio.run(run(work.save_on_a_thread(tmp_path / "file")))

def test_collects_garbage():
    asyncio.run(run(work.clean_up()))

def test_works_itself():
    async def work_long():
        await asyncio.sleep(0)
        work.burn(0.5)
    asyncio.run(run(work_long()))

def test_calls_back():
    async def later():
        asyncio.get_running_loop().call_soon(work.burn, 0.5)
        await asyncio.sleep(0.01)
    asyncio.run(later())

@pytest.fixture
def ends_slowly():
    yield
    asyncio.run(run(work.answer_slowly()))

def test_ends_slowly(ends_slowly):
    pass
"""
BROKER_SUITE = """
import asyncio, time

from mailboat.protocol.command import RemotingCommand
from mailboat.remoting.client import RemotingClient
from mailboat.testing.cluster import Cluster

async def _ask(tmp_path, seconds):
    def answer(connection, command):
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        return command.response(0)
    async with Cluster(tmp_path) as cluster:
        broker = cluster.broker(0)
        broker.dispatcher.register(9999, answer)
        client = RemotingClient()
        await client.request(broker.address, RemotingCommand.request(9999), 5.0)
        await client.close()

def test_slow_processor(tmp_path):
    asyncio.run(_ask(tmp_path, 0.5))

def test_quick_processor(tmp_path):
    asyncio.run(_ask(tmp_path, 0.02))
"""


def _outcome(folder: Path, server: str, suite: str, **files: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST.format(server=server))
    for name, text in {"watched/test_suite": suite, **files}.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    paths = [Path(loop_holds.__file__).parent, folder / "server", ROOT / "broker" / "src"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", folder],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def _failed(output: str) -> list[str]:
    return sorted(re.findall(r"^(?:FAILED|ERROR) (\w+)/.*::(\w+)", output, re.MULTILINE))


def test_what_holds_the_loop_fails_the_test(tmp_path: Path) -> None:
    """Work, sleep and syncs of the server count, on the loop's thread, in the watched folders."""
    output = _outcome(
        tmp_path,
        'here / "server"',
        SUITE,
        **{"server/work": SERVER, "other/test_others": SUITE.replace("assert False", "pass")},
    )
    assert _failed(output) == [
        ("watched", name)
        for name in (
            "test_calls_back",
            "test_ends_slowly",
            "test_sleeps_long",
            "test_syncs",
            "test_works_long",
            "test_works_long_and_is_wrong",
        )
    ]
    assert re.search(r"answer_slowly worked for \d+ ms .* it was in burn \(work\.py:\d+\)", output)
    assert re.search(r"sleep_long slept for 1\d\d\d ms on the event loop", output)
    assert re.search(r"save synced a file in sync \(work\.py:\d+\)", output)


def test_a_slow_processor_of_the_broker_is_seen(tmp_path: Path) -> None:
    """It runs on the connection's callback, which is the server's whoever wrote the processor."""
    sources = str(ROOT / "broker" / "src" / "mailboat")
    output = _outcome(tmp_path, repr(sources).join(("Path(", ")")), BROKER_SUITE)
    assert _failed(output) == [("watched", "test_slow_processor")]
    assert re.search(r"Connection.data_received worked for \d+ ms", output)
