"""The rows about copies: what a second replica leaves of the rate of a single broker, how fast an
empty slave catches up, and how soon a promoted one takes messages.

A SYNC_MASTER with one slave answers once both have a message. The slave has the generator's CPU, or
shares the master's. Both brokers of a row are measured one after the other, with the same load.
Java's pair is configured as ours: two copies before an answer.
"""

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import bench_machine as machine
from bench_brokers import (
    TOPIC,
    BrokerProcess,
    Variant,
    end_group,
    environment_of,
    request,
)
from bench_generator import finish_generator, start_generator
from bench_machine import BenchError
from bench_session import Session

_LOAD = {"connections": 16, "depth": 16}
_SEGMENT_BYTES = 1 << 30
_TIMEOUT_S = 60.0
_GET_BROKER_HA_STATUS = 907
_HTTP_ADDRESS = re.compile(rb'"http": *"([0-9.:]+)"')

Measured = tuple[float, dict[str, Any]]
_T = TypeVar("_T")


def replicated(*, shares_cpu: bool) -> Callable[[Session], Measured]:
    """Return what measures the rate with a slave, in per cent of that without."""

    def measure(session: Session) -> Measured:
        with session.fresh_broker("single", Variant()) as broker:
            broker.start()
            broker.create_topic(TOPIC)
            alone, before = session.run_load(broker, "send", **_LOAD)
            _lone, lone_before = session.run_load(broker, "send")
        cpu = machine.server_cpu() if shares_cpu else machine.generator_cpu()
        with session.fresh_broker("master", _role("SYNC_MASTER", 2, 2)) as broker:
            port = machine.free_port()
            with _slave(session, 1, port, cpu, _role("SLAVE", 2, 2)) as slave:
                broker.start(port)
                broker.create_topic(TOPIC)
                slave_s = machine.process_cpu_s(slave.pid)
                both, details = session.run_load(broker, "send", **_LOAD)
                slave_s = machine.process_cpu_s(slave.pid) - slave_s
                _lone, lone = session.run_load(broker, "send")
        details["unreplicated_rate"] = alone
        details["unreplicated_cpu_us"] = before["cpu_us"]
        details["replicated_rate"] = both
        details["slave_cpu_s"] = round(slave_s, 2)
        for name, single in (("lone_alone", lone_before), ("lone", lone)):
            details[f"{name}_p50_us"], details[f"{name}_p99_us"] = (
                single["p50_us"],
                single["p99_us"],
            )
        return round(100 * both / alone, 1), details

    return measure


def catch_up(session: Session) -> Measured:
    """Return the megabytes a second at which an empty slave takes the log, without a bound."""
    # Slow until the slave's process is up, which is not what is measured.
    slow = ("maxHaTransferByteInSecond", 10_000_000)
    with session.fresh_broker("master", _role("SYNC_MASTER", 2, 1, slow)) as broker:
        port = machine.free_port()
        role = _role("SLAVE", 2, 1)
        # A new group begins once all its replicas have been there.
        with _slave(session, 1, port, machine.generator_cpu(), role):
            broker.start(port)
            broker.create_topic(TOPIC)
        session.run_load(broker, "send", **_LOAD)
        master_s = machine.process_cpu_s(broker.pid)
        with _slave(session, 2, port, machine.generator_cpu(), role, ordinal=1) as slave:
            _change_config(broker, {"maxHaTransferByteInSecond": str(1 << 40)})
            begin = _until(lambda: _progress(port), lambda ends: ends is not None and ends[0] > 0)
            began_s = time.monotonic()
            end = _until(
                lambda: _progress(port), lambda ends: ends is not None and ends[0] >= ends[1]
            )
            took_s = time.monotonic() - began_s
            copied = end[0] - begin[0]
            details = {
                "bytes": copied,
                "slave_cpu_s": round(machine.process_cpu_s(slave.pid), 2),
                "master_cpu_s": round(machine.process_cpu_s(broker.pid) - master_s, 2),
                "slave_rss_mb": round(machine.memory_of(slave.pid).rss_mb, 1),
            }
    return round(copied / took_s / 1e6), details


def promotion(session: Session) -> Measured:
    """Return the milliseconds from the wish that a slave leads to the first accepted send."""
    cpu = machine.generator_cpu()
    with session.fresh_broker("master", _role("SYNC_MASTER", 3, 2)) as broker:
        port = machine.free_port()
        role = _role("SLAVE", 3, 2)
        with _slave(session, 1, port, machine.server_cpu(), role) as one:
            with _slave(session, 2, port, cpu, role, others=(one.port + 1,)):
                broker.start(port)
                broker.create_topic(TOPIC)
                session.run_load(broker, "send", **_LOAD)
                broker.kill()
                options = {"topic": TOPIC, "broker": "broker-a", "seconds": _TIMEOUT_S}
                waiter = start_generator("first", one.port, **options)
                try:
                    asked_ns = _promote(one)
                    accepted_ns = int(finish_generator(waiter, _TIMEOUT_S)["accepted_at_ns"])
                finally:
                    waiter.kill()
                    waiter.wait()
    return round((accepted_ns - asked_ns) / 1e6, 1), {}


class _Slave(NamedTuple):
    """A slave's process, port and folder."""

    pid: int
    port: int
    home: Path


def _role(role: str, total: int, in_sync: int, *more: tuple[str, object]) -> Variant:
    settings = (
        ("brokerRole", role),
        ("totalReplicas", total),
        ("inSyncReplicas", in_sync),
        ("mappedFileSizeCommitLog", _SEGMENT_BYTES),
        *more,
    )
    return Variant(settings=settings)


@contextlib.contextmanager
def _slave(
    session: Session,
    number: int,
    master_port: int,
    cpu: int,
    variant: Variant,
    *,
    ordinal: int = 0,
    others: tuple[int, ...] = (),
) -> Iterator[_Slave]:
    """Run a slave of the master that listens, or will, on a port."""
    home = session.folder / f"slave-{number}"
    home.mkdir(parents=True)
    port = machine.free_port()
    masters = ";".join(f"127.0.0.1:{ha_port}" for ha_port in (master_port + 1, *others))
    settings = (*variant.settings, ("brokerId", ordinal or number), ("haMasterAddress", masters))
    launch = session.system.launch(home, port, Variant(settings=settings))
    with (home / "output.log").open("ab") as log:
        process = subprocess.Popen(
            ["taskset", "-c", str(cpu), *launch.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            env=environment_of(launch),
            start_new_session=True,
        )
    try:
        ready = rb'"broker":|boot success'
        _until(lambda: re.search(ready, (home / "output.log").read_bytes()), bool)
        yield _Slave(process.pid, port, home)
    finally:
        end_group(process)
        shutil.rmtree(home)


def _progress(port: int) -> tuple[int, int] | None:
    """Return how far a master's only slave has its log, and where that ends."""
    header, body = request(port, _GET_BROKER_HA_STATUS, {})
    if header["code"] != 0:
        return None
    status = json.loads(body)
    slaves = status["haConnectionInfo"]
    if not slaves:
        return None
    end = status["masterCommitLogMaxOffset"]
    # What was sent, until it has told that it has all.
    sent = min(slaves[0]["transferFromWhere"], end - 1)
    return max(slaves[0]["slaveAckOffset"], sent), end


def _change_config(broker: BrokerProcess, changes: dict[str, str]) -> None:
    wish = urllib.request.Request(
        f"http://{_http_address(broker.home)}/api/v1/config",
        data=json.dumps(changes).encode(),
        headers={"Content-Type": "application/json"},
        method="PATCH",
    )
    with urllib.request.urlopen(wish, timeout=_TIMEOUT_S):
        pass


def _http_address(home: Path) -> str:
    found = _HTTP_ADDRESS.search((home / "output.log").read_bytes())
    assert found is not None
    return found.group(1).decode()


def _promote(slave: _Slave) -> int:
    """Have a slave lead once the others miss its master; return when it was asked in vain last."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        asked_ns = time.monotonic_ns()
        wish = urllib.request.Request(
            f"http://{_http_address(slave.home)}/api/v1/replica/promote",
            data=b"{}",
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(wish, timeout=_TIMEOUT_S):
                return asked_ns
        except urllib.error.HTTPError as error:
            if error.code != 409 or time.monotonic() > deadline_s:
                raise BenchError(f"no promotion: {error.read().decode()}") from error
        time.sleep(0.05)


def _until(ask: Callable[[], _T], holds: Callable[[_T], bool]) -> _T:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not holds(answer := ask()):
        if time.monotonic() > deadline_s:
            raise BenchError(f"still {answer!r} after {_TIMEOUT_S:g} s")
        time.sleep(0.01)
    return answer
