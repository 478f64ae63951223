"""`--brokers N` as real processes: what they share, what one of them may do to the others."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_shell import until
from fleet_command import Command, Run, commands, send

from mailboat.client import Admin, ConsumeFromWhere, PushConsumer, StartPoint
from mailboat.model.topic import Perm, TopicConfig

pytestmark = pytest.mark.slow  # Real processes are started again and again.


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start commands on free ports."""
    yield from commands(tmp_path)


async def make_topic(namesrv: str) -> list[str]:
    """Make T on every broker and return their names."""
    async with Admin(namesrv=namesrv) as admin:
        return await admin.topics.create(TopicConfig("T", 4, 4))


async def received(namesrv: str, count: int) -> list[int]:
    """Consume T until there are so many messages; return their numbers in order."""
    found: list[int] = []
    is_enough = asyncio.Event()

    async def note(messages: Any) -> None:
        found.extend(int(message.body) for message in messages)
        if len(found) >= count:
            is_enough.set()

    first = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
    async with PushConsumer(f"C{time.monotonic_ns()}", namesrv=namesrv, start_point=first) as group:
        group.subscribe("T", "*", note)
        async with asyncio.timeout(30):
            await is_enough.wait()
    return sorted(found)


def status(address: str, path: str = "/readyz") -> int:
    """Ask a process over HTTP."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
        return int(answer.status)


def is_open(address: str) -> bool:
    """Tell whether somebody listens there."""
    host, port = address.rsplit(":", 1)
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5).close()
        return True
    return False


async def test_two_brokers_share_the_messages_of_a_topic(run: Run, tmp_path: Path) -> None:
    """Names, folders, ports and probes of their own; a client needs the name server only."""
    command = run("--brokers", "2")
    ready = await command.ready()
    brokers = ready["brokers"]
    assert list(brokers) == ["broker-a-0", "broker-a-1"]
    assert list(ready) == ["namesrv", "http", "brokers", "pid"]
    names = {child.pid: child.name() for child in command.children()}
    assert sorted(names.values()) == ["broker-a-0", "broker-a-1", "namesrv"]
    assert {names[each["pid"]] for each in brokers.values()} == set(brokers)
    assert await make_topic(ready["namesrv"]) == ["broker-a-0", "broker-a-1"]
    stored = await send(ready["namesrv"], range(32))
    assert set(stored) == set(brokers)
    assert await received(ready["namesrv"], 32) == list(range(32))
    for address in (ready["http"], *(each["http"] for each in brokers.values())):
        assert await asyncio.to_thread(status, address) == 200
    async with Admin(namesrv=ready["namesrv"]) as admin:
        table = (await admin.cluster.info()).broker_addr_table
    assert {name: data.broker_addrs for name, data in table.items()} == {
        name: {0: each["broker"]} for name, each in brokers.items()
    }
    assert await command.end() == 0
    for number in (0, 1):
        store = tmp_path / "store" / str(number)
        assert (store / "commitlog").is_dir()
        assert not (store / "abort").exists()
    assert {line.split()[3] for line in command.log().splitlines()} == {
        "supervisor",
        "namesrv",
        "broker-a-0",
        "broker-a-1",
    }


async def test_brokers_at_a_name_server_elsewhere(run: Run) -> None:
    """`mailboat broker --brokers N` names them after brokerName and tells the log as JSON."""
    home = run("--brokers", "1", "-o", "brokerName=home")
    namesrv = (await home.ready())["namesrv"]
    words = ("-n", namesrv, "-o", "brokerName=away", "--log-format", "json", "--no-http")
    command = run("--brokers", "2", *words, role="broker", folder="other")
    ready = await command.ready()
    assert {name: sorted(each) for name, each in ready["brokers"].items()} == {
        "away-0": ["broker", "pid"],
        "away-1": ["broker", "pid"],
    }
    assert await make_topic(namesrv) == ["away-0", "away-1", "home-0"]
    assert await command.end(signal.SIGINT) == 0
    events = [json.loads(line) for line in command.log().splitlines()]
    assert {event["process"] for event in events} == {"supervisor", "away-0", "away-1"}
    assert await home.end() == 0


async def test_a_killed_broker_comes_back_alone(run: Run) -> None:
    """The other one goes on serving; the restarted one has its port, its name and its messages."""
    command = run("--brokers", "2")
    ready = await command.ready()
    await make_topic(ready["namesrv"])
    assert sum((await send(ready["namesrv"], range(16))).values()) == 16
    first, second = ready["brokers"].values()
    os.kill(second["pid"], signal.SIGKILL)
    await command.until_said("broker-a-1 was ended by SIGKILL; it is started again in 1 s")
    assert is_open(first["broker"])
    await until(lambda: _said_times(command, f"broker-a-1 serves: broker {second['broker']}", 2))
    assert await received(ready["namesrv"], 16) == list(range(16))
    assert psutil.pid_exists(first["pid"])
    assert await command.end() == 0


async def _said_times(command: Command, words: str, count: int) -> bool:
    return command.log().count(words) == count


async def test_a_broker_that_cannot_start_again_is_tried_ever_less_often(run: Run) -> None:
    """The pause doubles, the others serve on, and it comes back once it can."""
    command = run("--brokers", "2")
    first, second = (await command.ready())["brokers"].values()
    host, port = second["broker"].split(":")
    os.kill(second["pid"], signal.SIGTERM)
    await command.until_said("broker-a-1 ended with code 0; it is started again in 1 s")
    with socket.create_server((host, int(port))):
        await command.until_said("it is started again in 2 s")
        await command.until_said("it is started again in 4 s")
        assert is_open(first["broker"])
    assert re.search(r"broker-a-1 ended with code 1: .*address already in use", command.log())
    await until(lambda: _said_times(command, f"broker-a-1 serves: broker {second['broker']}", 2))
    assert await command.end() == 0


async def test_a_supervisor_without_descriptors_goes_on_with_those_who_serve(run: Run) -> None:
    """What is lacking for a start ends nobody; it is tried again."""
    command = run("--brokers", "2")
    first, second = (await command.ready())["brokers"].values()
    supervisor = psutil.Process(command.process.pid)
    limits = supervisor.rlimit(psutil.RLIMIT_NOFILE)
    supervisor.rlimit(psutil.RLIMIT_NOFILE, (3, limits[1]))
    os.kill(second["pid"], signal.SIGKILL)
    await command.until_said("broker-a-1 cannot be started: [Errno 24] Too many open files")
    assert is_open(first["broker"])
    supervisor.rlimit(psutil.RLIMIT_NOFILE, limits)
    await until(lambda: _said_times(command, f"broker-a-1 serves: broker {second['broker']}", 2))
    assert await command.end() == 0


async def test_a_killed_name_server_comes_back_where_it_was(run: Run) -> None:
    """Brokers and clients know only its address; the brokers register there again."""
    command = run("--brokers", "1")
    ready = await command.ready()
    [name_server] = [child for child in command.children() if child.name() == "namesrv"]
    name_server.kill()
    await until(lambda: _said_times(command, "namesrv serves", 2))
    await until(lambda: _said_times(command, "broker registered name=broker-a-0", 2))
    assert await make_topic(ready["namesrv"]) == ["broker-a-0"]
    assert await command.end() == 0


async def test_no_process_outlives_the_supervisor(run: Run, tmp_path: Path) -> None:
    """SIGKILL leaves it no time to tell them; they end all the same, and in order."""
    command = run("--brokers", "2", "-o", "shutdownDrainSeconds=60")
    ready = await command.ready()
    children = command.children()
    assert len(children) == 3
    # One that stands still must not be what keeps the others.
    [still] = [child for child in children if child.name() == "broker-a-1"]
    still.suspend()
    command.process.kill()
    await until(lambda: _run_still(children, {still}))
    still.resume()
    await until(lambda: _run_still(children, set()))
    for each in ready["brokers"].values():
        assert not is_open(each["broker"])
    assert not list((tmp_path / "store").glob("*/abort"))


async def _run_still(processes: list[psutil.Process], expected: set[psutil.Process]) -> bool:
    return {process for process in processes if process.is_running()} == expected


async def test_a_signal_to_all_processes_is_one_signal(run: Run) -> None:
    """A terminal and systemd send it to all: the drain lasts, and the name server outlasts it."""
    command = run("--brokers", "2", "-o", "shutdownDrainSeconds=60")
    ready = await command.ready()
    await make_topic(ready["namesrv"])
    await until(lambda: _permissions(ready["namesrv"], {Perm.READ | Perm.WRITE}))
    for child in command.children():
        child.send_signal(signal.SIGINT)
    command.process.send_signal(signal.SIGINT)
    await until(lambda: _permissions(ready["namesrv"], {Perm.READ}))
    began_s = time.monotonic()
    assert await command.end() == 0
    assert time.monotonic() - began_s < 20
    assert "killed" not in command.log()


async def _permissions(namesrv: str, expected: set[int]) -> bool:
    async with Admin(namesrv=namesrv) as admin:
        route = await admin.topics.route("T")
    return len(route.queue_datas) == 2 and {each.perm for each in route.queue_datas} == expected


async def test_a_port_that_one_of_them_cannot_have_is_one_sentence(
    run: Run, tmp_path: Path
) -> None:
    """All end with the exit code of the one that failed, and none is left."""
    with _a_free_stretch() as (first, taken):
        words = ("--brokers", "2", "--broker-port", str(first))
        command = run(*words, "-o", "fastListenEnable=false", "-o", "shutdownDrainSeconds=60")
        assert await command.exit_code() == 1
        assert str(taken) in command.last_words()
    assert re.match(r"mailboat: broker-a-1: .*address already in use", command.last_words())
    assert command.process.stdout is not None
    assert command.process.stdout.read() == ""
    assert not list((tmp_path / "store").glob("*/abort"))


@contextlib.contextmanager
def _a_free_stretch() -> Iterator[tuple[int, int]]:
    """Find two ports ten apart, of which the second is in use while this lasts."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            if not is_open(f"127.0.0.1:{port - 10}"):
                yield port - 10, port
                return


async def test_a_damaged_store_of_one_of_them_is_exit_code_4(run: Run, tmp_path: Path) -> None:
    """Nothing is started half; the sentence names the broker and the file."""
    config = tmp_path / "store" / "1" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{broken")
    command = run("--brokers", "2")
    assert await command.exit_code() == 4
    assert command.last_words().startswith("mailboat: broker-a-1: ")
    assert "topics.json" in command.last_words()


async def test_a_signal_breaks_the_start_off(run: Run) -> None:
    """Exit code 0, as for one broker, and no ready line, whoever of them hears it first."""
    command = run("--brokers", "2")
    await command.until_said("broker-a-0 starts as process")
    command.process.send_signal(signal.SIGTERM)
    for child in command.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGTERM)
    assert await command.exit_code() == 0
    assert command.process.stdout is not None
    assert command.process.stdout.read() == ""


@pytest.mark.parametrize("count", ["0", "-1", "two", "1000"])
async def test_a_wrong_number_is_wrong_usage(run: Run, tmp_path: Path, count: str) -> None:
    """Nothing is started and no folder made."""
    command = run(f"--brokers={count}")
    assert await command.exit_code() == 2
    assert "--brokers" in command.last_words()
    assert not (tmp_path / "store").exists()


async def test_no_store_is_left_out_in_silence(run: Run, tmp_path: Path) -> None:
    """From one broker to several and back is refused; fewer brokers are one warning."""
    single = run()
    await single.ready()
    assert await single.end() == 0
    several = run("--brokers", "2")
    assert await several.exit_code() == 3
    assert f"{tmp_path}/store is the store of one broker" in several.last_words()

    two = run("--brokers", "2", folder="several")
    await two.ready()
    assert await two.end() == 0
    back = run(folder="several")
    assert await back.exit_code() == 3
    assert "start with --brokers 2" in back.last_words()

    one = run("--brokers", "1", folder="several")
    assert list((await one.ready())["brokers"]) == ["broker-a-0"]
    assert await one.end() == 0
    warnings = [line for line in one.log().splitlines() if " WARNING " in line]
    assert len(warnings) == 1
    assert "brokers that do not run with --brokers 1 (folder 1)" in warnings[0]


async def test_the_configuration_of_each_is_printed(run: Run) -> None:
    """`--print-config` shows every process below its name, and starts none."""
    command = run("--brokers", "2", "--print-config")
    assert await command.exit_code() == 0
    assert command.process.stdout is not None
    shown = command.process.stdout.read()
    assert re.findall("^# (.*)$", shown, re.MULTILINE) == ["namesrv", "broker-a-0", "broker-a-1"]
    assert re.search(r"^brokerName +broker-a-1 +--brokers$", shown, re.MULTILINE)
