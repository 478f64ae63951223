"""The log on its way to a follower: all of it, without anybody writing meanwhile."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mailboat.broker.replicas.link import Link
from mailboat.broker.replicas.log_stream import LogStream
from mailboat.broker.replicas.pace import Pace
from mailboat.disk.real import RealDisk
from mailboat.replication.frames import Data
from mailboat.replication.wire import Message
from mailboat.store.message_store import MessageStore
from mailboat.testing.history import History
from mailboat.testing.store_simulator import HOST, make_message, small_config

_Done = Callable[[Any, BaseException | None], None]


class _Receiver(Link):
    """A link whose other side reads so many frames at a time."""

    def __init__(self, frames_at_once: int) -> None:
        super().__init__(None, b"", dialed="a:1")  # type: ignore[arg-type]
        self.frames: list[Data] = []
        self._left = self._frames_at_once = frames_at_once

    def send(self, message: Message) -> None:
        assert isinstance(message, Data)
        self.frames.append(message)
        self._left -= 1
        self.has_room = self._left > 0

    def read(self) -> None:
        self._left = self._frames_at_once
        self.has_room = True


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    """A store with 24 MB: what lies at its begin counts as cold."""
    config: Any = small_config(
        "ASYNC_FLUSH",
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=10 << 20,
        max_message_size=1 << 20,
    )
    store = MessageStore(config, RealDisk(), store_host=HOST)
    store.open()
    history = History()
    for number in range(48):
        store.put_messages(
            [make_message(history.send("orders", 0, bytes([number]) * 500_000), f"U{number}")]
        )
    assert store.replica.end > 24_000_000
    return store


def _run_on_thread(job: Callable[[], Any], done: _Done) -> None:
    loop = asyncio.get_running_loop()
    future = loop.run_in_executor(None, job)

    def tell(ended: asyncio.Future[Any]) -> None:
        error = ended.exception()
        done(None if error else ended.result(), error)

    future.add_done_callback(tell)


def _never(physical_offset: int) -> None:
    raise AssertionError(f"nothing is damaged at {physical_offset}")


@pytest.mark.parametrize("frames_at_once", [1, 3, 1000])
async def test_all_of_the_log_is_sent(store: MessageStore, frames_at_once: int) -> None:
    """From the first byte to the last, in order, however slowly the follower reads."""
    link = _Receiver(frames_at_once)
    stream = LogStream(
        link, store.replica, _run_on_thread, Pace(0.0, 0), lambda _: True, _never, 7, 8, 0
    )
    stream.pump()
    async with asyncio.timeout(20):
        while stream.physical_offset < store.replica.end:
            await asyncio.sleep(0)
            if not link.has_room:
                link.read()
                stream.pump()
    assert [frame.physical_offset for frame in link.frames] == [
        0,
        *(frame.end for frame in link.frames[:-1]),
    ]
    assert link.frames[-1].end == store.replica.end
    assert {(frame.session, frame.epoch) for frame in link.frames} == {(7, 8)}
    store.close()


async def test_what_is_replaced_sends_no_more(store: MessageStore) -> None:
    """A read that comes back after the follower has begun another session is dropped."""
    link = _Receiver(1000)
    is_current = True
    jobs: list[tuple[Callable[[], Any], _Done]] = []
    stream = LogStream(
        link,
        store.replica,
        lambda job, done: jobs.append((job, done)),
        Pace(0.0, 0),
        lambda _: is_current,
        _never,
        7,
        8,
        0,
    )
    stream.pump()
    [(job, done)] = jobs
    is_current = False
    done(job(), None)
    assert link.frames == []
    store.close()


async def test_a_damaged_record_is_not_sent_first(store: MessageStore, tmp_path: Path) -> None:
    """Whoever begins in front of damage gets what is good, and the place of the rest is told."""
    unit = store.queues.get_or_add("orders", 0).unit(1)
    assert unit is not None
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(unit[0] + 1000)
        file.write(b"damaged")
    link = _Receiver(1000)
    found: list[int] = []
    stream = LogStream(
        link, store.replica, _run_on_thread, Pace(0.0, 0), lambda _: True, found.append, 7, 8, 0
    )
    stream.pump()
    async with asyncio.timeout(20):
        while not found:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
    assert found == [unit[0]]
    assert [(frame.physical_offset, frame.end) for frame in link.frames] == [(0, unit[0])]
    store.close()
