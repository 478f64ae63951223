"""Prints the tables of a benchmark; they are Markdown, to be pasted into documentation."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench_rows import Row
from bench_targets import (
    OURS,
    Check,
    Result,
    checks,
    faster_of,
    has_errors,
    ratio_to_faster,
)
from rich import box
from rich.console import Console
from rich.table import Table

Results = Mapping[tuple[str, str], Result]
"""Results by (row, system)."""

_WIDTH = 220


def make_console() -> Console:
    """Return a console wide enough for the tables, also into a file."""
    console = Console(highlight=False)
    return Console(highlight=False, width=max(console.width, _WIDTH))


def print_system(console: Console, system: str, results: Results, rows: Sequence[Row]) -> None:
    """Print everything measured for one system."""
    table = Table(title=system, box=box.MARKDOWN, title_justify="left")
    columns = ["work", "result", "CPU us/msg", "cores", "p50 / p99 / p99.9 ms"]
    columns += ["memory anon + file MB", "foreign cores", "errors"]
    for column in columns:
        table.add_column(column, justify="left" if column == "work" else "right", no_wrap=True)
    for row in rows:
        result = results.get((row.key, system))
        if result is not None:
            value = f"{format_value(result.value)} {row.unit}"
            table.add_row(row.title, value, *_detail_cells(result))
    console.print(table)


def print_targets(
    console: Console, peers: Sequence[str], results: Results, rows: Sequence[Row]
) -> None:
    """Print mailboat beside the peers of the same run, and what each row had to reach."""
    table = Table(title="targets", box=box.MARKDOWN, title_justify="left")
    table.add_column("work", no_wrap=True)
    for column in [text for name in ("mailboat", *peers) for text in (name, "CPU us")]:
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("to the faster", "must be", "reached"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        ours = results.get((row.key, OURS))
        if ours is None:
            continue
        cells = [row.title]
        for system in (OURS, *peers):
            cells += _value_cells(row, results.get((row.key, system)))
        table.add_row(*cells, *_target_cells(row, ours, results, peers))
    console.print(table)


def sentence(row: Row, results: Results, peers: Sequence[str]) -> str:
    """Return one line with what a row found, beside its target."""
    parts = []
    for system in (OURS, *peers):
        value, cpu = _value_cells(row, results.get((row.key, system)))
        parts.append(f"{system} {value}" + (f" ({cpu} us)" if cpu else ""))
    ours = results.get((row.key, OURS))
    if ours is None:
        return f"{row.key}: {'; '.join(parts)}"
    ratio, must, reached = _target_cells(row, ours, results, peers)
    to_faster = f"; to the faster {ratio}" if ratio != "-" else ""
    target = f"; must be {must}: {reached}" if must != "-" else ""
    return f"{row.key}: {'; '.join(parts)}{to_faster}{target}"


def misses(results: Results, rows: Sequence[Row], peers: Sequence[str]) -> list[str]:
    """Return the keys of mailboat's rows that missed what they had to reach, or had errors."""
    missed = []
    for row in rows:
        ours = results.get((row.key, OURS))
        if ours is None:
            continue
        found = checks(row.target, ours, _peers_of(row, results, peers))
        if has_errors(ours) or any(check.is_reached is False for check in found):
            missed.append(row.key)
    return missed


def format_value(value: float) -> str:
    """Return a number with as many digits as it deserves."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _peers_of(row: Row, results: Results, peers: Sequence[str]) -> dict[str, Result]:
    return {peer: results[row.key, peer] for peer in peers if (row.key, peer) in results}


def _value_cells(row: Row, result: Result | None) -> list[str]:
    if result is None:
        return ["-", ""]
    return [f"{format_value(result.value)} {row.unit}", _optional(result.details, "cpu_us")]


def _target_cells(row: Row, ours: Result, results: Results, peers: Sequence[str]) -> list[str]:
    others = _peers_of(row, results, peers)
    kind = row.target.kind
    ratio, faster = ratio_to_faster(kind, ours, list(others.values())), None
    cell = "-"
    if ratio is not None:
        faster = faster_of(kind, list(others.values()))
        assert faster is not None
        cell = f"{ratio:.2f} ({faster.system.split()[-1]})"
    found = checks(row.target, ours, others)
    must = "; ".join(check.text for check in found) or "-"
    return [cell, must, _verdict(ours, found)]


def _verdict(ours: Result, found: Sequence[Check]) -> str:
    if has_errors(ours):
        return "ERRORS"
    words = []
    for check in found:
        word = {True: "yes", False: "NO", None: "-"}[check.is_reached]
        words.append(f"{word} ({check.why_not})" if check.why_not else word)
    return "; ".join(words)


def _detail_cells(result: Result) -> list[str]:
    details = result.details
    # End-to-end times, where there are any, are what a user sees.
    prefix = "end_to_end_" if details.get("end_to_end_p50_us") else ""
    times = [details.get(f"{prefix}{name}_us", 0) / 1000 for name in ("p50", "p99", "p999")]
    memory = f"{details['anon_mb']:.0f} + {details['file_mb']:.0f}" if "anon_mb" in details else ""
    return [
        _optional(details, "cpu_us"),
        _optional(details, "cores"),
        " / ".join(f"{time:.3g}" for time in times) if any(times) else "",
        memory,
        _optional(details, "foreign_cores"),
        " ".join(f"{code}:{count}" for code, count in details.get("errors", {}).items()),
    ]


def _optional(details: Mapping[str, Any], name: str) -> str:
    return format_value(details[name]) if name in details else ""
