"""The key-value table."""

import errno
from random import Random

import pytest

from mailboat.disk import read_file, replace_file
from mailboat.disk.json_file import JsonFile
from mailboat.errors import BrokerError
from mailboat.namesrv.kv_config import KvConfigManager
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.testing.simulated_disk import SimulatedDisk

PATH = "/namesrv/kvConfig.json"
# As fastjson writes it for a name server of RocketMQ.
JAVA_FILE = b"""{
\t"configTable":{"ORDER_TOPIC_CONFIG":{
\t\t\t"orders":"broker-a:4;broker-b:4"
\t\t}
\t}
}"""


async def test_a_value_is_found_under_its_namespace_and_key_only() -> None:
    """Namespaces do not see each other, and the last value counts."""
    table = KvConfigManager()
    await table.put("n", "k", "old")
    await table.put("n", "k", "new")
    assert table.get("n", "k") == "new"
    assert table.get("m", "k") is None
    assert table.get("n", "other") is None


async def test_a_deleted_key_is_gone_and_its_namespace_stays() -> None:
    """Deleting what is not there is no error."""
    table = KvConfigManager()
    await table.put("n", "k", "v")
    await table.delete("n", "k")
    await table.delete("n", "k")
    await table.delete("m", "k")
    assert table.namespace("n") == {}
    assert table.namespace("m") is None


async def test_a_listed_namespace_is_a_copy() -> None:
    """Changing it does not change the table."""
    table = KvConfigManager()
    await table.put("n", "k", "v")
    listed = table.namespace("n")
    assert listed == {"k": "v"}
    listed.clear()
    assert table.get("n", "k") == "v"


async def test_a_change_outlives_a_power_cut() -> None:
    """What was answered is on the disk, deletions too."""
    disk = SimulatedDisk()
    table = KvConfigManager(JsonFile(disk, PATH))
    table.load()
    await table.put("n", "k", "v")
    await table.put("n", "gone", "v")
    await table.delete("n", "gone")
    table = KvConfigManager(JsonFile(disk.crash(Random(1)), PATH))
    table.load()
    assert table.namespace("n") == {"k": "v"}


async def test_javas_file_is_read_and_goes_on() -> None:
    """The file of a RocketMQ name server is taken over."""
    disk = SimulatedDisk()
    disk.make_dirs("/namesrv")
    replace_file(disk, PATH, JAVA_FILE)
    table = KvConfigManager(JsonFile(disk, PATH))
    table.load()
    assert table.namespace("ORDER_TOPIC_CONFIG") == {"orders": "broker-a:4;broker-b:4"}
    await table.put("ORDER_TOPIC_CONFIG", "more", "broker-a:1")
    assert b'"more": "broker-a:1"' in read_file(disk, PATH)


async def test_what_the_disk_refuses_is_not_changed() -> None:
    """The caller is told, and the table is as it was."""
    disk = FaultyDisk(SimulatedDisk())
    table = KvConfigManager(JsonFile(disk, PATH))
    await table.put("n", "k", "old")
    disk.inject(Fault(("fdatasync",), 1, errno.ENOSPC))
    with pytest.raises(BrokerError, match=r"not changed: /namesrv/kvConfig.json cannot be written"):
        await table.put("n", "k", "new")
    assert table.get("n", "k") == "old"
    disk.inject(Fault(("fdatasync",), 1, errno.ENOSPC))
    with pytest.raises(BrokerError):
        await table.delete("n", "k")
    assert table.get("n", "k") == "old"
