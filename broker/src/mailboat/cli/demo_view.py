"""What the demo shows: a bar for each stage on a terminal, lines elsewhere, and the report."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from mailboat.cli.demo_tally import Tally

TAGS_SHOWN: Final = 15
_LINE_INTERVAL_S: Final = 5.0


class DemoView:
    """Shows stages and remembers how long each took."""

    def __init__(self, console: Console) -> None:
        """Write to `console`."""
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show a stage while it runs; gives a function that takes how much of it is done."""
        started_s = time.monotonic()
        show = self._bar if self.console.is_terminal else self._lines
        with show(name, total) as update:
            yield update
        self.seconds[name] = time.monotonic() - started_s

    @contextmanager
    def _bar(self, name: str, total: int | None) -> Iterator[Callable[[int], None]]:
        columns = (
            TextColumn(f"{name:<18}"),
            BarColumn(),
            TaskProgressColumn(show_speed=total is None),
            TextColumn("{task.completed:,.0f}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(name, total=total)
            yield lambda done: progress.update(task, completed=done)
            done = progress.tasks[0].completed
            progress.update(task, total=done or 1, completed=done or 1)

    @contextmanager
    def _lines(self, name: str, total: int | None) -> Iterator[Callable[[int], None]]:
        started_s = shown_s = time.monotonic()
        last = 0

        def update(done: int) -> None:
            nonlocal shown_s, last
            last = done
            if time.monotonic() - shown_s >= _LINE_INTERVAL_S:
                shown_s = time.monotonic()
                of_all = f" of {total:,}" if total else ""
                self.say(f"{name}: {done:,}{of_all}")

        self.say(f"{name} ...")
        yield update
        count = f" {last:,} in" if last else ""
        self.say(f"{name}:{count} {time.monotonic() - started_s:.1f} s")

    def report(
        self, sent: Tally, arrived: Tally, disk_bytes: Mapping[str, int], rates: Mapping[str, int]
    ) -> None:
        """Show counts per tag from both sides, disk use, and the stages' times.

        Args:
            sent: the producer's side.
            arrived: the Parquet files' side.
            disk_bytes: what each part takes on disk.
            rates: messages that went through each stage that has a speed.
        """
        self.console.print(_tag_table(sent, arrived))
        used = ", ".join(f"{name} {_megabytes(size)}" for name, size in disk_bytes.items())
        self.say(f"Disk: {used}; the bodies alone are {_megabytes(sent.body_bytes)}")
        times = []
        for name, seconds in self.seconds.items():
            speed = f" ({rates[name] / seconds:,.0f} messages/s)" if name in rates else ""
            times.append(f"{name} {seconds:.1f} s{speed}")
        self.say(f"Time: {', '.join(times)}; together {sum(self.seconds.values()):.1f} s")

    def say(self, text: str) -> None:
        """Show one line."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def disk_use(folder: Path) -> int:
    """Return the bytes that the files below a folder take on disk."""
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(here, name)).st_blocks * 512
            except FileNotFoundError:
                # A running broker makes and removes temporary files.
                continue
    return total


def _tag_table(sent: Tally, arrived: Tally) -> Table:
    table = Table(title="Messages per tag")
    table.add_column("tag")
    for heading in ("sent", "in Parquet"):
        table.add_column(heading, justify="right")
    table.add_column("equal")
    # Tags that differ first, then the largest.
    ordered = sorted(
        sent.tags.keys() | arrived.tags.keys(),
        key=lambda tag: (_is_equal(sent, arrived, tag), -_count(sent, tag), tag),
    )
    for tag in ordered[:TAGS_SHOWN]:
        equal = "yes" if _is_equal(sent, arrived, tag) else "NO"
        table.add_row(tag, f"{_count(sent, tag):,}", f"{_count(arrived, tag):,}", equal)
    rest = ordered[TAGS_SHOWN:]
    if rest:
        equal = "yes" if all(_is_equal(sent, arrived, tag) for tag in rest) else "NO"
        counts = [sum(_count(side, tag) for tag in rest) for side in (sent, arrived)]
        table.add_row(f"{len(rest)} more tags", f"{counts[0]:,}", f"{counts[1]:,}", equal)
    table.add_section()
    equal = "yes" if all(_is_equal(sent, arrived, tag) for tag in ordered) else "NO"
    table.add_row("all", f"{sent.messages:,}", f"{arrived.messages:,}", equal)
    return table


def _count(side: Tally, tag: str) -> int:
    tally = side.tags.get(tag)
    return 0 if tally is None else tally.messages


def _is_equal(sent: Tally, arrived: Tally, tag: str) -> bool:
    return sent.tags.get(tag) == arrived.tags.get(tag)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
