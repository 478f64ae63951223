import json

from mailboat_spark.job.table import committed_files


def _entry(name, action="add"):
    return json.dumps({"path": f"file:///data/topic=a/{name}", "action": action})


def test_a_compacted_log_stands_for_what_was_before(tmp_path):
    """N.compact holds every batch up to N; older batch files and N itself are not read again."""
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    (log / "8").write_text("v1\n" + _entry("old"))
    (log / "9.compact").write_text("v1\n" + _entry("one") + "\n" + _entry("two%20words"))
    (log / "10").write_text("v1\n" + _entry("three") + "\n" + _entry("one", "delete"))
    (log / ".10.crc").write_bytes(b"")
    found = committed_files(tmp_path)
    assert {str(path) for path in found} == {"/data/topic=a/two words", "/data/topic=a/three"}


def test_a_folder_without_a_log_has_no_files(tmp_path):
    """Nothing was committed yet."""
    assert committed_files(tmp_path) == set()
