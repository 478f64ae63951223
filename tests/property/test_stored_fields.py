"""What a client says of a message outlives kill, restart and rebuild, whatever it says.

Every field that a client gives and a record keeps is drawn from its whole range: each bit of flag
and sysFlag, times and counts with either sign, properties that are hardly any, hosts of both kinds.
After each start the log has no damage, and every queue says the same as before: the same records,
the same ConsumeQueue units.
"""

from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mailboat.broker.dispatcher import Send
from mailboat.broker.processors.send import SendMessageProcessor
from mailboat.broker.stats import BrokerStats
from mailboat.broker.stored_message import inner_of
from mailboat.config import Settings
from mailboat.model.batch import encode_batch
from mailboat.model.message import Message, MessageExt
from mailboat.model.record import decode_records
from mailboat.model.sys_flag import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_TYPE_MASK,
    MULTI_TAGS,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.send_header import SendFields, SendRequest
from mailboat.store.lookup import GetStatus
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import small_config

_V4: Final = bytes([10, 0, 0, 2]) + (10911).to_bytes(4, "big")
_V6: Final = bytes(15) + b"\x01" + (10911).to_bytes(4, "big")
_hosts = st.sampled_from([_V4, _V6])
_int32 = st.one_of(
    st.integers(0, 31).map(lambda bit: (1 << bit) - (1 << 32 if bit == 31 else 0)),
    st.integers(-(2**31), 2**31 - 1),
)
_int64 = st.one_of(st.sampled_from([0, -1, 2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1))
_TOPICS: Final = ("orders", "many", "t" * 60)
_FROM_CLIENTS: Final = COMPRESSED | COMPRESSION_TYPE_MASK
_Queues = dict[tuple[str, int], tuple[bytes, bytes]]


def _open(disk: SimulatedDisk, store_host: bytes) -> MessageStore:
    store = MessageStore(small_config("ASYNC_FLUSH"), disk, store_host=store_host)
    store.open()
    assert store.recovery.damaged == []
    assert store.recovery.torn_bytes == 0
    return store


def _read(store: MessageStore) -> _Queues:
    """Return all records and all units of each queue."""
    queues: _Queues = {}
    for key, queue in store.queues.by_key.items():
        if queue.max_offset == 0:
            continue
        records, at = b"", queue.min_offset
        while at < queue.max_offset:
            result = store.get_message(*key, at, 32, 1 << 20)
            assert result.status == GetStatus.FOUND
            records += b"".join(result.slices)
            at = result.next_offset
        units = b""
        while len(units) < 20 * (queue.max_offset - queue.min_offset):
            units += queue.read_units(queue.min_offset + len(units) // 20, 1000)
        queues[key] = records, units
    return queues


def _remove_tree(disk: SimulatedDisk, path: str) -> None:
    for name in disk.listdir(path):
        child = f"{path}/{name}"
        if disk.is_dir(child):
            _remove_tree(disk, child)
        else:
            disk.unlink(child)
    disk.rmdir(path)


def _messages(queues: _Queues) -> list[MessageExt]:
    return [message for records, _ in queues.values() for message in decode_records(records)]


def _outlives(store: MessageStore, disk: SimulatedDisk, store_host: bytes) -> list[MessageExt]:
    """Check that what is stored survives all that may come; return it."""
    before = _read(store)
    disk = disk.kill()
    store = _open(disk, store_host)
    assert _read(store) == before
    store.close()
    store = _open(disk, store_host)
    assert _read(store) == before
    for derived in ("consumequeue", "index", "mailboat"):
        disk = disk.kill()
        if disk.exists(f"/store/{derived}"):
            _remove_tree(disk, f"/store/{derived}")
        store = _open(disk, store_host)
        assert _read(store) == before
    return _messages(before)


# -- the door of the store --------------------------------------------------------------------


def _store_one_by_one(store: MessageStore, messages: list[MessageInner]) -> None:
    store.put_messages(messages)


def _store_as_batch(store: MessageStore, messages: list[MessageInner]) -> None:
    for message in messages:
        store.put_batch([message])


_WAYS = [_store_one_by_one, _store_as_batch]

_inner = st.builds(
    MessageInner,
    topic=st.sampled_from(_TOPICS),
    queue_id=st.integers(0, 3),
    body=st.binary(max_size=40),
    properties=st.sampled_from([b"", b"TAGS\x01a\x02"]),
    tags_code=st.just(97),
    unique_key=st.just("U1"),
    keys=st.none(),
    flag=_int32,
    sys_flag=_int32,
    born_timestamp_ms=_int64,
    born_host=_hosts,
    reconsume_times=_int32,
)


@pytest.mark.parametrize("way", _WAYS)
@settings(max_examples=60)
@given(messages=st.lists(_inner, min_size=1, max_size=6), store_host=_hosts)
def test_the_store_keeps_or_refuses_every_field(
    way: Any, messages: list[MessageInner], store_host: bytes
) -> None:
    """Half messages and their ends are refused; the store alone says how long hosts are."""
    disk = SimulatedDisk()
    store = _open(disk, store_host)
    for message in messages:
        message.tags_code = 97 if message.properties else 0
    way(store, messages)
    refused = [m for m in messages if m.sys_flag & TRANSACTION_PREPARED]
    assert {m.status for m in refused} <= {PutStatus.MESSAGE_ILLEGAL}
    taken = [m for m in messages if not m.sys_flag & TRANSACTION_PREPARED]
    assert {m.status for m in taken} <= {PutStatus.PUT_OK}

    def fields(message: MessageInner | MessageExt) -> tuple[Any, ...]:
        hosts = BORN_HOST_V6 | STORE_HOST_V6
        flags = message.sys_flag & ~hosts
        place = message.topic, message.queue_id, message.body
        times = message.born_timestamp_ms, message.born_host, message.reconsume_times
        return *place, message.flag, flags, *times

    found = _outlives(store, disk, store_host)
    assert sorted(map(fields, found)) == sorted(map(fields, taken))
    for message in found:
        assert bool(message.sys_flag & BORN_HOST_V6) == (message.born_host == _V6)
        assert bool(message.sys_flag & STORE_HOST_V6) == (store_host == _V6)
        assert message.store_host == store_host


@settings(max_examples=60)
@given(message=_inner, old_host=_hosts, new_host=_hosts, flags=_int32)
def test_what_is_stored_again_keeps_its_meaning(
    message: MessageInner, old_host: bytes, new_host: bytes, flags: int
) -> None:
    """A record of any broker, with any sysFlag, makes a message that outlives everything too."""
    disk = SimulatedDisk()
    store = _open(disk, old_host)
    message.sys_flag = 0
    message.properties, message.tags_code = b"TAGS\x01a\x02", 97
    store.put_messages([message])
    (record,) = _messages(_read(store))
    store.close()
    # Another broker, or an older one, may have stored whatever it was told.
    hosts = BORN_HOST_V6 | STORE_HOST_V6
    record.sys_flag = flags & ~hosts | record.sys_flag & hosts
    store = _open(disk, new_host)
    again = inner_of(record, "again", 0, record.properties)
    store.put_messages([again])
    assert again.status == PutStatus.PUT_OK
    (found,) = [m for m in _outlives(store, disk, new_host) if m.topic == "again"]
    assert (found.born_host, found.store_host) == (record.born_host, new_host)
    is_commit = flags & TRANSACTION_ROLLBACK == TRANSACTION_COMMIT
    assert found.sys_flag & TRANSACTION_ROLLBACK == (TRANSACTION_COMMIT if is_commit else 0)
    kept = ~(hosts | TRANSACTION_ROLLBACK)
    assert found.sys_flag & kept == flags & kept


# -- what clients send ------------------------------------------------------------------------

_names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "CLUSTER", "colour", ""])
_values = st.sampled_from(["a", "true", "false", "", "b c", "\u6c34", " "])
_entries = st.one_of(
    st.lists(st.tuples(_names, _values), max_size=6),
    st.lists(st.tuples(st.sampled_from(["TAGS", "KEYS"]), st.sampled_from(["a", ""])), max_size=4),
)
_properties = st.one_of(
    _entries.map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs)),
    _entries.map(lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)),
    st.lists(st.sampled_from(["\x01", "\x02", "TAGS", "a", "KEYS"]), max_size=9).map("".join),
)


class _Peer:
    """A connection that keeps what is written to it."""

    def __init__(self, peer_host: bytes) -> None:
        self.peer_host = peer_host
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


@st.composite
def _send(draw: st.DrawFn) -> Send:
    code = draw(st.sampled_from([RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2,
                                 RequestCode.SEND_BATCH_MESSAGE]))  # fmt: skip
    body = draw(st.binary(min_size=1, max_size=40))
    text = draw(_properties)
    if code == RequestCode.SEND_BATCH_MESSAGE:
        item = Message("orders", body, tags=draw(st.sampled_from([None, "a"])), flag=draw(_int32))
        body = encode_batch([item] * 2, ["U1", "U2"])
        if draw(st.booleans()):
            data = text.encode()
            size = 22 + 1 + len(data)
            head = b"".join(n.to_bytes(4, "big", signed=True) for n in (size, 0, 0, item.flag, 1))
            body = head + b"x" + len(data).to_bytes(2, "big") + data
    fields = SendFields(
        producer_group="P",
        topic=draw(st.sampled_from(_TOPICS)),
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=draw(st.integers(-1, 3)),
        sys_flag=draw(_int32),
        born_timestamp_ms=draw(_int64),
        message_flag=draw(_int32),
        properties=text,
        reconsume_times=draw(_int32),
        batch=code == RequestCode.SEND_BATCH_MESSAGE,
    )
    return _Peer(draw(_hosts)), SendRequest(code, fields), body  # type: ignore[return-value]


@settings(max_examples=200, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(rounds=st.lists(st.lists(_send(), min_size=1, max_size=5), min_size=1, max_size=3))
def test_whatever_a_client_sends_is_the_same_after_a_rebuild(rounds: list[list[Send]]) -> None:
    """Records and units do not change, and of sysFlag only what is a client's own is stored."""
    disk = SimulatedDisk()
    store = _open(disk, _V4)
    table = {topic: TopicConfig(topic, 4, 4) for topic in _TOPICS}
    table["many"].topic_filter_type = "MULTI_TAG"
    context: Any = SimpleNamespace(
        store=store,
        topics=SimpleNamespace(table=table),
        settings=Settings(store=small_config("ASYNC_FLUSH")),
        stats=BrokerStats(clock=lambda: 0.0, local_day=lambda: 1),
    )
    processor = SendMessageProcessor(context, SimpleNamespace())  # type: ignore[arg-type]
    for sends in rounds:
        processor.send(sends)
    for message in _outlives(store, disk, _V4):
        born = BORN_HOST_V6 if message.born_host == _V6 else 0
        assert message.sys_flag & ~_FROM_CLIENTS & ~MULTI_TAGS == born
        assert not message.sys_flag & MULTI_TAGS or message.topic == "many"
