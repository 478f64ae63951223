import io
import itertools
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.cli import demo_lines
from mailboat.cli.demo_lines import Line, LineSource
from mailboat.errors import MailboatError


def lines_of(given_input, limit=None):
    """Return every line of an input."""
    return list(LineSource(str(given_input), limit).lines())


def test_keys_and_tags_come_from_the_path(tmp_path):
    """The key is path and line number, the tag the package: top folder or the file's own name."""
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "decoder.py").write_bytes(b"import re\n\nx = 1\n")
    (tmp_path / "ast.py").write_bytes(b"a\r\n")
    assert lines_of(tmp_path) == [
        Line("ast.py:1", "ast", b"a"),
        Line("json/decoder.py:1", "json", b"import re"),
        Line("json/decoder.py:3", "json", b"x = 1"),
    ]


def test_a_single_file_is_named_without_its_folder(tmp_path):
    """A file given by a long path has short keys."""
    (tmp_path / "app.log").write_bytes(b"one\ntwo")
    lines = lines_of(tmp_path / "app.log")
    assert lines == [Line("app.log:1", "app", b"one"), Line("app.log:2", "app", b"two")]


def test_keys_are_single_words_whatever_the_path(tmp_path):
    """RocketMQ separates keys by spaces; paths may hold them, or bytes that are no text."""
    name = b"a b\xff\x01.txt".decode("utf-8", "surrogateescape")
    (tmp_path / name).write_bytes(b"x")
    [line] = lines_of(tmp_path)
    assert line == Line("a%20b%FF%01.txt:1", "a%20b%FF%01", b"x")


def test_bytes_that_are_no_text_are_kept(tmp_path):
    """Lines are bytes; no encoding is assumed."""
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00\x80\n")
    assert [line.body for line in lines_of(tmp_path)] == [b"\xff\xfe\x00\x80"]


def test_empty_lines_are_left_out_and_counted(tmp_path):
    """A RocketMQ message needs a body; numbers still are those of the file."""
    (tmp_path / "f").write_bytes(b"\n\r\na\n\n")
    source = LineSource(str(tmp_path / "f"), None)
    assert list(source.lines()) == [Line("f:3", "f", b"a")]
    assert source.counts.empty_lines == 3


@given(st.binary(max_size=60), st.integers(1, 9))
def test_parts_put_together_are_the_lines(data, part_bytes):
    """However long lines are, their parts hold all content and each has its own key."""
    source = LineSource("-", None)
    original = demo_lines.PART_BYTES
    demo_lines.PART_BYTES = part_bytes
    try:
        lines = list(source._file_lines(io.BytesIO(data), name="f", tag="t"))
    finally:
        demo_lines.PART_BYTES = original
    assert all(0 < len(line.body) <= part_bytes for line in lines)
    assert len({line.key for line in lines}) == len(lines)
    by_number = itertools.groupby(lines, key=lambda line: line.key.split(":")[1].split(".")[0])
    joined = {int(number): b"".join(part.body for part in parts) for number, parts in by_number}
    for number, whole in enumerate(data.split(b"\n"), 1):
        found = joined.get(number, b"")
        # Carriage returns at a line's end may go; nothing else may.
        assert found.rstrip(b"\r") == whole.rstrip(b"\r")


def test_a_long_line_is_counted_once(tmp_path, monkeypatch):
    """A line in three parts is one long line."""
    monkeypatch.setattr(demo_lines, "PART_BYTES", 4)
    (tmp_path / "f").write_bytes(b"0123456789\nab\n")
    source = LineSource(str(tmp_path / "f"), None)
    assert [(line.key, line.body) for line in source.lines()] == [
        ("f:1.1", b"0123"),
        ("f:1.2", b"4567"),
        ("f:1.3", b"89"),
        ("f:2", b"ab"),
    ]
    assert source.counts.split_lines == 1


def test_standard_input(monkeypatch):
    """`-` reads standard input."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"x\ny\n")))
    assert lines_of("-") == [Line("stdin:1", "stdin", b"x"), Line("stdin:2", "stdin", b"y")]


def test_the_limit_is_exact(tmp_path):
    """Not one line more than asked for."""
    (tmp_path / "f").write_bytes(b"a\nb\nc\n")
    assert len(lines_of(tmp_path / "f", 2)) == 2
    assert len(lines_of(tmp_path / "f", 9)) == 3


def test_without_an_input_python_itself_is_read():
    """The default needs no file: the standard library's sources are there wherever Python is."""
    root = Path(sysconfig.get_paths()["stdlib"])
    lines = list(LineSource(None, 500).lines())
    assert len(lines) == 500
    path, _, number = lines[-1].key.rpartition(":")
    original = (root / path).read_bytes().split(b"\n")[int(number) - 1]
    assert lines[-1].body == original.rstrip(b"\r")


def test_a_short_default_is_read_again_under_other_keys(tmp_path, monkeypatch):
    """A machine with few sources still gives as many messages as asked for, all different."""
    (tmp_path / "a.py").write_bytes(b"1\n2\n")
    monkeypatch.setattr(demo_lines, "_python_roots", lambda: [tmp_path])
    keys = [line.key for line in LineSource(None, 5).lines()]
    assert keys == ["a.py:1", "a.py:2", "round-2/a.py:1", "round-2/a.py:2", "round-3/a.py:1"]


def test_a_machine_without_sources_ends(tmp_path, monkeypatch):
    """No sources at all is an end, not a loop."""
    monkeypatch.setattr(demo_lines, "_python_roots", lambda: [tmp_path])
    assert list(LineSource(None, 5).lines()) == []


def test_an_unreadable_file_is_named(tmp_path):
    """A file that cannot be opened ends the demo with its path."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(MailboatError, match="loop cannot be read"):
        lines_of(tmp_path / "loop")
