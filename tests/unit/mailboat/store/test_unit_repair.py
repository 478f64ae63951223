"""Units that lead to no message of their queue: the message is found, and nothing else is served.

The stores are in memory, and hold all that a queue and its neighbours may look like.
"""

from random import Random

import pytest

from mailboat.model import compiled
from mailboat.model.record import decode_records
from mailboat.model.tags import tags_code
from mailboat.store import lookup
from mailboat.store.consume_queue import BLANK_SIZE, UNIT, ConsumeQueue
from mailboat.store.lookup import GetStatus
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.store.record_source import Fetched, Limits
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, small_config

_NAME = "00000000000000000000"


def _open(disk: SimulatedDisk) -> MessageStore:
    # Small segments: the log of a few dozen messages has several.
    sizes = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 4000}
    config = small_config("SYNC_FLUSH", **sizes, skip_corrupt=True)
    store = MessageStore(config, disk, store_host=HOST)
    store.open()
    return store


def _put(store: MessageStore, topic: str, queue_id: int, body: bytes) -> None:
    message = MessageInner(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=b"TAGS\x01A\x02",
        tags_code=tags_code("A"),
        unique_key=None,
        keys=None,
        flag=0,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        born_host=HOST,
    )
    store.put_messages([message])
    assert message.status == PutStatus.PUT_OK


def _flush(store: MessageStore) -> None:
    job = store.begin_flush()
    assert job is not None
    job.run()
    store.finish_flush(job, None)
    store.queues.write()


def _fill(store: MessageStore, count: int = 24) -> dict[tuple[str, int], list[bytes]]:
    """Store messages of three queues, one after the other in no order; return their bodies."""
    random, stored = Random(7), dict[tuple[str, int], list[bytes]]()
    keys = [("AAA", 0), ("BBB", 0), ("AAA", 1)]
    for number in range(3 * count):
        key = keys[number % 3] if number < 3 else random.choice(keys)
        body = b"%s/%d %d " % (key[0].encode(), key[1], number) + random.randbytes(60)
        _put(store, *key, body)
        stored.setdefault(key, []).append(body)
    _flush(store)
    return stored


def _read(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """Return what a consumer gets, who goes on where it is told to."""
    bodies, at = [], store.min_offset(topic, queue_id)
    while at < store.max_offset(topic, queue_id):
        result = store.get_message(topic, queue_id, at, 32, 1 << 20)
        assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
        assert result.next_offset > at
        messages = decode_records(b"".join(result.slices))
        assert all((message.topic, message.queue_id) == (topic, queue_id) for message in messages)
        bodies += [message.body for message in messages]
        at = result.next_offset
    return bodies


def _path(store: MessageStore, topic: str, queue_id: int) -> str:
    return f"{store.paths.consume_queue}/{topic}/{queue_id}/{_NAME}"


def _content(disk: SimulatedDisk, path: str, size_bytes: int) -> bytes:
    fd = disk.open(path)
    try:
        return disk.pread(fd, size_bytes, 0)
    finally:
        disk.close(fd)


def _write(disk: SimulatedDisk, path: str, position: int, data: bytes) -> None:
    fd = disk.open(path)
    disk.pwrite(fd, data, position)
    disk.close(fd)


@pytest.mark.parametrize("at", [0, 1, 9, -1], ids=["first", "second", "middle", "last"])
@pytest.mark.parametrize("byte", range(12))
def test_a_flipped_bit_of_a_unit_hides_no_message(at: int, byte: int) -> None:
    """Physical offset and size, each byte: all is read, and the unit is as it was."""
    disk = SimulatedDisk()
    store = _open(disk)
    stored = _fill(store)
    bodies, path = stored["AAA", 0], _path(store, "AAA", 0)
    at %= len(bodies)
    whole = _content(disk, path, 20 * len(bodies))
    for bit in (1, 0x10, 0x80):
        position = 20 * at + byte
        _write(disk, path, position, bytes([whole[position] ^ bit]))
        assert _read(store, "AAA", 0) == bodies
        assert _content(disk, path, len(whole)) == whole
    # A size of the log's other records may be right by chance; the place never is.
    assert store.lookup.corrupt_records == 3
    store.close()


def test_neighbours_that_are_wrong_as_well_hide_no_message() -> None:
    """Two units side by side, also the first two."""
    for at in (0, 5):
        disk = SimulatedDisk()
        store = _open(disk)
        stored = _fill(store)
        path = _path(store, "AAA", 0)
        whole = _content(disk, path, 20 * len(stored["AAA", 0]))
        _write(disk, path, 20 * at, Random(at).randbytes(24))
        assert _read(store, "AAA", 0) == stored["AAA", 0]
        assert _content(disk, path, len(whole)) == whole
        store.close()


@pytest.mark.parametrize("others", [("BBB", 0), ("AAA", 1)], ids=["topic", "queue"])
def test_swapped_folders_serve_nothing_foreign(others: tuple[str, int]) -> None:
    """Each queue has the messages of its own, as far as the folder's units go."""
    disk = SimulatedDisk()
    store = _open(disk)
    stored = _fill(store)
    count = min(len(stored["AAA", 0]), len(stored[others]))
    paths = [_path(store, "AAA", 0), _path(store, *others)]
    contents = [_content(disk, path, 20 * count) for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        _write(disk, path, 0, content)
    for key in (("AAA", 0), others):
        assert _read(store, *key) == stored[key]
    assert store.lookup.corrupt_records == 2 * count
    store.close()


def test_swapped_folders_are_read_right_by_a_store_that_is_opened_with_them() -> None:
    """What was cut off at the end is not there; nothing else is, either."""
    disk = SimulatedDisk()
    store = _open(disk)
    stored = _fill(store)
    paths = [_path(store, "AAA", 0), _path(store, "BBB", 0)]
    contents = [_content(disk, path, 4000) for path in paths]
    store.close()
    for path, content in zip(paths, reversed(contents), strict=True):
        _write(disk, path, 0, content)
    store = _open(disk)
    for key in (("AAA", 0), ("BBB", 0)):
        read = _read(store, *key)
        assert read == stored[key][: len(read)]
    store.close()


def test_a_message_of_a_deleted_topic_is_not_taken_for_its_successors() -> None:
    """The log has two messages of the queue offset 0; the first unit leads to neither."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, "AAA", 0, b"of the old topic")
    _flush(store)
    store.delete_topic("AAA")
    _put(store, "AAA", 0, b"of the new one")
    _flush(store)
    _write(disk, _path(store, "AAA", 0), 0, UNIT.pack(0, 100, 0))
    assert _read(store, "AAA", 0) == [b"of the new one"]
    store.close()


def test_blanks_and_damaged_records_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blank stands for a message that is not there; a unit may be right and its record not."""
    disk = SimulatedDisk()
    store = _open(disk)
    stored = _fill(store)
    bodies, path = stored["AAA", 0], _path(store, "AAA", 0)
    monkeypatch.setattr(store.unit_repair, "_find", None)
    whole = _content(disk, path, 20 * len(bodies))
    physical_offset, size, _ = UNIT.unpack_from(whole, 40)
    _write(disk, path, 40, UNIT.pack(physical_offset, BLANK_SIZE, 0))
    physical_offset, size, _ = UNIT.unpack_from(whole, 100)
    segment = store.commit_log.find(physical_offset)
    assert segment is not None
    _write(disk, segment.path, physical_offset - segment.start + size - 1, b"x")
    assert _read(store, "AAA", 0) == [*bodies[:2], *bodies[3:5], *bodies[6:]]
    store.close()


def test_a_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message with more records than that before it counts as damaged."""
    monkeypatch.setattr("mailboat.store.unit_repair._RECORDS_MOST", 10)
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, "AAA", 0, b"first")
    for number in range(11):
        _put(store, "BBB", 0, b"%d" % number)
    _put(store, "AAA", 0, b"second")
    _put(store, "AAA", 0, b"third")
    _flush(store)
    _write(disk, _path(store, "AAA", 0), 20, bytes(8))
    assert _read(store, "AAA", 0) == [b"first", b"third"]
    monkeypatch.setattr("mailboat.store.unit_repair._RECORDS_MOST", 12)
    disk.advance(61)
    assert _read(store, "AAA", 0) == [b"first", b"second", b"third"]
    store.close()


def test_the_first_message_is_not_confused_with_one_of_a_former_topic() -> None:
    """Nobody noted the deletion, as with RocketMQ. The unit is right and its record damaged; or the
    unit is wrong and damage hides what lies behind the former one."""
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, "AAA", 0, b"of the old topic")
    _flush(store)
    store.queues.by_key["AAA", 0].begin_anew()
    for body in (b"new 0", b"new 1"):
        _put(store, "AAA", 0, body)
    _flush(store)
    path = _path(store, "AAA", 0)
    right = _content(disk, path, 40)
    physical_offset, size, _ = UNIT.unpack_from(right)
    segment = store.commit_log.find(physical_offset)
    assert segment is not None
    # The queue offset in the record, and the topic's last character.
    for at in (27, 88 + 5 + 3):
        position = physical_offset - segment.start + at
        whole = _content(disk, segment.path, position + 1)[-1:]
        _write(disk, segment.path, position, bytes([whole[0] ^ 1]))
        assert _read(store, "AAA", 0) == [b"new 1"]
        assert _content(disk, path, 40) == right
        _write(disk, segment.path, position, whole)
    _write(disk, path, 0, UNIT.pack(physical_offset + 1, size, 0))
    _write(disk, segment.path, physical_offset - segment.start, b"\xff")
    assert _read(store, "AAA", 0) == [b"new 1"]
    store.close()


def test_a_unit_that_was_read_before_it_was_mended_leads_to_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two groups have fetched the same wrong unit; the first one's answer has it mended."""
    # A read beside damage ends soon, which on a busy machine may be after a few messages.
    monkeypatch.setattr(lookup, "_SLICE_S", 60.0)
    disk = SimulatedDisk()
    store = _open(disk)
    stored = _fill(store)
    bodies = stored["AAA", 0]
    _write(disk, _path(store, "AAA", 0), 100, bytes(12))
    fetched: list[Fetched] = []

    def take(source: Fetched | None, error: BaseException | None) -> None:
        assert source is not None
        fetched.append(source)

    for _ in range(2):
        store.warming.fetch(store.queues.get("AAA", 0), 0, Limits(32, 32, 1 << 20, None), take)
    for source in fetched:
        result = store.get_message("AAA", 0, 0, 32, 1 << 20, None, source)
        found = [message.body for message in decode_records(b"".join(result.slices))]
        assert found == bodies[: len(found)]
        assert len(found) > 6
    store.close()


def test_what_was_looked_for_in_vain_is_not_looked_for_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each retry of each group would pay for it; after a minute another replica may have helped."""
    disk = SimulatedDisk()
    store = _open(disk)
    stored = _fill(store)
    bodies, path = stored["AAA", 0], _path(store, "AAA", 0)
    physical_offset, _, _ = UNIT.unpack(_content(disk, path, 120)[100:])
    _write(disk, path, 100, bytes(12))
    segment = store.commit_log.find(physical_offset)
    assert segment is not None
    whole = _content(disk, segment.path, physical_offset - segment.start + 4)[-4:]
    _write(disk, segment.path, physical_offset - segment.start, b"\xff" * 4)
    assert _read(store, "AAA", 0) == [*bodies[:5], *bodies[6:]]
    _write(disk, segment.path, physical_offset - segment.start, whole)
    find, calls = store.unit_repair._find, []

    def counted(queue: ConsumeQueue, queue_offset: int) -> tuple[int, int, int] | None:
        calls.append(queue_offset)
        return find(queue, queue_offset)

    monkeypatch.setattr(store.unit_repair, "_find", counted)
    assert _read(store, "AAA", 0) == [*bodies[:5], *bodies[6:]]
    assert not calls
    disk.advance(61)
    assert _read(store, "AAA", 0) == bodies
    assert calls == [5]
    store.close()


@pytest.mark.parametrize("kind", ["compiled", "python"])
@pytest.mark.parametrize("lost", [range(3, 6), range(2)])
def test_lost_units_hide_nothing_from_readers_of_a_tag(
    monkeypatch: pytest.MonkeyPatch, kind: str, lost: range
) -> None:
    """Zeros say nothing of tags: they are no units."""
    if kind == "python":
        monkeypatch.setattr(compiled, "choose_places", None)
    disk = SimulatedDisk()
    store = _open(disk)
    stored = _fill(store)
    bodies = stored["AAA", 0]
    for number in lost:
        _write(disk, _path(store, "AAA", 0), 20 * number, bytes(20))
    for tag, expected in (("A", bodies), ("B", [])):
        at, found = 0, []
        while at < len(bodies):
            codes = frozenset({tags_code(tag)})
            result = store.get_message("AAA", 0, at, 32, 1 << 20, codes)
            found += [message.body for message in decode_records(b"".join(result.slices))]
            assert result.next_offset > at
            at = result.next_offset
        assert found == expected
    store.close()


@pytest.mark.parametrize("wanted", [None, "A"], ids=["all", "by tag"])
def test_a_page_of_units_that_is_lost_hides_no_message(wanted: str | None) -> None:
    """One after the other is found behind the one before it, though none can be written."""
    disk = SimulatedDisk()
    store = _open(disk)
    bodies = [b"%d" % number for number in range(450)]
    for body in bodies:
        _put(store, "AAA", 0, body)
    _flush(store)
    disk.file(f"{store.paths.consume_queue}/AAA/0/{4000:020d}").make_unreadable(0, 4000)
    codes = None if wanted is None else frozenset({tags_code(wanted)})
    found: list[bytes] = []
    while len(found) < 450:
        result = store.get_message("AAA", 0, len(found), 32, 1 << 20, codes)
        assert result.status == GetStatus.FOUND
        found += [message.body for message in decode_records(b"".join(result.slices))]
        assert result.next_offset == len(found)
    assert found == bodies
    store.close()
