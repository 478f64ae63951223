"""Measures mailboat, with --peer beside the real Java RocketMQ, and prints the tables.

Run as `python tests/benchmarks/bench.py`; needs Linux, taskset and a C compiler, for --peer also
Java and Maven. Exit code 1 means that a row failed or had refused requests; a missed target is
shown but is no failure, because seconds drift on shared machines. A row that does not fit the
machine is passed over, with the reason.
"""

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import bench_java
from bench_brokers import Mailboat, System
from bench_machine import (
    CACHE_DIR,
    BenchError,
    FullMemory,
    RowSkippedError,
    describe_machine,
)
from bench_report import (
    Results,
    format_value,
    make_console,
    misses,
    print_system,
    print_targets,
    sentence,
)
from bench_rows import ROWS, Row, chosen_rows
from bench_session import KEPT_BYTES, RECORD_BYTES, Session, Timing
from bench_stall import RATE
from bench_targets import OURS, Result, has_errors
from rich.console import Console

# Bytes a second of the fastest send row at the speed mailboat aims at.
_DISK_BYTES_PER_SECOND = 700_000_000


def main() -> int:
    """Run the chosen rows and return the exit code."""
    arguments = _parse_arguments()
    console = make_console()
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        return _run(arguments, console)
    except BenchError as error:
        console.print(f"bench: {error}", markup=False)
        return 1


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    """Turn SIGTERM into an orderly end, so that no broker survives."""
    sys.exit(128 + number)


def _run(arguments: argparse.Namespace, console: Console) -> int:
    rows = chosen_rows(arguments.rows)
    timing = _timing(arguments)
    names = [bench_java.JavaRocketMQ.name_of(version) for version in arguments.peer_versions]
    peers = names if arguments.peer else []
    systems = [*([] if arguments.no_mailboat else [OURS]), *peers]
    _check_machine(rows, timing, len(systems))
    machine = describe_machine()
    console.print("  ".join(f"{key}: {value}" for key, value in machine.items()), markup=False)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=CACHE_DIR)))
        full_memory = None
        if arguments.full_memory:
            full_memory = stack.enter_context(contextlib.closing(FullMemory(folder)))
        sessions = [_open_session(stack, name, folder, timing, console) for name in systems]
        results, failures = _measure_rows(rows, sessions, arguments.runs, full_memory, console)
    for name in systems:
        print_system(console, name, results, rows)
    print_targets(console, peers, results, rows)
    if missed := misses(results, rows, peers):
        console.print(f"missed: {', '.join(missed)}")
    if arguments.json:
        data = {"machine": machine, "timing": vars(timing)}
        data["results"] = [vars(result) for result in results.values()]
        arguments.json.write_text(json.dumps(data, indent=1) + "\n")
    return 1 if failures else 0


def _timing(arguments: argparse.Namespace) -> Timing:
    """Rows with a size of their own are small unless they, or all, are asked for."""
    is_small = arguments.rows == "default"
    stall_s = arguments.stall_seconds or (30.0 if is_small else 600.0)
    restart_gb = arguments.restart_gb or (0.4 if is_small else 3.2)
    return Timing(
        warmup_s=min(5.0, arguments.seconds / 2),
        seconds=arguments.seconds,
        settle_at_most_s=arguments.peer_warmup,
        stall_s=stall_s,
        restart_bytes=int(restart_gb * 1e9),
    )


def _open_session(
    stack: contextlib.ExitStack, name: str, folder: Path, timing: Timing, console: Console
) -> Session:
    home = folder / name.replace(" ", "-")
    system: System = Mailboat()
    if name != system.name:
        system = stack.enter_context(bench_java.java_rocketmq(name.split()[1], home))
    session = Session(system, home, timing, lambda line: console.print(line, markup=False))
    stack.callback(session.close)
    return session


def _measure_rows(
    rows: list[Row],
    sessions: list[Session],
    runs: int,
    full_memory: FullMemory | None,
    console: Console,
) -> tuple[Results, int]:
    """Measure each row on all systems in turn; of several runs the median one counts."""
    results: dict[tuple[str, str], Result] = {}
    failures = 0
    for row in rows:
        collected: dict[str, list[Result]] = {}
        for _ in range(runs):
            for session in sessions:
                if full_memory is not None:
                    full_memory.fill()
                try:
                    result = _measure(row, session, console)
                except RowSkippedError as reason:
                    text = f"{row.key} on {session.system.name}: skipped: {reason}"
                    console.print(text, markup=False)
                    continue
                except BenchError as error:
                    failures += 1
                    session.close()
                    console.print(f"{row.key} on {session.system.name}: {error}", markup=False)
                    continue
                if result is not None:
                    collected.setdefault(result.system, []).append(result)
        for system, of_system in collected.items():
            of_system.sort(key=lambda result: result.value)
            median = of_system[len(of_system) // 2]
            median.details["runs"] = [result.value for result in of_system]
            results[row.key, system] = median
            # The peers' refusals are their own affair.
            failures += system == OURS and any(map(has_errors, of_system))
        peers = [session.system.name for session in sessions if session.system.name != OURS]
        if collected:
            console.print(sentence(row, results, peers), markup=False)
    return results, failures


def _measure(row: Row, session: Session, console: Console) -> Result | None:
    system = session.system
    if row.mailboat_only and system.name != OURS:
        return None
    if row.needs and row.needs not in system.variants():
        return None
    value, details = row.measure(session)
    errors = f"  errors {details['errors']}" if details.get("errors") else ""
    console.print(f"{system.name}: {row.title}: {format_value(value)} {row.unit}{errors}")
    return Result(row.key, system.name, value, details)


def _check_machine(rows: list[Row], timing: Timing, systems: int) -> None:
    if sys.platform != "linux" or shutil.which("taskset") is None:
        raise BenchError("the benchmark needs Linux and taskset (package util-linux)")
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    needed = _bytes_needed({row.key for row in rows}, timing, systems)
    free = shutil.disk_usage(CACHE_DIR).free
    if free < needed:
        raise BenchError(
            f"{CACHE_DIR} has {free / 1e9:.0f} GB free and up to {needed / 1e9:.0f} GB are"
            " needed; take fewer --seconds, --stall-seconds, --restart-gb or systems"
        )


def _bytes_needed(keys: set[str], timing: Timing, systems: int) -> int:
    """Return the most that lies on the disk at a time."""
    kept = KEPT_BYTES * systems + _DISK_BYTES_PER_SECOND * (timing.seconds + timing.warmup_s)
    if keys <= {"start", "start-no-http", "memory", "connections", "restart", "stall"}:
        kept = 0
    restart = timing.restart_bytes if "restart" in keys else 0
    # Old segments are deleted as it runs, but a broker that does not must not fill the disk.
    stall = timing.stall_s * RATE * RECORD_BYTES if "stall" in keys else 0
    return int(kept + max(restart, stall))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--peer", action="store_true", help="also measure the Java broker")
    parser.add_argument(
        "--peer-versions",
        type=lambda text: text.split(","),
        default=bench_java.VERSIONS,
        metavar="V,V",
        help=f"releases of the peer (default {','.join(bench_java.VERSIONS)})",
    )
    parser.add_argument(
        "--peer-warmup",
        type=float,
        default=90.0,
        metavar="S",
        help="most seconds for which a load is repeated on a JVM until two windows agree within"
        " 5 %% (default 90)",
    )
    parser.add_argument(
        "--no-mailboat", action="store_true", help="measure only the peers (with --peer)"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="time of a load (default 10)"
    )
    parser.add_argument(
        "--runs", type=int, default=1, metavar="N", help="times each row is measured (default 1)"
    )
    parser.add_argument(
        "--rows",
        default="default",
        metavar="ROW,ROW",
        help=f"default, all, or some of: {', '.join(row.key for row in ROWS)}",
    )
    parser.add_argument(
        "--stall-seconds",
        type=float,
        metavar="S",
        help="time of the stall row (default 600; 30 when no rows are named)",
    )
    parser.add_argument(
        "--restart-gb",
        type=float,
        metavar="GB",
        help="size of the log of the restart row (default 3.2; 0.4 when no rows are named)",
    )
    parser.add_argument(
        "--full-memory",
        action="store_true",
        help="fill free memory with cached pages first, as a broker has it that runs for long",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers here")
    arguments = parser.parse_args()
    if arguments.no_mailboat and not arguments.peer:
        parser.error("--no-mailboat needs --peer")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
