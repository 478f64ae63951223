"""Rows about a broker's life: start, rest, idle connections, restart after kill -9."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_brokers import Variant
from bench_generator import idle_connections
from bench_machine import as_fields, process_cpu_s, raise_open_file_limit
from bench_session import RECORD_BYTES, Session

Measured = tuple[float, dict[str, Any]]

_STARTS = 3
_IDLE_CONNECTIONS = 10_000
# After load, a broker still flushes, indexes and collects garbage for a moment.
_SETTLE_S = 3.0


def idle(session: Session) -> Measured:
    """Return the cores that a broker uses after load."""
    with session.broker() as broker:
        time.sleep(_SETTLE_S)
        with idle_connections(broker.port, 0, broker.pid) as answer:
            time.sleep(max(session.timing.seconds, 5.0))
        cores = answer["server_cpu_s"] / answer["seconds"]
        return round(cores, 4), as_fields(broker.memory())


def start(variant: Variant) -> Callable[[Session], Measured]:
    """Return a row that measures the seconds to the first accepted send on an empty store."""

    def measure(session: Session) -> Measured:
        seconds, cpu_s = [], []
        for _ in range(_STARTS):
            with session.fresh_broker("start", variant) as broker:
                seconds.append(round(broker.start(), 3))
                cpu_s.append(process_cpu_s(broker.pid))
        return statistics.median(seconds), {"starts_s": seconds, "starts_cpu_s": cpu_s}

    return measure


def memory(session: Session) -> Measured:
    """Return megabytes at rest; those of the smallest heap where one has to be chosen."""
    smallest = "smallest" in session.system.variants()
    with session.fresh_broker("memory", Variant(smallest=smallest)) as broker:
        broker.start()
        time.sleep(_SETTLE_S)
        found = broker.memory()
        return round(found.rss_mb, 1), as_fields(found)


def restart(session: Session) -> Measured:
    """Return the seconds from a start after kill -9 to the first accepted send.

    The log is covered by no checkpoint: what the broker noted of its progress while the log grew
    is taken back to what it was before. `as_killed_s` is a start before that, with the
    checkpoints as the kill left them.
    """
    with session.fresh_broker("restart", Variant()) as broker:
        broker.start()
        broker.create_topic("bench")
        notes = [broker.home / "store" / name for name in session.system.checkpoint_files]
        before = _contents(notes)
        count = session.timing.restart_bytes // RECORD_BYTES
        broker.fill("bench", count)
        broker.kill()
        as_killed_s = broker.start()
        broker.kill()
        _put_back(before)
        seconds = broker.start()
        cpu_s = process_cpu_s(broker.pid)
        details = {
            "as_killed_s": round(as_killed_s, 2),
            "log_gb": session.timing.restart_bytes / 1e9,
        }
        details |= {"messages": count, "start_cpu_s": cpu_s}
        return round(seconds, 2), details | as_fields(broker.memory())


def connections(session: Session) -> Measured:
    """Return the kilobytes that an idle connection costs."""
    raise_open_file_limit(_IDLE_CONNECTIONS + 500)
    with session.fresh_broker("connections", Variant()) as broker:
        broker.start()
        time.sleep(_SETTLE_S)
        before = broker.memory()
        with idle_connections(broker.port, _IDLE_CONNECTIONS, broker.pid) as answer:
            after = broker.memory()
            time.sleep(session.timing.seconds)
        kilobytes = (after.anon_mb - before.anon_mb) * 1000 / _IDLE_CONNECTIONS
        cores = round(answer["server_cpu_s"] / answer["seconds"], 4)
        return round(kilobytes, 2), {"cores": cores} | as_fields(after)


def _contents(paths: list[Path]) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.exists() else None for path in paths}


def _put_back(contents: dict[Path, bytes | None]) -> None:
    for path, content in contents.items():
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)
