"""Checkpoints of many queues: written a slice at a time, and as good as one made at once."""

from mailboat.config import MessageStoreConfig
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, small_config

_QUEUES = 900
_CALL_S = 0.0005
_TOPICS = ("orders", "invoices")


class _SlowDisk(SimulatedDisk):
    """A disk on which what the first unit of a queue costs takes its time."""

    def mkdir(self, path: str) -> None:
        self.advance(_CALL_S)
        super().mkdir(path)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        self.advance(_CALL_S)
        return super().pwrite(fd, data, position)


def _config() -> MessageStoreConfig:
    return small_config("ASYNC_FLUSH", mapped_file_size_commit_log=1 << 20, max_index_num=20_000)


def _open(disk: SimulatedDisk) -> MessageStore:
    store = MessageStore(_config(), disk, store_host=HOST)
    store.open()
    return store


def _put(store: MessageStore, count: int) -> None:
    """Store one message in each of some queues of each topic."""
    for topic in _TOPICS:
        batch = [
            MessageInner(
                topic=topic,
                queue_id=queue_id,
                body=b"%d" % queue_id,
                properties=b"",
                tags_code=0,
                unique_key=None,
                keys=None,
                flag=0,
                sys_flag=0,
                born_timestamp_ms=1_700_000_000_000,
                born_host=HOST,
            )
            for queue_id in range(count)
        ]
        store.put_messages(batch)
        assert {message.status for message in batch} == {PutStatus.PUT_OK}
    job = store.begin_flush()
    assert job is not None
    job.run()
    store.finish_flush(job, None)


def _slice(disk: SimulatedDisk, store: MessageStore) -> None:
    begin_s = disk.monotonic()
    store.background()
    assert disk.monotonic() - begin_s < 0.02


def _is_saved(disk: SimulatedDisk, offset: int) -> bool:
    path = "/store/mailboat/progress.json"
    return disk.exists(path) and b'"commitLogOffset":%d,' % offset in disk.file(path).read(9999, 0)


def test_a_checkpoint_of_many_new_queues_takes_many_slices() -> None:
    """None is long, and a start trusts what was saved although sends went on meanwhile."""
    disk = _SlowDisk()
    store = _open(disk)
    _put(store, _QUEUES)
    noted = store.commit_log.end
    disk.advance(11)
    _slice(disk, store)
    assert store.has_unwritten
    while not _is_saved(disk, noted):
        # Always something new, some of it in queues that the checkpoint counts.
        _put(store, 3)
        _slice(disk, store)
    expected = {key: store.max_offset(*key) for key in store.queue_keys()}
    records = sum(expected.values())
    store = _open(disk.kill())
    assert {key: store.max_offset(*key) for key in store.queue_keys()} == expected
    assert store.recovery.records == records - 2 * _QUEUES
    store.close()


def test_a_topic_that_goes_meanwhile_costs_no_rebuild() -> None:
    """What was noted counts its queues: the checkpoint begins again."""
    disk = _SlowDisk()
    store = _open(disk)
    _put(store, _QUEUES)
    disk.advance(11)
    _slice(disk, store)
    store.delete_topic("orders")
    while not _is_saved(disk, store.commit_log.end):
        _slice(disk, store)
    store = _open(disk.kill())
    assert store.recovery.records == 0
    assert [store.max_offset("orders", 0), store.max_offset("invoices", 0)] == [0, 1]
    store.close()


def test_a_stop_in_the_middle_saves_everything() -> None:
    """What was noted and not written is noted again."""
    disk = _SlowDisk()
    store = _open(disk)
    _put(store, _QUEUES)
    disk.advance(11)
    _slice(disk, store)
    assert store.has_unwritten
    store.close()
    store = _open(disk)
    assert store.recovery.records == 0
    assert {store.max_offset(topic, _QUEUES - 1) for topic in _TOPICS} == {1}
    store.close()
