"""A broker's store and schedule over a simulated disk, whose clocks a test moves."""

import json
from collections.abc import Callable
from typing import Any

from mailboat.broker.schedule import ScheduleMessageService
from mailboat.broker.stats import BrokerStats
from mailboat.disk import read_file
from mailboat.model.record import decode_record
from mailboat.store.message_inner import MessageInner, PutStatus
from mailboat.store.message_store import MessageStore
from mailboat.store.retention import Pressure
from mailboat.testing.simulated_disk import SimulatedDisk
from mailboat.testing.store_simulator import HOST, small_config

LEVELS = "1s 5s 10s"


class Life:
    """One run of a broker's store and schedule over a disk."""

    def __init__(
        self,
        disk: SimulatedDisk | None = None,
        *,
        levels: str = LEVELS,
        flush_disk_type: str = "ASYNC_FLUSH",
        wrap: Callable[[SimulatedDisk], Any] = lambda disk: disk,
        **changes: Any,
    ) -> None:
        """Open the store and find what is parked."""
        self.disk = disk or SimulatedDisk()
        config = small_config(
            flush_disk_type,
            message_delay_level=levels,
            **({"file_reserved_time": 72, "mapped_file_size_commit_log": 1 << 20} | changes),
        )
        self.store = MessageStore(config, wrap(self.disk), store_host=HOST)
        self.store.open()
        self.stats = BrokerStats()
        self.flush_is_stuck = False
        self.schedule = ScheduleMessageService(
            self.store, config, wrap(self.disk), self.stats, self._wait_flushed
        )
        self.schedule.load()
        self.schedule.open()
        self.parked = 0

    def _wait_flushed(self, end: int, done: Callable[[bool], None]) -> None:
        if not self.flush_is_stuck:
            self.flush()
        done(self.store.flushed_offset >= end)

    def flush(self) -> None:
        """Flush what is written."""
        job = self.store.begin_flush()
        if job is not None:
            job.run()
            self.store.finish_flush(job, None)

    def park(
        self, level: int, *, body: bytes = b"", topic: str = "T", **properties: str
    ) -> MessageInner:
        """Park a message for queue 2 of a topic; the properties are the client's."""
        self.parked += 1
        everything = {"UNIQ_KEY": f"U{self.parked}", "TAGS": "a", "DELAY": str(level), **properties}
        message = MessageInner(
            topic, 2, body or b"%d" % self.parked, b"", 0, everything["UNIQ_KEY"], None, 7, 0, 123,
            HOST, 1,
        )  # fmt: skip
        self.schedule.park(message, everything, level)
        self.store.put_messages([message])
        return message

    def work(self) -> None:
        """Deliver all that is due."""
        while self.schedule.deliver_slice():
            pass

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass in small steps, delivering all the while."""
        for _ in range(milliseconds // 50):
            self.disk.advance(0.05)
            self.work()
        self.disk.advance(milliseconds % 50 / 1000)
        self.work()

    def fill_segments(self, count: int) -> None:
        """Store other messages until the log has so many segments, all durable and derived."""
        while len(self.store.commit_log.segments) < count:
            other = MessageInner("F", 0, bytes(4_000), b"", 0, "F", None, 0, 0, 1, HOST)
            self.store.put_messages([other])
            assert other.status == PutStatus.PUT_OK
            self.store.background()
        for _ in range(20):
            self.disk.advance(10)
            self.flush()
            self.store.background()

    def let_clean(self) -> None:
        """Let everything go that may, on a disk that is full and where all else is read."""
        full = Pressure(in_window=False, expire=True, force_clean=True)
        self.store.retention.pressure = lambda freed_bytes=0: full  # type: ignore[method-assign]

        def read_position() -> int:
            needed = self.schedule.unread_position()
            return self.store.commit_log.end if needed is None else needed

        self.store.cleaner.read_position = read_position
        for _ in range(3):
            self.store.clean()
            self.store.background()

    def bodies(self, topic: str = "T") -> list[bytes]:
        """Return what was delivered to queue 2 of a topic, in order."""
        queue = self.store.queues.get(topic, 2)
        bodies = []
        for queue_offset in range(
            queue.min_offset if queue else 0, queue.max_offset if queue else 0
        ):
            assert queue is not None
            unit = queue.unit(queue_offset)
            assert unit is not None
            record = self.store.look_message_by_offset(unit[0])
            assert record is not None
            bodies.append(decode_record(record)[0].body)
        return bodies

    async def save(self) -> None:
        """Save the progress, as every five seconds."""
        await self.schedule.persist()

    def end(self) -> SimulatedDisk:
        """End in good order; return the disk."""
        self.store.close()
        self.schedule.persist_blocking()
        return self.disk


def saved_progress(disk: SimulatedDisk) -> Any:
    """Return the file of the progress, decoded."""
    (path,) = [path for path in disk.walk() if path.endswith("/delayOffset.json")]
    return json.loads(read_file(disk, path))
