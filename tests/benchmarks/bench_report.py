"""Prints the tables of a benchmark; they are Markdown, to be pasted into documentation."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench_rows import ROWS, Goal, Result, Row
from rich import box
from rich.console import Console
from rich.table import Table

Results = Mapping[tuple[str, str], Result]
"""Results by (row, system)."""

_WIDTH = 185


def make_console() -> Console:
    """Return a console wide enough for the tables, also into a file."""
    console = Console(highlight=False)
    return Console(highlight=False, width=max(console.width, _WIDTH))


def print_system(console: Console, system: str, results: Results, rows: Sequence[Row]) -> None:
    """Print everything measured for one system; mailboat's table judges its bounds."""
    judged = system == "mailboat"
    table = Table(title=system, box=box.MARKDOWN, title_justify="left")
    columns = ["work", "result", "CPU us/msg", "cores", "p50 / p99 / p99.9 ms"]
    columns += ["memory anon + file MB", "foreign cores", "errors"]
    for column in columns + (["must be", ""] if judged else []):
        table.add_column(column, justify="left" if column == "work" else "right", no_wrap=True)
    for row in rows:
        result = results.get((row.key, system))
        if result is None:
            continue
        cells = [row.title, f"{format_value(result.value)} {row.unit}", *_detail_cells(result)]
        table.add_row(*cells, *(_bound_cells(row.goal, result, results) if judged else []))
    console.print(table)


def print_ratios(
    console: Console, peers: Sequence[str], results: Results, rows: Sequence[Row]
) -> None:
    """Print mailboat's numbers beside the peers' of the same run."""
    table = Table(title="mailboat against the peers", box=box.MARKDOWN, title_justify="left")
    table.add_column("work", no_wrap=True)
    for column in ["mailboat", *(name for peer in peers for name in (peer, "ratio", "CPU ratio"))]:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("must be", justify="right", no_wrap=True)
    for row in rows:
        ours = results.get((row.key, "mailboat"))
        theirs = [results.get((row.key, peer)) for peer in peers]
        if ours is None or not any(theirs):
            continue
        cells = [row.title, f"{format_value(ours.value)} {row.unit}"]
        for peer in theirs:
            cells += _ratio_cells(row.goal, ours, peer)
        table.add_row(*cells, _sign(row.goal) + f" {row.goal.ratio}" if row.goal.ratio else "-")
    console.print(table)


def misses(results: Results) -> list[str]:
    """Return the keys of mailboat's rows that missed their bound or had errors."""
    missed = []
    for row in ROWS:
        result = results.get((row.key, "mailboat"))
        if result is None:
            continue
        bound = _bound(row.goal, results)
        if has_errors(result) or (bound is not None and not row.goal.holds(result.value, bound)):
            missed.append(row.key)
    return missed


def has_errors(result: Result) -> bool:
    """Return whether any request of the row was refused or lost."""
    return bool(result.details.get("errors"))


def format_value(value: float) -> str:
    """Return a number with as many digits as it deserves."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


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


def _optional(details: dict[str, Any], name: str) -> str:
    return format_value(details[name]) if name in details else ""


def _sign(goal: Goal) -> str:
    return ">=" if goal.at_least else "<="


def _bound(goal: Goal, results: Results) -> float | None:
    if goal.bound is None or not goal.of_row:
        return goal.bound
    base = results.get((goal.of_row, "mailboat"))
    return None if base is None else goal.bound * base.value


def _bound_cells(goal: Goal, result: Result, results: Results) -> list[str]:
    bound = _bound(goal, results)
    if bound is None:
        return ["-", "errors" if has_errors(result) else ""]
    verdict = "pass" if goal.holds(result.value, bound) else "MISS"
    return [f"{_sign(goal)} {format_value(bound)}", "ERRORS" if has_errors(result) else verdict]


def _ratio_cells(goal: Goal, ours: Result, peer: Result | None) -> list[str]:
    if peer is None or not peer.value:
        return ["-", "-", "-"]
    ratio = ours.value / peer.value
    verdict = ""
    if goal.ratio is not None and goal.peer in ("", peer.system):
        verdict = " pass" if goal.holds(ratio, goal.ratio) else " MISS"
    cpu = "-"
    if ours.details.get("cpu_us") and peer.details.get("cpu_us"):
        cpu = f"{ours.details['cpu_us'] / peer.details['cpu_us']:.2f}"
    return [format_value(peer.value), f"{ratio:.2f}{verdict}", cpu]
