"""The key-value table."""

from mailboat.namesrv.kv_config import KvConfigManager


def test_a_value_is_found_under_its_namespace_and_key_only() -> None:
    """Namespaces do not see each other, and the last value counts."""
    table = KvConfigManager()
    table.put("n", "k", "old")
    table.put("n", "k", "new")
    assert table.get("n", "k") == "new"
    assert table.get("m", "k") is None
    assert table.get("n", "other") is None


def test_a_deleted_key_is_gone_and_its_namespace_stays() -> None:
    """Deleting what is not there is no error."""
    table = KvConfigManager()
    table.put("n", "k", "v")
    table.delete("n", "k")
    table.delete("n", "k")
    table.delete("m", "k")
    assert table.namespace("n") == {}
    assert table.namespace("m") is None


def test_a_listed_namespace_is_a_copy() -> None:
    """Changing it does not change the table."""
    table = KvConfigManager()
    table.put("n", "k", "v")
    listed = table.namespace("n")
    assert listed == {"k": "v"}
    listed.clear()
    assert table.get("n", "k") == "v"
