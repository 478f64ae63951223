"""Promises of mailboat.broker.foreign_tables: what a stopped broker's files say is taken over."""

import json
from collections.abc import Generator

import pytest

from mailboat.broker.delay_progress import DelayProgress, QueueBounds
from mailboat.broker.foreign_tables import ForeignTables, Taken, read_tables, take_over
from mailboat.broker.groups import SubscriptionGroupManager
from mailboat.broker.offsets import ConsumerOffsetManager
from mailboat.broker.topics import TopicConfigManager
from mailboat.config import BrokerConfig
from mailboat.disk import read_file, replace_file
from mailboat.errors import DamagedStoreError
from mailboat.model.delay_level import DelayLevels
from mailboat.model.topic import TopicConfig
from mailboat.testing.simulated_disk import SimulatedDisk

_THEIRS = "/theirs/config"
_MINE = "/mine/config"

# As RocketMQ 5 writes them: fastjson leaves numbers that are keys without quotes.
_JAVA_FILES = {
    "topics": b"""{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1700000000000},
        "topicConfigTable":{
            "T":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",
                 "topicName":"T","topicSysFlag":0,"writeQueueNums":5},
            "TBW102":{"order":false,"perm":7,"readQueueNums":3,"topicFilterType":"SINGLE_TAG",
                 "topicName":"TBW102","topicSysFlag":0,"writeQueueNums":3}}}""",
    "subscriptionGroup": b"""{"dataVersion":{"counter":3,"timestamp":1700000000000},
        "subscriptionGroupTable":{"G":{"groupName":"G","retryMaxTimes":7,"brokerId":0}}}""",
    "consumerOffset": b"""{"offsetTable":{"T@G":{0:379,1:380},"%RETRY%G@G":{0:7},"odd":{0:1}}}""",
    "delayOffset": b"""{"dataVersion":{"counter":9},"offsetTable":{1:5,3:12}}""",
}


class Mine:
    """A broker's managers, as its files leave them."""

    def __init__(self, disk: SimulatedDisk) -> None:
        """Load them."""
        self.topics = TopicConfigManager(BrokerConfig(), disk, _MINE)
        self.groups = SubscriptionGroupManager(disk, _MINE, auto_create=False)
        self.offsets = ConsumerOffsetManager(disk, _MINE)
        self.delay = DelayProgress(disk, _MINE, DelayLevels("1s 5s 10s"))
        for manager in (self.topics, self.groups, self.offsets, self.delay):
            manager.load()

    def take(self, tables: ForeignTables) -> Taken:
        """Take tables over."""
        steps = self.steps(tables)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                taken: Taken = done.value
                return taken

    def steps(self, tables: ForeignTables) -> Generator[None, None, Taken]:
        """Take tables over, a step at a time."""
        return take_over(tables, self.topics, self.groups, self.offsets, self.delay)


def _java_tables(**files: bytes) -> ForeignTables:
    disk = SimulatedDisk()
    disk.make_dirs(_THEIRS)
    for name, content in {**_JAVA_FILES, **files}.items():
        replace_file(disk, f"{_THEIRS}/{name}.json", content)
    return read_tables(disk, _THEIRS)


def test_tables_of_a_java_broker_are_taken_over_and_kept() -> None:
    """An empty broker has what the files of RocketMQ say, also after a restart, and once only."""
    disk = SimulatedDisk()
    mine = Mine(disk)
    assert mine.take(_java_tables()) == Taken(1, 1, 2, 2)
    for manager in (mine.topics, mine.groups, mine.offsets):
        manager.persist_blocking()
    mine.delay.persist_blocking(is_durable=False)
    again = Mine(disk)
    assert again.topics.table["T"] == TopicConfig("T", read_queue_nums=4, write_queue_nums=5)
    assert again.topics.table["TBW102"].read_queue_nums == 8
    group = again.groups.select("G")
    assert group is not None
    assert group.retry_max_times == 7
    assert again.offsets.queues("G", "T") == {0: 379, 1: 380}
    assert again.offsets.query("G", "%RETRY%G", 0) == 7
    again.delay.take_up([QueueBounds(0, 0, 20), QueueBounds(2, 0, 20)])
    assert again.delay.offsets() == {1: 5, 3: 12}
    assert again.take(_java_tables()) == Taken()


def test_what_is_further_stays() -> None:
    """Offsets and delivered messages go back for no file; a group that was set back stays so."""
    mine = Mine(SimulatedDisk())
    mine.take(_java_tables())
    mine.offsets.commit("G", "T", 0, 400)
    mine.offsets.commit("G", "T", 2, 1)
    later = _java_tables(
        consumerOffset=b'{"offsetTable":{"T@G":{0:390,1:381}}}',
        delayOffset=b'{"offsetTable":{1:4,3:13}}',
    )
    assert mine.take(later) == Taken(0, 0, 1, 1)
    assert mine.offsets.queues("G", "T") == {0: 400, 1: 381, 2: 1}
    mine.delay.take_up([QueueBounds(0, 0, 20), QueueBounds(2, 0, 20)])
    assert mine.delay.offsets() == {1: 5, 3: 13}
    mine.offsets.reset("G", "T", 0, 10)
    assert mine.take(later) == Taken()
    assert mine.offsets.query("G", "T", 0) == 10


def test_a_newer_table_replaces_an_older_one() -> None:
    """Of topics and groups the newer table counts as a whole: what it has not, was deleted."""
    mine = Mine(SimulatedDisk())
    mine.take(_java_tables())
    other = {"topicName": "U", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}

    def topics(counter: int) -> bytes:
        version = {"counter": counter, "stateVersion": 0, "timestamp": 1700000000001}
        return json.dumps({"dataVersion": version, "topicConfigTable": {"U": other}}).encode()

    assert mine.take(_java_tables(topics=topics(1))).topics == 0
    assert "T" in mine.topics.table
    assert mine.take(_java_tables(topics=topics(3))).topics == 2
    assert "T" not in mine.topics.table
    assert "U" in mine.topics.table
    assert "RMQ_SYS_TRANS_HALF_TOPIC" in mine.topics.table


def test_files_that_are_missing_change_nothing() -> None:
    """A folder without files has no tables; one that cannot be read is an error."""
    disk = SimulatedDisk()
    disk.make_dirs(_THEIRS)
    assert Mine(disk).take(read_tables(disk, _THEIRS)) == Taken()
    replace_file(disk, f"{_THEIRS}/topics.json", b"{")
    with pytest.raises(DamagedStoreError, match=r"topics\.json"):
        read_tables(disk, _THEIRS)
    assert read_file(disk, f"{_THEIRS}/topics.json") == b"{"


def test_odd_entries_are_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """Names, numbers and texts that nobody may have: the others are taken, whichever table it is,
    and what is here under the name of an odd one stays."""
    mine = Mine(SimulatedDisk())
    mine.take(_java_tables())
    sound = json.loads(_JAVA_FILES["topics"])["topicConfigTable"]["T"]
    topics = {
        "U": sound | {"topicName": "U", "perm": 9, "writeQueueNums": 20_000},
        "a b": sound | {"topicName": "a b"},
        "other": sound,
        "T": sound | {"topicFilterType": "X"},
    }
    groups = {
        "H": {"groupName": "H", "retryQueueNums": -1},
        "G": {"groupName": "G", "retryMaxTimes": "many"},
        "x" * 250: {"groupName": "x" * 250},
    }
    version = {"counter": 9, "timestamp": 1_700_000_000_002}
    tables = _java_tables(
        topics=json.dumps({"dataVersion": version, "topicConfigTable": topics}).encode(),
        subscriptionGroup=json.dumps(
            {"dataVersion": version, "subscriptionGroupTable": groups}
        ).encode(),
        consumerOffset=b"""{"offsetTable":{"T@G":{0:400,1:-1,-2:5},"T@H":{0:"x"},"a/b@G":{0:1},
            "U@H":{7:9}},"generationTable":{"U@H":-4}}""",
        delayOffset=b"""{"offsetTable":{0:1,1:-1,2:"many",3:20,4:9223372036854775808,5:6},
            "mailboatDelayLevel":"1s 2 weeks",
            "mailboatRanges":{"3":[[20,22],[25,null]],"5":[[9,8],[10,null]]}}""",
    )
    assert mine.take(tables) == Taken(1, 1, 2, 2)
    assert mine.topics.table["U"] == TopicConfig("U", 4, 10_000, perm=7)
    assert mine.topics.table["T"] == TopicConfig("T", read_queue_nums=4, write_queue_nums=5)
    assert not {"a b", "other"} & mine.topics.table.keys()
    assert mine.groups.table["H"].retry_queue_nums == 0
    assert mine.groups.table["G"].retry_max_times == 7
    assert "x" * 250 not in mine.groups.table
    assert mine.offsets.queues("G", "T") == {0: 400, 1: 380}
    assert mine.offsets.queues("H", "U") == {7: 9}
    assert mine.offsets.queues("H", "T") == {}
    mine.delay.take_up([QueueBounds(level - 1, 0, 30) for level in (1, 2, 3, 5)])
    assert mine.delay.offsets() == {1: 5, 2: 0, 3: 20, 5: 6}
    assert [found.next_offset for found in mine.delay if found.level == 3] == [20, 25]
    said = [text for text in caplog.messages if "left out" in text]
    for text, name, odd in zip(
        said[-4:],
        ("topics", "subscriptionGroup", "consumerOffset", "delayOffset"),
        ("'a b'", "'G'", "'T@H'", "'1'"),
        strict=True,
    ):
        assert text.startswith(f"entries of {_THEIRS}/{name}.json that are left out: ")
        assert odd in text


def test_a_master_of_ours_hands_on_its_resets() -> None:
    """A group that was set back there more often than here goes back, and waits for its pull."""
    mine, theirs = Mine(SimulatedDisk()), Mine(disk := SimulatedDisk())
    mine.take(_java_tables())
    theirs.take(_java_tables())
    theirs.offsets.reset("G", "T", 1, 7)
    theirs.offsets.persist_blocking()
    content = read_file(disk, f"{_MINE}/consumerOffset.json")
    assert mine.take(_java_tables(consumerOffset=content)) == Taken(0, 0, 1, 0)
    assert mine.offsets.queues("G", "T") == {0: 379, 1: 7}
    assert mine.offsets.is_reset("G", "T", 1)


def test_what_was_taken_halfway_is_taken_again() -> None:
    """Whatever was saved of it: the version of a table is taken with the last of its entries."""
    topic = json.loads(_JAVA_FILES["topics"])["topicConfigTable"]["T"]
    topics = {f"T{number}": topic | {"topicName": f"T{number}"} for number in range(500)}
    version = {"counter": 2, "timestamp": 1_700_000_000_000}
    groups = {f"G{number}": {"groupName": f"G{number}"} for number in range(500)}
    tables = _java_tables(
        topics=json.dumps({"dataVersion": version, "topicConfigTable": topics}).encode(),
        subscriptionGroup=json.dumps(
            {"dataVersion": version, "subscriptionGroupTable": groups}
        ).encode(),
    )
    disk = SimulatedDisk()
    disk.make_dirs(_MINE)
    for steps in range(0, 2000, 150):
        mine = Mine(disk)
        for _, _ in zip(range(steps), mine.steps(tables), strict=False):
            pass
        for manager in (mine.topics, mine.groups, mine.offsets):
            manager.persist_blocking()
        mine = Mine(disk)
        mine.take(tables)
        assert mine.topics.table.keys() >= topics.keys()
        assert mine.groups.table.keys() >= groups.keys()
        assert mine.topics.data_version.counter == 2
        disk = SimulatedDisk()
        disk.make_dirs(_MINE)
