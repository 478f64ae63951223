"""Promises of mailboat.broker.offsets."""

import asyncio
import json

import pytest

from mailboat.broker.offsets import ConsumerOffsetManager, SharedOffsets
from mailboat.disk import read_file
from mailboat.disk.json_file import JsonFile
from mailboat.errors import DamagedStoreError
from mailboat.testing.simulated_disk import SimulatedDisk

CONFIG = "/store/config"
PATH = CONFIG + "/consumerOffset.json"

# As RocketMQ 5 writes it: fastjson leaves the queue ids without quotes.
JAVA_FILE = b"""{
\t"dataVersion":{
\t\t"counter":4,
\t\t"stateVersion":0,
\t\t"timestamp":1700000000000
\t},
\t"groupTopicMap":{"G":["T","%RETRY%G"]},
\t"offsetTable":{
\t\t"T@G":{0:379,1:380
\t\t},
\t\t"%RETRY%G@G":{0:7}
\t}
}"""


def manager(disk: SimulatedDisk | None = None) -> ConsumerOffsetManager:
    """Return the offsets that a disk holds."""
    offsets = ConsumerOffsetManager(disk or SimulatedDisk(), CONFIG)
    offsets.load()
    return offsets


def test_a_committed_offset_is_found() -> None:
    """A commit is seen at once, for its group, topic and queue only."""
    offsets = manager()
    offsets.commit("G", "T", 3, 17)
    assert offsets.query("G", "T", 3) == 17
    assert offsets.query("G", "T", 2) == -1
    assert offsets.query("H", "T", 3) == -1
    assert offsets.queues("G", "T") == {3: 17}


def test_negative_offsets_say_nothing() -> None:
    """Some clients commit -1 when they know nothing; that must not count as an offset."""
    offsets = manager()
    offsets.commit("G", "T", 0, 5)
    offsets.commit("G", "T", 0, -1)
    offsets.commit("G", "T", 1, -1)
    assert offsets.queues("G", "T") == {0: 5}


def test_going_back_is_allowed_and_counted() -> None:
    """Offsets are reset by committing a smaller one."""
    offsets = manager()
    offsets.commit("G", "T", 0, 50)
    offsets.commit("G", "T", 0, 20)
    assert offsets.query("G", "T", 0) == 20
    assert offsets.backward_commits == 1


async def test_offsets_survive_a_restart() -> None:
    """What was persisted is there after the next start, queue by queue."""
    disk = SimulatedDisk()
    offsets = manager(disk)
    offsets.commit("G", "T", 0, 5)
    offsets.commit("G", "%RETRY%G", 0, 2)
    await offsets.persist()
    again = manager(disk)
    assert again.queues("G", "T") == {0: 5}
    assert again.topics_of("G") == {"T", "%RETRY%G"}
    assert again.groups_of("T") == {"G"}


async def test_unchanged_offsets_are_not_written() -> None:
    """An idle broker does not write every five seconds."""
    disk = SimulatedDisk()
    offsets = manager(disk)
    offsets.commit("G", "T", 0, 5)
    await offsets.persist()
    changes = disk.changes
    offsets.commit("G", "T", 0, 5)
    await offsets.persist()
    assert disk.changes == changes


async def test_the_file_is_read_by_json_readers() -> None:
    """The file is strict JSON with RocketMQ's names; Java reads quoted queue ids too."""
    disk = SimulatedDisk()
    offsets = manager(disk)
    offsets.commit("G", "T", 1, 5)
    await offsets.persist()
    assert json.loads(read_file(disk, PATH))["offsetTable"] == {"T@G": {"1": 5}}


def test_the_file_of_a_java_broker_is_read() -> None:
    """Queue ids without quotes, which are not JSON, are understood."""
    disk = SimulatedDisk()
    JsonFile(disk, PATH).save(JAVA_FILE)
    offsets = manager(disk)
    assert offsets.queues("G", "T") == {0: 379, 1: 380}
    assert offsets.queues("G", "%RETRY%G") == {0: 7}
    assert offsets.data_version.counter == 4


@pytest.mark.parametrize(
    "entry", ["0:-1", "0:-100000000000000000000000000", "-1:5", "4294967296:5"]
)
def test_numbers_that_no_broker_has_written_are_left_out(entry: str) -> None:
    """The group has no offset there, and keeps the others."""
    disk = SimulatedDisk()
    JsonFile(disk, PATH).save(JAVA_FILE.replace(b"0:379", entry.encode()))
    assert manager(disk).queues("G", "T") == {1: 380}


def test_a_large_file_of_a_java_broker_is_read() -> None:
    """More than a request may hold is no problem in a file."""
    padding = "x" * 100
    entries = ",\n".join(
        f'\t\t"{padding}-{number}@{padding}-{number}":{{0:{number},1:{number}}}'
        for number in range(20_000)
    )
    content = ('{"dataVersion":{"counter":1},"offsetTable":{\n' + entries + "}}").encode()
    assert len(content) > 4 * 1024 * 1024
    disk = SimulatedDisk()
    JsonFile(disk, PATH).save(content)
    assert manager(disk).query(f"{padding}-19999", f"{padding}-19999", 1) == 19_999


def test_a_damaged_file_is_refused() -> None:
    """Starting with no offsets at all would make every group read everything again."""
    disk = SimulatedDisk()
    JsonFile(disk, PATH).save(b'{"offsetTable":[]}')
    with pytest.raises(DamagedStoreError, match="consumerOffset"):
        manager(disk)


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    """A topic made anew under the same name begins without old offsets."""
    offsets = manager()
    for group in ("G", "H"):
        offsets.commit(group, "T", 0, 5)
        offsets.commit(group, "U", 0, 5)
    offsets.record_pull("G", "T", 0, 9)
    offsets.remove_topic("T")
    assert offsets.query("G", "T", 0) == -1
    assert offsets.query_pulled("G", "T", 0) == -1
    assert offsets.groups_of("T") == set()
    assert offsets.topics_of("G") == {"U"}


def test_a_deleted_group_takes_its_offsets_along() -> None:
    """A group deleted with its offsets leaves none."""
    offsets = manager()
    offsets.commit("G", "T", 0, 5)
    offsets.commit("H", "T", 0, 6)
    offsets.remove_group("G")
    assert offsets.groups() == {"H"}
    assert offsets.groups_of("T") == {"H"}


def test_a_group_is_forgotten_in_one_topic() -> None:
    """It keeps its offsets in others, as do other groups in this one; nothing is no error."""
    offsets = manager()
    offsets.commit("G", "T", 0, 5)
    offsets.commit("G", "U", 0, 6)
    offsets.commit("H", "T", 0, 7)
    assert offsets.remove("G", "T")
    assert not offsets.remove("G", "T")
    assert not offsets.remove("G", "unknown")
    assert (offsets.topics_of("G"), offsets.groups_of("T")) == ({"U"}, {"H"})
    assert offsets.query("H", "T", 0) == 7


def test_removals_are_noticed_by_retention() -> None:
    """What held messages back may do so no longer: one for each topic that a group had read."""
    offsets = manager()
    for group in ("G", "H"):
        offsets.commit(group, "T", 0, 5)
        offsets.commit(group, "U", 0, 5)
    assert offsets.removals == 0
    offsets.remove_topic("T")
    assert offsets.removals == 2
    offsets.remove_group("G")
    assert offsets.removals == 3
    offsets.remove_group("G")
    assert offsets.removals == 3


def test_the_offset_pulled_from_is_known_apart() -> None:
    """consumerProgress shows how far a group pulled beside how far it committed."""
    offsets = manager()
    offsets.commit("G", "T", 0, 5)
    assert offsets.query_pulled("G", "T", 0) == 5
    offsets.record_pull("G", "T", 0, 37)
    assert offsets.query_pulled("G", "T", 0) == 37
    assert offsets.query("G", "T", 0) == 5


def test_the_version_moves_on_with_commits() -> None:
    """Every five hundredth change makes a new version, as in RocketMQ."""
    offsets = manager()
    for queue_offset in range(1, 1001):
        offsets.commit("G", "T", 0, queue_offset)
    assert offsets.data_version.counter == 2


# -- ends of queues -------------------------------------------------------------------------------


async def test_what_lies_beyond_a_queue_is_set_back_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A log that lost its end makes offsets point behind it; they go to the ends, resets too."""
    disk = SimulatedDisk()
    offsets = manager(disk)
    offsets.commit("G", "T", 0, 50)
    offsets.commit("G", "T", 1, 5)
    offsets.commit("H", "gone", 0, (1 << 63) - 1)
    offsets.reset("H", "T", 0, 40)
    await offsets.persist()
    again = manager(disk)
    ends = {("T", 0): 10, ("T", 1): 5}
    lowered = again.lowered
    assert again.set_back(lambda topic, queue_id: ends.get((topic, queue_id), 0)) == 4
    assert again.queues("G", "T") == {0: 10, 1: 5}
    assert (again.query("H", "gone", 0), again.query("H", "T", 0)) == (0, 10)
    assert again.take_reset("H", "T", 0, 40, None) == 10
    assert again.lowered > lowered
    (record,) = caplog.records
    assert "count=4" in record.message
    assert "group=G topic=T queue=0 50->10" in record.message
    await again.persist()
    assert manager(disk).queues("G", "T") == {0: 10, 1: 5}


def test_the_line_about_offsets_that_are_set_back_is_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A thousand groups make one line that names ten, and a table in order makes none."""
    offsets = manager()
    for number in range(1000):
        offsets.commit(f"G{number}", "T", 0, 2)
    assert offsets.set_back(lambda topic, queue_id: 2) == 0
    assert offsets.set_back(lambda topic, queue_id: 1) == 1000
    (record,) = caplog.records
    assert record.message.count("2->1") == 10
    assert "and 990 more" in record.message


async def test_offsets_wait_for_the_messages_that_they_count() -> None:
    """They are written once the log is durable; where that is not in time, nothing is written."""
    disk = SimulatedDisk()
    offsets = manager(disk)
    flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    offsets.save_behind(lambda: flushed)
    offsets.commit("G", "T", 0, 5)
    saving = asyncio.create_task(offsets.persist())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not disk.exists(PATH)
    flushed.set_exception(OSError("the log is not flushed in time"))
    with pytest.raises(OSError, match="not flushed in time"):
        await saving
    assert not disk.exists(PATH)
    flushed = asyncio.get_running_loop().create_future()
    flushed.set_result(None)
    await offsets.persist()
    assert manager(disk).queues("G", "T") == {0: 5}


# -- resets ---------------------------------------------------------------------------------------


def test_a_reset_beats_commits_of_members_that_do_not_know() -> None:
    """The offset is there at once; what members commit before their next pull is ignored."""
    offsets = manager()
    offsets.commit("G", "T", 0, 50)
    offsets.reset("G", "T", 0, 20)
    assert offsets.query("G", "T", 0) == 20
    offsets.commit("G", "T", 0, 51)
    assert offsets.query("G", "T", 0) == 20
    offsets.commit("G", "T", 1, 7)
    offsets.commit("H", "T", 0, 8)
    assert offsets.query("G", "T", 1) == 7
    assert offsets.query("H", "T", 0) == 8


def test_the_next_pull_ends_a_reset() -> None:
    """One pull is sent to the new offset; from then on commits count again."""
    offsets = manager()
    offsets.commit("G", "T", 0, 50)
    assert not offsets.has_resets
    offsets.reset("G", "T", 0, 20)
    assert offsets.has_resets
    assert offsets.take_reset("G", "T", 1, 60, 50) is None
    assert offsets.take_reset("H", "T", 0, 60, 50) is None
    assert offsets.take_reset("G", "T", 0, 60, 50) == 20
    assert offsets.take_reset("G", "T", 0, 60, 50) is None
    assert not offsets.has_resets
    offsets.commit("G", "T", 0, 51)
    assert offsets.query("G", "T", 0) == 51


@pytest.mark.parametrize(
    ("queue_offset", "commit_offset", "expected"),
    [(20, None, None), (20, 20, None), (20, 19, 20), (21, None, 20), (0, 20, 20)],
)
def test_a_member_that_starts_at_the_new_offset_goes_on(
    queue_offset: int, commit_offset: int | None, expected: int | None
) -> None:
    """Who came after the reset is there already; being sent there costs a client ten seconds."""
    offsets = manager()
    offsets.reset("G", "T", 0, 20)
    assert offsets.take_reset("G", "T", 0, queue_offset, commit_offset) == expected
    assert not offsets.has_resets


async def test_a_reset_survives_a_restart() -> None:
    """Members that were connected and commit their old offset after it are ignored still."""
    disk = SimulatedDisk()
    offsets = manager(disk)
    offsets.commit("G", "T", 0, 50)
    offsets.reset("G", "T", 0, 20)
    await offsets.persist()
    assert json.loads(read_file(disk, PATH))["resetOffsetTable"] == {"T@G": {"0": 20}}
    again = manager(disk)
    again.commit("G", "T", 0, 50)
    assert again.query("G", "T", 0) == 20
    assert again.take_reset("G", "T", 0, 60, 50) == 20
    await again.persist()
    assert "resetOffsetTable" not in json.loads(read_file(disk, PATH))
    assert not manager(disk).has_resets


def test_other_brokers_are_not_told_of_resets() -> None:
    """The answer to GET_ALL_CONSUMER_OFFSET is RocketMQ's table and nothing else."""
    offsets = manager()
    offsets.reset("G", "T", 0, 20)
    assert json.loads(b"".join(offsets.encode()))["offsetTable"] == {"T@G": {"0": 20}}
    assert "resetOffsetTable" not in json.loads(b"".join(offsets.encode()))


def test_a_reset_back_is_noticed_by_retention() -> None:
    """What the group is to read again must count as unread."""
    offsets = manager()
    offsets.commit("G", "T", 0, 50)
    lowered = offsets.lowered
    offsets.reset("G", "T", 0, 20)
    assert offsets.lowered > lowered


def test_a_deleted_group_takes_its_resets_along() -> None:
    """A group made anew under the same name commits freely."""
    offsets = manager()
    offsets.reset("G", "T", 0, 20)
    offsets.remove_group("G")
    assert not offsets.has_resets


def test_cloned_offsets_replace_those_of_the_other_group() -> None:
    """The target gets the source's offsets in the topic, no more and no less."""
    offsets = manager()
    offsets.commit("G", "T", 0, 5)
    offsets.commit("G", "T", 1, 6)
    offsets.commit("H", "T", 0, 90)
    offsets.commit("H", "T", 7, 90)
    offsets.commit("H", "U", 0, 90)
    offsets.reset("H", "T", 0, 80)
    lowered = offsets.lowered
    offsets.clone("G", "H", "T")
    assert offsets.queues("H", "T") == {0: 5, 1: 6}
    assert offsets.queues("H", "U") == {0: 90}
    assert offsets.queues("G", "T") == {0: 5, 1: 6}
    assert offsets.topics_of("H") == {"T", "U"}
    assert offsets.lowered > lowered
    assert not offsets.has_resets
    offsets.clone("unknown", "H", "T")
    assert offsets.queues("H", "T") == {0: 5, 1: 6}


def test_a_slave_notices_that_a_group_has_more_to_read() -> None:
    """What its retention took for read counts as unread again."""
    offsets = manager()
    offsets.is_followed = True
    lowered, commits = offsets.lowered, offsets.commits
    offsets.follow(SharedOffsets("T@G", 7, {0: 20}, {}))
    assert offsets.lowered > lowered
    lowered = offsets.lowered
    offsets.follow(SharedOffsets("T@G", 7, {0: 30}, {}))
    assert offsets.lowered == lowered
    assert offsets.commits > commits
    offsets.follow(SharedOffsets("T@G", 8, {0: 0}, {0: 0}))
    assert offsets.lowered > lowered
