"""The server commands as real processes: ready line, signals, exit codes."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compiled_core import core_or_reason, plain_environment

from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand

FREE_PORTS = ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `mailboat` with arguments; what still runs at the end is killed."""
    processes = []
    environ = plain_environment()
    # Under nohup this process ignores SIGHUP, and the commands would inherit that.
    at_hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def run(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "mailboat.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ | variables,
            cwd=tmp_path,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
    signal.signal(signal.SIGHUP, at_hangup)


def _ready(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    ready = json.loads(line)
    assert ready.pop("pid") == process.pid
    return dict(ready)


def _stop(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> str:
    started = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=15)
    assert process.returncode == 0, errors
    assert time.monotonic() - started < 10
    assert "Traceback" not in errors
    return errors


def _status(address: str, path: str) -> int:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
        status: int = answer.status
        return status


def test_standalone_says_where_it_serves_and_ends_in_order(start: Start, tmp_path: Path) -> None:
    """One line of JSON with addresses that answer; SIGTERM leaves a clean store and exit code 0."""
    data = tmp_path / "data"
    process = start("standalone", "--data-dir", str(data), *FREE_PORTS, "--ready-json")
    ready = _ready(process)
    assert list(ready) == ["namesrv", "broker", "http"]
    for address in ready.values():
        assert re.fullmatch(r"127\.0\.0\.1:[0-9]+", address)
        host, port = address.split(":")
        socket.create_connection((host, int(port)), timeout=5).close()
    assert _status(ready["http"], "/readyz") == 200
    assert (data / "abort").exists()
    _stop(process)
    assert not (data / "abort").exists()


def test_a_terminal_that_goes_ends_it_in_order(start: Start, tmp_path: Path) -> None:
    """SIGHUP is as good as SIGTERM."""
    data = tmp_path / "data"
    process = start("standalone", "--data-dir", str(data), *FREE_PORTS, "--ready-json")
    _ready(process)
    assert "stopping on SIGHUP" in _stop(process, signal.SIGHUP)
    assert not (data / "abort").exists()


def test_standalone_without_http(start: Start, tmp_path: Path) -> None:
    """`--no-http` opens no HTTP port and says so by leaving it out."""
    process = start(
        "standalone", "--data-dir", str(tmp_path), *FREE_PORTS, "--no-http", "--ready-json"
    )
    assert list(_ready(process)) == ["namesrv", "broker"]
    _stop(process, signal.SIGINT)


def test_a_broker_and_a_name_server_of_their_own(start: Start, tmp_path: Path) -> None:
    """The two commands print their own part, and the broker registers where it is told."""
    common = ["--host", "127.0.0.1", "--http-port", "0", "--ready-json"]
    namesrv = start("namesrv", "--namesrv-port", "0", *common)
    namesrv_ready = _ready(namesrv)
    assert list(namesrv_ready) == ["namesrv", "http"]
    broker = start(
        "broker",
        *("-n", namesrv_ready["namesrv"], "--broker-port", "0", *common),
        MAILBOAT_STORE_PATH_ROOT_DIR=str(tmp_path / "store"),
    )
    broker_ready = _ready(broker)
    assert list(broker_ready) == ["broker", "http"]
    with urllib.request.urlopen(f"http://{namesrv_ready['http']}/api/v1/cluster") as answer:
        brokers = json.load(answer)["brokers"]
    assert brokers["broker-a"]["addresses"] == {"0": broker_ready["broker"]}
    assert _status(namesrv_ready["http"], "/metrics") == 200
    _stop(broker)
    _stop(namesrv)


def test_the_log_can_be_json_and_warns_of_settings_without_effect(
    start: Start, tmp_path: Path
) -> None:
    """Every line on standard error is an object, one of them the warning."""
    process = start(
        *("standalone", "--data-dir", str(tmp_path), *FREE_PORTS, "--ready-json"),
        *("--log-format", "json", "-o", "haSlaveFallbehindMax=10912"),
    )
    _ready(process)
    events = [json.loads(line) for line in _stop(process).splitlines()]
    warnings = [event["message"] for event in events if event["level"] == "WARNING"]
    expected = "haSlaveFallbehindMax (command line) is a RocketMQ setting that has no effect here"
    assert expected in warnings


def test_a_port_in_use_is_one_sentence(start: Start, tmp_path: Path) -> None:
    """Exit code 1, and no store is left marked as in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = start(
            *("standalone", "--data-dir", str(tmp_path / "data"), "--no-http"),
            *("--namesrv-port", "0", "--broker-port", port),
        )
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "Traceback" not in errors
    last = errors.splitlines()[-1]
    assert last.startswith("mailboat: ")
    assert "address already in use" in last
    assert not (tmp_path / "data" / "abort").exists()


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        # Its name server and broker have a user between themselves, whom nobody else can be.
        ("authenticationEnabled=true", "authenticationEnabled=true: there is no user: set "),
        ("httpTokenFile=none", "httpTokenFile=none: is no file"),
    ],
)
def test_nobody_is_served_where_nobody_could_get_in(
    start: Start, tmp_path: Path, option: str, sentence: str
) -> None:
    """One sentence, and no word of being ready before."""
    data = str(tmp_path / "data")
    process = start("standalone", "--ready-json", "--data-dir", data, *FREE_PORTS, "-o", option)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (3, "")
    assert errors.splitlines()[-1].startswith(f"mailboat: {sentence}")
    assert "Traceback" not in errors
    assert not (tmp_path / "data").exists()


def test_a_store_in_use_is_refused(start: Start, tmp_path: Path) -> None:
    """Two brokers on one directory would destroy it; the second one says so and ends with 1."""
    arguments = ["standalone", "--data-dir", str(tmp_path), *FREE_PORTS, "--ready-json"]
    first = start(*arguments)
    _ready(first)
    second = start(*arguments)
    _, errors = second.communicate(timeout=20)
    assert second.returncode == 1
    assert "is in use by another broker" in errors.splitlines()[-1]
    _stop(first)


def test_a_damaged_store_is_exit_code_4(start: Start, tmp_path: Path) -> None:
    """A topics.json that is none, with no good previous version, is named with the remedy."""
    config = tmp_path / "config"
    config.mkdir()
    (config / "topics.json").write_text("{broken")
    process = start("standalone", "--data-dir", str(tmp_path), *FREE_PORTS)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 4
    assert "topics.json" in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_a_killed_broker_starts_again_on_its_data(start: Start, tmp_path: Path) -> None:
    """kill -9 leaves nothing that would stop the next start, and resets connections."""
    arguments = ["standalone", "--data-dir", str(tmp_path), *FREE_PORTS, "--ready-json"]
    first = start(*arguments)
    host, _, port = _ready(first)["broker"].rpartition(":")
    with socket.create_connection((host, int(port)), 10) as client:
        client.settimeout(10)
        first.kill()
        first.communicate()
        # RocketMQ's clients would wait for their answers after an end in order: 30 s for a pull.
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert (tmp_path / "abort").exists()
    second = start(*arguments)
    assert _status(_ready(second)["http"], "/startupz") == 200
    _stop(second)


def test_the_version_is_that_of_the_package(start: Start) -> None:
    """`python -m mailboat.cli` is the same as `mailboat`."""
    output, _ = start("--version").communicate(timeout=20)
    assert output.startswith("mailboat 0.")


@pytest.mark.parametrize("switch", ["", "off"])
def test_the_log_says_whether_the_core_works(start: Start, tmp_path: Path, switch: str) -> None:
    """One line at the start of a broker, and why Python works where it does."""
    arguments = ["standalone", "--data-dir", str(tmp_path / "data"), *FREE_PORTS, "--ready-json"]
    process = start(*arguments, MAILBOAT_CORE=switch)
    ready = _ready(process)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=20)
    module, reason = core_or_reason()
    said = "core 0.1.0" if module is not None else f"no core: {reason}"
    if switch:
        said = "no core: MAILBOAT_CORE=off"
    (line,) = [line for line in log.splitlines() if "broker serves" in line]
    assert line.endswith(f"address={ready['broker']}, {said}")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_client_writes_lines_of_its_own_into_the_log(
    start: Start, tmp_path: Path, log_format: str
) -> None:
    """Names, ids and paths come from whoever connects; each event stays one plain line."""
    hostile = "c\n2026-01-01 00:00:00,000 INFO forged \x1b[2J\x9b31m\u202eabc\u2028"
    process = start(
        "standalone", "--data-dir", str(tmp_path / "data"), *FREE_PORTS, "--ready-json",
        "--log-format", log_format,
    )  # fmt: skip
    ready = _ready(process)
    body = json.dumps(
        {"clientID": hostile, "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": []}]}
    ).encode()
    register = {"brokerName": hostile, "brokerAddr": hostile, "clusterName": hostile,
                "brokerId": "0", "haServerAddr": ""}  # fmt: skip
    for address, code, fields, content in (
        (ready["broker"], RequestCode.HEART_BEAT, {}, body),
        (ready["namesrv"], RequestCode.REGISTER_BROKER, register, b""),
        (ready["broker"], RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": hostile}, b""),
    ):
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(RemotingCommand.request(code, fields, content).encode())
            assert connection.recv(4096)
    log = _stop(process)
    assert "forged" in log
    for line in log.splitlines():
        assert line.isprintable()
        assert not line.startswith("2026-01-01 00:00:00,000 INFO forged")
    if log_format == "json":
        messages = [json.loads(line)["message"] for line in log.split("\n") if line]
        assert any(hostile in message for message in messages)
