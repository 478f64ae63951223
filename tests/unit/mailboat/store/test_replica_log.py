"""A store that follows another one's log: same bytes, same queues, nothing shown too early."""

import shutil
from pathlib import Path
from random import Random

import pytest

from mailboat.disk.real import RealDisk
from mailboat.model import compiled
from mailboat.model.record import (
    BLANK_MAGIC,
    CRC_PROPERTY_BYTES,
    FILLER,
    crc_property,
    decode_records,
)
from mailboat.model.tags import tags_code
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.store_simulator import HOST, small_config

_SEGMENT_BYTES = 65_536


@pytest.fixture(autouse=True, params=["compiled", "python"])
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow with the compiled core, and with its definition in Python."""
    if request.param == "python":
        monkeypatch.setattr(compiled, "scan_records", None)
    elif compiled.scan_records is None:
        pytest.skip("the compiled core is not installed")


def _store(root: Path, role: str = "SLAVE") -> MessageStore:
    config = small_config(
        "ASYNC_FLUSH",
        mapped_file_size_commit_log=_SEGMENT_BYTES,
        mapped_file_size_consume_queue=4000,
        store_path_root_dir=str(root),
        broker_role=role,
    )
    return MessageStore(config, RealDisk(), store_host=HOST)


def _open(root: Path, confirmed_offset: int = 0) -> MessageStore:
    store = _store(root)
    store.replica.show_below(confirmed_offset)
    store.open()
    return store


def _put(store: MessageStore, number: int, topic: str = "orders") -> MessageInner:
    message = MessageInner(
        topic=topic,
        queue_id=number % 3,
        body=Random(number).randbytes(900 + number % 7),
        properties=f"TAGS\x01T{number % 2}\x02KEYS\x01k{number}\x02".encode(),
        tags_code=tags_code(f"T{number % 2}"),
        unique_key=None,
        keys=f"k{number}",
        flag=0,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        born_host=HOST,
    )
    store.put_messages([message])
    assert message.status == PutStatus.PUT_OK
    return message


def _leader(root: Path, count: int = 200) -> MessageStore:
    """Return a store whose messages fill more than two segments."""
    store = _store(root, "ASYNC_MASTER")
    store.open()
    for number in range(count):
        _put(store, number)
    assert len(store.commit_log.segments) > 2
    return store


def _copy(leader: MessageStore, follower: MessageStore, most_bytes: int = 7000) -> None:
    """Have a follower take all that a leader has and it has not."""
    while (at := follower.replica.end) < leader.replica.end:
        piece = leader.replica.read(at, most_bytes)
        follower.replica.follow(piece.records, at)
        assert follower.replica.end == piece.end


def _confirm(store: MessageStore, end: int) -> None:
    store.replica.confirmed_offset = end
    store.settle()


def _ends(store: MessageStore) -> dict[tuple[str, int], int]:
    return {key: store.max_offset(*key) for key in store.queue_keys() if store.has_queue(*key)}


def _log(store: MessageStore) -> bytes:
    log = store.commit_log
    return b"".join(
        segment.read(0, min(segment.end, log.end) - segment.start) for segment in log.segments
    )


def test_a_follower_has_the_same_log_and_shows_what_is_confirmed(tmp_path: Path) -> None:
    """Nothing is shown before it is confirmed, and then exactly what lies below."""
    leader, follower = _leader(tmp_path / "leader"), _open(tmp_path / "follower")
    _copy(leader, follower)
    assert _log(follower) == _log(leader)
    assert _ends(follower) == {}
    _confirm(follower, follower.replica.end)
    assert _ends(follower) == _ends(leader)
    for queue_id in range(3):
        theirs = leader.get_message("orders", queue_id, 0, 1000, 1 << 30)
        ours = follower.get_message("orders", queue_id, 0, 1000, 1 << 30)
        assert b"".join(ours.slices) == b"".join(theirs.slices) != b""
    follower.close()
    leader.close()


@pytest.mark.parametrize("most_bytes", [1, 1000, 5000, 1 << 20])
def test_pieces_are_whole_records_of_one_segment(tmp_path: Path, most_bytes: int) -> None:
    """However small a piece may be, the log arrives whole, with the ends of its segments."""
    leader, follower = _leader(tmp_path / "leader"), _open(tmp_path / "follower")
    _copy(leader, follower, most_bytes)
    assert _log(follower) == _log(leader)
    follower.close()
    leader.close()


def test_a_read_on_a_thread_is_the_same(tmp_path: Path) -> None:
    """What is read away from the store's thread is what is read on it."""
    leader = _leader(tmp_path)
    at = 0
    while at < leader.replica.end:
        piece = leader.replica.read(at, 9000)
        assert leader.replica.read_job(at, 9000)() == piece
        at = piece.end
    assert leader.replica.read(at, 9000).records == b""
    leader.close()


@pytest.mark.parametrize("position", [0, 5, 21, 29, 100, 950])
def test_damage_on_the_way_is_not_taken(tmp_path: Path, position: int) -> None:
    """A wrong byte anywhere in what arrives refuses all of it, and nothing is written."""
    leader, follower = _leader(tmp_path / "leader"), _open(tmp_path / "follower")
    piece = leader.replica.read(0, 5000)
    damaged = bytearray(piece.records)
    damaged[position] ^= 0x10
    with pytest.raises(ValueError, match=r"."):
        follower.replica.follow(bytes(damaged), 0)
    assert follower.replica.end == 0
    _copy(leader, follower)
    assert _log(follower) == _log(leader)
    follower.close()
    leader.close()


def test_what_belongs_elsewhere_is_not_taken(tmp_path: Path) -> None:
    """Records of another place, half ones, and fillers that lie are refused."""
    leader, follower = _leader(tmp_path / "leader"), _open(tmp_path / "follower")
    first = leader.replica.read(0, 2000)
    second = leader.replica.read(first.end, 2000)
    for data, at in (
        (second.records, 0),
        (second.records, first.end),
        (first.records[:-1], 0),
        (b"", 0),
        (FILLER.pack(_SEGMENT_BYTES - 1, BLANK_MAGIC), 0),
    ):
        with pytest.raises(ValueError, match=r"."):
            follower.replica.follow(data, at)
    assert follower.replica.end == 0
    follower.close()
    leader.close()


def test_a_restart_shows_what_was_confirmed_and_no_more(tmp_path: Path) -> None:
    """A replica that starts again holds back what it does not know to be confirmed."""
    leader, follower = _leader(tmp_path / "leader"), _open(tmp_path / "follower")
    _copy(leader, follower)
    confirmed = leader.physical_position("orders", 0, 30)
    assert confirmed is not None
    _confirm(follower, confirmed)
    # Of a piece that is confirmed in part, nothing is shown until it is confirmed whole.
    assert 20 < _ends(follower)["orders", 0] <= 30
    follower.close()
    again = _open(tmp_path / "follower", confirmed)
    assert _ends(again)["orders", 0] == 30
    _confirm(again, again.replica.end)
    assert _ends(again) == _ends(leader)
    again.close()
    leader.close()


@pytest.mark.parametrize("shown", [0, 1, 100])
def test_what_is_held_back_finds_no_units_of_before(tmp_path: Path, shown: int) -> None:
    """A process that died had shown more than its last note of what is confirmed says."""
    before = _leader(tmp_path / "before")
    flush = before.begin_flush()
    assert flush is not None
    flush.run()
    before.finish_flush(flush, None)
    before.queues.write()
    # As `kill -9` leaves it: there is no checkpoint yet.
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    confirmed = before.physical_position("orders", 0, shown // 3) if shown else 0
    assert confirmed is not None
    after = _open(tmp_path / "after", confirmed)
    assert after.dispatch.is_holding
    _confirm(after, after.replica.end)
    assert _ends(after) == _ends(before)
    for queue_id in range(3):
        theirs = before.get_message("orders", queue_id, 0, 1000, 1 << 30)
        ours = after.get_message("orders", queue_id, 0, 1000, 1 << 30)
        assert b"".join(ours.slices) == b"".join(theirs.slices) != b""


@pytest.mark.parametrize("restarts", [False, True])
def test_who_leads_goes_on_behind_what_it_followed(tmp_path: Path, *, restarts: bool) -> None:
    """The first own message has the queue offset behind what is not confirmed yet."""
    leader, follower = _leader(tmp_path / "leader"), _open(tmp_path / "follower")
    _copy(leader, follower)
    ends = _ends(leader)
    if restarts:
        follower.close()
        follower = _open(tmp_path / "follower")
    follower.dispatch.count_held()
    for number in range(6):
        expected = ends["orders", number % 3] + number // 3
        assert _put(follower, number).queue_offset == expected
    _confirm(follower, follower.replica.end)
    assert _ends(follower) == {key: end + 2 for key, end in ends.items()}
    follower.close()
    leader.close()


def test_a_tail_is_kept_aside_and_cut(tmp_path: Path) -> None:
    """What the master does not have goes to a folder, and the master's takes its place."""
    one = _leader(tmp_path / "one", 150)
    follower = _open(tmp_path / "follower")
    _copy(one, follower)
    shared = one.physical_position("orders", 0, 20)
    assert shared is not None
    _confirm(follower, shared)
    end = follower.replica.end
    follower.replica.keep_aside(shared, follower.paths.diverged)
    follower.replica.cut(shared)
    assert follower.replica.end == shared
    kept = sorted((tmp_path / "follower" / "mailboat" / "diverged").iterdir())
    assert b"".join(path.read_bytes() for path in kept) == _log(one)[shared:end]
    assert _log(follower) == _log(one)[:shared]
    _copy(one, follower)
    _confirm(follower, follower.replica.end)
    assert _ends(follower) == _ends(one)
    follower.close()
    again = _open(tmp_path / "follower", end)
    assert _log(again) == _log(one)
    again.close()
    one.close()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("confirmed_records", [0, 7])
def test_what_is_below_a_cut_is_not_forgotten(
    tmp_path: Path, confirmed_records: int, *, restarts: bool
) -> None:
    """Records that were taken or recovered together stay in their queues as far as they stay."""
    leader, follower = _leader(tmp_path / "leader"), _open(tmp_path / "follower")
    _copy(leader, follower, most_bytes=1 << 20)
    places = [leader.physical_position("orders", n % 3, n // 3) for n in range(21)]
    starts = [place for place in places if place is not None]
    confirmed, cut = starts[confirmed_records], starts[20]
    _confirm(follower, confirmed)
    if restarts:
        follower.close()
        follower = _open(tmp_path / "follower", confirmed)
    follower.replica.cut(cut)
    _copy(leader, follower, most_bytes=1 << 20)
    _confirm(follower, follower.replica.end)
    assert _ends(follower) == _ends(leader)
    for queue_id in range(3):
        theirs = leader.get_message("orders", queue_id, 0, 1000, 1 << 30)
        ours = follower.get_message("orders", queue_id, 0, 1000, 1 << 30)
        assert b"".join(ours.slices) == b"".join(theirs.slices) != b""


def test_an_empty_log_begins_where_the_master_does(tmp_path: Path) -> None:
    """A master whose first segments are gone is followed from the oldest that is left."""
    leader = _leader(tmp_path / "leader")
    leader.commit_log.remove_oldest()
    start = leader.replica.start
    assert start == _SEGMENT_BYTES
    follower = _open(tmp_path / "follower")
    follower.replica.begin_at(start)
    _copy(leader, follower)
    _confirm(follower, follower.replica.end)
    assert follower.replica.start == start
    assert _log(follower) == _log(leader)
    assert _ends(follower) == _ends(leader)
    follower.close()
    leader.close()


@pytest.mark.parametrize("lost_bytes", range(1, 21))
def test_a_record_that_is_torn_anywhere_in_its_checksum_is_gone(
    tmp_path: Path, lost_bytes: int
) -> None:
    """What a crash left of an unflushed record is no record, also where its body is whole."""
    store = _store(tmp_path, "ASYNC_MASTER")
    store.open()
    messages = [_put(store, number) for number in range(3)]
    end = store.replica.end
    path = store.commit_log.segments[0].path
    # The process dies: nothing is flushed, and the pages of the last sector were not written.
    again = _store(tmp_path / "copy", "ASYNC_MASTER")
    (tmp_path / "copy" / "commitlog").mkdir(parents=True)
    data = bytearray(Path(path).read_bytes())
    data[end - lost_bytes : end] = bytes(lost_bytes)
    (tmp_path / "copy" / "commitlog" / Path(path).name).write_bytes(data)
    (tmp_path / "copy" / "mailboat").mkdir()
    (tmp_path / "copy" / "mailboat" / "flushed").write_bytes(
        (tmp_path / "mailboat" / "flushed").read_bytes()
    )
    again.open()
    assert again.replica.end == messages[2].physical_offset
    again.close()
    store.close()


def test_a_body_that_ends_like_a_checksum_ends_no_log(tmp_path: Path) -> None:
    """Without checksums over whole records, what a sender wrote must not look like a wrong one."""

    def open_again() -> MessageStore:
        config = small_config(
            "ASYNC_FLUSH", store_path_root_dir=str(tmp_path), enabled_append_prop_crc=False
        )
        store = MessageStore(config, RealDisk(), store_host=HOST)
        store.open()
        return store

    store = open_again()
    bodies = [b"__CRC32#\x01" + bytes([49] * count) for count in range(12)]
    for body in bodies:
        message = MessageInner(
            topic="t",
            queue_id=0,
            body=body,
            properties=b"",
            tags_code=0,
            unique_key=None,
            keys=None,
            flag=0,
            sys_flag=0,
            born_timestamp_ms=1_700_000_000_000,
            born_host=HOST,
        )
        store.put_messages([message])
        assert message.status == PutStatus.PUT_OK
    end = store.replica.end
    # As a process that is killed leaves it.
    assert store._release_lock is not None
    store._release_lock()
    again = open_again()
    assert again.replica.end == end
    found = again.get_message("t", 0, 0, 100, 1 << 30)
    assert [m.body for m in decode_records(b"".join(found.slices))] == bodies
    again.close()


@pytest.mark.parametrize("again", [7, 3, 1 << 40])
def test_a_log_that_gives_queue_offsets_again_is_followed(tmp_path: Path, again: int) -> None:
    """As a master of RocketMQ does that was promoted: the first of two counts, and nothing ends."""
    leader, follower = _leader(tmp_path / "leader", 200), _open(tmp_path / "follower")
    numbers = [*range(10), *range(again, again + 5), *range(10, 20)]
    records = leader.replica.read(0, _SEGMENT_BYTES).records
    at, log = 0, b""
    for number in numbers:
        size = int.from_bytes(records[at : at + 4], "big")
        head = bytearray(records[at : at + size - CRC_PROPERTY_BYTES])
        head[12:16] = bytes(4)
        head[20:28] = number.to_bytes(8, "big")
        log += bytes(head) + crc_property(bytes(head))
        at += size
    follower.replica.follow(log, 0)
    _confirm(follower, len(log))
    assert _ends(follower) == {("orders", 0): 20}
    found = follower.get_message("orders", 0, 0, 1000, 1 << 30)
    queue_offsets = [message.queue_offset for message in decode_records(b"".join(found.slices))]
    assert queue_offsets == [*range(20)]
    follower.close()
    again_open = _open(tmp_path / "follower", len(log))
    assert _ends(again_open) == {("orders", 0): 20}
    again_open.close()
    leader.close()


@pytest.mark.parametrize("made_by", ["a process that died before it wrote", "a cut"])
def test_an_empty_segment_gives_way_to_where_the_leader_begins(
    tmp_path: Path, made_by: str
) -> None:
    """A follower that has no record yet follows a leader whose oldest segments have expired."""
    leader = _leader(tmp_path / "leader")
    leader.commit_log.remove_oldest()
    follower = _open(tmp_path / "follower")
    if made_by == "a cut":
        first = leader.replica.read(_SEGMENT_BYTES, 1)
        follower.replica.begin_at(_SEGMENT_BYTES)
        follower.replica.follow(first.records, _SEGMENT_BYTES)
        follower.replica.cut(_SEGMENT_BYTES)
        assert follower.commit_log.segments
        leader.commit_log.remove_oldest()
    else:
        follower.close()
        segment = tmp_path / "follower/commitlog/00000000000000000000"
        segment.write_bytes(bytes(_SEGMENT_BYTES))
        follower = _open(tmp_path / "follower")
    follower.replica.begin_at(leader.replica.start)
    _copy(leader, follower)
    assert follower.commit_log.start == leader.commit_log.start
    assert follower.commit_log.end == leader.commit_log.end
    follower.close()
    leader.close()
