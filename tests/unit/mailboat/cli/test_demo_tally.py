import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from mailboat.cli.demo_tally import (
    ParquetTally,
    Tally,
    committed_files,
    differences,
    tally_parquet,
)

ROWS = [
    {"queue_id": 0, "queue_offset": 0, "keys": "f:1", "tags": "a", "value": b"one"},
    {"queue_id": 0, "queue_offset": 1, "keys": "f:2", "tags": "b", "value": b"two"},
    {"queue_id": 1, "queue_offset": 0, "keys": "f:3", "tags": "a", "value": b"\xff\x00"},
]


def sent(rows=ROWS):
    """Return the producer's tally of rows."""
    tally = Tally()
    for row in rows:
        tally.add(row["tags"], row["keys"], row["value"])
    return tally


def arrived(tmp_path, rows):
    """Write rows as Spark would and tally the file."""
    path = tmp_path / "part.parquet"
    pyarrow.parquet.write_table(
        pa.Table.from_pylist([{"broker_name": "b", **row} for row in rows]), path
    )
    return list(tally_parquet([path]))[-1]


def test_equal_sides_have_no_difference(tmp_path):
    """All messages, in any order, are no difference."""
    found = arrived(tmp_path, ROWS[::-1])
    assert differences(sent(), found) == []
    assert found.tally.messages == 3
    assert found.tally.body_bytes == 8
    assert found.files == 1


def test_a_missing_message_is_found(tmp_path):
    """One message less of a tag is named with its tag."""
    assert differences(sent(), arrived(tmp_path, ROWS[1:])) == [
        "tag a: 1 of 2 messages are missing"
    ]


def test_a_doubled_message_is_found_twice_over(tmp_path):
    """A row that came twice shows in the count and in its offset."""
    assert differences(sent(), arrived(tmp_path, [*ROWS, ROWS[1]])) == [
        "tag b: 1 messages too many, 1 were sent",
        "1 queue offsets came more than once",
    ]


@pytest.mark.parametrize(
    "change", [{"value": b"One"}, {"keys": "f:9"}, {"value": b"e", "keys": "f:1on"}]
)
def test_a_changed_message_is_found(tmp_path, change):
    """Another body or key is found although the counts agree."""
    rows = [{**ROWS[0], **change}, *ROWS[1:]]
    assert differences(sent(), arrived(tmp_path, rows)) == [
        "tag a: the number is right, keys or bodies were changed"
    ]


def test_one_lost_and_one_doubled_do_not_cancel_out(tmp_path):
    """Equal counts with the wrong messages are found."""
    rows = [ROWS[0], {**ROWS[0], "queue_offset": 7}, ROWS[1]]
    assert differences(sent(), arrived(tmp_path, rows)) == [
        "tag a: the number is right, keys or bodies were changed"
    ]


def test_swapped_bodies_are_found(tmp_path):
    """Bodies that changed places within a tag are found, for each belongs to its key."""
    rows = [{**ROWS[0], "value": ROWS[2]["value"]}, ROWS[1], {**ROWS[2], "value": ROWS[0]["value"]}]
    assert len(differences(sent(), arrived(tmp_path, rows))) == 1


def test_a_changed_tag_is_found(tmp_path):
    """A message under another tag is missing in one and too many in the other."""
    rows = [*ROWS[:2], {**ROWS[2], "tags": "b"}]
    assert len(differences(sent(), arrived(tmp_path, rows))) == 2


def test_nothing_arrived():
    """An empty output is all messages missing."""
    assert len(differences(sent(), ParquetTally())) == 2


def test_no_files_is_an_empty_tally():
    """A job that wrote nothing leaves nothing to read."""
    assert [found.tally.messages for found in tally_parquet([])] == [0]


def test_only_committed_files_count(tmp_path):
    """A killed job's leftovers are not in the sink's log; a compacted log replaces its parts."""
    log = tmp_path / "_spark_metadata"
    log.mkdir()

    def entry(name):
        return json.dumps({"path": f"file://{tmp_path}/{name}", "size": 1, "action": "add"})

    (log / "0").write_text("v1\n" + entry("part%200.parquet"))
    (log / "1").write_text("v1\n" + entry("one.parquet"))
    (log / "1.compact").write_text("v1\n" + entry("part%200.parquet") + "\n" + entry("one.parquet"))
    (log / "10").write_text("v1\n" + entry("ten.parquet"))
    (log / ".2.crc").write_text("")
    (tmp_path / "leftover.parquet").write_bytes(b"")
    names = [path.name for path in committed_files(tmp_path)]
    assert names == ["part 0.parquet", "one.parquet", "ten.parquet"]


def test_an_output_without_a_log_has_no_files(tmp_path):
    """A job that never committed has no output."""
    (tmp_path / "leftover.parquet").write_bytes(b"")
    assert committed_files(tmp_path) == []
