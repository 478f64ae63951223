"""Promises of mailboat.broker.groups."""

import json

import pytest

import mailboat.broker.groups as groups_module
from mailboat.broker.groups import SubscriptionGroupManager
from mailboat.disk import read_file
from mailboat.disk.json_file import JsonFile
from mailboat.errors import BrokerError, IllegalMessageError
from mailboat.model.data_version import DataVersion
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.testing.simulated_disk import SimulatedDisk

CONFIG = "/store/config"
PATH = CONFIG + "/subscriptionGroup.json"

# As RocketMQ 5.3 writes it, with fields that mailboat does not know.
JAVA_FILE = b"""{
\t"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},
\t"forbiddenTable":{},
\t"subscriptionGroupTable":{
\t\t"please-retry":{
\t\t\t"attributes":{},"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":true,
\t\t\t"consumeFromMinEnable":false,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,
\t\t\t"groupName":"please-retry","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,
\t\t\t"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":3,"retryQueueNums":2,
\t\t\t"whichBrokerWhenConsumeSlowly":1
\t\t}
\t}
}"""


def manager(
    disk: SimulatedDisk | None = None, *, auto_create: bool = True
) -> SubscriptionGroupManager:
    """Return the groups that a disk holds."""
    groups = SubscriptionGroupManager(disk or SimulatedDisk(), CONFIG, auto_create=auto_create)
    groups.load()
    return groups


def test_a_new_broker_has_rocketmqs_own_groups() -> None:
    """The eight groups of the original are there from the start."""
    assert set(manager().table) == {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
    }


def test_a_group_is_made_on_first_use() -> None:
    """With autoCreateSubscriptionGroup an unknown group appears with RocketMQ's defaults."""
    groups = manager()
    config = groups.find("G", "10.0.0.1")
    assert config == SubscriptionGroupConfig("G", retry_max_times=16, retry_queue_nums=1)
    assert groups.select("G") is config


def test_looking_does_not_make_a_group() -> None:
    """Only consumers make groups, not those who ask about them."""
    groups = manager()
    assert groups.select("G") is None
    assert groups.select("G") is None


def test_without_auto_creation_an_unknown_group_stays_unknown() -> None:
    """With autoCreateSubscriptionGroup off, only administrators make groups."""
    groups = manager(auto_create=False)
    assert groups.find("G", "10.0.0.1") is None
    groups.update(SubscriptionGroupConfig("G"))
    assert groups.find("G", "10.0.0.1") is not None


def test_an_illegal_name_makes_no_group() -> None:
    """A client cannot fill the table with names that no tool could delete."""
    groups = manager()
    assert groups.find("no/slash", "10.0.0.1") is None
    with pytest.raises(IllegalMessageError, match="illegal character"):
        groups.update(SubscriptionGroupConfig("no/slash"))


def test_attributes_are_refused() -> None:
    """RocketMQ defines no attribute of groups; one that is set would have no effect."""
    with pytest.raises(IllegalMessageError, match=r"'\+colour' is not supported"):
        manager().update(SubscriptionGroupConfig("G", attributes={"+colour": "red"}))


async def test_groups_survive_a_restart() -> None:
    """A configured group is there after the next start, as it was."""
    disk = SimulatedDisk()
    groups = manager(disk)
    groups.update(SubscriptionGroupConfig("G", retry_max_times=3, consume_enable=False))
    await groups.persist()
    again = manager(disk)
    assert again.select("G") == groups.select("G")
    assert again.data_version == groups.data_version
    assert "TOOLS_CONSUMER" in again.table


async def test_the_file_has_rocketmqs_shape() -> None:
    """A Java broker finds its keys in the file."""
    disk = SimulatedDisk()
    groups = manager(disk)
    groups.find("G", "10.0.0.1")
    await groups.persist()
    content = json.loads(read_file(disk, PATH))
    assert content["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 16
    assert content["dataVersion"]["counter"] == 1


def test_the_file_of_a_java_broker_is_read() -> None:
    """Unknown fields do not matter."""
    disk = SimulatedDisk()
    JsonFile(disk, PATH).save(JAVA_FILE)
    config = manager(disk).select("please-retry")
    assert config is not None
    assert (config.retry_max_times, config.retry_queue_nums) == (3, 2)
    assert config.consume_broadcast_enable is False


def test_a_group_can_be_deleted() -> None:
    """Deleting an unknown group is no error and no change."""
    groups = manager()
    groups.find("G", "10.0.0.1")
    version = groups.data_version.counter
    assert groups.delete("G")
    assert groups.select("G") is None
    assert groups.data_version.counter == version + 1
    assert not groups.delete("G")
    assert groups.data_version.counter == version + 1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"retry_queue_nums": 10_001}, "retryQueueNums=10001; 0 to 10000"),
        ({"retry_queue_nums": -1}, "retryQueueNums=-1; 0 to 10000"),
        ({"retry_queue_nums": 10**25}, "retryQueueNums=1e25 or so"),
        ({"retry_max_times": 1 << 31}, "retryMaxTimes=2147483648"),
        ({"broker_id": -1}, "brokerId=-1; 0 to 9223372036854775807"),
        ({"which_broker_when_consume_slowly": 1 << 63}, "whichBrokerWhenConsumeSlowly="),
        ({"group_sys_flag": 1 << 31}, "groupSysFlag=2147483648"),
        ({"consume_timeout_minute": -(10**4000)}, "consumeTimeoutMinute=-1e4000 or so"),
    ],
)
def test_a_number_out_of_its_limits_is_refused(changed: dict[str, int], words: str) -> None:
    """A Java broker could not read it back, and no page could list so many queues."""
    groups = manager()
    with pytest.raises(IllegalMessageError, match=words):
        groups.update(SubscriptionGroupConfig("G", **changed))  # type: ignore[arg-type]
    assert groups.select("G") is None


async def test_a_file_of_an_earlier_version_is_made_to_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It took any number; the broker starts, says what it changed, and saves what fits."""
    disk = SimulatedDisk()
    bad = JAVA_FILE.replace(b'"retryQueueNums":2', b'"retryQueueNums":1' + b"0" * 25)
    JsonFile(disk, PATH).save(bad.replace(b'"brokerId":0', b'"brokerId":-7'))
    groups = manager(disk)
    config = groups.select("please-retry")
    assert config is not None
    assert (config.retry_queue_nums, config.broker_id, config.retry_max_times) == (10_000, 0, 3)
    assert "retryQueueNums=10000 instead of 1e25 or so" in caplog.text
    assert "brokerId=0 instead of -7" in caplog.text
    await groups.persist()
    saved = json.loads(read_file(disk, PATH))["subscriptionGroupTable"]["please-retry"]
    assert saved["retryQueueNums"] == 10_000


def test_there_are_so_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client can make them and nobody deletes them: no more are made than there is room for."""
    monkeypatch.setattr(groups_module, "MAX_GROUPS", 20)
    groups = manager()
    own = len(groups.table)
    for number in range(100):
        groups.find(f"g{number}", f"10.0.0.{number}")
    assert len(groups.table) == 20
    assert "this broker has 20, the limit is 20" in str(groups.why_not_made("g99", "10.0.0.99"))
    assert groups.find("g0", "10.0.0.1") is not None
    groups.update(SubscriptionGroupConfig("g0", retry_max_times=3))
    with pytest.raises(BrokerError, match="1 more consumer groups cannot be made: this broker has"):
        groups.update(SubscriptionGroupConfig("g99"))
    groups.delete("g0")
    assert groups.find("g99", "10.0.0.1") is not None
    assert len(groups.table) == 20 > own


def test_one_address_makes_a_quarter_of_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have room, and it has again once some of its groups are deleted."""
    monkeypatch.setattr(groups_module, "MAX_GROUPS", 40)
    groups = manager()
    for number in range(11):
        groups.find(f"g{number}", "10.0.0.1")
    assert groups.select("g9") is not None
    assert groups.select("g10") is None
    reason = groups.why_not_made("g10", "10.0.0.1")
    assert reason is not None
    assert reason.endswith("one more exceeds 10 for the address 10.0.0.1")
    assert groups.find("g10", "10.0.0.2") is not None
    groups.delete("g0")
    assert groups.find("g11", "10.0.0.1") is not None
    groups.update(SubscriptionGroupConfig("g12"))


def test_a_group_that_its_master_deletes_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """This replica led when it was made."""
    monkeypatch.setattr(groups_module, "MAX_GROUPS", 40)
    groups = manager()
    for number in range(10):
        groups.find(f"g{number}", "10.0.0.1")
    groups.follow(dict.fromkeys(f"g{number}" for number in range(10)), DataVersion())
    for number in range(10):
        assert groups.find(f"g{number}", "10.0.0.1") is not None
