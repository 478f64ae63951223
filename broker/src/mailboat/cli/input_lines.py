"""Lines of a file, a pipe or a terminal, as they come, without blocking the event loop."""

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from mailboat.errors import IllegalMessageError

_READ_BYTES: Final = 256 * 1024
_TAKEN_PAUSE_S: Final = 0.02


def standard_input() -> int:
    """Return the descriptor of standard input.

    Raises:
        UsageError: it is closed.
    """
    if sys.stdin is None:
        raise click.UsageError("standard input is closed; give it something to read")
    return sys.stdin.fileno()


@contextmanager
def open_input(path: Path | None) -> Iterator[int]:
    """Return a descriptor of a file, or of standard input without a path, for `read_lines`.

    A named pipe that nobody writes to yet is opened at once and waited for when it is read.

    Raises:
        UsageError: standard input is closed.
        OSError: the file cannot be opened.
    """
    if path is None:
        yield standard_input()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def read_lines(descriptor: int, max_line_bytes: int) -> AsyncIterator[list[bytes]]:
    r"""Yield the lines that each read completes, without their `\n` or `\r\n`.

    A line that is typed is there at once; a last line without an end counts too.

    Raises:
        IllegalMessageError: a line has not ended after `max_line_bytes`; those before it were
            yielded, and the rest is not read.
        OSError: reading fails.
    """
    rest: list[bytes] = []
    rest_bytes = 0
    can_wait = _can_be_waited_for(descriptor)
    while True:
        if can_wait:
            await _wait_readable(descriptor)
        else:
            # A regular file is always readable; the loop gets its turn here.
            await asyncio.sleep(0)
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            # Another reader of the same pipe was faster.
            await asyncio.sleep(_TAKEN_PAUSE_S)
            continue
        if not data:
            break
        if b"\n" in data:
            lines = b"".join((*rest, data)).split(b"\n")
            rest = [lines.pop()]
            rest_bytes = len(rest[0])
            yield [line.removesuffix(b"\r") for line in lines]
        else:
            rest.append(data)
            rest_bytes += len(data)
        # Its end may have been `\r`.
        if rest_bytes > max_line_bytes + 1:
            raise IllegalMessageError(
                f"it is too large: it does not end within {max_line_bytes} bytes, more than any "
                "message holds; is this a file of lines?"
            )
    last = b"".join(rest)
    if last:
        yield [last.removesuffix(b"\r")]


def _can_be_waited_for(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


async def _wait_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(descriptor, wake)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)
