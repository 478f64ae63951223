import json

import pytest

from mailboat.cli.output import message_row, print_rows, time_text
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
