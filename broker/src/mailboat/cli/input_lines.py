"""Lines of a file, a pipe or a terminal, as they come, without blocking the event loop."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from typing import Final

_READ_BYTES: Final = 256 * 1024


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    r"""Yield the lines that each read completes, without their `\n` or `\r\n`.

    A line that is typed is there at once; a last line without an end counts too.
    """
    rest: list[bytes] = []
    can_wait = _can_be_waited_for(descriptor)
    while True:
        if can_wait:
            await _wait_readable(descriptor)
        else:
            # A regular file is always readable; the loop gets its turn here.
            await asyncio.sleep(0)
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            break
        if b"\n" not in data:
            rest.append(data)
            continue
        lines = b"".join((*rest, data)).split(b"\n")
        rest = [lines.pop()]
        yield [line.removesuffix(b"\r") for line in lines]
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
