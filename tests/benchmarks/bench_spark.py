"""Rows about the Spark source: rows a second from a broker on the same two cores."""

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from bench_brokers import Launch, Variant
from bench_client import rate_of
from bench_machine import RowSkippedError, process_cpu_s
from bench_session import Session
from bench_steady import warm_up
from bench_windows import Window, running_windows

_TOPIC = "bench_spark"
_MESSAGES = 400_000
_PASS_TIMEOUT_S = 300.0
_CORES = 2


def spark(sink: Literal["noop", "parquet"]) -> Callable[[Session], tuple[float, dict[str, Any]]]:
    """Return a row that reads a topic of messages of 1 KB into a sink, again and again."""

    def measure(session: Session) -> tuple[float, dict[str, Any]]:
        if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
            raise RowSkippedError("it needs pyspark and Java: pip install '.[spark]'")
        with session.fresh_broker("spark-broker", Variant(both_cores=True)) as broker:
            broker.start()
            broker.create_topic(_TOPIC)
            broker.fill(_TOPIC, _MESSAGES)
            # Not below the broker's folder: the paths of Spark's sockets must be short.
            with tempfile.TemporaryDirectory(prefix="mailboat-") as folder:
                home = Path(folder)
                program = Path(__file__).with_name("spark_passes.py")
                command = [sys.executable, str(program), broker.namesrv, _TOPIC, sink, folder]
                cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))[:_CORES]))
                with running_windows(Launch(command, {}), home, cpus) as windows:
                    settled = warm_up(
                        lambda: _cpu_us(windows.next(_PASS_TIMEOUT_S)),
                        at_least_windows=2,
                        at_most_s=session.timing.settle_at_most_s,
                    )
                    broker_s = process_cpu_s(broker.pid)
                    window = windows.next(_PASS_TIMEOUT_S)
                    broker_s = process_cpu_s(broker.pid) - broker_s
        if window["messages"] != _MESSAGES:
            return 0.0, {"errors": {"rows": _MESSAGES - window["messages"]}}
        if complaint := settled.complaint():
            session.say(f"spark-{sink}: {complaint} us of CPU a row")
        details = {"broker_cores": round(broker_s / window["seconds"], 3)}
        details["cpu_us"] = round(_cpu_us(window), 2)
        return round(rate_of(window), 1), details | {"warm_up": settled.as_fields()}

    return measure


def _cpu_us(window: Window) -> float:
    return float(window["tree_cpu_s"] / _MESSAGES * 1e6)
