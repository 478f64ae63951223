import json

import pytest

from mailboat_spark.job.table import (
    committed_files,
    newest_batch,
    partition_columns,
    remove_strays,
)

PART = "part-00000-01234567-89ab-cdef-0123-456789abcde{}.c000.zstd.parquet"


def _entry(name, action="add"):
    return json.dumps({"path": f"file:///data/topic=a/{name}", "action": action})


def _put(table, *folders, number=0, committed=False):
    """Write a file as Spark names it; a committed one as batch `number`."""
    folder = table.joinpath(*folders)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PART.format(number)
    path.write_bytes(b"")
    if committed:
        log = table / "_spark_metadata"
        log.mkdir(exist_ok=True)
        status = {"path": path.as_uri(), "action": "add"}
        (log / str(number)).write_text(f"v1\n{json.dumps(status)}")
    return path


def test_a_compacted_log_stands_for_what_was_before(tmp_path):
    """N.compact holds every batch up to N; older batch files and N itself are not read again."""
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    (log / "8").write_text("v1\n" + _entry("old"))
    (log / "9.compact").write_text("v1\n" + _entry("one") + "\n" + _entry("two%20words"))
    assert newest_batch(tmp_path) == 9
    (log / "10").write_text("v1\n" + _entry("three") + "\n" + _entry("one", "delete"))
    (log / ".11.crc").write_bytes(b"")
    found = committed_files(tmp_path)
    assert {str(path) for path in found} == {"/data/topic=a/two words", "/data/topic=a/three"}
    assert newest_batch(tmp_path) == 10


def test_a_folder_without_a_log_has_no_files(tmp_path):
    """Nothing was committed yet."""
    assert committed_files(tmp_path) == set()
    assert newest_batch(tmp_path) == -1
    assert partition_columns(tmp_path) is None


@pytest.mark.parametrize("columns", [(), ("topic",), ("date", "hour")])
def test_the_columns_are_those_of_the_folders(tmp_path, columns):
    """Folders above the table are none of its columns, and its path may have been another one."""
    table = tmp_path / "stage=one" / "table"
    _put(table, *(f"{column}=1" for column in columns), committed=True)
    assert partition_columns(table) == columns
    moved = tmp_path / "stage=two"
    table.rename(moved)
    assert partition_columns(moved) == columns


def test_strays_go_and_the_rest_stays(tmp_path):
    """Only files of Spark's naming go, from the folders that the job writes to."""
    kept = [
        _put(tmp_path, "topic=a", "date=1", number=1, committed=True),
        # Folders that this job does not write to.
        _put(tmp_path, number=2),
        _put(tmp_path, "topic=a", number=3),
        _put(tmp_path, "topic=a", "hour=1", number=4),
        _put(tmp_path, "date=1", "topic=a", number=5),
        _put(tmp_path, "topic=a", "date=1", "hour=1", number=6),
        _put(tmp_path, "topic=a", "date=1", "_checkpoints", number=7),
    ]
    notes = tmp_path / "topic=a" / "date=2" / "part-of-my-notes.parquet"
    notes.parent.mkdir()
    notes.write_bytes(b"")
    strays = [
        _put(tmp_path, "topic=a", "date=2", number=8),
        _put(tmp_path, "topic=b", "date=1", number=9),
    ]
    # A folder with checkpoints in it is the output of another job.
    (tmp_path / "topic=a" / "date=1" / "_checkpoints").rename(tmp_path / "topic=a/date=1/hour=2")
    kept[-1] = tmp_path / "topic=a/date=1/hour=2" / kept[-1].name
    assert remove_strays(tmp_path, ("topic", "date")) == 2
    assert not any(path.exists() for path in strays)
    assert all(path.exists() for path in [*kept, notes])


@pytest.mark.parametrize("columns", [(), ("topic",), ("topic", "date")])
def test_tables_below_the_table_are_left_alone(tmp_path, columns):
    """Another job's table and a table without a list lose nothing to this one's start."""
    own = [f"{column}=a" for column in columns]
    kept = _put(tmp_path, *own, number=0, committed=True)
    stray = _put(tmp_path, *own, number=1)
    listed = _put(tmp_path / "payments", "topic=p", "date=1", number=2, committed=True)
    plain = _put(tmp_path / "plain", number=3)
    dressed = _put(tmp_path / "topic=payments", "date=1", number=4, committed=True)
    begun = _put(tmp_path / "topic=begun", "date=1", number=5)
    (tmp_path / "topic=begun" / "_checkpoints").mkdir()
    assert remove_strays(tmp_path, columns) == 1
    assert not stray.exists()
    assert all(path.exists() for path in (kept, listed, plain, dressed, begun))


def test_strays_are_not_followed_out_of_the_table(tmp_path):
    """What a link leads to is not the job's."""
    table = tmp_path / "table"
    _put(table, "topic=a", committed=True)
    outside = _put(tmp_path / "outside", number=1)
    (table / "topic=b").symlink_to(outside.parent)
    assert remove_strays(table, ("topic",)) == 0
    assert outside.exists()
