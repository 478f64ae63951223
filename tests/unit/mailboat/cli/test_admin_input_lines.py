import asyncio
import os
from pathlib import Path

import pytest

from mailboat.cli.input_lines import open_input, read_lines
from mailboat.errors import IllegalMessageError

MAX_LINE_BYTES = 1_000_000


async def collect(descriptor: int) -> list[bytes]:
    """Return all lines of a descriptor."""
    return [line async for lines in read_lines(descriptor, MAX_LINE_BYTES) for line in lines]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\nb", [b"a", b"b"]),
        (b"\n\nx\n", [b"", b"", b"x"]),
        (b"x" * 1_000_000 + b"\nend", [b"x" * 1_000_000, b"end"]),
        (b"x" * 1_000_000 + b"\r\nend", [b"x" * 1_000_000, b"end"]),
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
        lines = aiter(read_lines(reading, MAX_LINE_BYTES))
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


@pytest.mark.parametrize("before", [b"", b"first\n"])
async def test_line_without_an_end_is_not_read_whole(tmp_path: Path, before: bytes):
    """What no message can be is refused as soon as that is clear; the lines before it come."""
    path = tmp_path / "lines"
    await asyncio.to_thread(path.write_bytes, before + b"x" * 20_000_000)
    found: list[bytes] = []

    async def read(descriptor: int) -> None:
        async for lines in read_lines(descriptor, MAX_LINE_BYTES):
            found.extend(lines)

    with open_input(path) as descriptor:
        with pytest.raises(IllegalMessageError, match="does not end within 1000000 bytes"):
            await read(descriptor)
        assert os.lseek(descriptor, 0, os.SEEK_CUR) < 2_000_000
    assert found == before.splitlines()


async def test_named_pipe_is_waited_for(tmp_path: Path):
    """Opening it blocks nothing, and its lines come once there is somebody to write."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with open_input(path) as descriptor:
        lines = aiter(read_lines(descriptor, MAX_LINE_BYTES))
        first = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0.05)
        assert not first.done()
        writing = await asyncio.to_thread(os.open, path, os.O_WRONLY)
        os.write(writing, b"one\n")
        assert await asyncio.wait_for(first, 5) == [b"one"]
        os.close(writing)
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(lines), 5)
