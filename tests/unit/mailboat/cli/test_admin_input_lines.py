import asyncio
import os
from pathlib import Path

import pytest

from mailboat.cli.input_lines import read_lines


async def collect(descriptor: int) -> list[bytes]:
    """Return all lines of a descriptor."""
    return [line async for lines in read_lines(descriptor) for line in lines]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\nb", [b"a", b"b"]),
        (b"\n\nx\n", [b"", b"", b"x"]),
        (b"x" * 1_000_000 + b"\nend", [b"x" * 1_000_000, b"end"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
async def test_lines_of_a_file(tmp_path: Path, content: bytes, expected: list[bytes]):
    """Every line comes, whatever its length and bytes; the last one needs no end."""
    path = tmp_path / "lines"
    await asyncio.to_thread(path.write_bytes, content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert await collect(descriptor) == expected
    finally:
        os.close(descriptor)


async def test_line_of_a_pipe_comes_at_once():
    """A line that somebody typed does not wait for the next one, and the loop is not blocked."""
    reading, writing = os.pipe()
    try:
        lines = aiter(read_lines(reading))
        first = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0)
        assert not first.done()
        os.write(writing, b"one\ntw")
        assert await asyncio.wait_for(first, 5) == [b"one"]
        os.write(writing, b"o\n")
        assert await asyncio.wait_for(anext(lines), 5) == [b"two"]
        os.close(writing)
        writing = -1
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(lines), 5)
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
