"""`mailboat replica copy` and `import`: where a slave gets its log, on real brokers."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from full_volume import full
from promises import promised
from replica_nodes import ReplicaNodes, same_log

from mailboat.broker.controller import BrokerController
from mailboat.cli import main
from mailboat.client import Message, Producer
from mailboat.config import load_settings
from mailboat.disk.real import RealDisk
from mailboat.node import Node
from mailboat.store.commit_log import RETRY_CREATE_S
from mailboat.store.message_store import MessageStore
from mailboat.testing.cluster import SMALL_STORE
from mailboat.testing.history import Sent
from mailboat.testing.store_simulator import HOST, make_message, small_config

Capture = pytest.CaptureFixture[bytes]
_HTTP = {"httpPort": "0", "mappedFileSizeCommitLog": "65536"}
_SEGMENT_BYTES = 65_536
_TABLES = {
    "topics": b"""{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1700000000000},
        "topicConfigTable":{"orders":{"order":false,"perm":6,"readQueueNums":3,
            "topicFilterType":"SINGLE_TAG","topicName":"orders","topicSysFlag":0,
            "writeQueueNums":3}}}""",
    "subscriptionGroup": b"""{"dataVersion":{"counter":3,"timestamp":1700000000000},
        "subscriptionGroupTable":{"G":{"groupName":"G","retryMaxTimes":7}}}""",
    "consumerOffset": b"""{"offsetTable":{"orders@G":{0:5,1:6}}}""",
    "delayOffset": b"""{"offsetTable":{3:2}}""",
}


async def _run(capture: Capture, http: str, *words: str, code: int = 0) -> str:
    """Run a command of `mailboat replica`, which must end with `code`; return what it says."""
    found = await asyncio.to_thread(main, ["replica", *words, "--http", http])
    captured = capture.readouterr()
    assert found == code, captured.err.decode() + captured.out.decode()
    return (captured.err if code else captured.out).decode().strip()


async def _send(nodes: ReplicaNodes, count: int) -> None:
    async with Producer("group", namesrv=nodes.namesrv) as producer:
        for number in range(count):
            await producer.send(Message("topic", b"%d" % number))


# -- import of a broker's store that belongs to no group ----------------------------------------


class _Theirs:
    """The folder of a broker that a slave has followed, as one of RocketMQ would leave it."""

    def __init__(self, root: Path, first: int = 0) -> None:
        """Begin with other messages for another `first`."""
        self.root = root
        self.count = first

    def write(self, count: int) -> bytes:
        """Have the broker store messages, and stop; return its log."""
        config = small_config(
            "ASYNC_FLUSH",
            mapped_file_size_commit_log=_SEGMENT_BYTES,
            mapped_file_size_consume_queue=4000,
            store_path_root_dir=str(self.root),
        )
        store = MessageStore(config, RealDisk(), store_host=HOST)
        store.open()
        for number in range(self.count, self.count + count):
            sent = Sent(number, ("orders", number % 3), b"%d-" % number * 200)
            store.put_messages([make_message(sent, f"U{number}")])
        self.count += count
        log = store.commit_log
        data = b"".join(
            segment.read(0, min(segment.end, log.end) - segment.start) for segment in log.segments
        )
        store.close()
        (self.root / "config").mkdir(exist_ok=True)
        for name, content in _TABLES.items():
            (self.root / "config" / f"{name}.json").write_bytes(content)
        return data


@asynccontextmanager
async def _slave(root: Path, options: Mapping[str, str] = {}) -> AsyncIterator[Node]:
    """Start a slave whose master is away."""
    node = Node(
        load_settings(
            "broker",
            overrides={
                **SMALL_STORE,
                **_HTTP,
                "bindAddress": "127.0.0.1",
                "listenPort": "0",
                "haListenPort": "0",
                "brokerName": "broker-a",
                "brokerRole": "SLAVE",
                "brokerId": "1",
                "storePathRootDir": str(root),
                **options,
            },
        )
    )
    await node.start()
    await node.wait_http()
    try:
        yield node
    finally:
        await node.shutdown()


def _broker(node: Node) -> BrokerController:
    assert node.broker is not None
    return node.broker


def _log(node: Node) -> bytes:
    log = _broker(node).store.commit_log
    return b"".join(
        segment.read(0, min(segment.end, log.end) - segment.start) for segment in log.segments
    )


async def test_what_a_stopped_master_had_is_imported(tmp_path: Path, capsysbinary: Capture) -> None:
    """A slave has all of its log, shows it, and has its tables; also after a restart."""
    theirs = _Theirs(tmp_path / "theirs")
    first = theirs.write(100)
    async with _slave(tmp_path / "mine") as node:
        said = await _run(capsysbinary, node.addresses()["http"], "import", str(theirs.root))
        assert said.startswith(f"{len(first)} bytes of the log, which ends at {len(first)} now")
        assert "1 topics, 1 groups, offsets of 1 groups in topics, 1 delay levels" in said
        assert _log(node) == first
        delay = json.loads((tmp_path / "mine" / "config" / "delayOffset.json").read_bytes())
        assert delay["offsetTable"] == {"3": 2}
    assert len(first) > _SEGMENT_BYTES
    everything = theirs.write(120)
    async with _slave(tmp_path / "mine") as node:
        http = node.addresses()["http"]
        said = await _run(capsysbinary, http, "import", str(theirs.root))
        more = len(everything) - len(first)
        assert said.startswith(f"{more} bytes of the log, which ends at {len(everything)} now")
        assert "0 topics, 0 groups, offsets of 0 groups in topics" in said
        assert _log(node) == everything
        broker = _broker(node)
        ends = [broker.store.max_offset("orders", queue_id) for queue_id in range(3)]
        assert sum(ends) == 220
        assert (await _run(capsysbinary, http, "import", str(theirs.root))).startswith("0 bytes")
    async with _slave(tmp_path / "mine") as node:
        broker = _broker(node)
        assert _log(node) == everything
        assert broker.topics.table["orders"].write_queue_nums == 3
        group = broker.groups.select("G")
        assert group is not None
        assert group.retry_max_times == 7
        assert broker.offsets.queues("G", "orders") == {0: 5, 1: 6}


async def test_another_log_is_not_imported(tmp_path: Path, capsysbinary: Capture) -> None:
    """A log that has diverged, is damaged, or shorter, changes nothing here."""
    theirs, others = _Theirs(tmp_path / "theirs"), _Theirs(tmp_path / "others", 1000)
    first = theirs.write(100)
    others.write(150)
    async with _slave(tmp_path / "mine") as node:
        http = node.addresses()["http"]
        await _run(capsysbinary, http, "import", str(theirs.root))
        said = await _run(capsysbinary, http, "import", str(others.root), code=1)
        assert "they have diverged" in said
        short = _Theirs(tmp_path / "short")
        short.write(99)
        assert "or less of it" in await _run(capsysbinary, http, "import", str(short.root), code=1)
        end = len(theirs.write(20))
        path = tmp_path / "theirs" / "commitlog" / f"{len(first) // _SEGMENT_BYTES * 65536:020d}"
        with path.open("r+b") as file:
            file.seek(len(first) % _SEGMENT_BYTES + 200)
            file.write(b"damaged")
        said = await _run(capsysbinary, http, "import", str(theirs.root), code=1)
        assert f"is damaged at {len(first)}" in said
        said = await _run(capsysbinary, http, "import", str(tmp_path / "nothing"), code=1)
        assert "is not a store directory" in said
        assert _log(node) == first
        assert end > len(first)


async def test_an_import_that_failed_may_be_repeated(
    tmp_path: Path, capsysbinary: Capture, volume: Callable[[int], Path]
) -> None:
    """A volume was full before anything was written of a log that does not begin at 0."""
    theirs = _Theirs(tmp_path / "theirs")
    everything = theirs.write(200)
    (theirs.root / "commitlog" / f"{0:020d}").unlink()
    mine = volume(8 << 20)
    async with _slave(mine) as node:
        http = node.addresses()["http"]
        with full(mine):
            said = await _run(capsysbinary, http, "import", str(theirs.root), code=1)
            assert "has not imported all of" in said
        assert not _log(node)
        # A full volume is not asked for room all the time.
        await asyncio.sleep(RETRY_CREATE_S)
        said = await _run(capsysbinary, http, "import", str(theirs.root))
        # What it says is what it has taken.
        size_bytes = len(everything) - _SEGMENT_BYTES
        assert said.startswith(f"{size_bytes} bytes of the log, which ends at {len(everything)}")
        assert _log(node) == everything[_SEGMENT_BYTES:]
        ends = [_broker(node).store.max_offset("orders", queue_id) for queue_id in range(3)]
        assert sum(ends) == 200


async def test_a_log_without_the_place_where_this_one_ends_is_not_imported(
    tmp_path: Path, capsysbinary: Capture
) -> None:
    """Its segment there is missing, or lies behind it."""
    theirs = _Theirs(tmp_path / "theirs")
    first = theirs.write(100)
    async with _slave(tmp_path / "mine") as node:
        http = node.addresses()["http"]
        await _run(capsysbinary, http, "import", str(theirs.root))
        theirs.write(200)
        end = len(first) // _SEGMENT_BYTES * _SEGMENT_BYTES
        (theirs.root / "commitlog" / f"{end:020d}").unlink()
        said = await _run(capsysbinary, http, "import", str(theirs.root), code=1)
        assert "it does not go on where this one ends" in said
        assert _log(node) == first


@pytest.mark.parametrize("is_same", [False, True])
async def test_a_log_that_ends_with_a_large_filler_is_told_by_its_records(
    tmp_path: Path, capsysbinary: Capture, is_same: bool
) -> None:
    """What lies behind the head of a filler is anything, and tells nothing."""
    config = small_config(
        "ASYNC_FLUSH",
        mapped_file_size_commit_log=4 << 20,
        max_message_size=3 << 20,
        store_path_root_dir=str(tmp_path / "theirs"),
    )

    def write(root: Path, name: str, is_again: bool = False) -> None:
        store = MessageStore(
            dataclasses.replace(config, store_path_root_dir=str(root)), RealDisk(), store_host=HOST
        )
        store.open()
        for size in (1000, (5 << 19)) if not is_again else (1000, 1000):
            sent = Sent(0, ("orders", 0), name.encode() * size)
            store.put_messages([make_message(sent, f"U{name}{size}")])
        if not is_again:
            assert store.commit_log.move_on(reserve=False)
            assert store.commit_log.end == 4 << 20
        store.close()

    write(tmp_path / "theirs", "a")
    options = {"mappedFileSizeCommitLog": str(4 << 20)}
    async with _slave(tmp_path / "mine", options) as node:
        http = node.addresses()["http"]
        await _run(capsysbinary, http, "import", str(tmp_path / "theirs"))
        assert len(_log(node)) == 4 << 20
        other = tmp_path / "theirs"
        if not is_same:
            other = tmp_path / "others"
            write(other, "b")
        else:
            # RocketMQ leaves there what it had in memory.
            with (other / "commitlog" / f"{0:020d}").open("r+b") as file:
                file.seek((4 << 20) - 500_000)
                file.write(b"anything" * 62_500)
        write(other, "c", is_again=True)
        code = 0 if is_same else 1
        said = await _run(capsysbinary, http, "import", str(other), code=code)
        assert ("they have diverged" in said) is not is_same
        assert (len(_log(node)) > 4 << 20) is is_same


async def test_a_torn_last_record_is_left_out(tmp_path: Path, capsysbinary: Capture) -> None:
    """What a master wrote only half of before it died is no message, and that is said."""
    theirs = _Theirs(tmp_path / "theirs")
    first = theirs.write(20)
    everything = theirs.write(1)
    with (theirs.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(len(first) + 150)
        file.write(bytes(len(everything) - len(first) - 150))
    async with _slave(tmp_path / "mine") as node:
        said = await _run(capsysbinary, node.addresses()["http"], "import", str(theirs.root))
        assert "left out: " in said
        assert _log(node) == first


async def test_a_store_in_use_is_not_imported(tmp_path: Path, capsysbinary: Capture) -> None:
    """A broker that runs writes on: its folder is refused."""
    theirs = _Theirs(tmp_path / "theirs")
    theirs.write(3)
    program = (
        "import sys; from mailboat.disk.real import RealDisk; "
        "release = RealDisk().lock(sys.argv[1], 'lock'); print('locked', flush=True); "
        "sys.stdin.read()"
    )
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        str(theirs.root / "lock"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"locked\n"
        async with _slave(tmp_path / "mine") as node:
            http = node.addresses()["http"]
            said = await _run(capsysbinary, http, "import", str(theirs.root), code=1)
            assert "is in use by a broker: stop it first" in said
            assert _log(node) == b""
    finally:
        await holder.communicate(b"")
    # Nor is anything there changed.
    assert (theirs.root / "lock").read_bytes() == b"lock"


async def test_the_own_store_is_not_imported(tmp_path: Path, capsysbinary: Capture) -> None:
    """It is in use, by the broker that is asked, which still keeps others away afterwards."""
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b'); "
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
    )
    (tmp_path / "also mine").symlink_to(tmp_path / "mine")
    async with _slave(tmp_path / "mine") as node:
        http = node.addresses()["http"]
        for name in ("mine", "also mine"):
            said = await _run(capsysbinary, http, "import", str(tmp_path / name), code=1)
            assert "is in use by a broker: stop it first" in said
        lock = str(tmp_path / "mine" / "lock")
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, lock, stderr=asyncio.subprocess.DEVNULL
        )
        assert await other.wait() != 0


async def test_a_folder_is_only_read(tmp_path: Path, capsysbinary: Capture) -> None:
    """It may be mounted for reading only, and be a copy of the log and the tables alone."""
    theirs = _Theirs(tmp_path / "theirs")
    log = theirs.write(3)
    (theirs.root / "lock").unlink()
    before = {path: path.stat().st_ctime_ns for path in theirs.root.rglob("*")}
    async with _slave(tmp_path / "mine") as node:
        await _run(capsysbinary, node.addresses()["http"], "import", str(theirs.root))
        assert _log(node) == log
    assert {path: path.stat().st_ctime_ns for path in theirs.root.rglob("*")} == before


async def test_large_tables_hold_nobody_up(tmp_path: Path, capsysbinary: Capture) -> None:
    """No callback of the broker takes 50 ms (which the test run watches), and all is taken.

    Files are read on a thread, by steps: tests/unit/mailboat/protocol/test_followed_tables.py.
    """
    theirs = _Theirs(tmp_path / "theirs")
    theirs.write(3)
    config = theirs.root / "config"
    topic = json.loads(_TABLES["topics"])["topicConfigTable"]["orders"]
    numbers = range(40_000)
    topics = {f"t-{number}": topic | {"topicName": f"t-{number}"} for number in numbers}
    groups = {f"g-{number}": {"groupName": f"g-{number}"} for number in numbers}
    version = {"counter": 3, "timestamp": 1_700_000_000_000}
    for name, member, table in (
        ("topics", "topicConfigTable", topics),
        ("subscriptionGroup", "subscriptionGroupTable", groups),
    ):
        (config / f"{name}.json").write_text(json.dumps({"dataVersion": version, member: table}))
    # Java writes numbers that are keys without quotes.
    queues = ",".join(f"{queue_id}:7" for queue_id in range(16))
    offsets = ",\n".join(f'"t-{number}@g-{number}":{{{queues}}}' for number in numbers)
    (config / "consumerOffset.json").write_text(f'{{"offsetTable":{{{offsets}}}}}')
    async with _slave(tmp_path / "mine") as node:
        said = await _run(capsysbinary, node.addresses()["http"], "import", str(theirs.root))
        assert "40000 topics, 40000 groups, offsets of 40000 groups in topics" in said
        broker = _broker(node)
        assert broker.topics.table.keys() >= topics.keys()
        assert broker.offsets.query("g-39999", "t-39999", 15) == 7


async def test_more_topics_than_a_registration_takes(
    tmp_path: Path, capsysbinary: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would cost the broker its place at the name servers: it says so, and may try again."""
    theirs = _Theirs(tmp_path / "theirs")
    theirs.write(3)
    topic = json.loads(_TABLES["topics"])["topicConfigTable"]["orders"]
    topics = {f"t-{number}": topic | {"topicName": f"t-{number}"} for number in range(300)}
    table = {"dataVersion": {"counter": 3}, "topicConfigTable": topics}
    (theirs.root / "config" / "topics.json").write_text(json.dumps(table))
    async with _slave(tmp_path / "mine") as node:
        http = node.addresses()["http"]
        monkeypatch.setattr("mailboat.broker.topics.MAX_REGISTERED_BYTES", 8000)
        said = await _run(capsysbinary, http, "import", str(theirs.root), code=1)
        assert "its tables are taken in part: topic t-" in said
        assert "8000 bytes that name servers take" in said
        assert _broker(node).topics.registered_bytes <= 8000
        assert _broker(node).topics.data_version.counter != 3
        monkeypatch.undo()
        await _run(capsysbinary, http, "import", str(theirs.root))
        assert _broker(node).topics.table.keys() >= topics.keys()
        assert _broker(node).topics.data_version.counter == 3


# -- import within a group ----------------------------------------------------------------------


async def test_what_a_dead_master_of_a_group_had_is_imported(
    tmp_path: Path, capsysbinary: Capture
) -> None:
    """What no slave had yet is there, once the master's folder was taken over by one of them."""
    options = {**_HTTP, "inSyncReplicas": "1"}
    async with ReplicaNodes(tmp_path, 2, options, master_role="ASYNC_MASTER") as nodes:
        await nodes.in_sync()
        await _send(nodes, 20)
        await nodes.until(lambda: nodes.log_bytes(1) == nodes.log_bytes(0))
        await nodes.wait_http()
        directory = str(tmp_path / "replica-0")
        http = nodes.addresses(1)["http"]
        said = await _run(capsysbinary, http, "import", directory, code=1)
        assert "it follows the master of its group" in said
        said = await _run(capsysbinary, nodes.addresses(0)["http"], "import", directory, code=1)
        assert "it leads its group" in said
        await nodes.stop(1)
        await _send(nodes, 30)
        everything = nodes.log_bytes(0)
        await nodes.stop(0)
        await nodes.start(1)
        await nodes.wait_http()
        await _run(capsysbinary, nodes.addresses(1)["http"], "import", directory)
        with promised("replicas have the same log"):
            assert nodes.log_bytes(1) == everything
        await _run(capsysbinary, nodes.addresses(1)["http"], "promote", "--accept-loss")
        store = nodes.broker(1).store
        await nodes.until(lambda: sum(store.max_offset(*key) for key in store.queue_keys()) == 50)
        await nodes.start(0)
        await nodes.in_sync()
        assert same_log(nodes.log_bytes(0), nodes.log_bytes(1))


# -- copy ---------------------------------------------------------------------------------------


async def test_a_slave_gets_its_log_anew(tmp_path: Path, capsysbinary: Capture) -> None:
    """It is another member afterwards, has all of the log, and its former one lies aside."""
    async with ReplicaNodes(tmp_path, 3, _HTTP) as nodes:
        await nodes.in_sync()
        await _send(nodes, 30)
        await nodes.until(lambda: nodes.log_bytes(2) == nodes.log_bytes(0))
        await nodes.wait_http()
        before = nodes.group(2).replica.me.store_id
        said = await _run(capsysbinary, nodes.addresses(0)["http"], "copy", code=1)
        assert "replica 0 takes no copy: it leads" in said
        said = await _run(capsysbinary, nodes.addresses(2)["http"], "copy")
        assert said.startswith("replica 2 begins anew")
        await nodes.until(lambda: nodes.has_begun(2) and _store_id(nodes, 2) != before)
        await nodes.in_sync()
        await _send(nodes, 5)
        assert same_log(nodes.log_bytes(2), nodes.log_bytes(0))
        aside = list((tmp_path / "replica-2" / "mailboat" / "diverged").rglob("commitlog/*"))
        assert len(aside) == 1


async def test_too_few_copies_are_left_to_nobody(tmp_path: Path, capsysbinary: Capture) -> None:
    """With inSyncReplicas 2 of two replicas none gives its log up, unless a person insists."""
    async with ReplicaNodes(tmp_path, 2, _HTTP) as nodes:
        await nodes.in_sync()
        await _send(nodes, 10)
        await nodes.wait_http()
        http = nodes.addresses(1)["http"]
        said = await _run(capsysbinary, http, "copy", code=1)
        assert "only 1 of the others have all that is confirmed, and inSyncReplicas is 2" in said
        before = nodes.group(1).replica.me.store_id
        await _run(capsysbinary, http, "copy", "--accept-loss")
        await nodes.until(lambda: nodes.has_begun(1) and _store_id(nodes, 1) != before)
        await nodes.in_sync()
        assert same_log(nodes.log_bytes(1), nodes.log_bytes(0))
        assert nodes.log_bytes(0) != b""
        await nodes.stop(0)
        await nodes.until(lambda: not nodes.group(1).is_following)
        said = await _run(capsysbinary, nodes.addresses(1)["http"], "copy", code=1)
        assert "it follows nobody" in said


def _store_id(nodes: ReplicaNodes, ordinal: int) -> str:
    return nodes.group(ordinal).replica.me.store_id
