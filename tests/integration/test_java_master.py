"""A slave here below what speaks as a master of RocketMQ does (real ones: tests/interop)."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from loop_lag import LoopLag
from real_time import at_most_s
from speaking_master import (
    SEGMENT_BYTES,
    SpeakingMaster,
    end_of,
    slave_of,
    write_large,
    write_lives,
    write_log,
    write_small,
)

from mailboat.broker.controller import BrokerController
from mailboat.broker.replicas.by_hand import promote
from mailboat.protocol.bodies import encode_kv_table, encode_properties_text
from mailboat.protocol.codes import RequestCode
from mailboat.testing.store_reading import read_queue

pytestmark = pytest.mark.slow  # They wait for reports and links.


@pytest.fixture(name="log")
def _log(tmp_path: Path) -> bytes:
    """A log of several segments, with anything behind the heads of its fillers."""
    return write_log(tmp_path / "theirs")


async def _until_problem(broker: BrokerController, words: str) -> None:
    assert broker.replicas is not None
    async with asyncio.timeout(20):
        while words not in broker.replicas.java_master.problem:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _check_log(broker: BrokerController, log: bytes, start: int = 0) -> None:
    """Compare a log with that of the master, which has anything behind the heads of fillers."""
    found = broker.store.commit_log
    assert found.end == start + len(log)
    for segment in found.segments:
        ours = segment.read(0, min(segment.end, found.end) - segment.start)
        theirs = log[segment.start - start :][: len(ours)]
        alike = len(ours.rstrip(b"\0")) if segment.end < found.end else len(ours)
        assert ours[:alike] == theirs[:alike]
        assert alike > SEGMENT_BYTES // 2 or segment.end > found.end


async def _until_stored(broker: BrokerController, count: int) -> None:
    async with asyncio.timeout(20):
        while _stored(broker) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _until_dispatched(broker: BrokerController, physical_offset: int) -> None:
    async with asyncio.timeout(20):
        while broker.store.dispatch.dispatched_offset != physical_offset:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _stored(broker: BrokerController) -> int:
    store = broker.store
    return sum(store.max_offset(*key) for key in store.queue_keys())


@pytest.mark.parametrize("frame_bytes", [7, 1000, 32_768])
async def test_the_whole_history_is_taken(tmp_path: Path, log: bytes, frame_bytes: int) -> None:
    """From the first byte on, in any pieces, whatever is behind fillers, and then what comes."""
    whole = log if frame_bytes > 7 else log[: end_of(log, 100)]
    master = SpeakingMaster(whole[: SEGMENT_BYTES + 5000])
    master.frame_bytes = frame_bytes
    async with master, slave_of(tmp_path / "ours", master) as broker:
        await master.until_reported(SEGMENT_BYTES + 3000)
        assert master.requests == [1]
        master.grow(whole[SEGMENT_BYTES + 5000 :])
        await master.until_reported(len(whole))
        assert master.requests == [1]
        _check_log(broker, whole)
        await _until_stored(broker, whole.count(b"KEYS\x01k"))


async def test_a_topic_that_was_made_again_begins_anew(tmp_path: Path) -> None:
    """RocketMQ's log does not say that it was deleted: a queue begins anew with its first message,
    and keeps what it has until then."""
    log, second = write_lives(tmp_path / "theirs")
    master = SpeakingMaster(log)
    master.sends_below = second
    async with master:
        async with slave_of(tmp_path / "ours", master) as broker:
            await _until_stored(broker, 30)
            master.sends_below = 1 << 60
            master.grow()
            await _until_stored(broker, 4 + 4 + 10)
            _check_second_life(broker, second)
        # Also after a restart, and of one that comes later.
        for root in ("ours", "other"):
            async with slave_of(tmp_path / root, master) as broker:
                await _until_dispatched(broker, len(log))
                await _until_stored(broker, 4 + 4 + 10)
                _check_second_life(broker, second)


def _check_second_life(broker: BrokerController, begin: int) -> None:
    queues = {queue_id: read_queue(broker.store, ("orders", queue_id)) for queue_id in range(3)}
    for view in (queues[0], queues[1]):
        assert [found.queue_offset for found in view.messages] == [0, 1, 2, 3]
        assert all(found.physical_offset >= begin for found in view.messages)
    assert [found.queue_offset for found in queues[2].messages] == [*range(10)]
    assert all(found.physical_offset < begin for found in queues[2].messages)


async def test_a_master_without_its_oldest_segment(tmp_path: Path, log: bytes) -> None:
    """The log begins where that of the master does, also after a restart."""
    log = log[SEGMENT_BYTES:]
    at = SEGMENT_BYTES + 5000
    async with SpeakingMaster(log[:at], SEGMENT_BYTES) as master:
        async with slave_of(tmp_path / "ours", master):
            await master.until_reported(2 * SEGMENT_BYTES + 3000)
        master.grow(log[at:])
        async with slave_of(tmp_path / "ours", master) as broker:
            await master.until_reported(master.end)
            assert master.requests[0] == SEGMENT_BYTES
            _check_log(broker, log, SEGMENT_BYTES)
            # The queues go on where they were, without what is gone.
            await _until_stored(broker, 150)


@pytest.mark.parametrize("is_at_segment_end", [False, True])
async def test_a_slave_comes_again(tmp_path: Path, log: bytes, *, is_at_segment_end: bool) -> None:
    """It shows at once what it had, compares the end of both logs, and goes on; also by itself."""
    at = SEGMENT_BYTES if is_at_segment_end else end_of(log, 90)
    async with SpeakingMaster(log[:at]) as master:
        async with slave_of(tmp_path / "ours", master) as broker:
            await master.until_reported(at)
            count = log[:at].count(b"KEYS\x01k")
            await _until_stored(broker, count)
        async with slave_of(tmp_path / "ours", master) as broker:
            assert _stored(broker) == count
            master.reported = -1
            master.grow(log[at : 2 * SEGMENT_BYTES + 4000])
            await master.until_reported(2 * SEGMENT_BYTES + 1000)
            assert 0 < master.requests[-1] < at
            master.hang_up()
            master.grow(log[2 * SEGMENT_BYTES + 4000 :])
            await master.until_reported(len(log))
            _check_log(broker, log)
            assert len(master.requests) == 3


async def test_a_log_is_told_by_its_records(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by what is behind the head of a filler: that may be anything, and is zeros here."""
    monkeypatch.setattr("mailboat.broker.replicas.java_master._COMPARED_BYTES", 40)
    filler = log.rfind(b"\xcb\xd4\x31\x94", 0, SEGMENT_BYTES)
    assert SEGMENT_BYTES - filler > 50
    async with SpeakingMaster(log[:SEGMENT_BYTES]) as master:
        async with slave_of(tmp_path / "ours", master):
            await master.until_reported(SEGMENT_BYTES)
        master.grow(log[SEGMENT_BYTES:])
        async with slave_of(tmp_path / "ours", master):
            await master.until_reported(master.end)


async def test_an_empty_log_begins_where_the_master_s_does(tmp_path: Path, log: bytes) -> None:
    """Also where another one began elsewhere and went away before it had sent anything."""
    async with SpeakingMaster(log[SEGMENT_BYTES:], SEGMENT_BYTES) as master:
        master.sends_below = 0
        async with slave_of(tmp_path / "ours", master) as broker:
            async with asyncio.timeout(20):
                while broker.store.replica.end != SEGMENT_BYTES:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            # Its oldest segment expires.
            master.log, master.start = log[2 * SEGMENT_BYTES :], 2 * SEGMENT_BYTES
            master.sends_below = 1 << 60
            master.hang_up()
            await master.until_reported(master.end)
            assert broker.store.replica.start == 2 * SEGMENT_BYTES


async def test_a_reported_log_is_durable(tmp_path: Path, log: bytes) -> None:
    """With SYNC_FLUSH nothing is reported before it is flushed."""
    async with (
        SpeakingMaster(log) as master,
        slave_of(tmp_path / "ours", master, flushDiskType="SYNC_FLUSH") as broker,
    ):
        store = broker.store
        while master.reported < len(log):
            assert master.reported <= store.flushed_offset
            await master.until_reported(master.reported + 1)
        assert store.flushed_offset == len(log)
        await _until_stored(broker, 150)


async def test_a_master_that_is_busy_gets_reports(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its senders wait for them for 3 s; an answer to a question of ours may take longer, or not
    come at all. A log that ends elsewhere is noticed once it says so."""
    monkeypatch.setattr("mailboat.broker.replicas.java_master._CHECK_S", 0.2)
    at, then = end_of(log, 40), end_of(log, 80)
    async with SpeakingMaster(log[:at]) as master, slave_of(tmp_path / "ours", master) as broker:
        await master.until_reported(at)
        master.is_mute = True
        master.asked.clear()
        await master.asked.wait()
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        master.grow(log[at:then])
        await master.until_reported(then)
        assert loop.time() - begin_s < at_most_s(3, 20)
        # Nor does a question without an answer end the connection.
        master.asked.clear()
        await master.asked.wait()
        assert len(master.requests) == 1
        master.is_mute = False
        master.log = log[:at]
        await _until_problem(broker, "they have diverged")


async def test_another_log_is_not_followed(tmp_path: Path, log: bytes) -> None:
    """Shorter, longer and different, gone at the beginning: said, and nothing is written."""
    at = end_of(log, 90)
    async with SpeakingMaster(log[:at]) as master, slave_of(tmp_path / "ours", master) as broker:
        await master.until_reported(at)
        master.log = log[: at - 2000]
        master.hang_up()
        await _until_problem(broker, "they have diverged")
        damaged = bytearray(log)
        damaged[at - 5000] ^= 1
        master.log = bytes(damaged)
        await _until_problem(broker, "the master has another log")
        master.log, master.start = log[2 * SEGMENT_BYTES :], 2 * SEGMENT_BYTES
        await _until_problem(broker, f"that of the master begins at {2 * SEGMENT_BYTES}")
        _check_log(broker, log[:at])
        master.log, master.start = log, 0
        await master.until_reported(len(log))
        _check_log(broker, log)


@pytest.mark.parametrize("behind", [b"\0", b"\xda\xa3\x20\xa7"], ids=["zeros", "anything"])
async def test_a_long_filler_is_no_end_to_compare(tmp_path: Path, behind: bytes) -> None:
    """What is behind its head may be anything, and is the same in two logs: the records before
    it are compared."""
    segment_bytes = 4 << 20
    log = write_large(tmp_path / "theirs", 14, behind)
    other = write_large(tmp_path / "others", 70, behind)
    assert len(log) == len(other)
    master = SpeakingMaster(log[:segment_bytes])
    master.segment_bytes, master.frame_bytes = segment_bytes, 32_768
    config = {"mappedFileSizeCommitLog": str(segment_bytes)}
    async with master:
        async with slave_of(tmp_path / "ours", master, **config):
            await master.until_reported(segment_bytes)
        master.log = other
        async with slave_of(tmp_path / "ours", master, **config) as broker:
            await _until_problem(broker, "the master has another log")
            assert broker.store.commit_log.end == segment_bytes
            master.log = log
            await master.until_reported(len(log))
            await _until_stored(broker, 4)


async def test_other_segments_are_not_followed(tmp_path: Path, log: bytes) -> None:
    """Fillers would lie inside segments here."""
    master = SpeakingMaster(log)
    master.segment_bytes = 2 * SEGMENT_BYTES
    async with master, slave_of(tmp_path / "ours", master) as broker:
        await _until_problem(broker, f"mappedFileSizeCommitLog is {2 * SEGMENT_BYTES}")
        assert broker.store.commit_log.end == 0


async def test_who_is_no_broker_of_rocketmq_is_not_followed(tmp_path: Path, log: bytes) -> None:
    """One of ours that does not answer in time is not taken for a master of RocketMQ."""
    master = SpeakingMaster(log)
    master.own_key = "httpPort"
    async with master, slave_of(tmp_path / "ours", master) as broker:
        await _until_problem(broker, "it is no broker of RocketMQ")
        assert master.requests == []
        assert broker.store.commit_log.end == 0
        # It is looked at again and again: who is silent once may be of either kind later.
        master.own_key = "haTransferBatchSize"
        await master.until_reported(len(log))


async def test_frames_out_of_place_and_damage_end_the_connection(
    tmp_path: Path, log: bytes
) -> None:
    """What does not follow, and what is no sound record, is not written; it tries again."""
    damaged = bytearray(log)
    damaged[5000] ^= 1
    master = SpeakingMaster(log)
    master.shift = 8
    async with master, slave_of(tmp_path / "ours", master) as broker:
        await _until_problem(broker, "it sends 9 and not 1")
        assert broker.store.commit_log.end == 0
        master.shift, master.log = 0, bytes(damaged)
        async with asyncio.timeout(20):
            while broker.store.commit_log.end == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await _until_problem(broker, "checksum")
        assert broker.store.commit_log.end <= 5000
        master.log = log
        await master.until_reported(len(log))
        _check_log(broker, log)


async def test_large_frames_hold_nobody_up(tmp_path: Path) -> None:
    """A master may send 4 MiB at a time (haTransferBatchSize), of small messages."""
    segment_bytes = 8 << 20
    log = write_small(tmp_path / "theirs", 20_000, segment_bytes)
    master = SpeakingMaster(log)
    master.segment_bytes, master.frame_bytes = segment_bytes, 4 << 20
    config = {"mappedFileSizeCommitLog": str(segment_bytes)}
    async with master, slave_of(tmp_path / "ours", master, **config) as broker:
        async with LoopLag() as lag:
            await master.until_reported(len(log))
            await _until_stored(broker, 20_000)
        assert lag.longest_s < 0.1


@pytest.mark.parametrize(
    "code", [RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO]
)
async def test_what_a_master_says_of_itself_is_short(tmp_path: Path, log: bytes, code: int) -> None:
    """One that says megabytes is not followed, and holds nobody up."""
    master = SpeakingMaster(log)
    many = {f"key-{number}": "value" for number in range(200_000)}
    many |= {"haTransferBatchSize": "1", "commitLogMinOffset": "0", "commitLogMaxOffset": "9"}
    is_config = code == RequestCode.GET_BROKER_CONFIG
    master.answers[code] = encode_properties_text(many) if is_config else encode_kv_table(many)
    async with master, slave_of(tmp_path / "ours", master) as broker:
        async with LoopLag() as lag:
            await _until_problem(broker, "bytes of itself")
        assert lag.longest_s < 0.1
        assert broker.store.commit_log.end == 0
        master.answers.clear()
        await master.until_reported(len(log))


@pytest.mark.parametrize("start", [-1, 5, 1 << 62, 1 << 70])
async def test_a_log_that_can_be_nowhere_is_not_followed(
    tmp_path: Path, log: bytes, start: int
) -> None:
    """A master that says so harms nobody; it is followed once it says something else."""
    master = SpeakingMaster(log, start)
    async with master, slave_of(tmp_path / "ours", master) as broker:
        await _until_problem(broker, f"it says that its log goes from {start} to")
        assert broker.store.commit_log.end == 0
        master.start = 0
        await master.until_reported(len(log))


async def test_who_was_promoted_follows_no_more(tmp_path: Path, log: bytes) -> None:
    """Once a person lets the slave lead, the master's log is not taken any more, nor later on."""
    at = end_of(log, 90)
    async with SpeakingMaster(log[:at]) as master:
        async with slave_of(tmp_path / "ours", master) as broker:
            await master.until_reported(at)
            assert broker.replicas is not None
            broker.replicas.group.promote(accepts_loss=True)
            async with asyncio.timeout(20):
                while not broker.is_leading:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            master.grow(log[at:])
            await _until_problem(broker, "leads")
            assert broker.store.commit_log.end == at
            assert _stored(broker) == log[:at].count(b"KEYS\x01k")


async def test_another_replica_joins_who_was_promoted(tmp_path: Path, log: bytes) -> None:
    """An empty one in the place of the Java broker gets all that was there before the epoch."""
    at = end_of(log, 90)
    group = {"totalReplicas": "2", "inSyncReplicas": "1"}
    async with SpeakingMaster(log[:at]) as master, AsyncExitStack() as stack:
        first = await stack.enter_async_context(slave_of(tmp_path / "first", master, **group))
        await _until_stored(first, log[:at].count(b"KEYS\x01k"))
        assert first.replicas is not None
        # No master of ours has ever said that nothing is missing.
        assert "must answer" in await promote(first.replicas.group, accepts_loss=False)
        assert not await promote(first.replicas.group, accepts_loss=True)
        assert not first.replicas.group.refusal()
        address = f"127.0.0.1:{first.replicas.peers.port}"
        place = {"brokerId": "0", "brokerRole": "ASYNC_MASTER", "haMasterAddress": address}
        second = await stack.enter_async_context(
            slave_of(tmp_path / "second", master, **group, **place)
        )
        leading = first.replicas.group.replica.leading
        assert leading is not None
        async with asyncio.timeout(20):
            while len(leading.recorded) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await _until_stored(second, log[:at].count(b"KEYS\x01k"))
        _check_log(second, log[:at])
