"""How far a long command is: a bar on a terminal, one line at the end everywhere."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Counter:
    """Counts messages and bytes; shows a moving count on a terminal, and the rate at the end."""

    def __init__(self, verb: str, *, quiet_on_stdout: bool, total_bytes: int | None = None) -> None:
        """Prepare a counter.

        Args:
            verb: what happens to messages, such as `sent`.
            quiet_on_stdout: show no bar when standard output is a terminal too, because messages
                are printed there.
            total_bytes: how many bytes there will be, if that is known.
        """
        self._verb = verb
        self._total_bytes = total_bytes
        self._shows_bar = sys.stderr.isatty() and not (quiet_on_stdout and sys.stdout.isatty())
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started_s = 0.0
        self.messages = 0
        self.size_bytes = 0
        self.skipped_lines = 0
        self.resent_messages = 0
        """Messages among `messages` that were sent more than once and may be there twice."""

    def __enter__(self) -> Self:
        """Begin."""
        self._started_s = time.monotonic()
        if self._shows_bar:
            self._start_bar()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Print the rate; on an error too, since what was done was done."""
        if self._progress is not None:
            self._progress.stop()
        elapsed_s = time.monotonic() - self._started_s
        rate = self.messages / elapsed_s if elapsed_s else 0.0
        click.echo(
            f"{self._verb} {self.messages} messages, {self.size_bytes / 1e6:.1f} MB in "
            f"{elapsed_s:.1f} s: {rate:.0f} messages/s" + self._extra_text(),
            err=True,
        )

    def add(self, messages: int, size_bytes: int) -> None:
        """Count some more."""
        self.messages += messages
        self.size_bytes += size_bytes
        if self._progress is not None and self._task is not None:
            self._progress.update(
                self._task, completed=self.size_bytes, messages=f"{self.messages} messages"
            )

    def note(self, text: str) -> None:
        """Say something that cannot wait for the end."""
        if self._progress is None:
            click.echo(f"mailboat: {text}", err=True)
        else:
            self._progress.console.print(f"mailboat: {text}", markup=False, highlight=False)

    def _extra_text(self) -> str:
        extra = []
        if self.skipped_lines:
            extra.append(f"{self.skipped_lines} empty lines skipped")
        if self.resent_messages:
            extra.append(
                f"{self.resent_messages} sent again with the same id after a lost answer, and "
                "perhaps stored twice"
            )
        return f" ({'; '.join(extra)})" if extra else ""

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn(self._verb),
            BarColumn(),
            TextColumn("{task.fields[messages]}"),
            DownloadColumn(),
            TransferSpeedColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("", total=self._total_bytes, messages="0 messages")
        self._progress.start()


class Scan:
    """Shows how far a long look through something is; on a terminal only, and on standard error."""

    def __init__(self, title: str, total: int | None) -> None:
        """Prepare a bar of `total` steps."""
        self._title = title
        self._total = total
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        """Begin."""
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(self._title, total=self._total)
            self._progress.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()

    def advance(self, steps: int = 1) -> None:
        """Count some steps."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, steps)
