import json

import pytest

from mailboat.cli.output import (
    body_text,
    hex_dump,
    message_row,
    print_record,
    print_rows,
    print_section,
    time_text,
)
from mailboat.model.message import MessageExt

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))


def message(body: bytes, **properties: str) -> MessageExt:
    """Return a stored message."""
    return MessageExt(
        "T", body, 1, 5, 1000, 0, 0, 0, 0, 0, HOST, 1_700_000_000_123, HOST, 0, 0, properties
    )


def test_table_is_not_cut_in_a_pipe(capsys: pytest.CaptureFixture[str]):
    """A long value is printed whole on one line when nobody looks at a terminal."""
    print_rows([{"a": "x" * 300, "b": 7}], ("a", "b"), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if "xxx" in line]
    assert row.split() == ["x" * 300, "7"]


def test_table_shows_names_and_values(capsys: pytest.CaptureFixture[str]):
    """Lists are joined, missing values are a dash, and markup in values stays text."""
    row = {"group": "[red]g", "queue_ids": [1, 2], "model": None}
    print_rows([row], ("group", "queue_ids", "model"), as_json=False)
    shown = capsys.readouterr().out
    assert "queue ids" in shown
    assert shown.splitlines()[3].split() == ["[red]g", "1,", "2", "-"]


def test_json_holds_every_field(capsys: pytest.CaptureFixture[str]):
    """For scripts, rows are complete and not only what the table shows."""
    rows = [{"a": 1, "hidden": [2]}]
    print_rows(rows, ("a",), as_json=True)
    assert json.loads(capsys.readouterr().out) == rows


def test_message_as_json():
    """Tags and keys stand apart, and what brokers add to the properties is left out."""
    row = message_row(message(b"hello", TAGS="a", KEYS="k", p="v", WAIT="true", UNIQ_KEY="ID"))
    assert (row["body"], row["tags"], row["key"]) == ("hello", "a", "k")
    assert row["properties"] == {"p": "v"}
    assert (row["message_id"], row["queue_offset"]) == ("ID", 5)
    assert row["offset_message_id"] == "7F00000100002A9F00000000000003E8"
    assert row["store_time"] == "2023-11-14 22:13:20.123Z"


def test_bytes_that_are_no_text_are_base64():
    """A body that is not UTF-8 is still complete in JSON."""
    row = message_row(message(b"\xff\x00"))
    assert "body" not in row
    assert row["body_base64"] == "/wA="


def test_no_time_is_a_dash():
    """Brokers say 0 or -1 where there is no time."""
    assert (time_text(0), time_text(-1)) == ("-", "-")


def test_fields_stand_below_each_other(capsys: pytest.CaptureFixture[str]):
    """Names are padded, lines of a value are indented, tables in a value are on one line."""
    print_record({"a": "x\ny", "long_name": {"b": 1, "c": 2}, "no": False, "none": None})
    assert capsys.readouterr().out.splitlines() == [
        "a          x",
        "           y",
        "long name  b=1, c=2",
        "no         no",
        "none       -",
    ]


def test_empty_section_says_so(capsys: pytest.CaptureFixture[str]):
    """A table without rows is one line."""
    print_section("Members", [], ("a",))
    print_section("Queues", [{"a": 1}], ("a",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["", "Members: none", "", "Queues"]


def test_hex_shows_offset_bytes_and_text():
    """Sixteen bytes a line; what is not printable ASCII is a dot."""
    assert hex_dump(b"0123456789abcdef\x00\xffz") == (
        "00000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef\n"
        "00000010  00 ff 7a                                         ..z"
    )


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"a\tb\nc", "a\tb\nc"),
        ("h\u00e9".encode(), "h\u00e9"),
        (b"\xff", "00000000  ff"),
        (b"a\x1b[31m", "00000000  61 1b 5b 33 31 6d"),
    ],
)
def test_bodies_that_a_terminal_bears_are_text(payload: bytes, expected: str):
    """Bytes that are no text, or would steer the terminal, are shown in hex."""
    assert body_text(payload).startswith(expected)


HOSTILE = "g\nforged  9\x1b[2J\x9b\u202e"


def test_a_name_from_outside_stays_in_its_cell(capsys: pytest.CaptureFixture[str]) -> None:
    """It makes no row of its own, moves no cursor and turns no text around."""
    print_rows([{"group": HOSTILE, "lag": 1}], ("group", "lag"), as_json=False)
    print_record({"client_id": HOSTILE})
    print_section(HOSTILE, [], ())
    shown = capsys.readouterr().out
    assert "g\\nforged  9\\x1b[2J\\x9b\\u202e" in shown
    assert all(line.isprintable() for line in shown.split("\n"))


def test_json_from_outside_is_the_same_value_in_plain_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A script gets the text as it is; a terminal gets no control of any kind."""
    print_rows([{"group": HOSTILE}], ("group",), as_json=True)
    shown = capsys.readouterr().out
    assert json.loads(shown) == [{"group": HOSTILE}]
    assert all(line.isprintable() for line in shown.split("\n"))
