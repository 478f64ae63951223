"""A broker's start, end and restart, with a real directory and real sockets."""

import asyncio
import errno
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from real_time import at_most_s
from small_store import small_store

from mailboat.broker import controller
from mailboat.broker.controller import BrokerController
from mailboat.config import BrokerConfig, Settings
from mailboat.disk import Disk
from mailboat.disk.real import RealDisk
from mailboat.errors import DamagedStoreError, StoreBusyError
from mailboat.model.batch import encode_batch
from mailboat.model.message import Message
from mailboat.model.record import decode_records
from mailboat.model.subscription import SubscriptionGroupConfig
from mailboat.model.topic import TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.heartbeat import ConsumerData, HeartbeatData, encode_heartbeat
from mailboat.remoting.client import RemotingClient
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.web.context import WebContext
from mailboat.web.probes import Probes


def make_broker(root: Path, *, disk: Disk | None = None, **changes: Any) -> BrokerController:
    """Prepare a broker on a directory."""
    settings = Settings(
        role="broker",
        broker=BrokerConfig(**{"listen_port": 0, "bind_address": "127.0.0.1", **changes}),
        store=small_store(root),
    )
    return BrokerController(settings, disk=disk)


def send_request(topic: str, body: bytes) -> RemotingCommand:
    """Return what a producer sends to queue 0."""
    return RemotingCommand.request(
        RequestCode.SEND_MESSAGE_V2,
        {
            "a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0,
            "i": "", "j": 0, "k": False,
        },
        body,
    )  # fmt: skip


def pull_request(topic: str, queue_offset: int, suspend_ms: int = 0) -> RemotingCommand:
    """Return what a consumer sends for queue 0, waiting if `suspend_ms` is given."""
    return RemotingCommand.request(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": "G",
            "topic": topic,
            "queueId": 0,
            "queueOffset": queue_offset,
            "maxMsgNums": 32,
            "sysFlag": 6 if suspend_ms else 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": suspend_ms,
            "subscription": "*",
            "subVersion": 0,
        },
    )


def heartbeat_request(group: str) -> RemotingCommand:
    """Return the heartbeat of a consumer."""
    body = encode_heartbeat(HeartbeatData("c", [], [ConsumerData(group)]))
    return RemotingCommand.request(RequestCode.HEART_BEAT, body=body)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds that nobody announces."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition did not come true within ten seconds")


async def test_everything_survives_a_restart(tmp_path: Path) -> None:
    """Topics, groups, offsets and messages are there after a stop and a start."""
    client = RemotingClient()
    first = make_broker(tmp_path)
    await first.start()
    for number in range(3):
        answer = await client.request(first.address, send_request("T", b"%d" % number), 3)
        assert answer.code == ResponseCode.SUCCESS
    first.groups.update(SubscriptionGroupConfig("G", retry_max_times=2))
    first.offsets.commit("G", "T", 0, 2)
    await first.shutdown()
    second = make_broker(tmp_path)
    await second.start()
    assert second.topics.select("T") == TopicConfig("T", 4, 4, 6)
    assert second.groups.select("G") == SubscriptionGroupConfig("G", retry_max_times=2)
    assert second.offsets.query("G", "T", 0) == 2
    answer = await client.request(second.address, pull_request("T", 0), 3)
    assert [message.body for message in decode_records(answer.body)] == [b"0", b"1", b"2"]
    assert second.store.state().recovered_records == 0
    await client.close()
    await second.shutdown()


async def test_a_stop_is_quick_and_clean(tmp_path: Path) -> None:
    """RocketMQ's mark of a crash is gone, the directory is free, and a second stop does nothing."""
    broker = make_broker(tmp_path)
    await broker.start()
    assert (tmp_path / "abort").exists()
    started = time.monotonic()
    await broker.shutdown()
    assert time.monotonic() - started < at_most_s(2, 20)
    assert not (tmp_path / "abort").exists()
    await broker.shutdown()
    again = make_broker(tmp_path)
    await again.start()
    await again.shutdown()


async def test_a_stop_goes_on_when_its_caller_gives_up(tmp_path: Path) -> None:
    """Two signals, or an impatient caller, do not leave the store half closed."""
    broker = make_broker(tmp_path)
    await broker.start()
    impatient = asyncio.create_task(broker.shutdown())
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.gather(broker.shutdown(), broker.shutdown())
    assert impatient.cancelled()
    assert not (tmp_path / "abort").exists()


async def test_waiting_pulls_are_answered_at_the_end(tmp_path: Path) -> None:
    """A consumer whose pull is held hears NOT_FOUND when the broker stops, and no silence."""
    client = RemotingClient()
    broker = make_broker(tmp_path)
    await broker.start()
    await client.request(broker.address, send_request("T", b"one"), 3)
    pull = asyncio.create_task(client.request(broker.address, pull_request("T", 1, 15_000), 20))
    await eventually(lambda: len(broker.pull_holds) == 1)
    await broker.shutdown()
    answer = await asyncio.wait_for(pull, 1)
    await client.close()
    assert answer.code == ResponseCode.PULL_NOT_FOUND


async def test_offsets_are_saved_while_the_broker_runs(tmp_path: Path) -> None:
    """A crash costs no more offsets than those of one flushConsumerOffsetInterval."""
    broker = make_broker(tmp_path, flush_consumer_offset_interval=10)
    await broker.start()
    broker.offsets.commit("G", "T", 0, 7)
    file = tmp_path / "config" / "consumerOffset.json"
    await eventually(file.exists)
    content = file.read_bytes()
    await broker.shutdown()
    assert b'"T@G"' in content


async def test_a_damaged_table_stops_the_start(tmp_path: Path) -> None:
    """Nothing is overwritten: whoever repairs the file finds it as it was."""
    config = tmp_path / "config"
    config.mkdir()
    (config / "topics.json").write_bytes(b"{not json")
    broker = make_broker(tmp_path)
    with pytest.raises(DamagedStoreError, match=r"topics\.json cannot be read"):
        await broker.start()
    assert [path.name for path in config.iterdir()] == ["topics.json"]
    assert (config / "topics.json").read_bytes() == b"{not json"


async def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """Where the port is taken, the directory is closed cleanly and can be used at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = make_broker(tmp_path, listen_port=taken.getsockname()[1])
        with pytest.raises(OSError, match="address already in use"):
            await broker.start()
    assert not (tmp_path / "abort").exists()
    again = make_broker(tmp_path)
    await again.start()
    await again.shutdown()


async def test_two_brokers_cannot_share_a_directory(tmp_path: Path) -> None:
    """The second is refused, and the first goes on; its tables are not touched."""
    first = make_broker(tmp_path)
    await first.start()
    second = make_broker(tmp_path, disk=_LockedDisk())
    with pytest.raises(StoreBusyError, match="in use by another broker"):
        await second.start()
    client = RemotingClient()
    answer = await client.request(first.address, send_request("T", b"one"), 3)
    assert answer.code == ResponseCode.SUCCESS
    await client.close()
    await first.shutdown()


class _LockedDisk(RealDisk):
    """A disk whose locks are held by another process; within one process they would be free."""

    def lock(self, path: str, text: str) -> Any:
        """Refuse."""
        raise BlockingIOError(errno.EAGAIN, f"{path} is locked by another process")


async def test_consumers_come_in_on_a_full_disk(tmp_path: Path) -> None:
    """They are what drains it: a new group works although it cannot be saved yet, and is saved
    once there is room."""
    disk = FaultyDisk(RealDisk())
    broker = make_broker(tmp_path, disk=disk, flush_consumer_offset_interval=10)
    await broker.start()
    disk.inject(Fault(("create", "pwrite"), 1, errno.ENOSPC, sticky=True))
    client = RemotingClient()
    answer = await client.request(broker.address, heartbeat_request("G"), 3)
    assert answer.code == ResponseCode.SUCCESS
    disk.heal()
    file = tmp_path / "config" / "topics.json"
    await eventually(lambda: file.exists() and b"%RETRY%G" in file.read_bytes())
    await client.close()
    await broker.shutdown()


async def test_a_failed_background_task_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the broker hears of it and can end the process."""
    broker = make_broker(tmp_path)
    await broker.start()

    def background() -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(broker.store, "background", background)
    reason = await asyncio.wait_for(broker.wait_failed(), 5)
    await broker.shutdown()
    assert reason == "background task store background failed: RuntimeError('planted')"


@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_write_ends_the_rest_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_batch: bool
) -> None:
    """What goes on beside requests begins with the write, not after a rest (here an hour)."""
    monkeypatch.setattr(controller, "_IDLE_SLICE_S", 3600.0)
    broker = make_broker(tmp_path)
    await broker.start()
    ends_seen: list[int] = []
    background = broker.store.background

    def watched() -> None:
        ends_seen.append(broker.store.commit_log.end)
        background()

    monkeypatch.setattr(broker.store, "background", watched)
    client = RemotingClient()
    body = encode_batch([Message("T", b"m")], ["1"]) if is_batch else b"m"
    request = send_request("T", body)
    request.ext_fields["m"] = is_batch
    answer = await client.request(broker.address, request, 3)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await eventually(lambda: broker.store.commit_log.end in ends_seen)
    await client.close()
    await broker.shutdown()


class _SlowDisk(RealDisk):
    """A disk on which opening a store takes until `go` is set."""

    def __init__(self) -> None:
        """Begin slow."""
        super().__init__()
        self.opening = threading.Event()
        self.go = threading.Event()

    def lock(self, path: str, text: str) -> Callable[[], None]:
        """Wait, then lock."""
        self.opening.set()
        assert self.go.wait(10)
        return super().lock(path, text)


async def test_a_stop_during_recovery_waits_for_it(tmp_path: Path) -> None:
    """A start that is cancelled leaves no thread behind that still writes to the directory."""
    disk = _SlowDisk()
    broker = make_broker(tmp_path, disk=disk)
    start = asyncio.create_task(broker.start())
    await asyncio.to_thread(disk.opening.wait, 10)
    assert broker.phase == "recovering"
    start.cancel()
    done, _ = await asyncio.wait({start}, timeout=0.1)
    assert not done
    disk.go.set()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not (tmp_path / "abort").exists()
    again = make_broker(tmp_path)
    await again.start()
    await again.shutdown()


async def test_a_recovery_says_how_far_it_is(tmp_path: Path) -> None:
    """Whoever watches a long start can tell whether it gets on."""
    disk = _SlowDisk()
    broker = make_broker(tmp_path, disk=disk)
    context = WebContext(broker.settings, broker=broker)

    async def startup() -> tuple[int, Any]:
        request = make_mocked_request("GET", "/startupz")
        answer = await Probes(context).startupz(request)
        assert isinstance(answer.body, bytes)
        return answer.status, json.loads(answer.body)

    start = asyncio.create_task(broker.start())
    await asyncio.to_thread(disk.opening.wait, 10)
    for position in (0, 4711):
        broker.store.dispatch.dispatched_offset = position
        status, body = await startup()
        assert (status, body["phase"]) == (503, "recovering")
        assert body["recovered_physical_offset"] == position
    disk.go.set()
    await start
    context.phase = "serving"
    status, body = await startup()
    assert status == 200
    assert "recovered_physical_offset" not in body
    await broker.shutdown()
