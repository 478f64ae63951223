"""Promises of mailboat.broker.state_saver."""

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mailboat.broker.state_saver import StateSaver
from mailboat.disk import read_file
from mailboat.disk.json_file import JsonFile
from mailboat.remoting.turns import SERVER, Asker, asker
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.testing.simulated_disk import SimulatedDisk

PATH = "/store/config/topics.json"


class Counter:
    """A table of one number, and a saver for it."""

    def __init__(self, file: JsonFile) -> None:
        """Save to `file`."""
        self.value = 0
        self.saver = StateSaver(file, lambda: iter([str(self.value).encode()]))

    def increment(self) -> None:
        """Change the table."""
        self.value += 1
        self.saver.mark_changed()


class SlowFile(JsonFile):
    """A file whose next save waits for `go`, and that remembers what was saved."""

    def __init__(self) -> None:
        """Keep everything in memory."""
        super().__init__(SimulatedDisk(), PATH)
        self.go = threading.Event()
        self.entered = threading.Event()
        self.contents: list[bytes] = []

    def save(self, content: bytes) -> None:
        """Wait, then save."""
        self.entered.set()
        assert self.go.wait(10)
        super().save(content)
        self.contents.append(content)


async def test_saves_that_come_during_a_write_share_the_next_one() -> None:
    """A hundred callers during one write cost one more write, which holds all their changes."""
    file = SlowFile()
    table = Counter(file)
    table.increment()
    first = asyncio.create_task(table.saver.save())
    await asyncio.to_thread(file.entered.wait, 10)
    callers = []
    for _ in range(100):
        table.increment()
        callers.append(asyncio.create_task(table.saver.save()))
    file.go.set()
    await asyncio.gather(first, *callers)
    assert file.contents == [b"1", b"101"]
    assert not table.saver.is_changed


async def test_an_older_state_never_overwrites_a_newer_one() -> None:
    """A blocking save wins over one that was handed to a thread before it and runs after it."""
    disk = SimulatedDisk()
    table = Counter(JsonFile(disk, PATH))
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    gate = threading.Event()
    blocker = loop.run_in_executor(None, gate.wait, 10)
    table.increment()
    encoded = asyncio.Event()

    async def note() -> None:
        encoded.set()

    table.saver.before_write = note
    older = asyncio.create_task(table.saver.save())
    await encoded.wait()
    table.increment()
    table.saver.save_blocking()
    gate.set()
    await asyncio.gather(blocker, older)
    assert read_file(disk, PATH) == b"2"


async def test_what_many_wait_for_is_saved_on_nobodys_account() -> None:
    """A save stands behind no peer's requests, whoever happened to ask for it first."""
    table = Counter(JsonFile(SimulatedDisk(), PATH))
    askers: list[Asker] = []

    async def note() -> None:
        askers.append(asker.get())

    table.saver.before_write = note
    asker.set(Asker("10.0.0.1", "somebody"))
    table.increment()
    await table.saver.save()
    assert askers == [SERVER]


async def test_a_failed_save_is_tried_again() -> None:
    """After an error the table counts as changed, so that the next round saves it."""
    disk = FaultyDisk(SimulatedDisk())
    table = Counter(JsonFile(disk, PATH))
    table.increment()
    disk.inject(Fault(("fdatasync",), 1, errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        await table.saver.save()
    assert table.saver.is_changed
    await table.saver.save()
    assert read_file(disk, PATH) == b"1"
