"""Promises of mailboat.log_lines."""

import fcntl
import logging
import os
from collections.abc import Callable, Iterator

import pytest

from mailboat.log_lines import (
    LINES_A_KIND,
    LINES_AN_ADDRESS,
    MAX_LENGTH,
    MAX_VALUE_LENGTH,
    MAX_WAITING,
    WINDOW_S,
    LineHandler,
    LineLimit,
)

Make = Callable[[int], LineHandler]


@pytest.fixture
def make() -> Iterator[Make]:
    """Return what makes a handler of a file descriptor; it is closed in the end."""
    handlers = []

    def made(fd: int) -> LineHandler:
        handler = LineHandler(logging.Formatter("%(levelname)s %(message)s"), fd)
        handlers.append(handler)
        return handler

    yield made
    for handler in handlers:
        handler.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Return both ends of a pipe with room for a page."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def event(text: str, *values: object, level: int = logging.INFO) -> logging.LogRecord:
    """Return what a logger hands to a handler."""
    return logging.LogRecord("a.b", level, "f", 1, text, values, None)


def read_lines(fd: int, end: str) -> list[str]:
    """Read lines up to one that has a text in it."""
    data = ""
    while end not in data or not data.endswith("\n"):
        data += os.read(fd, 65_536).decode()
    return data.splitlines()


def test_lines_come_in_their_order(make: Make, pipe: tuple[int, int]) -> None:
    """With the formatter's words, and sentences that are no events between them."""
    handler = make(pipe[1])
    handler.handle(event("x=%d", 1))
    handler.say("ready")
    handler.handle(event("x=%d", 2, level=logging.ERROR))
    assert read_lines(pipe[0], "x=2") == ["INFO x=1", "ready", "ERROR x=2"]


def test_nobody_waits_for_a_pipe_that_nobody_reads(make: Make, pipe: tuple[int, int]) -> None:
    """What has no room is dropped and counted; who reads at last is told how much that was."""
    handler = make(pipe[1])
    count = MAX_WAITING + 2_000
    for number in range(count):
        handler.say(f"{number:060d}")
    dropped = handler.dropped
    assert dropped > 1_000
    lines: list[str] = []
    while sum(map(str.isdigit, lines)) < count - dropped:
        lines += read_lines(pipe[0], "")
    # All that waited is read, so one more line has room.
    handler.say("the last one")
    lines += read_lines(pipe[0], "the last one")
    numbers = [line for line in lines if line.isdigit()]
    assert numbers == sorted(numbers)
    assert len(numbers) == count - dropped
    told = [line.split()[1] for line in lines if "lines of the log were dropped" in line]
    assert sum(map(int, told)) == dropped


def test_the_end_does_not_wait_for_a_pipe_that_nobody_reads(
    make: Make, pipe: tuple[int, int]
) -> None:
    """`close` returns with lines that are not written."""
    handler = make(pipe[1])
    for number in range(1_000):
        handler.say(f"{number:060d}")
    handler.close()


def test_a_full_disk_costs_lines_only(make: Make) -> None:
    """They are counted; whoever logs hears nothing of it."""
    full = os.open("/dev/full", os.O_WRONLY)
    handler = make(full)
    handler.handle(event("lost"))
    handler.close()
    # The line that would tell of it is lost as well, and is none of theirs.
    assert handler.dropped == 1
    os.close(full)


def test_an_end_that_nobody_holds_costs_lines_only(make: Make) -> None:
    """As when whoever read the log is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    handler = make(writing)
    handler.handle(event("lost"))
    handler.close()
    assert handler.dropped == 1
    os.close(writing)


def test_lines_without_wait_are_written_whole(make: Make, pipe: tuple[int, int]) -> None:
    """Somebody else has made the same terminal one that refuses what it has no room for."""
    os.set_blocking(pipe[1], False)
    handler = make(pipe[1])
    lines = [f"{number:060d}" for number in range(500)]
    for line in lines:
        handler.say(line)
    assert read_lines(pipe[0], lines[-1]) == lines


def test_an_address_has_so_many_lines_of_a_kind() -> None:
    """Others have theirs, and so have other kinds; the next window begins anew."""
    limit = LineLimit()
    said = [limit.admit("joined", "1.2.3.4", 1.0) for _ in range(LINES_AN_ADDRESS + 5)]
    assert said == [0] * LINES_AN_ADDRESS + [None] * 5
    assert limit.admit("left", "1.2.3.4", 1.0) == 0
    assert limit.admit("joined", "5.6.7.8", 1.0) == 5
    assert limit.admit("joined", "5.6.7.8", 1.0) == 0
    assert limit.admit("joined", "1.2.3.4", 1.0) is None
    assert limit.admit("joined", "1.2.3.4", 1.0 + WINDOW_S) == 1


def test_a_kind_has_so_many_lines() -> None:
    """However many addresses there are, and where none is named."""
    limit = LineLimit()
    for number in range(LINES_A_KIND):
        assert limit.admit("joined", f"10.0.{number // 256}.{number % 256}", 1.0) == 0
        assert limit.admit("made", "", 1.0) == 0
    assert limit.admit("joined", "1.2.3.4", 1.0) is None
    assert limit.admit("made", "", 1.0) is None


def test_lines_of_one_peer_are_told_apart_by_its_address(make: Make, pipe: tuple[int, int]) -> None:
    """The port is another one each time; what was left out is told by the next line."""
    handler = make(pipe[1])
    for port in range(LINES_AN_ADDRESS + 3):
        handler.handle(event("joined peer=%s:%d id=%d", "1.2.3.4", port, port))
    handler.handle(event("joined peer=%s:%d id=%d", "[::1]", 1, 1))
    lines = read_lines(pipe[0], "[::1]")
    assert len(lines) == LINES_AN_ADDRESS + 1
    assert lines[-1] == (
        "INFO joined peer=[::1]:1 id=1 (3 more lines of this kind were left out before it)"
    )


def test_who_wants_to_see_everything_sees_it(make: Make, pipe: tuple[int, int]) -> None:
    """DEBUG has no limits but that of the queue."""
    handler = make(pipe[1])
    for number in range(LINES_AN_ADDRESS * 2):
        handler.handle(event("x peer=1.2.3.4:%d", number, level=logging.DEBUG))
    assert len(read_lines(pipe[0], f":{LINES_AN_ADDRESS * 2 - 1}")) == LINES_AN_ADDRESS * 2


def test_a_line_that_cannot_be_made_ends_nobody(make: Make, pipe: tuple[int, int]) -> None:
    """As with every handler of logging."""
    handler = make(pipe[1])
    handler.handle(event("%d", "x"))
    handler.handle(event("good"))
    lines = read_lines(pipe[0], "good")
    assert lines[0].startswith("a line of a.b cannot be written: TypeError: ")


def test_what_was_left_out_last_is_told_at_the_end(make: Make, pipe: tuple[int, int]) -> None:
    """No further line of its kind comes to tell it."""
    handler = make(pipe[1])
    for number in range(LINES_AN_ADDRESS + 3):
        handler.handle(event("joined peer=1.2.3.4:%d", number))
    handler.close()
    lines = read_lines(pipe[0], "left out")
    assert lines[-1] == "WARNING 3 more lines like 'joined peer=1.2.3.4:%d' were left out"
    assert handler.withheld == 3


@pytest.mark.parametrize(
    "text",
    [
        "x client={id} peer=1.2.3.4:{port}", "x peer=[2001:db8::5]:{port}: {id}",
        "x address=2001:db8::5 {id}", "x host=10.0.0.1, {id}",
    ],
)  # fmt: skip
def test_an_address_is_not_what_a_peer_calls_itself(
    make: Make, pipe: tuple[int, int], text: str
) -> None:
    """Nor its port: one peer has so many lines, however many names it gives."""
    handler = make(pipe[1])
    for number in range(LINES_AN_ADDRESS * 2):
        record = event("%s", "")
        record.msg, record.args = text, None
        record.msg = text.replace("{id}", "%d").replace("{port}", "%d")
        record.args = (number,) * (text.count("{"))
        handler.handle(record)
    assert handler.withheld == LINES_AN_ADDRESS


def test_what_a_line_says_has_a_length(make: Make, pipe: tuple[int, int]) -> None:
    """A peer chooses how long its name is; whose line it is must be found all the same."""
    handler = make(pipe[1])
    for level in (logging.DEBUG, logging.INFO):
        handler.handle(
            event("joined client=%s peer=%s", "\x01" * 300_000, "1.2.3.4:5", level=level)
        )
        handler.handle(event("x %s", RuntimeError("y" * 300_000), level=level))
    handler.handle(event("last"))
    joined, spoken, *others, last = read_lines(pipe[0], "last")
    assert len(joined) < MAX_VALUE_LENGTH + 100
    assert joined.endswith("... (298976 more characters) peer=1.2.3.4:5")
    assert len(spoken) < MAX_LENGTH + 100
    assert [line.replace("INFO", "DEBUG") for line in others] == [joined, spoken]
    assert last == "INFO last"
