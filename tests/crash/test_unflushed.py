"""SYNC_FLUSH: what is stored and not flushed yet is seen by nobody, and may lose its topic."""

import logging

import pytest
from promises import promised

from mailboat.disk import read_file
from mailboat.store.checkpoint import read_progress
from mailboat.store.flush import FlushJob
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.history import History
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_reading import read_store
from mailboat.testing.store_simulator import HOST, make_message, small_config


@pytest.fixture(autouse=True)
def _only_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "mailboat")


def _open(disk: SimulatedDisk) -> MessageStore:
    store = MessageStore(small_config("SYNC_FLUSH"), disk, store_host=HOST)
    store.open()
    return store


def _message(topic: str, number: int) -> MessageInner:
    return make_message(History().send(topic, 0, b"%d" % number), f"U{number}")


def _put(store: MessageStore, *topics: str) -> list[MessageInner]:
    messages = [_message(topic, number) for number, topic in enumerate(topics)]
    store.put_messages(messages)
    assert {message.status for message in messages} == {PutStatus.PUT_OK}
    return messages


def _put_batches(store: MessageStore, *topics: str) -> None:
    for topic in topics:
        batch = [_message(topic, 0), _message(topic, 1)]
        store.put_batch(batch)
        assert {message.status for message in batch} == {PutStatus.PUT_OK}


def _begin_flush(store: MessageStore) -> FlushJob:
    job = store.begin_flush()
    assert job is not None
    return job


def _finish(store: MessageStore, job: FlushJob) -> None:
    job.run()
    store.finish_flush(job, None)


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("topics", [("%RETRY%gone",), ("orders", "%RETRY%gone", "orders")])
@pytest.mark.parametrize("as_batches", [False, True])
@promised("what is not flushed is seen by nobody")
def test_a_topic_deleted_while_its_sends_wait_costs_no_rebuild(
    topics: tuple[str, ...],
    *,
    is_running: bool,
    as_batches: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The topic stays away, the others' messages are seen, the next start reads nothing again."""
    disk = SimulatedDisk()
    store = _open(disk)
    arrived: list[str] = []
    store.dispatch.on_arrival = lambda queues: arrived.extend(queue.topic for queue in queues)
    _put(store, "orders", "%RETRY%gone")
    _finish(store, _begin_flush(store))
    (_put_batches if as_batches else _put)(store, *topics)
    job = _begin_flush(store) if is_running else None
    arrived.clear()
    store.delete_topic("%RETRY%gone")
    _finish(store, job or _begin_flush(store))
    assert set(arrived) <= {"orders"}
    assert store.dispatch.dispatched_offset == store.commit_log.end
    expected = 1 + topics.count("orders") * (2 if as_batches else 1)
    assert store.max_offset("orders", 0) == expected
    assert not store.has_queue("%RETRY%gone", 0)
    assert store.query_message("%RETRY%gone", "U0", 9, 0, 1 << 60).records == []
    store.close()
    assert not disk.exists("/store/consumequeue/%RETRY%gone")
    progress = read_progress(disk, "/store/mailboat/progress.json")
    assert progress is not None
    assert progress.queue_units == expected
    before = {path: read_file(disk, path) for path in disk.walk("/store/consumequeue")}
    store = _open(disk)
    assert store.recovery.records == 0
    assert caplog.messages == []
    assert store.max_offset("orders", 0) == expected
    assert {path: read_file(disk, path) for path in disk.walk("/store/consumequeue")} == before


@promised("what is not flushed is seen by nobody")
def test_a_topic_made_anew_while_the_old_sends_wait_begins_at_0() -> None:
    """What waits for the flush belongs to the topic that is gone."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, "%RETRY%gone", "%RETRY%gone")
    store.delete_topic("%RETRY%gone")
    (again,) = _put(store, "%RETRY%gone")
    assert again.queue_offset == 0
    _finish(store, _begin_flush(store))
    assert store.max_offset("%RETRY%gone", 0) == 1
    store = _open(disk.kill())
    assert store.max_offset("%RETRY%gone", 0) == 1
    assert len(read_store(store)["%RETRY%gone", 0].messages) == 1


@promised("what is not flushed is seen by nobody")
def test_a_message_is_not_found_by_its_id_before_it_is_flushed() -> None:
    """A power cut could take it back."""
    disk = SimulatedDisk()
    store = _open(disk)
    (flushed,) = _put(store, "orders")
    _finish(store, _begin_flush(store))
    (waiting,) = _put(store, "orders")
    assert store.look_message_by_offset(flushed.physical_offset) is not None
    assert store.look_message_by_offset(waiting.physical_offset) is None
    job = _begin_flush(store)
    assert store.look_message_by_offset(waiting.physical_offset) is None
    _finish(store, job)
    assert store.look_message_by_offset(waiting.physical_offset) is not None
