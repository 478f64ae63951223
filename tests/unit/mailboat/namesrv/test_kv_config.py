"""The key-value table."""

import errno
from random import Random

import msgspec
import pytest

from mailboat.disk import read_file, replace_file
from mailboat.disk.json_file import JsonFile
from mailboat.errors import BrokerError
from mailboat.namesrv.kv_config import MAX_BYTES, KvConfigManager, _file_slices
from mailboat.protocol.codes import ResponseCode
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


async def test_the_table_has_a_limit_as_it_is_written() -> None:
    """A control character takes six bytes: the answers to registrations must fit a frame."""
    disk = SimulatedDisk()
    table = KvConfigManager(JsonFile(disk, PATH))
    namespace = "n"
    for number in range(100):
        try:
            await table.put(namespace, f"{number}" + "\x01" * 60_000, "\x01" * 30_000)
        except BrokerError as error:
            assert error.code == ResponseCode.SYSTEM_ERROR
            assert f"at most {MAX_BYTES} are allowed" in error.remark
            break
    listed = table.namespace(namespace)
    assert listed is not None
    assert len(listed) == 7
    assert len(read_file(disk, PATH)) <= MAX_BYTES
    again = KvConfigManager(JsonFile(disk, PATH))
    again.load()
    assert again.namespace(namespace) == listed
    for key in listed:
        await again.delete(namespace, key)
    assert again._bytes < 100


async def test_a_large_table_is_written_in_slices() -> None:
    """Nobody waits for more than one of them."""
    table = {"n": {f"k{number}": "v" * 20 for number in range(5_000)}, "m": {}, "o": {"k": "v"}}
    slices = list(_file_slices(table))
    assert len(slices) > 2
    assert max(map(len, slices)) < 70_000
    assert msgspec.json.decode(b"".join(slices)) == {"configTable": table}
    assert b"".join(_file_slices({"n": {"k": "v"}})) == (
        b'{\n "configTable": {\n  "n": {\n   "k": "v"\n  }\n }\n}\n'
    )


@pytest.mark.parametrize("key", ["\x01", "", "a b", "t" * 128])
async def test_only_topics_have_order_configurations(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What an earlier version took is left out at the next start."""
    table = KvConfigManager()
    with pytest.raises(BrokerError) as caught:
        await table.put("ORDER_TOPIC_CONFIG", key, "broker-a:4")
    assert caught.value.code == ResponseCode.INVALID_PARAMETER
    assert table.namespace("ORDER_TOPIC_CONFIG") is None
    disk = SimulatedDisk()
    content = {"configTable": {"ORDER_TOPIC_CONFIG": {key: "b:4", "T": "b:4"}, "n": {key: "v"}}}
    JsonFile(disk, PATH).save(msgspec.json.encode(content))
    table = KvConfigManager(JsonFile(disk, PATH))
    table.load()
    assert table.namespace("ORDER_TOPIC_CONFIG") == {"T": "b:4"}
    assert table.get("n", key) == "v"
    assert "1 order configurations are ignored" in caplog.text
