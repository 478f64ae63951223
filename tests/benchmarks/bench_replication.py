"""The rows about copies: what a second replica leaves of the rate of a single broker.

A SYNC_MASTER with one slave answers once both have a message. The slave has the generator's CPU, or
shares the master's. Both brokers of a row are measured one after the other, with the same load.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench_machine as machine
from bench_brokers import TOPIC, Variant, end_group
from bench_session import Session

_LOAD = {"connections": 16, "depth": 16}
_SEGMENT_BYTES = 1 << 30


def replicated(*, shares_cpu: bool) -> Callable[[Session], tuple[float, dict[str, Any]]]:
    """Return what measures the rate with a slave, in per cent of that without."""

    def measure(session: Session) -> tuple[float, dict[str, Any]]:
        with session.fresh_broker("single", Variant()) as broker:
            broker.start()
            broker.create_topic(TOPIC)
            alone, before = session.run_load(broker, "send", **_LOAD)
        port = machine.free_port()
        settings = (
            ("brokerRole", "SYNC_MASTER"),
            ("haListenPort", port),
            ("totalReplicas", 2),
            ("inSyncReplicas", 2),
        )
        cpu = machine.server_cpu() if shares_cpu else machine.generator_cpu()
        with session.fresh_broker("master", Variant(settings=settings)) as broker:
            with _slave(session.folder / "slave", port, cpu) as slave:
                broker.start()
                broker.create_topic(TOPIC)
                slave_s = machine.process_cpu_s(slave.pid)
                both, details = session.run_load(broker, "send", **_LOAD)
                slave_s = machine.process_cpu_s(slave.pid) - slave_s
                _lone, single = session.run_load(broker, "send")
        details["unreplicated_rate"] = alone
        details["unreplicated_cpu_us"] = before["cpu_us"]
        details["replicated_rate"] = both
        details["slave_cpu_s"] = round(slave_s, 2)
        details["lone_p50_us"], details["lone_p99_us"] = single["p50_us"], single["p99_us"]
        return round(100 * both / alone, 1), details

    return measure


@contextlib.contextmanager
def _slave(home: Path, master_port: int, cpu: int) -> Iterator[subprocess.Popen[bytes]]:
    home.mkdir(parents=True)
    settings = {
        "brokerRole": "SLAVE",
        "brokerId": 1,
        "totalReplicas": 2,
        "inSyncReplicas": 2,
        "haMasterAddress": f"127.0.0.1:{master_port}",
        "haListenPort": 0,
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "mappedFileSizeCommitLog": _SEGMENT_BYTES,
    }
    command = ["taskset", "-c", str(cpu), sys.executable, "-m", "mailboat.cli", "broker"]
    command += ["--data-dir", str(home / "store"), "--no-http"]
    for key, value in settings.items():
        command += ["-o", f"{key}={value}"]
    with (home / "output.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end_group(process)
